"""The tables of an error report: rates, comparisons, speakers, confusions."""

import math
from collections.abc import Callable
from typing import Any

from tfasr.analysis.errors import ErrorReport, System
from tfasr.display.table import REFUSED, UNKNOWN, Column, Table, fixed, percent, table_of
from tfasr.scoring.alignment import alignment_text, confusions, worst
from tfasr.scoring.bootstrap import FEWEST_SPEAKERS, RESAMPLES, Interval
from tfasr.scoring.paired import PairedComparison, probability_text, verdict
from tfasr.scoring.speakers import RATES, SpeakerRow, speaker_rows, summary_rows

MOST_IN_DETAIL = 6
"""Systems whose speakers, confusions and alignments are shown; files have them all."""

_MOST_CONFUSIONS = 10


def _rate(rate: float) -> float | None:
    return None if math.isnan(rate) else rate


def _range(interval: Interval, sign: str = "") -> str:
    return " to ".join(f"{100 * end:{sign}.1f}" for end in interval)


def error_tables(report: ErrorReport) -> list[Table]:
    """Returns all tables of a report: rates and comparisons of all systems, details of some."""
    tables = [_rates_table(report)]
    if len(report.systems) > 1:
        tables.append(_comparison_table(report))
    for system in report.systems[:MOST_IN_DETAIL]:
        tables.append(speaker_table(system))
        tables.append(_confusion_table(system))
    return tables


def worst_alignments(report: ErrorReport) -> dict[str, str]:
    """Returns the alignments of the utterances with the most errors, as text by system's name."""
    return {
        system.name: "\n".join(
            alignment_text(scored) for scored in worst(system.scored, report.worst)
        )
        for system in report.systems[:MOST_IN_DETAIL]
    }


def _rates_table(report: ErrorReport) -> Table:
    notes = [
        f"95 %: from {RESAMPLES} bootstrap resamples of utterances, which allow for other "
        "utterances of the same speakers, not for other seeds of training. By speaker: of "
        f"speakers as a whole, from {FEWEST_SPEAKERS} on, which also allows for other speakers. "
        "Both widened for few (expanded percentiles). CER: over the longer of reference and "
        "hypothesis.",
        *(f"{system.name}: {note}." for system in report.systems for note in system.notes),
        *report.notes,
    ]
    if len(report.systems) > MOST_IN_DETAIL:
        notes.append(f"Details below are of the first {MOST_IN_DETAIL} systems.")
    return table_of("Errors", _RATES, report.systems, notes)


_RATES: list[Column[System]] = [
    Column("System", "", lambda system: system.name),
    Column("utterances", "", lambda system: system.summary.counts.utterances),
    Column("words", "", lambda system: system.summary.counts.words),
    Column("WER %", "", lambda system: _rate(system.summary.counts.wer), fixed(2, 100)),
    Column("95 %", "", lambda system: system.summary.wer_interval, _range),
    Column("95 % by\nspeaker", "", lambda system: system.summary.wer_interval_by_speaker, _range),
    Column("CER %", "", lambda system: _rate(system.summary.counts.cer), fixed(2, 100)),
    Column("95 % ", "", lambda system: system.summary.cer_interval, _range),
    Column("95 % by\nspeaker ", "", lambda system: system.summary.cer_interval_by_speaker, _range),
]


def _comparison_table(report: ErrorReport) -> Table:
    first = report.systems[0].name
    tests = sum(isinstance(comparison, PairedComparison) for comparison in report.comparisons)
    rows = list(zip(report.systems[1:], report.comparisons, strict=True))
    notes = []
    for system, comparison in rows:
        if isinstance(comparison, str):
            notes.append(f"{system.name} is not compared with {first}. {comparison}")
        else:
            notes.append(f"{system.name}: {verdict(comparison, first, system.name, tests)}.")
    notes.append(
        "WER difference in points, below 0 is better than the first. Better: share of resamples in "
        "which it is. z and p: matched-pairs test on errors per utterance, whole utterances as "
        "segments. Permutation p: exchanging the two systems by speaker where "
        f"{FEWEST_SPEAKERS} or more are known, else by utterance; the verdict goes by it. It "
        "is about these hypotheses; other seeds of training would give others."
    )
    if tests > 1:
        notes.append(
            f"{tests} comparisons at once: each must reach p < 0.05 / {tests} (Bonferroni)."
        )
    return table_of(f"Word errors against {first}", _COMPARISON, rows, notes)


