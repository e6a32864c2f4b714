"""Error rates of one system, or of two compared, with bootstrap confidence intervals.

Takes the counts of `tfasr.scoring.errors`; reports and ``tfasr evaluate`` show the
results. Few utterances or speakers give None instead of an interval that claims too
much. All random draws have fixed seeds, so the same transcripts give the same numbers.
"""

import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from tfasr.errors import UsageError
from tfasr.scoring.errors import ErrorCounts, Scored, matched

CONFIDENCE = 0.95  # of all intervals
RESAMPLES = 10_000  # of the bootstrap
FEWEST_SPEAKERS = 5  # to resample by speaker; five allow 126 different resamples
_MOST_AT_ONCE = 2_000_000  # numbers drawn at once, which limits memory
Interval = tuple[float, float]  # its ends


@dataclass(frozen=True)
class DifferenceInterval:
    """The difference between two error rates, second minus first, by the bootstrap."""

    interval: Interval  # fractions
    # share of resamples in which the second is better; ties count half
    probability_of_improvement: float


def rate_interval(
    edits: Sequence[int],
    lengths: Sequence[int],
    *,
    blocks: Sequence[Hashable] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """Returns the 95 % confidence interval of an error rate, as fractions.

    Utterances are drawn with replacement, as many as there are, and the interval lies
    between percentiles of the rates of such resamples. None for fewer than two
    utterances or blocks.

    Args:
        edits: of each utterance. The rate is their sum over the sum of ``lengths``.
        lengths: of each utterance, in words or characters.
        blocks: such as each utterance's speaker. Whole blocks are drawn, which allows
            for the correlation within a block.
        resamples: how many.
        seed: of the draws.

    Source: Bisani and Ney 2004 (doi 10.1109/ICASSP.2004.1326009); with blocks: Liu and
    Peng 2020 (arXiv 1912.09508).
    """
    sums = _block_sums([edits, lengths], blocks)
    if sums.shape[1] < 2:
        return None

    return _percentiles(sums, _rate, resamples, seed)[0]


def difference_interval(
    first_edits: Sequence[int],
    second_edits: Sequence[int],
    lengths: Sequence[int],
    *,
    blocks: Sequence[Hashable] | None = None,
) -> DifferenceInterval | None:
    """Returns the interval of the difference between two systems' rates.

    Both are rated on the same resamples of the same utterances, so what makes an
    utterance hard for both cancels. None for fewer than two utterances or blocks.

    Raises:
        ValueError: if the sequences differ in length.

    Source: Bisani and Ney 2004 (doi 10.1109/ICASSP.2004.1326009): the probability of
    improvement.
    """
    sums = _block_sums([first_edits, second_edits, lengths], blocks)
    if sums.shape[1] < 2:
        return None

    def difference(
        first: np.ndarray,
        second: np.ndarray,
        lengths: np.ndarray,
        axis: int,
    ):
        return _rate(second, lengths, axis) - _rate(first, lengths, axis)

    interval, differences = _percentiles(sums, difference, RESAMPLES, 0)
    # A negative difference: the second system makes fewer errors.
    better = np.mean(differences < 0)
    equal = np.mean(differences == 0)

    return DifferenceInterval(interval, float(better + equal / 2))


def _percentiles(
    sums: np.ndarray,
    statistic,
    resamples: int,
    seed: int,
) -> tuple[Interval, np.ndarray]:
    """Returns the interval of a statistic of resampled columns, and its distribution.

    ``sums`` is ``(columns, blocks)``; ``statistic`` gets the columns and an axis.
    """
    from scipy.stats import bootstrap  # imported late: most reports don't need SciPy

    drawn = sums.shape[1]
    result = bootstrap(
        tuple(sums),
        statistic,
        paired=True,
        vectorized=True,
        method="percentile",
        confidence_level=_widened(drawn),
        n_resamples=resamples,
        # Limits memory.
        batch=max(1, _MOST_AT_ONCE // drawn),
        rng=np.random.default_rng(seed),
    )
    ends = result.confidence_interval

    return (float(ends.low), float(ends.high)), result.bootstrap_distribution


def _widened(drawn: int) -> float:
    """Returns the level at which percentiles give a 95 % interval for few items.

    The spread of resamples of n items is too small by ``sqrt((n - 1) / n)``, and they
    follow a normal distribution instead of Student's t: wider percentiles correct both.

    Source: Hesterberg 2015 (doi 10.1080/00031305.2015.1089789), section 5.3, the
    expanded percentile interval.
    """
    from scipy.stats import norm, t

    quantile = t.ppf((1 + CONFIDENCE) / 2, drawn - 1) * math.sqrt(drawn / (drawn - 1))
    return float(1 - 2 * norm.sf(quantile))


def _rate(edits: np.ndarray, lengths: np.ndarray, axis: int) -> np.ndarray:
    total = edits.sum(axis=axis)
    length = lengths.sum(axis=axis)
    # Any text for an empty reference is 100 % wrong, as in tfasr.scoring.errors.
    return np.where(length > 0, total / np.maximum(length, 1), np.sign(total))


def _block_sums(
    columns: Sequence[Sequence[int]], blocks: Sequence[Hashable] | None
) -> np.ndarray:
    """Returns each column summed over the utterances of a block, ``(columns, blocks)``.

    Without blocks, each utterance is one.
    """
    if len({len(column) for column in (*columns, blocks or columns[0])}) > 1:
        raise ValueError(
            "Every utterance must have its edits, its length and its block. Received lengths: "
            f"{[len(column) for column in columns]}, blocks: {blocks and len(blocks)}."
        )

    values = np.array(columns, dtype=float).reshape(len(columns), -1)
    if blocks is None:
        return values

    numbers: dict[Hashable, int] = {}
    # Blocks are numbered in the order in which they first occur.
    of_utterance = [numbers.setdefault(block, len(numbers)) for block in blocks]

    return np.array(
        [np.bincount(of_utterance, column, len(numbers)) for column in values]
    )


RATES = (
    "correct",
    "substitutions",
    "deletions",
    "insertions",
    "errors",
    "wrong_utterances",
)
"""The columns of `SpeakerRow.rates`: shares of words, except the last, a share of utterances."""
LEVEL = 0.05  # of significance
FEWEST_FOR_TEST = 5  # with four, no choice of signs is rarer than 0.125
_RESAMPLES = 9999  # random choices of signs in the permutation test


@dataclass(frozen=True)
class SpeakerRow:
    """Error rates of one speaker, or a statistic over all speakers.

    Attributes:
        name: of the speaker or statistic.
        utterances: how many.
        words: of the references.
        rates: fractions by the names of `RATES`; NaN for a speaker without words.
    """

    name: str
    utterances: float
    words: float
    rates: dict[str, float]


def total(scored: Sequence[Scored]) -> ErrorCounts:
    """Adds up the errors of all utterances."""
    return sum((utterance.counts for utterance in scored), ErrorCounts())


def speaker_blocks(speakers: Sequence[str]) -> list[str] | None:
    """Returns the speakers as blocks to resample; None if some are unknown, or few."""
    if not all(speakers) or len(set(speakers)) < FEWEST_SPEAKERS:
        return None

    return list(speakers)


def speaker_rows(scored: Sequence[Scored]) -> list[SpeakerRow]:
    """Returns a row per speaker, sorted by name; [] if no speaker is known.

    Utterances of unknown speakers are in the row "(unknown)".
    """
    if not any(utterance.transcript.speaker for utterance in scored):
        return []

    counts: dict[str, ErrorCounts] = {}
    for utterance in scored:
        name = utterance.transcript.speaker or "(unknown)"
        counts[name] = counts.get(name, ErrorCounts()) + utterance.counts

    return [_row(name, counts[name]) for name in sorted(counts)]


def summary_rows(
    scored: Sequence[Scored], rows: Sequence[SpeakerRow]
) -> list[SpeakerRow]:
    """Returns the rows below the speakers: their sum, mean, standard deviation and median.

    The sum's rates are over all words. The mean weighs speakers equally and leaves out
    those without words. The standard deviation is a sample's (n - 1) and needs two
    speakers.

    Source: the .sys report of NIST's sclite (github.com/usnistgov/SCTK).
    """
    kinds = {
        "Mean": statistics.fmean,
        "S.D.": statistics.stdev,
        "Median": statistics.median,
    }
    over_speakers = [
        _summary(name, rows, kinds[name]) for name in kinds if len(rows) > 1
    ]
    return [_row("Sum/Avg", total(scored)), *over_speakers]


def _summary(name: str, rows: Sequence[SpeakerRow], summarise) -> SpeakerRow:
    """Returns a statistic over speakers as a row."""
    spoken = [row for row in rows if row.words]
    rates = dict.fromkeys(RATES, float("nan"))
    if len(spoken) > 1:
        rates = {
            rate: float(summarise([row.rates[rate] for row in spoken]))
            for rate in RATES
        }

    utterances = float(summarise([row.utterances for row in rows]))

    return SpeakerRow(
        name,
        utterances,
        float(summarise([row.words for row in rows])),
        rates,
    )


def _row(name: str, counts: ErrorCounts) -> SpeakerRow:
    """Returns counts as a row of rates."""
    # NaN for a speaker without words, whom means leave out.
    words = counts.words or float("nan")
    kinds = ("correct_words", "substitutions", "deletions", "insertions", "word_edits")
    rates = [getattr(counts, kind) / words for kind in kinds]
    utterances = counts.utterances or float("nan")
    rates.append(counts.wrong_utterances / utterances)

    return SpeakerRow(
        name,
        counts.utterances,
        counts.words,
        dict(zip(RATES, rates, strict=True)),
    )


@dataclass(frozen=True)
class PairedComparison:
    """Word errors of a second system compared with a first one's; None means unknown.

    Attributes:
        utterances: that were compared.
        fewer_errors: utterances in which the second system makes fewer errors.
        more_errors: utterances in which it makes more.
        wer_difference: the second system's WER minus the first one's, a fraction.
        by_utterance: bootstrap of that difference over utterances.
        by_speaker: the same over speakers, if there are enough.
        matched_pairs_z: mean difference of errors per utterance, second minus first,
            over its standard error.
        matched_pairs_p: two-sided, by Student's t.
        permutation_p: two-sided, by swapping the systems' results at random, by speaker
            if there are enough.
        exchanged: what is swapped as a whole: "speaker" or "utterance".
        speakers: how many; None if unknown for some utterance.
    """

    utterances: int
    fewer_errors: int
    more_errors: int
    wer_difference: float
    by_utterance: DifferenceInterval | None
    by_speaker: DifferenceInterval | None
    matched_pairs_z: float | None
    matched_pairs_p: float | None
    permutation_p: float | None
    exchanged: str = "utterance"
    speakers: int | None = None


def compare_pairs(
    first: Sequence[Scored], second: Sequence[Scored]
) -> PairedComparison:
    """Compares the word errors of two systems over the same utterances and references.

    Source: Gillick and Cox 1989 (doi 10.1109/ICASSP.1989.266481), the matched-pairs
    test, with entire utterances as segments; NIST's sc_stats; Bisani and Ney 2004.
    """
    pairs = matched([u.transcript for u in first], [u.transcript for u in second])
    of_first = {u.transcript.id: u.counts for u in first}
    of_second = {u.transcript.id: u.counts for u in second}
    words = [of_first[a.id].words for a, _ in pairs]
    before = [of_first[a.id].word_edits for a, _ in pairs]
    after = [of_second[b.id].word_edits for _, b in pairs]
    if not sum(words):
        raise UsageError(
            f"The compared references must not be empty. Received: {len(words)} empty ones."
        )

    differences = np.array(after) - np.array(before)
    # One of the files may know more.
    speakers = [a.speaker or b.speaker for a, b in pairs]
    blocks = speaker_blocks(speakers)
    # Of utterances, or summed over each speaker's.
    exchanged = differences
    by_speaker = None
    if blocks is not None:
        by_speaker = difference_interval(before, after, words, blocks=blocks)
        exchanged = np.bincount(np.unique(blocks, return_inverse=True)[1], differences)

    z, p = _matched_pairs(differences)

    return PairedComparison(
        utterances=len(words),
        fewer_errors=int(np.sum(differences < 0)),
        more_errors=int(np.sum(differences > 0)),
        wer_difference=float(differences.sum()) / sum(words),
        by_utterance=difference_interval(before, after, words),
        by_speaker=by_speaker,
        matched_pairs_z=z,
        matched_pairs_p=p,
        permutation_p=exchange_p(exchanged),
        exchanged="utterance" if blocks is None else "speaker",
        speakers=len(set(speakers)) if all(speakers) else None,
    )


def _matched_pairs(differences: np.ndarray) -> tuple[float | None, float | None]:
    """Returns the statistic and p-value of a paired t-test; None if there is no spread."""
    if differences.size < FEWEST_FOR_TEST or not np.ptp(differences):
        return None, None  # all equal: no standard error

    from scipy.stats import ttest_1samp

    result = ttest_1samp(differences, 0)

    return float(result.statistic), float(result.pvalue)


def exchange_p(differences: np.ndarray) -> float | None:
    """Returns the two-sided p-value of a sum, if each sign were a coin toss.

    Exact for up to 13 nonzero differences, otherwise from 9999 random choices of signs;
    None for fewer than 5 differences.
    """
    if differences.size < FEWEST_FOR_TEST:
        return None

    # A zero has no sign, so zeros are left out.
    unlike = differences[differences != 0].astype(float)
    if unlike.size < 2:
        return 1.0  # every choice of signs gives a sum as far from 0

    from scipy.stats import permutation_test

    result = permutation_test(
        (unlike,),
        lambda sample, axis=-1: np.sum(sample, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=_RESAMPLES,
        batch=max(1, 2_000_000 // unlike.size),
        rng=np.random.default_rng(0),
    )

    return min(1.0, float(result.pvalue))


def verdict(
    comparison: PairedComparison,
    first: str,
    second: str,
    tests: int = 1,
) -> str:
    """Returns a comparison in a sentence.

    Args:
        comparison: of two systems.
        first: the name of the first.
        second: the name of the second.
        tests: how many comparisons are made; the level is divided by it (Bonferroni).
    """
    if comparison.permutation_p is None:
        return f"a test needs {FEWEST_FOR_TEST} utterances or more"

    p = probability_text(comparison.permutation_p)
    tested = f"p {p if p.startswith('<') else f'= {p}'}, {_exchanged(comparison)}"
    # Bonferroni's correction.
    if comparison.permutation_p >= LEVEL / tests:
        return f"no difference shown ({tested})"

    if comparison.wer_difference < 0:
        return f"{second} makes fewer word errors than {first} ({tested})"

    return f"{first} makes fewer word errors than {second} ({tested})"


def _exchanged(comparison: PairedComparison) -> str:
    """Names the unit that was swapped, and for whom the result is valid."""
    if comparison.exchanged == "speaker":
        # The smallest p that so many signs can give, two-sided.
        fewest = 2 ** (1 - comparison.speakers)
        limit = f", so p can't be below {probability_text(fewest)}"
        return f"by {comparison.speakers} speakers{'' if fewest < LEVEL else limit}"

    if comparison.speakers is None:
        return "by utterance, speakers unknown"

    if comparison.speakers == 1:
        who = "this speaker"
    else:
        who = f"these {comparison.speakers} speakers"

    return f"by utterance: valid for {who}, not for others"


def probability_text(p: float) -> str:
    """Formats a p-value, such as "0.03" or "< 0.001"."""
    return "< 0.001" if p < 0.001 else f"{p:.{3 if p < 0.0995 else 2}f}"


@dataclass(frozen=True)
class RateSummary:
    """Error rates with 95 % bootstrap intervals; None if there are too few data."""

    counts: ErrorCounts
    wer_interval: Interval | None  # these two over utterances
    cer_interval: Interval | None
    wer_interval_by_speaker: Interval | None
    cer_interval_by_speaker: Interval | None
    speakers: int | None = None  # how many were resampled; None if not by speaker

    def to_json(self) -> dict[str, Any]:
        """Returns rates, intervals and their level for a run's record."""
        names = (field.name for field in fields(self) if "_interval" in field.name)
        intervals = {name: getattr(self, name) for name in names}
        counts = {**self.counts.to_json(), "confidence": CONFIDENCE}

        return {**counts, **intervals, "speakers_resampled": self.speakers}


def summarise(
    counts: Sequence[ErrorCounts], speakers: Sequence[str] = ()
) -> RateSummary:
    """Returns error rates of utterances with their intervals.

    ``speakers`` are those of the utterances; empty if unknown.
    """
    of_words = [c.word_edits for c in counts], [c.words for c in counts]
    of_characters = (
        [c.character_edits for c in counts],
        [c.longer_characters for c in counts],
    )
    blocks = speaker_blocks(speakers) if speakers else None
    summary = RateSummary(
        sum(counts, ErrorCounts()),
        wer_interval=rate_interval(*of_words),
        cer_interval=rate_interval(*of_characters),
        wer_interval_by_speaker=None,
        cer_interval_by_speaker=None,
    )
    if blocks is None:
        return summary

    return replace(
        summary,
        wer_interval_by_speaker=rate_interval(*of_words, blocks=blocks),
        cer_interval_by_speaker=rate_interval(*of_characters, blocks=blocks),
        speakers=len(set(blocks)),
    )


def summarise_scored(scored: Sequence[Scored]) -> RateSummary:
    return summarise(
        [utterance.counts for utterance in scored],
        [utterance.transcript.speaker for utterance in scored],
    )
