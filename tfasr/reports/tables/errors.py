"""The tables of an error report: rates, comparisons, speakers, confusions."""

import math

from tfasr.analysis.errors import ErrorReport, System
from tfasr.display.table import REFUSED, UNKNOWN, Table
from tfasr.scoring.alignment import alignment_text, confusions, worst
from tfasr.scoring.bootstrap import FEWEST_SPEAKERS, RESAMPLES, Interval
from tfasr.scoring.paired import PairedComparison, probability_text, verdict
from tfasr.scoring.speakers import RATES, SpeakerRow, speaker_rows, summary_rows

MOST_IN_DETAIL = 6
"""Systems whose speakers, confusions and alignments are shown; files have them all."""

_MOST_CONFUSIONS = 10


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
    rows = []
    for system in report.systems:
        summary = system.summary
        counts = summary.counts
        rows.append(
            [
                system.name,
                str(counts.utterances),
                str(counts.words),
                _percent(counts.wer, 2),
                _range(summary.wer_interval),
                _range(summary.wer_interval_by_speaker),
                _percent(counts.cer, 2),
                _range(summary.cer_interval),
                _range(summary.cer_interval_by_speaker),
            ]
        )
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
    columns = ["System", "utterances", "words", "WER %", "95 %", "95 % by\nspeaker", "CER %"]
    return Table("Errors", [*columns, "95 % ", "95 % by\nspeaker "], rows, notes)


def _comparison_table(report: ErrorReport) -> Table:
    first = report.systems[0].name
    tests = sum(isinstance(comparison, PairedComparison) for comparison in report.comparisons)
    rows, notes = [], []
    for system, comparison in zip(report.systems[1:], report.comparisons, strict=True):
        if isinstance(comparison, str):
            rows.append([system.name, *[REFUSED] * 8])
            notes.append(f"{system.name} is not compared with {first}. {comparison}")
        else:
            rows.append([system.name, *_comparison_cells(comparison)])
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
    columns = ["System", "WER\ndifference", "95 %", "95 % by\nspeaker", "better\n%",
               "fewer / more\nerrors in", "z", "p", "permutation\np"]  # fmt: skip
    return Table(f"Word errors against {first}", columns, rows, notes)


def _comparison_cells(comparison: PairedComparison) -> list[str]:
    resampled, by_speaker = comparison.by_utterance, comparison.by_speaker
    return [
        f"{100 * comparison.wer_difference:+.2f}",
        _range(resampled and resampled.interval, sign="+"),
        _range(by_speaker and by_speaker.interval, sign="+"),
        UNKNOWN if resampled is None else f"{100 * resampled.probability_of_improvement:.1f}",
        f"{comparison.fewer_errors} / {comparison.more_errors}",
        UNKNOWN if comparison.matched_pairs_z is None else f"{comparison.matched_pairs_z:+.2f}",
        *(
            UNKNOWN if p is None else probability_text(p)
            for p in (comparison.matched_pairs_p, comparison.permutation_p)
        ),
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
    rates = [_percent(row.rates[name], 1) for name in RATES]
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


def _percent(rate: float, digits: int) -> str:
    return UNKNOWN if math.isnan(rate) else f"{100 * rate:.{digits}f}"


def _range(interval: Interval | None, sign: str = "") -> str:
    if not interval:
        return UNKNOWN
    return " to ".join(f"{100 * end:{sign}.1f}" for end in interval)
