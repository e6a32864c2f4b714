"""Error counts of recognised text, mergeable over utterances, and the rates made of them."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

import jiwer

from tfasr.alphabet import normalise
from tfasr.errors import UsageError


@dataclass(frozen=True)
class ErrorCounts:
    """Edits between references and hypotheses, summed over utterances; ``+`` merges two.

    Attributes:
        utterances: how many were scored.
        words: words of the references.
        substitutions: words replaced.
        deletions: words left out.
        insertions: words added.
        characters: characters of the references, spaces included.
        character_edits: character edits, spaces included.
        longer_characters: characters of the longer of reference and hypothesis, summed.
        wrong_utterances: utterances with at least one word error.
    """

    utterances: int = 0
    words: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    characters: int = 0
    character_edits: int = 0
    longer_characters: int = 0
    wrong_utterances: int = 0

    def __add__(self, other: "ErrorCounts") -> "ErrorCounts":
        return ErrorCounts(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    @property
    def correct_words(self) -> int:
        """Words of the references that were heard as they were said."""
        return self.words - self.substitutions - self.deletions

    @property
    def word_edits(self) -> int:
        """Substitutions, deletions and insertions."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def wer(self) -> float:
        """Word error rate over the whole corpus, a fraction; it can exceed 1."""
        return _rate(self.word_edits, self.words)

    @property
    def cer(self) -> float:
        """Character edits over the longer string's characters, a fraction in 0..1.

        Source: the paper, equation 3.
        """
        return _rate(self.character_edits, self.longer_characters)

    @property
    def cer_reference(self) -> float:
        """Character edits over the reference's characters, as jiwer and most toolkits count."""
        return _rate(self.character_edits, self.characters)

    def to_json(self) -> dict[str, float | int]:
        """Returns counts and rates as one JSON object."""
        return {
            "utterances": self.utterances,
            "wer": self.wer,
            "cer": self.cer,
            "cer_reference": self.cer_reference,
            "substitutions": self.substitutions,
            "deletions": self.deletions,
            "insertions": self.insertions,
            "words": self.words,
            "characters": self.characters,
            "character_edits": self.character_edits,
            "wrong_utterances": self.wrong_utterances,
        }


def _rate(edits: int, length: int) -> float:
    """Edits per unit of length; anything written where nothing was said is wholly wrong."""
    if length:
        return edits / length
    return 1.0 if edits else 0.0


def count_errors(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorCounts:
    """Counts word and character edits by jiwer's minimal alignments.

    Args:
        references: plain texts, one an utterance.
        hypotheses: what was recognised, in the same order.

    Raises:
        ValueError: if the two differ in number: an unscored utterance would flatter the rates.
    """
    if len(references) != len(hypotheses):
        raise ValueError(
            "Every reference must have its hypothesis. "
            f"Received: {len(references)} references, {len(hypotheses)} hypotheses."
        )
    total = ErrorCounts()
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        total += _count_one(reference, hypothesis)
    return total


def _count_one(reference: str, hypothesis: str) -> ErrorCounts:
    reference, hypothesis = " ".join(reference.split()), " ".join(hypothesis.split())
    if reference:
        words = jiwer.process_words(reference, hypothesis)
        edits = (words.substitutions, words.deletions, words.insertions)
        characters = jiwer.process_characters(reference, hypothesis)
        character_edits = characters.substitutions + characters.deletions + characters.insertions
    else:  # jiwer takes no empty reference: all that was written is inserted
        edits, character_edits = (0, 0, len(hypothesis.split())), len(hypothesis)
    return ErrorCounts(
        utterances=1,
        words=len(reference.split()),
        substitutions=edits[0],
        deletions=edits[1],
        insertions=edits[2],
        characters=len(reference),
        character_edits=character_edits,
        longer_characters=max(len(reference), len(hypothesis)),
        wrong_utterances=int(any(edits)),
    )


def kaldi_line(counts: ErrorCounts) -> str:
    """Returns Kaldi's summary: ``%WER 16.00 [ 96 / 600, 10 ins, 20 del, 66 sub ]``."""
    return (
        f"%WER {100 * counts.wer:.2f} [ {counts.word_edits} / {counts.words}, "
        f"{counts.insertions} ins, {counts.deletions} del, {counts.substitutions} sub ]"
    )


# Files of references and hypotheses, an utterance a line: our own and other toolkits'.

_NAMED = 3


@dataclass(frozen=True)
class Transcript:
    """What was said in an utterance and what was heard."""

    id: str  # unique within its file
    reference: str  # normalised, see `tfasr.alphabet.normalise`
    hypothesis: str  # normalised too, so that other toolkits' spelling of case does not count
    speaker: str = ""  # "" where unknown


def read_transcripts(path: str | Path) -> list[Transcript]:
    """Reads hypotheses that tfasr wrote, or a manifest of NeMo's with its predictions.

    A line of ours has ``id, reference, hypothesis`` and may have ``speaker``; one of NeMo's has
    ``text, pred_text`` and ``audio_filepath``, which is the id.

    Raises:
        UsageError: if a line is neither, an id stands twice, or there is no line at all.
    """
    path = Path(path)
    transcripts = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"A file of hypotheses must be text. {path} is not: {error}.") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            transcripts.append(_transcript(line, f"line {number} of {path}"))
    repeated = [
        key for key, n in Counter(transcript.id for transcript in transcripts).items() if n > 1
    ]
    if repeated or not transcripts:
        what = f"{_some(repeated)} more than once" if repeated else "no line"
        raise UsageError(f"{path} must hold each utterance once. Received: {what}.")
    return transcripts


