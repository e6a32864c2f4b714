"""A Gaussian filter for curves, and thinning of points too close to be told apart."""

import numpy as np

SIGMA = 10.0
_REACH = 4.0


def gaussian_smooth(values: np.ndarray, sigma: float = SIGMA) -> np.ndarray:
    """Returns values smoothed by a Gaussian, mirrored at both ends.

    The same as ``scipy.ndimage.gaussian_filter1d`` with its defaults.

    Args:
        values: float ``(n,)``, finite.
        sigma: standard deviation in samples, larger than 0.

    Returns:
        Float ``(n,)``.

    Raises:
        ValueError: if ``sigma`` is not positive.

    Source: the paper (arXiv 2003.12366), Figure 7: sigma 10.
    """
    if not sigma > 0:
        raise ValueError(f"sigma must be larger than 0. Received: sigma={sigma}.")
    values = np.asarray(values, dtype=float)
    if values.size == 0:
        return values
    radius = int(_REACH * sigma + 0.5)
    kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    padded = np.pad(values, radius, mode="symmetric")
    return np.convolve(padded, kernel / kernel.sum(), mode="valid")


def thin(length: int, most: int) -> np.ndarray:
    """Returns at most ``most`` evenly spread indices below ``length``, the last one included."""
    if length <= most:
        return np.arange(length)
    return np.unique(np.linspace(0, length - 1, most).round().astype(int))
