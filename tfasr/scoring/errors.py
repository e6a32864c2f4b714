"""Word and character errors of transcripts, as counts that can be summed and as rates.

Everything that states an error rate counts here: evaluations in training, ``tfasr
evaluate`` and its comparison of two systems. jiwer aligns the texts. Transcripts come
from a decoder, or from a file of any system (`read_transcripts`).
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from pathlib import Path, PurePosixPath

import jiwer

from tfasr.alphabet import clusters, normalise, words
from tfasr.errors import UsageError
from tfasr.kit.text import text_lines
from tfasr.letters import upper
from tfasr.normalisers import normalised

_NAMED = 3  # utterances in a message
_MOST_BYTES = 256 << 20  # limit for a file of hypotheses: a million utterances
# The first code point of an area that ordinary text doesn't use.
_PRIVATE_USE = 0x100000
Pair = tuple[str | None, str | None]
"""A word of the reference and the recognised one; None for a missing word."""


@dataclass(frozen=True)
class ErrorCounts:
    """Edits between references and hypotheses, summed over utterances. Add two with ``+``.

    Words are those of `tfasr.alphabet.words`: in scripts without spaces, each
    character. A character includes its combining marks (Unicode's grapheme cluster).
    """

    utterances: int = 0
    words: int = 0  # of the references
    substitutions: int = 0  # words replaced
    deletions: int = 0  # words left out
    insertions: int = 0  # words added
    characters: int = 0  # of the references, spaces included
    character_edits: int = 0  # spaces included
    longer_characters: int = 0  # of the longer text of each utterance, spaces included
    wrong_utterances: int = 0  # utterances with at least one word error

    def __add__(self, other: "ErrorCounts") -> "ErrorCounts":
        names = (field.name for field in fields(self))
        sums = (getattr(self, name) + getattr(other, name) for name in names)
        return ErrorCounts(*sums)

    @property
    def correct_words(self) -> int:
        """Words of the references that were recognised."""
        return self.words - self.substitutions - self.deletions

    @property
    def word_edits(self) -> int:
        """Word errors of all kinds."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def wer(self) -> float:
        """Word error rate over all utterances, a fraction that can exceed 1."""
        return _rate(self.word_edits, self.words)

    @property
    def cer(self) -> float:
        """Character edits over the longer text's characters.

        Source: the paper, equation 3.
        """
        return _rate(self.character_edits, self.longer_characters)

    @property
    def cer_reference(self) -> float:
        """Character edits over the reference's characters, as in jiwer and most toolkits."""
        return _rate(self.character_edits, self.characters)

    def to_json(self) -> dict[str, float | int]:
        """Returns rates and counts for a run's record."""
        names = (
            "utterances",
            "wer",
            "cer",
            "cer_reference",
            "substitutions",
            "deletions",
            "insertions",
            "words",
            "characters",
            "character_edits",
            "wrong_utterances",
        )
        return {name: getattr(self, name) for name in names}


def _rate(edits: int, length: int) -> float:
    """Returns edits as a share of a length; 1 if only the length is 0."""
    if length:
        return edits / length

    # Any text for an empty reference is 100 % wrong.
    return float(edits > 0)


def count_errors(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorCounts:
    """Counts the word and character edits between references and hypotheses, with jiwer.

    The alignments have as few edits as possible. Both sequences must be in the same
    order.

    Raises:
        ValueError: unless there are as many hypotheses as references.
    """
    if len(references) != len(hypotheses):
        raise ValueError(
            "Every reference must have a hypothesis. "
            f"Received: {len(references)} references, {len(hypotheses)} hypotheses."
        )

    return sum(map(_count_one, references, hypotheses), ErrorCounts())


def _count_one(reference: str, hypothesis: str) -> ErrorCounts:
    """Counts the errors of one utterance."""
    # Runs of spaces are no characters of a text.
    reference = " ".join(reference.split())
    hypothesis = " ".join(hypothesis.split())
    spoken = words(reference)
    # Of the tidied texts; in scripts without spaces, each character is a word.
    recognised = words(hypothesis)
    if reference:
        aligned = jiwer.process_words(" ".join(spoken), " ".join(recognised))
        edits = (aligned.substitutions, aligned.deletions, aligned.insertions)
        reference, hypothesis = _one_sign_each(reference, hypothesis)
        characters = jiwer.process_characters(reference, hypothesis)
        character_edits = (
            characters.substitutions + characters.deletions + characters.insertions
        )
    else:  # jiwer rejects an empty reference: all words are insertions
        hypothesis = clusters(hypothesis)
        edits = (0, 0, len(recognised))
        character_edits = len(hypothesis)

    return ErrorCounts(
        utterances=1,
        words=len(spoken),
        substitutions=edits[0],
        deletions=edits[1],
        insertions=edits[2],
        characters=len(reference),
        character_edits=character_edits,
        longer_characters=max(len(reference), len(hypothesis)),
        wrong_utterances=int(any(edits)),
    )


def _one_sign_each(*texts: str) -> list[str]:
    """Replaces each character of several code points by a single one.

    jiwer counts code points, so a letter with its marks would count several times. The
    same character gets the same sign in all texts.
    """
    signs: dict[str, str] = {}

    def sign(cluster: str) -> str:
        if len(cluster) == 1:
            return cluster
        return signs.setdefault(cluster, chr(_PRIVATE_USE + len(signs)))

    return ["".join(map(sign, clusters(text))) for text in texts]


def kaldi_line(counts: ErrorCounts) -> str:
    """Returns Kaldi's summary: ``%WER 16.00 [ 96 / 600, 10 ins, 20 del, 66 sub ]``."""
    return (
        f"%WER {100 * counts.wer:.2f} [ {counts.word_edits} / {counts.words}, "
        f"{counts.insertions} ins, {counts.deletions} del, {counts.substitutions} sub ]"
    )


@dataclass(frozen=True)
class Transcript:
    """An utterance's reference and hypothesis, normalised by `tfasr.alphabet.normalise`.

    Attributes:
        id: unique within its file.
        reference: the spoken words.
        hypothesis: the recognised words.
        speaker: "" if unknown.
        others: what a second decoder recognised, by the decoder's name.
    """

    id: str
    reference: str
    hypothesis: str
    speaker: str = ""
    others: Mapping[str, str] = field(default_factory=dict, compare=False)


def read_transcripts(
    path: str | Path,
    normaliser: str = "",
    language: str = "",
) -> list[Transcript]:
    """Reads a file of hypotheses written by tfasr, or a NeMo manifest with predictions.

    tfasr's lines have ``id, reference, hypothesis`` and optionally ``speaker``. NeMo's
    have ``text, pred_text`` and ``audio_filepath``, which becomes the id, with the
    times of a segment if there is an ``offset``.

    Args:
        path: the file, in UTF-8, which may be compressed by gzip.
        normaliser: a name in `tfasr.normalisers.NORMALISERS`, applied to both texts; ""
            for lower case alone.
        language: a BCP 47 tag whose rules for case hold.

    Raises:
        UsageError: if a line is neither, an id repeats, or the file is empty.
    """
    path = Path(path)

    def written_alike(text: str) -> str:
        return normalise(normalised(text, normaliser, language), language)

    lines = text_lines(path, "Name a file of hypotheses.", most_bytes=_MOST_BYTES)
    transcripts = [
        _transcript(line, f"line {number} of {path}", written_alike)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    # Equal ids would make pairs ambiguous.
    counted = Counter(transcript.id for transcript in transcripts)
    repeated = [identity for identity, count in counted.items() if count > 1]
    if repeated or not transcripts:
        what = f"{_some(repeated)} more than once" if repeated else "no transcript"
        raise UsageError(f"{path} must contain each utterance once. Received: {what}.")

    return transcripts


def matched(
    first: Sequence[Transcript], other: Sequence[Transcript]
) -> list[tuple[Transcript, Transcript]]:
    """Pairs the same utterances of two systems, in the order of ``first``.

    If ids don't match and are paths, their file names without suffix are compared.

    Raises:
        UsageError: unless both systems have the same utterances with the same
        references.
    """
    for key in (str, lambda identity: PurePosixPath(identity.replace("\\", "/")).stem):
        by_key = {key(transcript.id): transcript for transcript in first}
        others = {key(transcript.id): transcript for transcript in other}
        # Names without their folders may repeat.
        distinct = len(by_key) == len(first) and len(others) == len(other)
        if distinct and by_key.keys() == others.keys():
            pairs = [(transcript, others[name]) for name, transcript in by_key.items()]
            _check_references(pairs)
            return pairs

    ids = {transcript.id for transcript in first}
    other_ids = {transcript.id for transcript in other}
    raise UsageError(
        "The two systems must have transcribed the same utterances. Received: "
        f"{len(first)} and {len(other)} utterances; {_count(sorted(ids - other_ids))} only in the "
        f"first, {_count(sorted(other_ids - ids))} only in the second."
    )


def _check_references(pairs: Sequence[tuple[Transcript, Transcript]]) -> None:
    """Raises UsageError if references differ, which would make rates incomparable."""
    unlike = [(a, b) for a, b in pairs if a.reference != b.reference]
    if unlike:
        shown = "; ".join(
            f"{a.id}: {a.reference!r} and {b.reference!r}" for a, b in unlike[:_NAMED]
        )
        more = "; and more" if len(unlike) > _NAMED else ""
        raise UsageError(
            "The two systems must have the same reference for each utterance. Received: "
            f"{len(unlike)} of {len(pairs)} that differ ({shown}{more})."
        )


def _transcript(line: str, where: str, normalise: Callable[[str], str]) -> Transcript:
    """Returns a line's transcript, normalised; UsageError naming the place ``where``."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None

    for names in (
        ("id", "reference", "hypothesis"),
        ("audio_filepath", "text", "pred_text"),
    ):
        if isinstance(fields, dict) and all(
            isinstance(fields.get(n), str) for n in names
        ):
            identity, reference, hypothesis = (fields[name] for name in names)
            if names[0] == "audio_filepath":
                identity = _of_segment(
                    identity, fields.get("offset"), fields.get("duration")
                )

            # It may be a number.
            speaker = fields.get("speaker")
            speaker = "" if speaker is None else str(speaker)
            texts = normalise(reference), normalise(hypothesis)
            # All further texts of the line.
            others = {
                name: normalise(text)
                for name, text in fields.items()
                if isinstance(text, str) and name not in (*names, "speaker")
            }
            return Transcript(identity, *texts, speaker, others)

    raise UsageError(
        "Each line of hypotheses must be a JSON object with id, reference and hypothesis, or with "
        f"audio_filepath, text and pred_text. Received: {line[:60]!r} in {where}. "
        "tfasr evaluate --hypotheses writes such a file."
    )


def _of_segment(path: str, offset_s: object, duration_s: object) -> str:
    """Returns the id of a part of a recording, as `tfasr prepare` names it."""
    if not isinstance(offset_s, int | float) or not offset_s:
        return path

    if isinstance(duration_s, int | float):
        end = f"{offset_s + duration_s:.3f}"
    else:
        end = "end"

    return f"{PurePosixPath(path).with_suffix('')}-{offset_s:.3f}-{end}"


def _count(ids: Sequence[str]) -> str:
    """Returns how many ids there are, with the first of them, for a message."""
    return f"{len(ids)} ({_some(ids)})" if ids else "none"


def _some(ids: Sequence[str]) -> str:
    """Lists the first ids, for a message."""
    more = ", ..." if len(ids) > _NAMED else ""
    return ", ".join(ids[:_NAMED]) + more


@dataclass(frozen=True)
class Scored:
    """A transcript with its errors; ``pairs`` is the alignment, with exactly these errors."""

    transcript: Transcript
    counts: ErrorCounts
    pairs: list[Pair]


@dataclass(frozen=True)
class Confusions:
    """How often each error occurs.

    ``substitutions`` have the reference's word and the recognised one.
    """

    substitutions: list[tuple[tuple[str, str], int]]
    deletions: list[tuple[str, int]]
    insertions: list[tuple[str, int]]


def score(transcripts: Iterable[Transcript]) -> list[Scored]:
    """Counts and aligns the errors of transcripts."""
    scored = []
    for transcript in transcripts:
        texts = (transcript.reference, transcript.hypothesis)
        scored.append(Scored(transcript, _count_one(*texts), align(*texts)))

    return scored


def align(reference: str, hypothesis: str) -> list[Pair]:
    """Aligns words as in jiwer, with the errors that `count_errors` counts.

    Every edit costs 1, so the number of errors is minimal. NIST's sclite charges 4 for
    a substitution and 3 for a deletion or insertion: it may find other errors, but
    never fewer.
    """
    if not reference.split():  # jiwer rejects an empty reference
        return [(None, word) for word in words(hypothesis)]

    result = jiwer.process_words(
        " ".join(words(reference)), " ".join(words(hypothesis))
    )
    (spoken,), (recognised,) = result.references, result.hypotheses

    return [
        pair
        for chunk in result.alignments[0]
        for pair in zip_longest(
            spoken[chunk.ref_start_idx : chunk.ref_end_idx],
            recognised[chunk.hyp_start_idx : chunk.hyp_end_idx],
        )
    ]


def confusions(scored: Iterable[Scored]) -> Confusions:
    """Counts each error, the most frequent first.

    Equally frequent ones are sorted by word.
    """
    wrong = Counter(
        pair for utterance in scored for pair in utterance.pairs if pair[0] != pair[1]
    )
    # None sorts as an empty word.
    order = sorted(
        wrong.items(), key=lambda item: (-item[1], item[0][0] or "", item[0][1] or "")
    )
    return Confusions(
        substitutions=[(pair, count) for pair, count in order if None not in pair],
        deletions=[
            (word, count) for (word, recognised), count in order if recognised is None
        ],
        insertions=[
            (recognised, count) for (word, recognised), count in order if word is None
        ],
    )


def worst(scored: Sequence[Scored], count: int) -> list[Scored]:
    """Returns the ``count`` utterances with the most word errors.

    Ties are ordered by fewer words, then by id. Utterances without errors are left out.
    """
    wrong = [utterance for utterance in scored if utterance.counts.word_edits]
    # Of equal numbers of errors, those in fewer words are worse.
    wrong.sort(key=lambda u: (-u.counts.word_edits, u.counts.words, u.transcript.id))
    return wrong[:count]


def alignment_text(scored: Scored, language: str = "") -> str:
    """Formats an alignment as REF and HYP, one below the other, with errors in upper case.

    ``language`` is a BCP 47 tag whose rules for case hold.

    Source: the .pra report of NIST's sclite (github.com/usnistgov/SCTK).
    """
    from rich.cells import cell_len  # widths in a terminal

    rows: tuple[list[str], list[str], list[str]] = (["REF: "], ["HYP: "], ["Eval:"])
    for pair in scored.pairs:
        cells = _cells(*pair, language)
        # In a terminal, some characters are two columns wide.
        width = max(map(cell_len, cells))
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell + " " * (width - cell_len(cell)))

    counts = scored.counts
    of_speaker = f" ({scored.transcript.speaker})" if scored.transcript.speaker else ""
    edits = f"{counts.correct_words} {counts.substitutions} {counts.deletions} {counts.insertions}"
    lines = [
        f"id: {scored.transcript.id}{of_speaker}",
        f"Scores: (#C #S #D #I) {edits}",
    ]

    return "\n".join([*lines, *(" ".join(row).rstrip() for row in rows)]) + "\n"


def _cells(
    word: str | None,
    recognised: str | None,
    language: str,
) -> tuple[str, str, str]:
    """Returns one column: the words of both rows, and the kind of error."""
    if word == recognised:
        return word or "", recognised or "", ""
    if word is None:
        return "*" * len(recognised or ""), upper(recognised or "", language), "I"
    if recognised is None:
        return upper(word, language), "*" * len(word), "D"

    return upper(word, language), upper(recognised, language), "S"
