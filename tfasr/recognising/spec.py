"""What a recogniser is beside its weights: features, alphabet, geometry, decoder."""

from dataclasses import dataclass

import numpy as np

from tfasr.alphabet import Alphabet
from tfasr.data.feature_config import FeatureConfig
from tfasr.data.numpy_features import normalise_frames, numpy_features
from tfasr.decoding.choice import DecoderConfig
from tfasr.errors import UsageError

STREAMING_PRESET = "an4_streaming.gin"


@dataclass(frozen=True)
class RecogniserSpec:
    """How samples become what a model takes, and what its output frames mean."""

    model: str  # the name of its class in `tfasr.models.recogniser.MODELS`
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
