"""What a corpus reader returns: utterances, and rejections with their reasons.

These few classes are all that the rest of tfasr knows of corpora. They hold no audio,
only where it is.
"""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from tfasr.errors import UsageError

SPLITS = ("train", "validation", "test")  # that ``tfasr prepare`` makes by default
# Of a split, its folder in --shard_dir, and its shards.
_NAME = re.compile(r"[^\W_][\w-]*")


def check_split(split: str) -> None:
    """Raises UsageError unless ``split`` can name a folder of shards."""
    if not _NAME.fullmatch(split):
        raise UsageError(
            f"--split must be {', '.join(SPLITS)} or another name of letters, digits, "
            f"- and _. Received: {split!r}."
        )


@dataclass(frozen=True)
class Segment:
    """A part of a recording: from a time to another, all channels or one.

    Raises ValueError if the times are not finite, or the end isn't after the begin.
    """

    begin_s: float = 0.0
    end_s: float | None = None  # None: to the end of the recording
    channel: int | None = None  # from 0; None: the mean of all channels

    def __post_init__(self) -> None:
        # NaN fails all comparisons, so it is rejected, too.
        end_s = math.inf if self.end_s is None else self.end_s
        if (
            not 0 <= self.begin_s < end_s
            or math.isinf(self.begin_s)
            or self.end_s == math.inf
        ):
            raise ValueError(
                "a segment must begin at 0 s or later, and end after that; received "
                f"{self.begin_s} to {self.end_s} s"
            )

        if self.channel is not None and self.channel < 0:
            raise ValueError(f"a channel must be 0 or more; received {self.channel}")

        # Lists state ends or durations, whose sums differ in the last digits.
        object.__setattr__(self, "begin_s", round(float(self.begin_s), 6))
        if self.end_s is not None:
            object.__setattr__(self, "end_s", round(float(self.end_s), 6))

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the recording."""
        return self.begin_s == 0 and self.end_s is None and self.channel is None

    def named(self, recording: str) -> str:
        """Returns an id for an utterance whose corpus gives it none.

        It is the recording's name with the channel and times, such as
        "talk-channel0-1.500-3.250".
        """
        channel = "" if self.channel is None else f"-channel{self.channel}"
        if self.begin_s == 0 and self.end_s is None:
            return recording + channel

        end = "end" if self.end_s is None else f"{self.end_s:.3f}"

        return f"{recording}{channel}-{self.begin_s:.3f}-{end}"


@dataclass(frozen=True)
class Utterance:
    """Audio and its transcript."""

    id: str  # unique within a corpus
    audio_path: Path  # absolute
    duration_s: float  # of the audio, from the file's header
    text: str  # normalised by the alphabet, or by `tfasr.alphabet.normalise`
    speaker: str = ""  # "" if unknown
    segment: Segment | None = None  # which part of the file; None: all of it


@dataclass(frozen=True)
class Rejection:
    """Something in a corpus that is not a usable utterance."""

    id: str  # the file's name if there is no id
    # A fixed phrase by which rejections are counted ("audio without transcript").
    reason: str
    detail: str  # what exactly is wrong and where, for people


@dataclass
class CorpusSplit:
    """One split of a corpus: its utterances, sorted by id, and its rejections."""

    utterances: list[Utterance] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
