"""Seconds as a sum of two measured causes, neither negative, drawn many times for an interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Prior:
    """What is believed of an error before it was measured: so much as ``weight`` measurements say.

    Attributes:
        error: standard deviation of logarithms, that is roughly a fraction.
        weight: degrees of freedom; the fewer, the sooner measurements decide alone.
    """

    error: float
    weight: float


def drawn_errors(
    squares: float, freedom: int, prior: Prior, draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Returns draws of a standard deviation, ``(draws,)``.

    The variance is drawn from the scaled inverse chi-squared distribution of the prior and of what
    was measured.

    Args:
        squares: sum of the squared residuals.
        freedom: measurements less fitted numbers.
        prior: decides where nothing is left over to measure an error by.
        draws: how many.
        rng: draws them.

    Source: A. Gelman et al., Bayesian Data Analysis, 3rd edition, 2013, section 3.2.
    """
    weight = prior.weight + freedom
    scale = prior.weight * prior.error**2 + squares
    return np.sqrt(scale / rng.chisquare(weight, draws))


class PositiveFit:
    """``first * x + second * y`` fitted to measured seconds by least squares of relative errors.

    A parametric bootstrap: each draw has an error of its own size, measurements that differ from
    the fitted ones by it, and coefficients fitted to those. Where the measurements cannot tell the
    two causes apart, such as one size alone, each draw shares them out at random.

    Args:
        causes: ``(measurements, 2)``, none negative and none both 0.
        seconds: of each measurement, above 0. Several of the same causes count as their geometric
            mean: they say nothing of other causes.
        prior: of the error of a measurement, and of the model.
        draws: how many.
        rng: draws them.

    Attributes:
        coefficients: of each draw, ``(draws, 2)``.
    """

    def __init__(
        self,
        causes: Sequence[Sequence[float]],
        seconds: Sequence[float],
        prior: Prior,
        draws: int,
        rng: np.random.Generator,
    ):
        x, inverse = np.unique(np.asarray(causes, float), axis=0, return_inverse=True)
        logs = np.log(np.asarray(seconds, float))
        inverse = inverse.reshape(-1)  # of one dimension in every version of NumPy
        measured = np.exp(np.bincount(inverse, logs) / np.bincount(inverse))
        self._rng = rng
        # One for all causes, so that what differs between two predictions is their causes alone.
        self._new = rng.standard_normal(draws)
        rank = int(np.linalg.matrix_rank(x / measured[:, None]))
        if rank < 2:
            self._errors = drawn_errors(0.0, 0, prior, draws, rng)
            drawn = self._noisy(measured)
            self.coefficients = _shared_out(x, drawn, rng.uniform(size=draws))
            return
        fitted = _solved(x, measured[None])[0] @ x.T
        squares = float(np.square(np.log(measured / fitted)).sum())
        self._errors = drawn_errors(squares, len(x) - 2, prior, draws, rng)
        self.coefficients = _solved(x, self._noisy(fitted))

    def drawn(self, first: float, second: float) -> np.ndarray:
        """Returns draws of the seconds that such causes will take when measured, ``(draws,)``."""
        seconds = self.coefficients @ np.array([first, second], float)
        return seconds * np.exp(self._errors * self._new)

    def _noisy(self, seconds: np.ndarray) -> np.ndarray:
        noise = self._rng.standard_normal((len(self._errors), len(seconds)))
        return seconds * np.exp(self._errors[:, None] * noise)


def _shared_out(x: np.ndarray, seconds: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Returns coefficients that share the seconds out between the causes."""
    present = x.max(axis=0) > 0
    share = np.stack([shares, 1 - shares], axis=1) if present.all() else present * np.ones((1, 2))
    scale = np.where(present, x[-1], math.inf)
    return share * seconds[:, -1:] / scale


def _solved(x: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Returns the non-negative least-squares coefficients of each row of seconds, ``(rows, 2)``."""
    # scipy.optimize.nnls takes one row at a time, and there are thousands of draws.
    weighted = x[None] / seconds[:, :, None]  # (rows, measurements, 2)
    moments = np.einsum("rmi,rmj->rij", weighted, weighted)
    sums = weighted.sum(axis=1)
    (a, b), d = moments[:, 0].T, moments[:, 1, 1]
    determinant = np.maximum(a * d - b * b, np.finfo(float).tiny)
    both = np.stack([d * sums[:, 0] - b * sums[:, 1], a * sums[:, 1] - b * sums[:, 0]], axis=1)
    both /= determinant[:, None]
    alone = [np.stack([sums[:, 0] / a, 0 * a], axis=1), np.stack([0 * d, sums[:, 1] / d], axis=1)]
    # With one cause alone the squares fall by the square of its sum over its moment.
    first_alone = sums[:, 0] ** 2 / a >= sums[:, 1] ** 2 / d
    edge = np.where(first_alone[:, None], *alone)
    return np.where((both >= 0).all(axis=1)[:, None], both, edge)
