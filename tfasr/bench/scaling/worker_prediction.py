"""Predicts a run of N workers from measured ones: steps per second and time to accuracy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tfasr.bench.scaling.batch_curve import BatchCurve, TargetMet
from tfasr.bench.scaling.positive_fit import PositiveFit, Prior
from tfasr.bench.scaling.prediction import Link

DRAWS = 4000
SHARE = 0.9
"""Of new runs, the part that an interval is meant to hold."""
STEP_ERROR = Prior(error=0.10, weight=4)
"""How far a straight line over rows, and a ring over a network, are from what will be measured."""
DELIVERED = (0.75, 0.95)
"""What of a stated link gradients get, drawn evenly: headers of Ethernet, IP and TCP take 6 %, and
after each step's pause TCP begins slowly. Chosen by steps over veth pairs of known rates, see
docs/benchmarks/scaling.md."""
_BACKWARD_SHARE = 0.6


@dataclass(frozen=True)
class MeasuredStep:
    """What one worker computed in a step, without the exchange.

    Attributes:
        rows: utterances of the worker's part of the batch.
        seconds: of the step, input wait included.
    """

    rows: float
    seconds: float


@dataclass(frozen=True)
class MeasuredExchange:
    """An exchange of gradients.

    Attributes:
        workers: that took part, at least 2.
        gradient_bytes: that each had.
        seconds: until all had their sum.
    """

    workers: int
    gradient_bytes: float
    seconds: float


@dataclass(frozen=True)
class BesideSteps:
    """The seconds of a run, up to its target, that are not steps.

    Attributes:
        fixed_s: start, compilation, checkpoints and the like.
        shared_s: evaluation and decoding by all workers together, as if by one.
        utterances: trained on meanwhile.
    """

    fixed_s: float
    shared_s: float
    utterances: float


@dataclass(frozen=True)
class Measurements:
    """All that a prediction is made of.

    Attributes:
        steps: of one worker, at least one; several numbers of rows tell what a step costs
            whatever its rows.
        gradient_bytes: that a step exchanges.
        link: between workers, as stated; None to take it from ``exchanges``.
        exchanges: measured. Beside a link they are what an exchange costs without one, such as
            over a loopback, and the link's seconds are added.
        overlap: share of the exchange hidden behind the backward pass.
        targets: runs that met the target; none for a prediction of steps alone.
        beside: what those runs did beside their steps.
        filled: mean over nominal batch: the last batches of an epoch are smaller.
    """

    steps: Sequence[MeasuredStep]
    gradient_bytes: float
    link: Link | None = None
    exchanges: Sequence[MeasuredExchange] = ()
    overlap: float = 0.0
    targets: Sequence[TargetMet] = ()
    beside: Sequence[BesideSteps] = ()
    filled: float = 1.0


@dataclass(frozen=True)
class Interval:
    """The median of draws, and the bounds between which `SHARE` of them lie."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, draws: np.ndarray, share: float = SHARE) -> "Interval":
        """Returns the interval of draws."""
        low, middle, high = np.quantile(draws, [(1 - share) / 2, 0.5, (1 + share) / 2])
        return cls(float(low), float(middle), float(high))

    def holds(self, value: float) -> bool:
        """Whether a value lies within the bounds."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class PredictedRun:
    """What is to be expected of a number of workers on a global batch.

    Attributes:
        workers: how many.
        global_batch: utterances over all.
        step_s: seconds of a step.
        exchange_s: of them, the exchange that nothing hides.
        efficiency: a step of one worker on as many rows over this one.
        utterances: to the target; None where no run met one.
        target_s: seconds to the target; likewise.
        beyond: which of "rows", "batch" and "workers" lie outside of what was measured.
    """

    workers: int
    global_batch: int
    step_s: Interval
    exchange_s: Interval
    efficiency: Interval
    utterances: Interval | None = None
    target_s: Interval | None = None
    beyond: list[str] = field(default_factory=list)

    @property
    def steps_per_s(self) -> Interval:
        """Steps a second."""
        step = self.step_s
        return Interval(1 / step.high, 1 / step.middle, 1 / step.low)


class WorkerPrediction:
    """Predictions from measurements, each an interval of new runs.

    ``step = fixed + per_row * rows + exposed``, where ``rows = batch / workers``, the exchange is a
    ring all-reduce, ``2 (N - 1) * (latency + bytes / N / bandwidth)``, and exposed is what of it
    the backward pass does not hide. ``time = steps * step + fixed + shared / workers`` with
    ``steps = utterances(batch) / batch``; rows and steps are of the mean batch.

    Args:
        measured: what it is made of.
        seed: of the draws.

    Raises:
        ValueError: if no step was measured, or nothing says how fast the workers exchange.

    Source: P. Patarasuk and X. Yuan, Bandwidth Optimal All-reduce Algorithms for Clusters of
    Workstations, 2009, section 3 (the ring).
    """

    def __init__(self, measured: Measurements, seed: int = 0):
        if not measured.steps or (measured.link is None and not measured.exchanges):
            raise ValueError(
                "A prediction must be given measured steps and a link or measured exchanges. "
                f"Received: {len(measured.steps)} steps, {len(measured.exchanges)} exchanges."
            )
        self.measured = measured
        rng = np.random.default_rng(seed)
        steps, exchanges = measured.steps, measured.exchanges
        self._compute = PositiveFit(
            [(1.0, step.rows) for step in steps],
            [step.seconds for step in steps],
            STEP_ERROR,
            DRAWS,
            rng,
        )
        self._exchange = exchanges and PositiveFit(
            [_messages(one.workers, one.gradient_bytes) for one in exchanges],
            [one.seconds for one in exchanges],
            STEP_ERROR,
            DRAWS,
            rng,
        )
        self._delivered = rng.uniform(*DELIVERED, DRAWS)
        self._curve = BatchCurve(measured.targets, DRAWS, rng) if measured.targets else None
        # Each draw has the rest of one of the runs.
        which = rng.integers(0, max(len(measured.beside), 1), DRAWS)
        rests = measured.beside or [BesideSteps(0.0, 0.0, 1.0)]
        self._fixed_s = np.array([rest.fixed_s for rest in rests])[which]
        self._shared_s = np.array([rest.shared_s / rest.utterances for rest in rests])[which]

    @property
    def critical_batch(self) -> Interval | None:
        """The batch at which twice the least utterances are needed; None without two batches."""
        if self._curve is None or len(self._curve.sizes) == 1:
            return None
        return Interval.of(self._curve.critical_batch)

    def coefficients(self) -> tuple[Interval, Interval]:
        """Returns a step's seconds whatever its rows, and those of a row."""
        fixed, per_row = self._compute.coefficients.T
        return Interval.of(fixed), Interval.of(per_row)

    def run(self, workers: int, global_batch: int) -> PredictedRun:
        """Returns what is to be expected of so many workers on such a global batch."""
        batch = global_batch * self.measured.filled
        rows = batch / workers
        compute_s = self._compute.drawn(1.0, rows)
        exchange_s = self._exchange_s(workers)
        hidden_s = np.minimum(self.measured.overlap * exchange_s, _BACKWARD_SHARE * compute_s)
        exposed_s = exchange_s - hidden_s
        step_s = compute_s + exposed_s
        utterances = target_s = None
        if self._curve is not None:
            drawn = self._curve.drawn(global_batch)
            beside_s = self._fixed_s + drawn * self._shared_s / workers
            target_s = Interval.of(drawn / batch * step_s + beside_s)
            utterances = Interval.of(drawn)
        return PredictedRun(
            workers,
            global_batch,
            Interval.of(step_s),
            Interval.of(exposed_s),
            Interval.of(compute_s / step_s),
            utterances,
            target_s,
            self._beyond(workers, rows, global_batch),
        )

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
        found = [] if min(of_rows) <= rows <= max(of_rows) else ["rows"]
        if self._curve is not None and not self._curve.sizes[0] <= batch <= self._curve.sizes[-1]:
            found.append("batch")
        seen = [one.workers for one in self.measured.exchanges]
        if workers > max(seen, default=1) and self.measured.link is None:
            found.append("workers")
        return found


def _messages(workers: int, size_bytes: float) -> tuple[float, float]:
    """Returns how many messages a ring sends one after the other, and the bytes over one link."""
    messages = 2.0 * (workers - 1)
    return messages, messages * size_bytes / workers


def without_limit() -> Link:
    """Returns a link that takes no time: for steps whose measured seconds hold the exchange."""
    return Link(math.inf)
