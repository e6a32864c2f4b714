"""Acoustic features: log-mel energies and MFCC, computed with TensorFlow or NumPy.

Training computes them once, while packing, with TensorFlow (`compute_features`); a
recogniser in use computes them with NumPy (`numpy_features`), so that it runs without
TensorFlow. Tests hold the two together. Shards store features before normalisation;
`normalise_features` and `normalise_frames` are applied as they are read.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np

from tfasr.errors import needed
from tfasr.kit.config import config_class, require

if TYPE_CHECKING:
    import tensorflow as tf

LOG_FLOOR = 1e-6  # added to every filter's energy before its logarithm
# Deviations count as at least so much: a constant feature (digital silence) is thus
# centred, but not amplified.
LEAST_DEVIATION = 1e-3
Statistics = tuple[np.ndarray, np.ndarray]  # mean and deviation
# Of an average speaker, for speakers who say little; nothing else was tried.
PRIOR_FRAMES = 150
# Fourier transforms, of which the last is used; `expect_many_frames` adds a faster one.
_transforms: list[Callable] = [np.fft.rfft]


@config_class
class FeatureConfig:
    """What a frame holds and how it is normalised.

    Attributes:
        sample_rate_hz: sample rate of the audio from which features are computed.
        window_samples: length of the periodic Hann window and of the Fourier transform.
        step_samples: samples from one frame to the next.
        num_mel_bins: log-mel energies per frame.
        num_mfcc: cepstral coefficients per frame, appended to the log-mel energies.
        lower_edge_hz: where the lowest mel filter begins.
        upper_edge_hz: where the highest mel filter ends.
        normalisation: "utterance" (zero mean and unit variance of each feature over an
            utterance), "speaker" (over all utterances of the split by the same speaker,
            see `pooled`), "corpus" (with the training split's mean and deviation) or
            "none". Shards contain features before normalisation, so you can change it
            without preparing again.
        spectrum: what mel filters sum up: "magnitude" (the paper's), or its square
            "power".

    Source: the paper, section 2.1: 80 log-mel and 13 MFCC, 32 ms windows every 10 ms.
    """

    sample_rate_hz: int = 16000
    window_samples: int = 512
    step_samples: int = 160
    num_mel_bins: int = 80
    num_mfcc: int = 13
    lower_edge_hz: float = 0.0
    upper_edge_hz: float = 8000.0
    normalisation: Literal["utterance", "speaker", "corpus", "none"] = "utterance"
    spectrum: Literal["magnitude", "power"] = "magnitude"

    def check(self) -> None:
        for field in (
            "sample_rate_hz",
            "window_samples",
            "step_samples",
            "num_mel_bins",
        ):
            require(getattr(self, field) > 0, self, field, "positive")

        require(
            0 <= self.num_mfcc <= self.num_mel_bins,
            self,
            "num_mfcc",
            "in 0..num_mel_bins",
        )
        possible = (
            0 <= self.lower_edge_hz < self.upper_edge_hz <= self.sample_rate_hz / 2
        )
        rule = "above lower_edge_hz and at most half the sample rate"
        require(possible, self, "upper_edge_hz", rule)

    @property
    def num_features(self) -> int:
        """Features per frame: log-mel energies, then MFCC."""
        return self.num_mel_bins + self.num_mfcc

    def num_frames(self, num_samples: int) -> int:
        """Returns how many whole windows fit into so many samples; 0 below one window."""
        return max(0, (num_samples - self.window_samples) // self.step_samples + 1)


def cosines(num_mel_bins: int, num_mfcc: int) -> np.ndarray:
    """HTK's type-II cosine transform, float32 ``(num_mel_bins, num_mfcc)``.

    It replaces TensorFlow's, which fails if there are no frames. One matrix for
    TensorFlow and NumPy also keeps their MFCC equal.
    """
    centres = np.arange(num_mel_bins) + 0.5
    angles = np.outer(centres, np.arange(num_mfcc)) * np.pi / num_mel_bins
    return (np.sqrt(2 / num_mel_bins) * np.cos(angles)).astype(np.float32)


def compute_features(samples: "tf.Tensor", config: FeatureConfig) -> "tf.Tensor":
    """Returns the features of one utterance, before normalisation.

    Log-mel: filters that are triangles on HTK's mel scale sum up the power or magnitude
    spectrum; the feature is the natural logarithm of 1e-6 plus that sum. MFCC: HTK's
    type-II cosine transform of the log-mel energies, with every coefficient (the zeroth
    too) multiplied by sqrt(2 / num_mel_bins), without liftering.

    Args:
        samples: float32 ``(samples,)`` in -1..1.

    Returns:
        float32 ``(frames, num_mel_bins + num_mfcc)``; 0 frames if the audio is below
            one window.

    Source: the paper, section 2.1, which starts from a magnitude spectrogram; S. Young
    et al., The HTK Book, section 5.6.
    """
    # Imported here, because `numpy_features` must run without TensorFlow.
    tf = needed("tensorflow", "tfasr.compute_features")
    size = config.window_samples
    spectrum = tf.signal.stft(
        samples,
        size,
        config.step_samples,
        size,
        tf.signal.hann_window,
    )
    energies = tf.abs(spectrum)
    if config.spectrum == "power":
        energies = tf.math.square(energies)

    edges_hz = (config.lower_edge_hz, config.upper_edge_hz)
    filters = tf.signal.linear_to_mel_weight_matrix(
        config.num_mel_bins,
        size // 2 + 1,
        config.sample_rate_hz,
        *edges_hz,
    )
    log_mel = tf.math.log(tf.matmul(energies, filters) + LOG_FLOOR)
    if not config.num_mfcc:
        return log_mel

    mfcc = tf.matmul(log_mel, cosines(config.num_mel_bins, config.num_mfcc))

    return tf.concat([log_mel, mfcc], axis=-1)


def normalise_features(
    features: "tf.Tensor",
    config: FeatureConfig,
    mean: "tf.Tensor | None" = None,
    deviation: "tf.Tensor | None" = None,
) -> "tf.Tensor":
    """Normalises features as the config says.

    Args:
        features: of one utterance without padding, float32 ``(frames, num_features)``.
        config: its ``normalisation`` decides what is subtracted.
        mean: of the corpus or speaker, ``(num_features,)``; "utterance" and "none" need
            no mean.
        deviation: of the corpus or speaker, as ``mean``.
    """
    if config.normalisation == "none":
        return features

    tf = needed("tensorflow", "normalise_features")
    if config.normalisation == "utterance":
        mean = tf.reduce_mean(features, axis=0)
        deviation = tf.math.reduce_std(features, axis=0)

    return (features - mean) / tf.maximum(deviation, LEAST_DEVIATION)


def numpy_features(samples: np.ndarray, config: FeatureConfig) -> np.ndarray:
    """Computes what `compute_features` does, in NumPy; float32 ``(frames, num_features)``.

    Samples that start at a multiple of ``step_samples`` in a recording have its frames
    from there, so a stream can be computed in parts. Differences from TensorFlow are
    those of rounding.
    """
    samples = np.asarray(samples, np.float32)
    if config.num_frames(len(samples)) == 0:
        return np.zeros((0, config.num_features), np.float32)

    windows = np.lib.stride_tricks.sliding_window_view(samples, config.window_samples)
    windows = windows[:: config.step_samples] * hann_window(config.window_samples)
    spectrum = _transforms[-1](windows, axis=1)
    energies = np.square(spectrum.real) + np.square(spectrum.imag)
    if config.spectrum == "magnitude":
        energies = np.sqrt(energies)

    # NumPy before 2.0 transforms in float64
    energies = energies.astype(np.float32, copy=False)
    log_mel = np.log(energies @ mel_filters(config) + np.float32(LOG_FLOOR))
    if not config.num_mfcc:
        return log_mel

    mfcc = log_mel @ cosines(config.num_mel_bins, config.num_mfcc)

    return np.concatenate([log_mel, mfcc], axis=1)


def expect_many_frames() -> None:
    """Switches to SciPy's Fourier transform, which is seven times as fast as NumPy's.

    Importing SciPy takes time, so this pays for 4 minutes of audio or more. It holds
    for the rest of the process.
    """
    from scipy.fft import rfft

    _transforms.append(rfft)


def normalise_frames(
    features: np.ndarray,
    config: FeatureConfig,
    mean: np.ndarray | None = None,
    deviation: np.ndarray | None = None,
) -> np.ndarray:
    """Does what `normalise_features` does, in NumPy, for a recogniser in use.

    "corpus" and "none" also work on parts of an utterance, as in streams. For "speaker"
    it takes the corpus's statistics, whereas `normalise_features` takes those of
    `pooled`; ``features`` count as the speaker's whole speech. Empty input stays empty.
    """
    if config.normalisation == "none" or not len(features):
        return features

    if config.normalisation == "speaker":
        speaker_statistics = features.mean(axis=0), features.std(axis=0)
        mean, deviation = pooled(len(features), speaker_statistics, (mean, deviation))

    if config.normalisation == "utterance":
        mean = features.mean(axis=0)
        deviation = features.std(axis=0)

    return (features - mean) / np.maximum(deviation, np.float32(LEAST_DEVIATION))


def pooled(frames: np.ndarray | int, own: Statistics, corpus: Statistics) -> Statistics:
    """Estimates a speaker's mean and deviation from few frames.

    `PRIOR_FRAMES` frames with the training split's mean and deviation are added to the
    speaker's own, so that a speaker who says little is normalised almost like the
    corpus.

    Args:
        frames: the speaker's number of frames, broadcast against the statistics.
        own: the speaker's, ``(..., num_features)`` each.
        corpus: the training split's, ``(num_features,)`` each.

    Returns:
        Mean and deviation of all these frames together, ``(..., num_features)``.
    """
    share = frames / (frames + PRIOR_FRAMES)
    apart = own[0] - corpus[0]
    within = corpus[1] ** 2 + share * (own[1] ** 2 - corpus[1] ** 2)

    return corpus[0] + share * apart, (within + share * (1 - share) * apart**2) ** 0.5


def check_statistics(
    mean: np.ndarray,
    deviation: np.ndarray,
    num_features: int,
) -> None:
    """Raises ValueError for statistics that can't be a split's.

    A deviation of 0 (a constant feature) is valid. They come from files that others may
    have edited.
    """
    shapes = {mean.shape, deviation.shape}
    finite = np.isfinite(mean).all() and np.isfinite(deviation).all()
    possible = finite and (deviation >= 0).all() and deviation.any()
    if shapes != {(num_features,)} or not possible:
        raise ValueError(
            f"The features' mean and deviation must be {num_features} finite numbers each. No "
            f"deviation may be negative, and not all may be 0. Received: {mean.size} and "
            f"{deviation.size} numbers."
        )


@functools.cache
def hann_window(length: int) -> np.ndarray:
    """Returns TensorFlow's periodic Hann window, float32 ``(length,)``.

    For odd lengths it is in fact symmetric, in TensorFlow too.
    """
    period = length if length % 2 == 0 else max(length - 1, 1)
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / period)).astype(
        np.float32
    )


@functools.cache
def mel_filters(config: FeatureConfig) -> np.ndarray:
    """Returns triangular mel filters, float32 ``(window_samples // 2 + 1, num_mel_bins)``.

    Neighbours overlap by half, as in TensorFlow's ``linear_to_mel_weight_matrix``.
    """
    bins = config.window_samples // 2 + 1
    frequencies = mel(np.linspace(0.0, config.sample_rate_hz / 2, bins))[:, None]
    edges = mel(np.array([config.lower_edge_hz, config.upper_edge_hz]))
    # Each filter reaches from its neighbour's centre to the next one's.
    edges = np.linspace(*edges, config.num_mel_bins + 2)
    lower = edges[:-2]
    centre = edges[1:-1]
    upper = edges[2:]
    rising = (frequencies - lower) / (centre - lower)
    falling = (upper - frequencies) / (upper - centre)
    filters = np.maximum(0.0, np.minimum(rising, falling))
    filters[0] = 0.0  # no filter includes 0 Hz

    return filters.astype(np.float32)


def mel(hz: np.ndarray) -> np.ndarray:
    """Converts frequencies in Hz to HTK's mel scale."""
    return 1127.0 * np.log1p(hz / 700.0)
