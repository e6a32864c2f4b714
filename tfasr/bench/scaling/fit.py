"""Predicts the steps and runs of N workers from measured ones, with intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BACKWARD_SHARE = 0.6  # assumed share of a step spent in the backward pass


@dataclass(frozen=True)
class Link:
    bytes_per_s: float  # of each device in one direction; may be infinite
    latency_s: float = 0.0  # per message, added to its bytes' time


@dataclass(frozen=True)
class SingleDeviceStep:
    fixed_s: float  # independent of the batch size: the update, starting kernels
    per_utterance_s: float

    def seconds(self, batch: float) -> float:
        return self.fixed_s + self.per_utterance_s * batch


@dataclass(frozen=True)
class ScalingModel:
    single: SingleDeviceStep  # without any communication
    gradient_bytes: float  # exchanged by each device in a step
    link: Link
    overlap: float = 0.0  # fraction of the exchange hidden behind the backward pass
    backward_share: float = BACKWARD_SHARE  # of a single device's step
    shared_cores: bool = False  # whether devices are slices of one processor

    def step_s(self, devices: int, per_device_batch: float) -> float:
        compute_s = self.single.seconds(per_device_batch)
        if self.shared_cores:
            compute_s *= devices
        exchange_s = ring_all_reduce_s(devices, self.gradient_bytes, self.link)
        hidden_s = min(self.overlap * exchange_s, self.backward_share * compute_s)
        return compute_s + exchange_s - hidden_s

    def weak_efficiency(self, devices: int, per_device_batch: float) -> float:
        """Returns one device's step time over that of N devices, each with a full batch."""
        return self.step_s(1, per_device_batch) / self.step_s(devices, per_device_batch)

    def strong_efficiency(self, devices: int, global_batch: float) -> float:
        """Returns one device's step time over N times that of N devices that share its batch."""
        shared = self.step_s(devices, global_batch / devices)
        return self.step_s(1, global_batch) / (devices * shared)


def ring_all_reduce_s(devices: int, size_bytes: float, link: Link) -> float:
    """Returns the seconds of a ring all-reduce: ``2 (N - 1)`` messages, each of 1/N of the data.

    Source: P. Patarasuk and X. Yuan, Bandwidth Optimal All-reduce Algorithms for Clusters of
    Workstations, 2009, section 3.
    """
    messages, moved_bytes = _messages(devices, size_bytes)
    return messages * link.latency_s + moved_bytes / link.bytes_per_s


def fit_link(devices: Sequence[int], sizes: Sequence[float], seconds: Sequence[float]) -> Link:
    """Fits bandwidth and latency to ring all-reduces by least squares of relative errors."""
    columns = np.array([_messages(n, size) for n, size in zip(devices, sizes, strict=True)])
    latency_s, s_per_byte = _solved(columns, np.array([seconds]))[0].tolist()
    return Link(1 / s_per_byte if s_per_byte > 0 else math.inf, latency_s)


def fit_single_device(batches: Sequence[float], seconds: Sequence[float]) -> SingleDeviceStep:
    """Fits a step's two times to measured steps by least squares of relative errors."""
    if len(set(batches)) == 1:
        return SingleDeviceStep(0.0, float(np.mean(seconds)) / batches[0])
    columns = np.array([(1.0, batch) for batch in batches])
    return SingleDeviceStep(*_solved(columns, np.array([seconds]))[0].tolist())


@dataclass(frozen=True)
class Prior:
    """Assumed size of an error before any was measured."""

    error: float  # standard deviation of logarithms, roughly a fraction
    weight: float  # counts as so many measurements


