"""What a corpus reader returns: utterances, and rejections with their reasons.

These few classes are all that the rest of tfasr knows of corpora. They hold no audio,
only where it is.
"""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from tfasr.errors import UsageError

# The splits that ``tfasr prepare`` makes by default.
SPLITS = ("train", "validation", "test")

# What a split may be called, since its folder in --shard_dir and its shards have its
# name.
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

    Attributes:
        begin_s: from the recording's start, to a microsecond.
        end_s: None: to the end of the recording.
        channel: from 0; None: the mean of all channels.
    """

    begin_s: float = 0.0
    end_s: float | None = None
    channel: int | None = None

    def __post_init__(self) -> None:
        end_s = math.inf
        if self.end_s is not None:
            end_s = self.end_s

        # NaN fails all comparisons, so it is rejected, too.
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
        name = recording
        if self.channel is not None:
            name += f"-channel{self.channel}"
        if self.begin_s == 0 and self.end_s is None:
            return name

        end = "end"
        if self.end_s is not None:
            end = f"{self.end_s:.3f}"

        return f"{name}-{self.begin_s:.3f}-{end}"


@dataclass(frozen=True)
class Utterance:
    """Audio and its transcript.

    Attributes:
        id: unique within a corpus.
        audio_path: absolute.
        duration_s: of the audio, from the file's header.
        text: normalised by the alphabet, or by `tfasr.alphabet.normalise`.
        speaker: "" if unknown.
        segment: which part of the file; None: all of it.
    """

    id: str
    audio_path: Path
    duration_s: float
    text: str
    speaker: str = ""
    segment: Segment | None = None


@dataclass(frozen=True)
class Rejection:
    """Something in a corpus that is not a usable utterance.

    Attributes:
        id: the file's name if there is no id.
        reason: A fixed phrase by which rejections are counted ("audio without
            transcript").
        detail: what exactly is wrong and where, for people.
    """

    id: str
    reason: str
    detail: str


@dataclass
class CorpusSplit:
    """One split of a corpus: its utterances, sorted by id, and its rejections."""

    utterances: list[Utterance] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
