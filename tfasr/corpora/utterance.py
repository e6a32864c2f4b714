"""What a corpus reader finds: utterances, and rejections with their reasons."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from tfasr.errors import UsageError

SPLITS = ("train", "validation", "test")
_NAME = re.compile(r"[^\W_][\w-]*")  # of a folder in --shard_dir, and of the shards in it


def check_split(split: str) -> None:
    """Raises UsageError unless ``split`` can name a folder of shards."""
    if not _NAME.fullmatch(split):
        raise UsageError(
            f"--split must be {', '.join(SPLITS)} or another name of letters, digits, - and _. "
            f"Received: {split!r}."
        )


@dataclass(frozen=True)
class Utterance:
    """Audio and its transcript."""

    id: str  # unique within a corpus
    audio_path: Path  # absolute
    duration_s: float  # of the audio, from the file's header or the manifest
    text: str  # normalised by the alphabet, or by `tfasr.alphabet.normalise`
    speaker: str = ""  # "" where unknown


@dataclass(frozen=True)
class Rejection:
    """Something in a corpus that is not a usable utterance."""

    id: str  # the file's name if there is no id
    reason: str  # a short fixed phrase to count by ("audio without transcript")
    detail: str  # where and what exactly, for a person


@dataclass
class CorpusSplit:
    """One split of a corpus: its utterances sorted by id, and the rejections."""

    utterances: list[Utterance] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