def drawn_errors(
    squares: float, freedom: int, prior: Prior, draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Draws the errors' standard deviation ``(draws,)``, given their squares' sum and a prior.

    Source: A. Gelman et al., Bayesian Data Analysis, 3rd edition, 2013, section 3.2: variances are
    scaled inverse chi-squared.
    """
    weight = prior.weight + freedom
    scale = prior.weight * prior.error**2 + squares
    return np.sqrt(scale / rng.chisquare(weight, draws))


class PositiveFit:
    """``first * x + second * y``, fitted to measured seconds by least squares of relative errors.

    The fit is a parametric bootstrap. Each draw draws a size of errors, changes the fitted seconds
    by such errors and fits ``coefficients`` ``(draws, 2)`` to the result. If the measurements can't
    separate ``first`` from ``second``, time is split between them at random. ``causes`` are the
    ``(x, y)`` of measurements; seconds of equal causes are averaged geometrically.
    """

    def __init__(self, causes, seconds, prior: Prior, draws: int, rng: np.random.Generator):
        x, inverse = np.unique(np.asarray(causes, float), axis=0, return_inverse=True)
        logs = np.log(np.asarray(seconds, float))
        inverse = inverse.reshape(-1)  # NumPy versions differ in its shape
        measured = np.exp(np.bincount(inverse, logs) / np.bincount(inverse))
        self._rng = rng
        # All predictions get the same noise, so they differ only through their causes.
        self._new = rng.standard_normal(draws)
        if np.linalg.matrix_rank(x / measured[:, None]) < 2:
            self._errors = drawn_errors(0.0, 0, prior, draws, rng)
            drawn = self._noisy(measured)
            self.coefficients = _shared_out(x, drawn, rng.uniform(size=draws))
            return
        fitted = _solved(x, measured[None])[0] @ x.T
        squares = float(np.square(np.log(measured / fitted)).sum())
        self._errors = drawn_errors(squares, len(x) - 2, prior, draws, rng)
        self.coefficients = _solved(x, self._noisy(fitted))

    def drawn(self, first: float, second: float) -> np.ndarray:
        """Draws the seconds that a new measurement with these causes would take, ``(draws,)``."""
        seconds = self.coefficients @ np.array([first, second], float)
        return seconds * np.exp(self._errors * self._new)

    def _noisy(self, seconds: np.ndarray) -> np.ndarray:
        noise = self._rng.standard_normal((len(self._errors), len(seconds)))
        return seconds * np.exp(self._errors[:, None] * noise)


def _shared_out(x: np.ndarray, seconds: np.ndarray, shares: np.ndarray) -> np.ndarray:
    present = x.max(axis=0) > 0
    share = np.stack([shares, 1 - shares], axis=1) if present.all() else present * np.ones((1, 2))
    scale = np.where(present, x[-1], math.inf)
    return share * seconds[:, -1:] / scale


def _solved(x: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    # scipy.optimize.nnls handles one row at a time, but there are thousands of draws.
    weighted = x[None] / seconds[:, :, None]  # (rows, measurements, 2)
    moments = np.einsum("rmi,rmj->rij", weighted, weighted)
    sums = weighted.sum(axis=1)
    (a, b), d = moments[:, 0].T, moments[:, 1, 1]
    determinant = np.maximum(a * d - b * b, np.finfo(float).tiny)
    unbounded = np.stack([d * sums[:, 0] - b * sums[:, 1], a * sums[:, 1] - b * sums[:, 0]], axis=1)
    unbounded /= determinant[:, None]
    alone = [np.stack([sums[:, 0] / a, 0 * a], axis=1), np.stack([0 * d, sums[:, 1] / d], axis=1)]
    # Fitting one cause alone lowers the sum of squared errors by ``sum**2 / moment``.
    first_alone = sums[:, 0] ** 2 / a >= sums[:, 1] ** 2 / d
    edge = np.where(first_alone[:, None], *alone)
    return np.where((unbounded >= 0).all(axis=1)[:, None], unbounded, edge)


RUN_TO_RUN = Prior(error=0.07, weight=4)  # MLPerf's RNN-T varies by 3 to 10 % between seeds
NO_BATCH = 1e12  # a critical batch this large stands for an unlimited one
_SCALES = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 801)])


@dataclass(frozen=True)
class TargetMet:
    batch: float  # utterances on all workers
    utterances: float  # how many the run trained on until it met the target


class BatchCurve:
    """How many utterances a target needs at each global batch size, by a parametric bootstrap.

    Two curves are fitted to logarithms, as it isn't known which is right beyond the measured sizes:
    ``least * (1 + batch / critical)``, and a power of the batch from 0 (always as many utterances)
    to 1 (always as many steps). Each draw changes the utterances by a drawn error, refits both
    curves and uses one, chosen by Akaike weight. With a single size, the power is drawn uniformly.

    Source: S. McCandlish et al., An Empirical Model of Large-Batch Training, 2018, equation 2.11
    (the critical batch); C. Shallue et al., Measuring the Effects of Data Parallelism on Neural
    Network Training, 2019, section 4 (no one curve fits every workload).
    """

    def __init__(self, points: Sequence[TargetMet], draws: int, rng, prior: Prior = RUN_TO_RUN):
        sizes = np.array([point.batch for point in points], float)
        logs = np.log([point.utterances for point in points])
        self._middle = float(np.exp(np.log(sizes).mean()))
        self._new = rng.standard_normal(draws)  # the same for all batches, as in `PositiveFit`
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
        floor = 1e-4 * len(points)  # residuals below 1 % count as equal
        ratio = np.log(critical.squares + floor) - np.log(power.squares + floor)
        weight = 1 / (1 + np.exp(np.clip(len(points) / 2 * ratio, -500, 500)))
        self._by_power = rng.uniform(size=draws) >= (0.0 if one_size else weight)
        self._critical, self._power = critical, power

    @property
    def critical_batch(self) -> np.ndarray:
        """Draws of the batch that needs twice the fewest utterances; `NO_BATCH` if unlimited."""
        return self._middle / np.maximum(self._critical.slope, self._middle / NO_BATCH)

    def drawn(self, batch: float) -> np.ndarray:
        """Draws how many utterances a new run with this global batch needs, ``(draws,)``."""
        relative = batch / self._middle
        by_critical = self._critical.offset + np.log1p(self._critical.slope * relative)
        by_power = self._power.offset + self._power.slope * np.log(relative)
        logs = np.where(self._by_power, by_power, by_critical)
        return np.exp(logs + self._errors * self._new)


@dataclass
class _Fit:
    """A curve fitted to each draw (row) of the logarithms of utterances."""

    offset: np.ndarray  # ``(rows,)``
    slope: np.ndarray  # ``(rows,)``: 1 / critical batch (in units of ``sizes``), or the power
    squares: np.ndarray  # sum of squared residuals, ``(rows,)``
    fitted: np.ndarray  # ``(rows, points)``


def _fits(sizes: np.ndarray, logs: np.ndarray) -> tuple[_Fit, _Fit]:
    from scipy.spatial.distance import cdist  # imported late: predicting steps alone needs no SciPy

    means = logs.mean(axis=1, keepdims=True)
    centred = logs - means
    # ``least * (1 + batch / critical)``: tries many critical batches, each with its best offset.
    shapes = np.log1p(_SCALES[:, None] * sizes)
    shape_means = shapes.mean(axis=1)
    squares = cdist(centred, shapes - shape_means[:, None], "sqeuclidean")
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


DRAWS = 4000
SHARE = 0.9  # fraction of new runs that an interval should contain
STEP_ERROR = Prior(error=0.10, weight=4)
"""The assumed error of steps from a line over rows, and of exchanges from an ideal ring."""
DELIVERED = (0.75, 0.95)
"""Share of the stated bandwidth that gradients use, drawn uniformly. Ethernet, IP and TCP headers
take 6 %, and TCP starts slowly after each step's pause. Chosen from steps over virtual links (veth)
of known rates, see docs/benchmarks/scaling.md."""


@dataclass(frozen=True)
class MeasuredStep:
    """A worker's step, without the exchange."""

    rows: float  # the worker's utterances
    seconds: float  # including input wait


@dataclass(frozen=True)
class MeasuredExchange:
    workers: int  # at least 2
    gradient_bytes: float  # of each worker's gradients
    seconds: float  # until all workers had the sum


@dataclass(frozen=True)
class ConcurrentSteps:
    fixed_s: float  # outside steps: start, compilation, checkpoints and so on
    shared_s: float  # evaluation and decoding, as if done by one worker
    utterances: float  # that the run trained on


@dataclass(frozen=True)
class Measurements:
    steps: Sequence[MeasuredStep]  # at least one; steps with different rows show the fixed part
    gradient_bytes: float  # exchanged in a step
    link: Link | None = None  # with stated rates; None to use only ``exchanges``
    # with a ``link``, these used no network, and the link's seconds are added to theirs
    exchanges: Sequence[MeasuredExchange] = ()
    overlap: float = 0.0  # fraction of the exchange hidden behind the backward pass
    targets: Sequence[TargetMet] = ()  # empty to predict only steps
    beside: Sequence[ConcurrentSteps] = ()  # seconds outside steps, of the runs in ``targets``
    filled: float = 1.0  # mean over nominal batch size, as an epoch's last batches are smaller


def interval(draws: np.ndarray) -> tuple[float, float, float]:
    """Returns the median of draws, between bounds that enclose a fraction `SHARE` of them."""
    return tuple(np.quantile(draws, [(1 - SHARE) / 2, 0.5, (1 + SHARE) / 2]).tolist())


class WorkerPrediction:
    """Predicts new runs from measurements; each prediction is an interval.

    ``step = fixed + per_row * rows + exposed`` with ``rows = batch / workers``, where exposed is
    the part of a ring all-reduce that the backward pass doesn't hide; ``time = steps * step + start
    + shared / workers`` with ``steps = utterances(global_batch) / batch``, where ``batch`` is the
    mean batch size, and start and shared come from ``measured.beside`` (``fixed_s``, ``shared_s``).
    Raises ValueError if no step was measured, or the speed of the exchange is unknown.
    """

    def __init__(self, measured: Measurements, seed: int = 0):
        if not measured.steps or (measured.link is None and not measured.exchanges):
            raise ValueError(
                "A prediction needs measured steps and a link or measured exchanges. "
                f"Received: {len(measured.steps)} steps, {len(measured.exchanges)} exchanges."
            )
        self.measured = measured
        rng = np.random.default_rng(seed)
        steps, exchanges = measured.steps, measured.exchanges
        self._compute = PositiveFit(
            [(1.0, s.rows) for s in steps], [s.seconds for s in steps], STEP_ERROR, DRAWS, rng
        )
        messages = [_messages(exchange.workers, exchange.gradient_bytes) for exchange in exchanges]
        seconds = [exchange.seconds for exchange in exchanges]
        self._exchange = exchanges and PositiveFit(messages, seconds, STEP_ERROR, DRAWS, rng)
        self._delivered = rng.uniform(*DELIVERED, DRAWS)
        self._curve = BatchCurve(measured.targets, DRAWS, rng) if measured.targets else None
        # Each draw uses the fixed and shared seconds of a random run.
        which = rng.integers(0, max(len(measured.beside), 1), DRAWS)
        rests = measured.beside or [ConcurrentSteps(0.0, 0.0, 1.0)]
        self._fixed_s = np.array([rest.fixed_s for rest in rests])[which]
        self._shared_s = np.array([rest.shared_s / rest.utterances for rest in rests])[which]

    @property
    def critical_batch(self) -> tuple[float, float, float] | None:
        """The batch that needs twice the fewest utterances; None if only one size was measured."""
        if self._curve is None or len(self._curve.sizes) == 1:
            return None
        return interval(self._curve.critical_batch)

    @property
    def coefficients(self) -> tuple[float, float]:
        """Medians of a step's fixed seconds and of its seconds per row."""
        return tuple(np.median(self._compute.coefficients, axis=0).tolist())

    def run(self, workers: int, global_batch: int) -> dict[str, Any]:
        """Returns a run as JSON values: medians, and each interval's ends as _low and _high.

        "exchange_s" is the part of "step_s" that isn't hidden. "efficiency" is one worker's step
        with as many rows over the run's. "utterances" and "target_s" need runs that met a target.
        "beyond" lists what lies outside the measured range.
        """
        batch = global_batch * self.measured.filled
        rows = batch / workers
        compute_s = self._compute.drawn(1.0, rows)
        exchange_s = self._exchange_s(workers)
        hidden_s = np.minimum(self.measured.overlap * exchange_s, BACKWARD_SHARE * compute_s)
        exposed_s = exchange_s - hidden_s
        step_s = compute_s + exposed_s
        intervals = {
            "steps_per_s": tuple(1 / bound for bound in reversed(interval(step_s))),
            "step_s": interval(step_s),
            "exchange_s": interval(exposed_s),
            "efficiency": interval(compute_s / step_s),
        }
        if self._curve is not None:
            drawn = self._curve.drawn(global_batch)
            beside_s = self._fixed_s + drawn * self._shared_s / workers
            intervals["utterances"] = interval(drawn)
            intervals["target_s"] = interval(drawn / batch * step_s + beside_s)
        row: dict[str, Any] = {"workers": workers, "global_batch": global_batch}
        for name, (low, middle, high) in intervals.items():
            row |= {name: middle, f"{name}_low": low, f"{name}_high": high}
        return row | {"beyond": ",".join(self._beyond(workers, rows, global_batch))}

    def _exchange_s(self, workers: int) -> np.ndarray:
        link, size = self.measured.link, self.measured.gradient_bytes
        if workers == 1:
            return np.zeros(DRAWS)
        messages, per_link = _messages(workers, size)
        seconds = np.zeros(DRAWS)
        if self._exchange:
            seconds = seconds + self._exchange.drawn(messages, per_link)
        if link is not None:
            per_s = self._delivered * link.bytes_per_s
            seconds = seconds + messages * link.latency_s + per_link / per_s
        return seconds

    def _beyond(self, workers: int, rows: float, batch: float) -> list[str]:
        of_rows = [step.rows for step in self.measured.steps]
        checks = {"rows": min(of_rows) <= rows <= max(of_rows)}
        if self._curve is not None:
            checks["batch"] = self._curve.sizes[0] <= batch <= self._curve.sizes[-1]
        most = max((exchange.workers for exchange in self.measured.exchanges), default=1)
        checks["workers"] = workers <= most or self.measured.link is not None
        return [name for name, measured in checks.items() if not measured]


def _messages(workers: int, size_bytes: float) -> tuple[float, float]:
    messages = 2.0 * (workers - 1)
    return messages, messages * size_bytes / workers
