"""What a recogniser is in addition to its weights: features, alphabet, geometry, decoder."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, BinaryIO, Protocol

import numpy as np

from tfasr.alphabet import Alphabet, join_words
from tfasr.data.features import (
    FeatureConfig,
    check_statistics,
    normalise_frames,
    numpy_features,
)
from tfasr.decoding.choice import DecoderConfig
from tfasr.errors import UsageError

State = list[Any]
# What models take and return, by the names in exported files.
FEATURES, LENGTHS = "features", "lengths"
LOG_PROBS, OUTPUT_LENGTHS = "log_probs", "output_lengths"
STREAMING_PRESET = "an4_streaming.gin"
# Larger values in a file mean damage: they exceed memory, or their squares exceed float32.
_LOUDEST = 1e12
_MOST = {"sample_rate_hz": 10**6, "window_samples": 2**16, "step_samples": 2**16}
_MOST |= {"num_features": 2**14}
_MOST_FRAMES = 2**16


class Acoustics(Protocol):
    """From normalised features to log-probabilities of all classes."""

    batches_at_once: int  # how many threads may usefully call `log_probs` at the same time

    def log_probs(self, features: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Maps right-padded features ``(batch, frames, num_features)`` and lengths ``(batch,)``.

        Returns natural logarithms ``(batch, output frames, classes)``; needs an output frame in
        each.
        """

    def initial_state(self) -> State:
        """The state of a recurrence before any frame."""

    def continued(self, features: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """The next log-probabilities of one stream ``(output frames, classes)``, and its state.

        Features ``(frames, num_features)`` begin with the first that the next output frame sees.
        """


@dataclass(frozen=True)
class Word:
    """A word of a transcript, with its times in seconds from the beginning of the audio.

    Its confidence, 0..1, is the geometric mean of its characters' highest posteriors.
    """

    text: str
    start_s: float
    end_s: float
    confidence: float

    def moved(self, by_s: float) -> "Word":
        return Word(self.text, self.start_s + by_s, self.end_s + by_s, self.confidence)


@dataclass(frozen=True)
class Transcript:
    """The words recognised in a recording, in order, and the duration of its audio."""

    words: list[Word] = field(default_factory=list)
    duration_s: float = 0.0

    @property
    def text(self) -> str:
        return join_words(word.text for word in self.words)


@dataclass(frozen=True, eq=False)
class StreamResult:
    """The text so far of a stream's utterance, or its whole text if it has ended (``final``).

    ``align`` computes the words' times when they are first read.
    """

    text: str
    final: bool
    align: Callable[[], list[Word]] = field(repr=False)

    @cached_property
    def words(self) -> list[Word]:
        """The words with confidences and times from the beginning of the stream."""
        return self.align()


def as_samples(samples: np.ndarray) -> np.ndarray:
    """Floats in -1..1 or int16 as float32 in -1..1; ValueError where features can't be finite."""
    if samples.dtype == np.int16:
        return samples.astype(np.float32) / 32768
    if samples.dtype.kind != "f":
        raise ValueError(f"samples must be floats or int16. Received: dtype={samples.dtype}.")
    samples = samples.astype(np.float32, copy=False)
    if not np.isfinite(samples).all():
        bad = int(np.flatnonzero(~np.isfinite(samples))[0])
        raise ValueError(f"samples must be finite. Received: samples[{bad}]={samples[bad]}.")
    loudest = float(np.abs(samples).max(initial=0))
    if loudest > _LOUDEST:
        raise ValueError(
            f"samples must be at most {_LOUDEST:g} times full scale, or their features are no "
            f"finite numbers. Received: samples up to {loudest:g}, where full scale is 1."
        )
    return samples


def pcm_chunks(stream: BinaryIO, sample_rate_hz: int, chunk_s: float = 0.1) -> Iterator[np.ndarray]:
    """Yields int16 samples ``(samples,)`` of signed 16-bit little-endian mono, as they come."""
    # What has come already is taken at once, instead of waiting until a chunk is full.
    read = getattr(stream, "read1", stream.read)
    most_bytes = 2 * max(int(chunk_s * sample_rate_hz), 1)
    half = b""
    while data := read(most_bytes):
        data = half + data
        half = data[len(data) // 2 * 2 :]
        yield np.frombuffer(data[: len(data) // 2 * 2], "<i2")


@dataclass(frozen=True)
class RecogniserSpec:
    model: str  # the name of its class in `tfasr.models.model.MODELS`
    features: FeatureConfig
    statistics: tuple[np.ndarray, np.ndarray] | None  # mean and deviation, normalisation "corpus"
    alphabet: Alphabet
    decoder: DecoderConfig
    lexicon: tuple[str, ...]  # the words of a decoder that needs them
    geometry: tuple[int, int]  # feature frames of the first output frame, and from one to the next
    streams: bool  # whether no output frame depends on later feature frames than its own
    identity: str  # a hash of the weights, which identifies the recogniser

    def __post_init__(self):
        for name, most in _MOST.items():
            if getattr(self.features, name) > most:
                raise ValueError(f"The features' {name} must be at most {most}.")
        if not all(1 <= frames <= _MOST_FRAMES for frames in self.geometry):
            raise ValueError(f"The geometry must be two whole numbers, 1 to {_MOST_FRAMES}.")
        if self.features.normalisation == "corpus":
            if self.statistics is None:
                raise ValueError("Normalisation 'corpus' needs statistics, which are missing.")
            check_statistics(*self.statistics, self.features.num_features)

    @property
    def frame_step_s(self) -> float:
        return self.geometry[1] * self.features.step_samples / self.features.sample_rate_hz

    @property
    def first_frame_s(self) -> float:
        """Where the first output frame's share of the time begins, centred on its samples."""
        kernel, _ = self.geometry
        seen = (kernel - 1) * self.features.step_samples + self.features.window_samples
        return max(seen / self.features.sample_rate_hz / 2 - self.frame_step_s / 2, 0.0)

    def output_frames(self, feature_frames: int) -> int:
        """The output frames of a number of feature frames, at least 0."""
        kernel, stride = self.geometry
        return max((feature_frames - kernel) // stride + 1, 0)

    def normalised_features(self, samples: np.ndarray) -> np.ndarray:
        """Samples' normalised features, float32 ``(frames, num_features)``."""
        return self.normalised(numpy_features(samples, self.features))

    def normalised(self, features: np.ndarray) -> np.ndarray:
        return normalise_frames(features, self.features, *(self.statistics or (None, None)))

    @property
    def can_stream(self) -> bool:
        """Whether neither layers nor normalisation need the end of an utterance."""
        return self.streams and self.features.normalisation != "utterance"

    def check_streams(self) -> None:
        if self.can_stream:
            return
        reason = ", whose layers look at later frames or at whole utterances"
        if self.features.normalisation == "utterance":
            reason = (
                " with FeatureConfig.normalisation 'utterance', whose mean and deviation are known "
                "only then"
            )
        raise UsageError(
            f"To stream, a model must not need an utterance's end. Received: {self.model!r}"
            f"{reason}. Train one that can: --gin_file {STREAMING_PRESET}, or bind "
            "FeatureConfig.normalisation = 'corpus' and a recurrence in one direction. Until "
            "then, transcribe whole recordings, without --stream."
        )
