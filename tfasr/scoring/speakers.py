"""Error counts by speaker, and their mean, deviation and median over speakers."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tfasr.metrics import ErrorCounts
from tfasr.scoring.alignment import Scored
from tfasr.scoring.bootstrap import FEWEST_SPEAKERS

RATES = ("correct", "substitutions", "deletions", "insertions", "errors", "wrong_utterances")
"""The columns of `SpeakerRow.rates`: of words, the last one of utterances."""


@dataclass(frozen=True)
class SpeakerRow:
    name: str  # the speaker's, or what of all speakers the row says
    utterances: float  # how many; a mean is a fraction
    words: float  # of the references
    rates: dict[str, float]  # by the names of `RATES`, fractions; of speakers without a word NaN


def total(scored: Sequence[Scored]) -> ErrorCounts:
    return sum((utterance.counts for utterance in scored), ErrorCounts())


def speaker_blocks(speakers: Sequence[str]) -> list[str] | None:
    """Returns what to resample by, or None where speakers are unknown or too few for it."""
    if not all(speakers) or len(set(speakers)) < FEWEST_SPEAKERS:
        return None
    return list(speakers)


def speaker_rows(scored: Sequence[Scored]) -> list[SpeakerRow]:
    """Returns a row for each speaker, in the order of names; [] where no speaker is known.

    Utterances without a speaker are one speaker, named "(unknown)".
    """
    if not any(utterance.transcript.speaker for utterance in scored):
        return []
    counts: dict[str, ErrorCounts] = {}
    for utterance in scored:
        name = utterance.transcript.speaker or "(unknown)"
        counts[name] = counts.get(name, ErrorCounts()) + utterance.counts
    return [_row(name, counts[name]) for name in sorted(counts)]


def summary_rows(scored: Sequence[Scored], rows: Sequence[SpeakerRow]) -> list[SpeakerRow]:
    """Returns the rows below those of speakers: the sum, and mean, deviation and median of them.

    The sum's rates are over all words; the mean's weigh every speaker alike, and leave out those
    without a word. The deviation is that of a sample (n - 1), and needs two speakers.

    Source: the .sys report of NIST's sclite (github.com/usnistgov/SCTK).
    """
    found = [_row("Sum/Avg", total(scored))]
    if len(rows) > 1:
        found.append(_summary("Mean", rows, statistics.fmean))
        found.append(_summary("S.D.", rows, statistics.stdev))
        found.append(_summary("Median", rows, statistics.median))
    return found


def _summary(name: str, rows: Sequence[SpeakerRow], summarise) -> SpeakerRow:
    spoken = [row for row in rows if row.words]
    rates = {
        rate: float(summarise([row.rates[rate] for row in spoken]))
        if len(spoken) > 1
        else float("nan")
        for rate in RATES
    }
    utterances = float(summarise([row.utterances for row in rows]))
    return SpeakerRow(name, utterances, float(summarise([row.words for row in rows])), rates)


def _row(name: str, counts: ErrorCounts) -> SpeakerRow:
    words = counts.words or float("nan")
    kinds = ("correct_words", "substitutions", "deletions", "insertions", "word_edits")
    rates = [getattr(counts, kind) / words for kind in kinds]
    rates.append(counts.wrong_utterances / counts.utterances if counts.utterances else float("nan"))
    return SpeakerRow(name, counts.utterances, counts.words, dict(zip(RATES, rates, strict=True)))
