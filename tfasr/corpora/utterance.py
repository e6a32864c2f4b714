"""What a corpus reader finds: utterances, and what it had to leave out with the reason."""

from dataclasses import dataclass, field
from pathlib import Path

from tfasr.errors import UsageError

# The names of a corpus's splits.

SPLITS = ("train", "validation", "test")


def check_split(split: str) -> None:
    """Raises UsageError unless ``split`` is one of `SPLITS`."""
    if split not in SPLITS:
        raise UsageError(f"--split must be one of {', '.join(SPLITS)}. Received: {split!r}.")


@dataclass(frozen=True)
class Utterance:
    """Audio and its transcript.

    Attributes:
        id: unique within a corpus.
        audio_path: an absolute path.
        duration_s: seconds of audio, from the file's header or the manifest.
        text: the transcript, normalised by `tfasr.alphabet.normalise`.
        speaker: a speaker's name, or "" where unknown.
    """

    id: str
    audio_path: Path
    duration_s: float
    text: str
    speaker: str = ""


@dataclass(frozen=True)
class Rejection:
    """Something in a corpus that is no usable utterance.

    Attributes:
        id: the utterance's id, or the file's name where it has none.
        reason: a short fixed phrase to count by ("audio without transcript").
        detail: where and what exactly, for a person.
    """

    id: str
    reason: str
    detail: str


@dataclass
class CorpusSplit:
    """One split of a corpus: its utterances sorted by id, and the rejections."""

    utterances: list[Utterance] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
