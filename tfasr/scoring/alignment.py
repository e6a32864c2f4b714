"""Which word was heard for which: minimal alignments, as pairs and as text."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jiwer

from tfasr.metrics import ErrorCounts, count_errors
from tfasr.scoring.transcripts import Transcript

Pair = tuple[str | None, str | None]
"""A reference's word and what was heard for it; None where one of them has nothing."""


@dataclass(frozen=True)
class Scored:
    transcript: Transcript  # the utterance
    counts: ErrorCounts  # its errors
    pairs: list[Pair]  # its alignment, which has exactly these errors


@dataclass(frozen=True)
class Confusions:
    """What is got wrong most, each with how often, the most frequent first."""

    substitutions: list[tuple[tuple[str, str], int]]  # reference's word and what was heard
    deletions: list[tuple[str, int]]  # the reference's words
    insertions: list[tuple[str, int]]  # words that nobody said


def score(transcripts: Iterable[Transcript]) -> list[Scored]:
    """Returns utterances with their errors and alignments, in the same order."""
    return [
        Scored(
            transcript,
            count_errors([transcript.reference], [transcript.hypothesis]),
            align(transcript.reference, transcript.hypothesis),
        )
        for transcript in transcripts
    ]


def align(reference: str, hypothesis: str) -> list[Pair]:
    """Returns a minimal alignment of words: jiwer's, which `tfasr.metrics` counts too.

    Every edit costs 1, so that the errors are the fewest possible. NIST's sclite charges 4 for a
    substitution and 3 for the others, and may find other ones, never fewer.
    """
    if not reference.split():  # jiwer takes no empty reference
        return [(None, word) for word in hypothesis.split()]
    found = jiwer.process_words(reference, hypothesis)
    (said,), (heard,) = found.references, found.hypotheses
    pairs: list[Pair] = []
    for chunk in found.alignments[0]:
        left = said[chunk.ref_start_idx : chunk.ref_end_idx]
        right = heard[chunk.hyp_start_idx : chunk.hyp_end_idx]
        if chunk.type == "delete":
            pairs += [(word, None) for word in left]
        elif chunk.type == "insert":
            pairs += [(None, word) for word in right]
        else:
            pairs += zip(left, right, strict=True)
    return pairs


def confusions(scored: Iterable[Scored]) -> Confusions:
    """Returns what is got wrong how often; equally frequent ones in the order of the alphabet."""
    wrong = Counter(pair for utterance in scored for pair in utterance.pairs if pair[0] != pair[1])
    kinds: tuple[list, list, list] = ([], [], [])
    for (said, heard), times in sorted(
        wrong.items(), key=lambda item: (-item[1], item[0][0] or "", item[0][1] or "")
    ):
        if said is None:
            kinds[2].append((heard, times))
        elif heard is None:
            kinds[1].append((said, times))
        else:
            kinds[0].append(((said, heard), times))
    return Confusions(*kinds)


def worst(scored: Sequence[Scored], count: int) -> list[Scored]:
    """Returns the utterances with the most word errors; of equals the shorter, then by id."""
    wrong = [utterance for utterance in scored if utterance.counts.word_edits]
    wrong.sort(
        key=lambda utterance: (
            -utterance.counts.word_edits,
            utterance.counts.words,
            utterance.transcript.id,
        )
    )
    return wrong[:count]


def alignment_text(scored: Scored) -> str:
    """Returns an utterance's alignment: REF and HYP one below the other, errors in upper case.

    Source: the .pra report of NIST's sclite (github.com/usnistgov/SCTK).
    """
    from rich.cells import cell_len  # widths as terminals have them

    rows: tuple[list[str], list[str], list[str]] = (["REF: "], ["HYP: "], ["Eval:"])
    for said, heard in scored.pairs:
        cells = _cells(said, heard)
        width = max(map(cell_len, cells))
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell + " " * (width - cell_len(cell)))
    counts = scored.counts
    of_speaker = f" ({scored.transcript.speaker})" if scored.transcript.speaker else ""
    edits = f"{counts.correct_words} {counts.substitutions} {counts.deletions} {counts.insertions}"
    lines = [
        f"id: {scored.transcript.id}{of_speaker}",
        f"Scores: (#C #S #D #I) {edits}",
        *(" ".join(row).rstrip() for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _cells(said: str | None, heard: str | None) -> tuple[str, str, str]:
    if said == heard:
        return said or "", heard or "", ""
    if said is None:
        return "*" * len(heard or ""), (heard or "").upper(), "I"
    if heard is None:
        return said.upper(), "*" * len(said), "D"
    return said.upper(), heard.upper(), "S"
