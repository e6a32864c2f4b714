"""Error counts of recognised text, mergeable over utterances, and the rates made of them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import jiwer


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
