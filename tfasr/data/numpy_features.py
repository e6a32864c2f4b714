"""The features of `features`, computed without TensorFlow, a stretch of frames at a time."""

import functools
from collections.abc import Callable

import numpy as np

from tfasr.data.feature_config import LEAST_DEVIATION, LOG_FLOOR, FeatureConfig, cosines

# Of HTK's mel scale, in natural logarithms.
_MEL_FACTOR = 1127.0
_MEL_BREAK_HZ = 700.0
# The last one is used; see `expect_many_frames`.
_transforms: list[Callable] = [np.fft.rfft]


def numpy_features(samples: np.ndarray, config: FeatureConfig) -> np.ndarray:
    """Returns the features of samples, before normalisation, as `compute_features` does.

    Every frame depends on its own window alone: the features of a recording are those of its parts,
    put together, if each part begins at a multiple of ``step_samples``.

    Args:
        samples: float32 ``(samples,)`` in -1..1.

    Returns:
        float32 ``(frames, num_mel_bins + num_mfcc)``; no frames where no window fits.
    """
    samples = np.asarray(samples, np.float32)
    if config.num_frames(len(samples)) == 0:
        return np.zeros((0, config.num_features), np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(samples, config.window_samples)
    windows = windows[:: config.step_samples] * hann_window(config.window_samples)
    spectrum = _transforms[-1](windows, axis=1)
    power = np.square(spectrum.real) + np.square(spectrum.imag)
    power = power.astype(np.float32, copy=False)  # NumPy before 2.0 transforms in float64
    log_mel = np.log(power @ mel_filters(config) + np.float32(LOG_FLOOR))
    if not config.num_mfcc:
        return log_mel
    mfcc = log_mel @ cosines(config.num_mel_bins, config.num_mfcc)
    return np.concatenate([log_mel, mfcc], axis=1)


def expect_many_frames() -> None:
    """Loads SciPy's transform, which is seven times as fast as NumPy's.

    Loading it takes a third of a second, as long as NumPy's takes for four minutes of audio: that
    is for callers who know that there is more.
    """
    from scipy.fft import rfft

    _transforms.append(rfft)


def normalise_frames(
    features: np.ndarray,
    config: FeatureConfig,
    mean: np.ndarray | None = None,
    deviation: np.ndarray | None = None,
) -> np.ndarray:
    """Returns features normalised as ``config.normalisation`` says, as `normalise_features` does.

    Of the features of a part of an utterance only "utterance" needs the whole.
    """
    if config.normalisation == "none" or not len(features):
        return features
    if config.normalisation == "utterance":
        mean, deviation = features.mean(axis=0), features.std(axis=0)
    return (features - mean) / np.maximum(deviation, np.float32(LEAST_DEVIATION))


@functools.cache
def hann_window(length: int) -> np.ndarray:
    """Returns TensorFlow's periodic Hann window, which for odd lengths is the symmetric one."""
    period = length if length % 2 == 0 else max(length - 1, 1)
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / period)).astype(np.float32)


@functools.cache
def mel_filters(config: FeatureConfig) -> np.ndarray:
    """Returns triangles linear in mel, float32 ``(window_samples // 2 + 1, num_mel_bins)``."""
    bins = config.window_samples // 2 + 1
    frequencies = _mel(np.linspace(0.0, config.sample_rate_hz / 2, bins))[:, None]
    edges = _mel(np.array([config.lower_edge_hz, config.upper_edge_hz]))
    edges = np.linspace(*edges, config.num_mel_bins + 2)
    lower, centre, upper = edges[:-2], edges[1:-1], edges[2:]
    rising = (frequencies - lower) / (centre - lower)
    falling = (upper - frequencies) / (upper - centre)
    filters = np.maximum(0.0, np.minimum(rising, falling))
    filters[0] = 0.0  # the constant part belongs to no filter
    return filters.astype(np.float32)


def _mel(hz: np.ndarray) -> np.ndarray:
    return _MEL_FACTOR * np.log1p(hz / _MEL_BREAK_HZ)
