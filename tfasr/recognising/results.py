"""What a recogniser heard: text, and words with their times and confidences."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Word:
    """A word of a transcript.

    Attributes:
        text: plain spelling.
        start_s: where it begins, seconds from the beginning of the audio.
        end_s: where it ends.
        confidence: 0..1, the geometric mean of its characters' highest posteriors.
    """

    text: str
    start_s: float
    end_s: float
    confidence: float

    def moved(self, by_s: float) -> "Word":
        """Returns the same word so many seconds later."""
        return Word(self.text, self.start_s + by_s, self.end_s + by_s, self.confidence)


@dataclass(frozen=True)
class Transcript:
    """What was heard in one recording.

    Attributes:
        words: in their order.
        duration_s: of the audio.
    """

    words: list[Word] = field(default_factory=list)
    duration_s: float = 0.0

    @property
    def text(self) -> str:
        """The words with single spaces between."""
        return " ".join(word.text for word in self.words)


@dataclass(frozen=True, eq=False)
class StreamResult:
    """What was heard so far of a stream.

    Attributes:
        text: of the utterance that goes on; of the whole utterance where ``final``.
        final: whether the utterance has ended: what comes next belongs to another one.
        align: finds the words' times; called when these are asked for.
    """

    text: str
    final: bool
    align: Callable[[], list[Word]] = field(repr=False)

    @cached_property
    def words(self) -> list[Word]:
        """The words with times, counted from the beginning of the stream, and confidences."""
        return self.align()
