"""How many utterances a target takes at each size of the global batch, and how sure that is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfasr.bench.scaling.positive_fit import Prior, drawn_errors

RUN_TO_RUN = Prior(error=0.07, weight=4)
"""MLPerf's times to train of RNN-T vary by 3 to 10 % from seed to seed."""
NO_BATCH = 1e12
"""Stands for a critical batch that is larger than any."""
_SCALES = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 801)])


@dataclass(frozen=True)
class TargetMet:
    """A run that met the target.

    Attributes:
        batch: utterances of its global batch.
        utterances: that it trained on until then.
    """

    batch: float
    utterances: float


class BatchCurve:
    """Utterances to a target over the global batch, by a parametric bootstrap.

    Two curves are fitted to the logarithms, since nobody knows which is right beyond the measured
    sizes: ``least * (1 + batch / critical)``, and a power of the batch between 0 (nothing is lost)
    and 1 (steps stay as many). Each draw refits both to utterances that differ by a drawn error,
    and takes one of them with its Akaike weight; with two sizes each fits, and weighs, the same.
    With one size alone the power is drawn evenly between 0 and 1.

    Args:
        points: runs that met the target; several of one size tell how much runs differ.
        draws: how many.
        rng: draws them.
        prior: of the error of a run.

    Raises:
        ValueError: if there are no points.

    Source: S. McCandlish et al., An Empirical Model of Large-Batch Training, 2018, equation 2.11
    (the critical batch); C. Shallue et al., Measuring the Effects of Data Parallelism on Neural
    Network Training, 2019, section 4 (no one curve fits every workload).
    """

    def __init__(
        self,
        points: Sequence[TargetMet],
        draws: int,
        rng: np.random.Generator,
        prior: Prior = RUN_TO_RUN,
    ):
        if not points:
            raise ValueError("A batch curve must be fitted to runs that met a target. Got none.")
        sizes = np.array([point.batch for point in points], float)
        logs = np.log([point.utterances for point in points])
        self._middle = float(np.exp(np.log(sizes).mean()))
        self._new = rng.standard_normal(draws)  # one for all batches, see `PositiveFit`
        self.sizes = sorted(set(sizes.tolist()))
        relative = sizes / self._middle
        one_size = len(self.sizes) == 1
        fits = _fits(relative, logs[None])
        squares, fitted = min(((fit.squares[0], fit.fitted[0]) for fit in fits), key=lambda f: f[0])
        freedom = len(points) - (1 if one_size else 2)
        self._errors = drawn_errors(float(squares), max(freedom, 0), prior, draws, rng)
        noise = self._errors[:, None] * rng.standard_normal((draws, len(points)))
        critical, power = _fits(relative, fitted + noise)
        if one_size:
            power.slope[:] = rng.uniform(size=draws)
        weight = _first_weight(critical.squares, power.squares, len(points))
        self._by_power = rng.uniform(size=draws) >= (0.0 if one_size else weight)
        self._critical, self._power = critical, power

    @property
    def critical_batch(self) -> np.ndarray:
        """Draws of the batch at which the least utterances double; `NO_BATCH` for none."""
        return self._middle / np.maximum(self._critical.slope, self._middle / NO_BATCH)

    def drawn(self, batch: float) -> np.ndarray:
        """Returns draws of the utterances of one new run with such a global batch, ``(draws,)``."""
        relative = batch / self._middle
        by_critical = self._critical.offset + np.log1p(self._critical.slope * relative)
        by_power = self._power.offset + self._power.slope * np.log(relative)
        logs = np.where(self._by_power, by_power, by_critical)
        return np.exp(logs + self._errors * self._new)


@dataclass
class _Fit:
    """A curve fitted to each row of logarithms of utterances.

    Attributes:
        offset: ``(rows,)``.
        slope: ``(rows,)``: of what the batch adds, or its power.
        squares: sums of squared residuals, ``(rows,)``.
        fitted: ``(rows, points)``.
    """

    offset: np.ndarray
    slope: np.ndarray
    squares: np.ndarray
    fitted: np.ndarray


def _fits(sizes: np.ndarray, logs: np.ndarray) -> tuple[_Fit, _Fit]:
    """Returns the fit by a critical batch and that by a power."""
    means = logs.mean(axis=1, keepdims=True)
    centred = logs - means
    # The critical batch: the best of many, each with its best offset.
    shapes = np.log1p(_SCALES[:, None] * sizes)
    shape_means = shapes.mean(axis=1)
    shapes_centred = shapes - shape_means[:, None]
    squares = (
        np.square(centred).sum(axis=1)[:, None]
        - 2 * centred @ shapes_centred.T
        + np.square(shapes_centred).sum(axis=1)
    )
    best = squares.argmin(axis=1)
    offset = means[:, 0] - shape_means[best]
    critical = _Fit(
        offset, _SCALES[best], squares[np.arange(len(logs)), best], offset[:, None] + shapes[best]
    )
    # A power: a straight line over logarithms.
    x = np.log(sizes)
    x_centred = x - x.mean()
    spread = np.square(x_centred).sum()
    slope = np.clip(centred @ x_centred / spread, 0, 1) if spread > 1e-12 else 0 * means[:, 0]
    fitted = means + slope[:, None] * x_centred
    residual = np.square(logs - fitted).sum(axis=1)
    power = _Fit(means[:, 0] - slope * x.mean(), slope, residual, fitted)
    return critical, power


def _first_weight(first: np.ndarray, second: np.ndarray, count: int) -> np.ndarray:
    """Returns the Akaike weight of the first of two fits with equally many numbers."""
    floor = 1e-4 * count  # differences of less than 1 % decide nothing
    ratio = count / 2 * (np.log(first + floor) - np.log(second + floor))
    return 1 / (1 + np.exp(np.clip(ratio, -500, 500)))
