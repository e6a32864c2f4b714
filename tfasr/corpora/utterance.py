"""What a corpus reader returns: utterances, and rejections with their reasons."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from tfasr.errors import UsageError

SPLITS = ("train", "validation", "test")
_NAME = re.compile(r"[^\W_][\w-]*")  # of a split, its folder in --shard_dir, and its shards


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
    duration_s: float  # of the audio, from the file's header
    text: str  # normalised by the alphabet, or by `tfasr.alphabet.normalise`
    speaker: str = ""  # "" if unknown


@dataclass(frozen=True)
class Rejection:
    """Something in a corpus that is not a usable utterance."""

    id: str  # the file's name if there is no id
    reason: str  # a fixed phrase by which rejections are counted ("audio without transcript")
    detail: str  # what exactly is wrong and where, for people


@dataclass
class CorpusSplit:
    """One split of a corpus: its utterances, sorted by id, and its rejections."""

    utterances: list[Utterance] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