def matched(
    first: Sequence[Transcript], other: Sequence[Transcript]
) -> list[tuple[Transcript, Transcript]]:
    """Returns pairs of the same utterance, in the order of ``first``.

    Ids that are paths are compared whole, then, where that does not fit, by the file's name.

    Raises:
        UsageError: if the two are not over the same utterances with the same references; it says
            how many differ and names some.
    """
    for key in (str, _stem):
        own = {key(transcript.id): transcript for transcript in first}
        theirs = {key(transcript.id): transcript for transcript in other}
        if own.keys() == theirs.keys() and len(own) == len(first) and len(theirs) == len(other):
            pairs = [(transcript, theirs[name]) for name, transcript in own.items()]
            _check_references(pairs)
            return pairs
    missing = sorted(
        {transcript.id for transcript in first} - {transcript.id for transcript in other}
    )
    more = sorted({transcript.id for transcript in other} - {transcript.id for transcript in first})
    raise UsageError(
        "Two systems must be compared over the same utterances. Received: "
        f"{len(first)} and {len(other)}; {_count(missing)} only in the first, "
        f"{_count(more)} only in the second."
    )


def _check_references(pairs: Sequence[tuple[Transcript, Transcript]]) -> None:
    unlike = [(a, b) for a, b in pairs if a.reference != b.reference]
    if unlike:
        shown = "; ".join(
            f"{a.id}: {a.reference!r}, here {b.reference!r}" for a, b in unlike[:_NAMED]
        )
        more = "; and more" if len(unlike) > _NAMED else ""
        raise UsageError(
            "Two systems must be compared over the same references. Received: "
            f"{len(unlike)} of {len(pairs)} that differ ({shown}{more})."
        )


def _transcript(line: str, where: str) -> Transcript:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    for names in (("id", "reference", "hypothesis"), ("audio_filepath", "text", "pred_text")):
        if isinstance(fields, dict) and all(isinstance(fields.get(n), str) for n in names):
            identity, reference, hypothesis = (fields[name] for name in names)
            speaker = _speaker(fields)
            return Transcript(identity, normalise(reference), normalise(hypothesis), speaker)
    raise UsageError(
        "A line of hypotheses must be a JSON object with id, reference and hypothesis, or with "
        f"audio_filepath, text and pred_text. Received: {line[:60]!r} in {where}. "
        "tfasr evaluate --hypotheses writes such files."
    )


def _speaker(fields: dict[str, Any]) -> str:
    speaker = fields.get("speaker")
    return "" if speaker is None else str(speaker)


def _stem(identity: str) -> str:
    return PurePosixPath(identity.replace("\\", "/")).stem


def _count(ids: Sequence[str]) -> str:
    return f"{len(ids)} ({_some(ids)})" if ids else "none"


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_NAMED]) + (", ..." if len(ids) > _NAMED else "")


# Which word was heard for which: minimal alignments, as pairs and as text.

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
    """Returns a minimal alignment of words: jiwer's, which `tfasr.scoring.errors` counts too.

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
