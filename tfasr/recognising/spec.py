"""What a recogniser is beside its weights: features, alphabet, geometry, decoder."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, BinaryIO, Protocol

import numpy as np

from tfasr.alphabet import Alphabet
from tfasr.data.features import FeatureConfig, normalise_frames, numpy_features
from tfasr.decoding.choice import DecoderConfig
from tfasr.errors import UsageError

# What computes log-probabilities: Keras from a run's checkpoint, or ONNX Runtime.

State = list[Any]
FEATURES, LENGTHS = "features", "lengths"
LOG_PROBS, OUTPUT_LENGTHS = "log_probs", "output_lengths"
"""What models take and return, by the names in exported files."""


class Acoustics(Protocol):
    """From normalised features to log-probabilities of all classes.

    Attributes:
        batches_at_once: how many threads may usefully call `log_probs` at the same time.
    """

    batches_at_once: int

    def log_probs(self, features: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Returns float32 ``(batch, output frames, classes)``, natural logarithms.

        Args:
            features: float32 ``(batch, frames, num_features)``, right-padded.
            lengths: int32 ``(batch,)``: valid feature frames, enough for an output frame.
        """

    def initial_state(self) -> State:
        """Returns the state of a recurrence that has heard nothing."""

    def continued(self, features: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Returns the next log-probabilities of one stream ``(output frames, classes)``.

        Args:
            features: float32 ``(frames, num_features)``, from the first that the next output
                frame sees; enough for one output frame.
            state: what `initial_state` or the call before returned.
        """


# What a recogniser heard: text, and words with their times and confidences.


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


# Samples as arrays, and from a pipe.


def as_samples(samples: np.ndarray) -> np.ndarray:
    """Returns samples as float32 in -1..1.

    Args:
        samples: floats in -1..1 or int16 ``(samples,)``.

    Raises:
        ValueError: for another type, or what is no finite number.
    """
    if samples.dtype == np.int16:
        return samples.astype(np.float32) / 32768
    if samples.dtype.kind != "f":
        raise ValueError(f"samples must be floats or int16. Received: dtype={samples.dtype}.")
    samples = samples.astype(np.float32, copy=False)
    if not np.isfinite(samples).all():
        bad = int(np.flatnonzero(~np.isfinite(samples))[0])
        raise ValueError(f"samples must be finite. Received: samples[{bad}]={samples[bad]}.")
    return samples


def pcm_chunks(stream: BinaryIO, sample_rate_hz: int, chunk_s: float = 0.1) -> Iterator[np.ndarray]:
    """Yields samples as they come, int16 ``(samples,)``, until the stream ends.

    Args:
        stream: such as ``sys.stdin.buffer``: signed 16 bit, little endian, one channel.
        sample_rate_hz: of the samples.
        chunk_s: the most seconds in a chunk.
    """
    # What has come already is taken at once, instead of waiting until a chunk is full.
    read = getattr(stream, "read1", stream.read)
    most_bytes = 2 * max(int(chunk_s * sample_rate_hz), 1)
    half = b""
    while data := read(most_bytes):
        data = half + data
        half = data[len(data) // 2 * 2 :]
        yield np.frombuffer(data[: len(data) // 2 * 2], "<i2")


STREAMING_PRESET = "an4_streaming.gin"


@dataclass(frozen=True)
class RecogniserSpec:
    """How samples become what a model takes, and what its output frames mean."""

    model: str  # the name of its class in `tfasr.models.model.MODELS`
    features: FeatureConfig
    statistics: tuple[np.ndarray, np.ndarray] | None  # mean and deviation, normalisation "corpus"
    alphabet: Alphabet
    decoder: DecoderConfig
    lexicon: tuple[str, ...]  # the words of a decoder that needs them
    geometry: tuple[int, int]  # feature frames of the first output frame, and from one to the next
    streams: bool  # whether no output frame depends on later feature frames than its own
    identity: str  # a hash of the weights: what tells one recogniser from another

    @property
    def frame_step_s(self) -> float:
        """Seconds from one output frame to the next."""
        return self.geometry[1] * self.features.step_samples / self.features.sample_rate_hz

    @property
    def first_frame_s(self) -> float:
        """Where the first output frame's share of the time begins.

        The middle of a frame's share is the middle of the samples that it was computed from.
        """
        kernel, _ = self.geometry
        seen = (kernel - 1) * self.features.step_samples + self.features.window_samples
        return max(seen / self.features.sample_rate_hz / 2 - self.frame_step_s / 2, 0.0)

    def output_frames(self, feature_frames: int) -> int:
        """Returns the output frames of so many feature frames, at least 0."""
        kernel, stride = self.geometry
        return max((feature_frames - kernel) // stride + 1, 0)

    def heard(self, samples: np.ndarray) -> np.ndarray:
        """Returns samples' normalised features, float32 ``(frames, num_features)``."""
        return self.normalised(numpy_features(samples, self.features))

    def normalised(self, features: np.ndarray) -> np.ndarray:
        """Returns features normalised as in training."""
        return normalise_frames(features, self.features, *(self.statistics or (None, None)))

    @property
    def can_stream(self) -> bool:
        """Whether neither its layers nor its normalisation need an utterance's end."""
        return self.streams and self.features.normalisation != "utterance"

    def check_streams(self) -> None:
        """Raises UsageError for a model that needs to have heard an utterance to its end."""
        reason = ""
        if self.features.normalisation == "utterance":
            reason = (
                " with FeatureConfig.normalisation 'utterance', whose mean and deviation are known "
                "only then"
            )
        elif not self.streams:
            reason = ", whose layers look at later frames or at whole utterances"
        if reason:
            raise UsageError(
                f"To stream, a model must not need an utterance's end. Received: {self.model!r}"
                f"{reason}. Train one that can: --gin_file {STREAMING_PRESET}, or bind "
                "FeatureConfig.normalisation = 'corpus' and a recurrence in one direction. Until "
                "then, transcribe whole recordings, without --stream."
            )