def _compared(
    heading: str, value: Callable[[PairedComparison], Any], text: Callable[[Any], str] = str
) -> Column:
    def of_row(row: tuple[System, PairedComparison | str]) -> Any:
        return None if isinstance(row[1], str) else value(row[1])

    def missing(row: tuple[System, PairedComparison | str]) -> str:
        return REFUSED if isinstance(row[1], str) else UNKNOWN

    return Column(heading, "", of_row, text, missing)


def _signed_range(interval: Interval) -> str:
    return _range(interval, sign="+")


_COMPARISON: list[Column[tuple[System, PairedComparison | str]]] = [
    Column("System", "", lambda row: row[0].name),
    _compared("WER\ndifference", lambda c: c.wer_difference, lambda rate: f"{100 * rate:+.2f}"),
    _compared("95 %", lambda c: c.by_utterance and c.by_utterance.interval, _signed_range),
    _compared("95 % by\nspeaker", lambda c: c.by_speaker and c.by_speaker.interval, _signed_range),
    _compared(
        "better\n%",
        lambda c: c.by_utterance and c.by_utterance.probability_of_improvement,
        percent,
    ),
    _compared("fewer / more\nerrors in", lambda c: f"{c.fewer_errors} / {c.more_errors}"),
    _compared("z", lambda c: c.matched_pairs_z, "{:+.2f}".format),
    _compared("p", lambda c: c.matched_pairs_p, probability_text),
    _compared("permutation\np", lambda c: c.permutation_p, probability_text),
]


def speaker_table(system: System) -> Table:
    """Returns the table by speaker, as NIST's sclite has it; without speakers its last row."""
    by_speaker = speaker_rows(system.scored)
    rows = [_speaker_cells(row, "d") for row in by_speaker]
    sum_row, *others = summary_rows(system.scored, by_speaker)
    rows.append(_speaker_cells(sum_row, "d"))
    rows += [_speaker_cells(row, ".1f") for row in others]
    return Table(
        f"{system.name}: errors by speaker, % of words",
        ["Speaker", "# Snt", "# Wrd", "Corr", "Sub", "Del", "Ins", "Err", "S.Err"],
        rows,
        [] if by_speaker else ["The hypotheses do not say who speaks."],
    )


def _speaker_cells(row: SpeakerRow, figure: str) -> list[str]:
    rates = [UNKNOWN if math.isnan(rate) else percent(rate) for rate in map(row.rates.get, RATES)]
    return [row.name, format(row.utterances, figure), format(row.words, figure), *rates]


def _confusion_table(system: System) -> Table:
    counts = confusions(system.scored)
    columns = [
        [(f"{said} → {heard}", times) for (said, heard), times in counts.substitutions],
        counts.deletions,
        counts.insertions,
    ]
    shown = [column[:_MOST_CONFUSIONS] for column in columns]
    rows = []
    for index in range(max(map(len, shown))):
        cells = [column[index] if index < len(column) else ("", "") for column in shown]
        rows.append([str(index + 1), *(str(part) for cell in cells for part in cell)])
    kinds = [f"{len(column)} different {name}" for column, name in zip(
        columns, ("substitutions", "deletions", "insertions"), strict=True)]  # fmt: skip
    return Table(
        f"{system.name}: most frequent errors",
        ["#", "said → heard", "times", "left out", "times ", "added", "times  "],
        rows,
        [f"{', '.join(kinds)}."],
    )
