"""Acoustic features: log-mel energies and their cepstra, in TensorFlow, offline and in graph."""

from typing import Literal

import numpy as np
import tensorflow as tf

from tfasr.config import config_class, require

LOG_FLOOR = 1e-6


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
        """Raises ValueError for sizes that make no features."""
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


def compute_features(samples: tf.Tensor, config: FeatureConfig) -> tf.Tensor:
    """Returns the features of one utterance, before normalisation.

    Log-mel: natural logarithm of the power spectrum through triangular filters that are linear in
    mel (HTK's scale and shape), plus 1e-6. MFCC: HTK's type-II cosine transform of those, scaled by
    sqrt(2 / num_mel_bins) for every coefficient, the zeroth included, without liftering.

    Args:
        samples: float32 ``(samples,)`` in -1..1.
        config: what to compute.

    Returns:
        float32 ``(frames, num_mel_bins + num_mfcc)``; no frames where no window fits.

    Source: the paper, section 2.1, which starts from a magnitude spectrogram where this takes
    power; S. Young et al., The HTK Book, section 5.6.
    """
    spectrum = tf.signal.stft(
        samples,
        frame_length=config.window_samples,
        frame_step=config.step_samples,
        fft_length=config.window_samples,
        window_fn=tf.signal.hann_window,
    )
    power = tf.math.square(tf.abs(spectrum))
    filters = tf.signal.linear_to_mel_weight_matrix(
        config.num_mel_bins,
        config.window_samples // 2 + 1,
        config.sample_rate_hz,
        config.lower_edge_hz,
        config.upper_edge_hz,
    )
    log_mel = tf.math.log(tf.matmul(power, filters) + LOG_FLOOR)
    if not config.num_mfcc:
        return log_mel
    mfcc = tf.matmul(log_mel, _cosines(config.num_mel_bins, config.num_mfcc))
    return tf.concat([log_mel, mfcc], axis=-1)


def _cosines(num_mel_bins: int, num_mfcc: int) -> np.ndarray:
    """Returns HTK's cosine transform as a float32 matrix; TensorFlow's fails on no frames."""
    angles = np.outer(np.arange(num_mel_bins) + 0.5, np.arange(num_mfcc)) * np.pi / num_mel_bins
    return (np.sqrt(2 / num_mel_bins) * np.cos(angles)).astype(np.float32)


def normalise_features(
    features: tf.Tensor,
    config: FeatureConfig,
    mean: tf.Tensor | None = None,
    deviation: tf.Tensor | None = None,
) -> tf.Tensor:
    """Returns one utterance's features normalised as ``config.normalisation`` says.

    Args:
        features: float32 ``(frames, num_features)``, without padding.
        config: names the normalisation.
        mean: float32 ``(num_features,)`` of the training split, for "corpus" alone.
        deviation: float32 ``(num_features,)``, standard deviation, for "corpus" alone.
    """
    if config.normalisation == "none":
        return features
    if config.normalisation == "utterance":
        mean = tf.reduce_mean(features, axis=0)
        deviation = tf.math.reduce_std(features, axis=0)
    # A feature that never moves (digital silence) is centred, not blown up.
    return (features - mean) / tf.maximum(deviation, 1e-3)
