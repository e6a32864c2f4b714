"""What a frame of features holds; what computes it is in `features` and `numpy_features`."""

from typing import Literal

import numpy as np

from tfasr.config import config_class, require

LOG_FLOOR = 1e-6
"""Added to every filter's energy before its logarithm."""
LEAST_DEVIATION = 1e-3
"""A feature that never moves (digital silence) is centred, not blown up."""


@config_class
class FeatureConfig:
    """What a frame holds and how it is normalised.

    Attributes:
        sample_rate_hz: of the samples the features are computed from.
        window_samples: length of the periodic Hann window and of the Fourier transform.
        step_samples: samples from one frame to the next.
        num_mel_bins: log-mel energies per frame.
        num_mfcc: cepstral coefficients per frame, appended to the log-mel energies.
        lower_edge_hz: where the lowest mel filter begins.
        upper_edge_hz: where the highest mel filter ends.
        normalisation: "utterance" (zero mean and unit variance of each feature over an utterance),
            "corpus" (with the training split's statistics) or "none". Shards hold features before
            normalisation, so it can be changed without preparing again.

    Source: the paper, section 2.1: 80 log-mel and 13 MFCC, 32 ms windows every 10 ms.
    """

    sample_rate_hz: int = 16000
    window_samples: int = 512
    step_samples: int = 160
    num_mel_bins: int = 80
    num_mfcc: int = 13
    lower_edge_hz: float = 0.0
    upper_edge_hz: float = 8000.0
    normalisation: Literal["utterance", "corpus", "none"] = "utterance"

    def check(self) -> None:
        for field in ("sample_rate_hz", "window_samples", "step_samples", "num_mel_bins"):
            require(getattr(self, field) > 0, self, field, "positive")
        require(0 <= self.num_mfcc <= self.num_mel_bins, self, "num_mfcc", "in 0..num_mel_bins")
        require(
            0 <= self.lower_edge_hz < self.upper_edge_hz <= self.sample_rate_hz / 2,
            self,
            "upper_edge_hz",
            "above lower_edge_hz and at most half the sample rate",
        )

    @property
    def num_features(self) -> int:
        """Features per frame."""
        return self.num_mel_bins + self.num_mfcc

    def num_frames(self, num_samples: int) -> int:
        """Returns how many whole windows fit into an utterance."""
        return max(0, (num_samples - self.window_samples) // self.step_samples + 1)


def cosines(num_mel_bins: int, num_mfcc: int) -> np.ndarray:
    """Returns HTK's cosine transform as a float32 matrix ``(num_mel_bins, num_mfcc)``.

    TensorFlow's own fails on no frames.
    """
    angles = np.outer(np.arange(num_mel_bins) + 0.5, np.arange(num_mfcc)) * np.pi / num_mel_bins
    return (np.sqrt(2 / num_mel_bins) * np.cos(angles)).astype(np.float32)
