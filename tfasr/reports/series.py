"""The smoothed loss and speed of a run's steps over time, for three horizontal axes.

A ledger has an event for each step. Figures need a few hundred points of each curve, so
`run_series` smooths and thins them while the run is still in memory;
`tfasr.reports.figures.curves` draws what is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfasr.ledger.intervals import Steps, evaluated_epoch
from tfasr.ledger.timeline import Timeline
from tfasr.tta.policies import PAPER, Policy
from tfasr.tta.run import Run

# Steps over which the loss is smoothed. Source: arXiv 2003.12366, Figure 7.
SIGMA = 10.0


def thin(length: int, most: int) -> np.ndarray:
    """Returns at most ``most`` evenly spread indices below ``length``.

    The first and the last one are among them.

    >>> thin(9, 3).tolist()
    [0, 4, 8]
    """
    if length <= most:
        return np.arange(length)

    return np.unique(np.linspace(0, length - 1, most).round().astype(int))


# Horizontal axes of curves; time is in seconds of the policy's clock.
AXES = ("time", "epochs", "utterances")
# Points of a curve: about one for each pixel of a panel's width.
CURVE_POINTS = 400
# Of all steps: the window over which rates are averaged.
_ROLLING_SHARE = 0.02
# The rate over the wall clock has bins of at least so many steps on average; smaller
# ones would show single steps as spikes.
_STEPS_PER_BIN = 3
# The rates by the amounts that a step's event states.
_STATED = {"audio_s": "audio_s_per_s", "utterances": "utterances_per_s"}
# The seconds of a step, which its event states in parts.
_SECONDS = ("input_wait_s", "compile_s", "train_s")
# Epoch, start and stop of an evaluation, in seconds of a policy's clock.
Evaluation = tuple[int, float, float]


@dataclass(frozen=True)
class Series:
    """A curve over each of the `AXES` that the run's log allows, in float32 to save memory.

    Attributes:
        x: for each axis, the places of the points, ascending.
        y: the values at these places.
    """

    x: dict[str, np.ndarray]
    y: np.ndarray


@dataclass(frozen=True)
class RunSeries:
    """What figures over time need of a run.

    Attributes:
        loss: smoothed and thinned.
        throughput: ``audio_s_per_s`` and ``utterances_per_s``, if logged: rates over
            windows of 2 % of all steps.
        evaluations: in the order of their time.
        utterances_by_epoch: seen in training by each epoch's end; {} if not logged.
        wall_throughput: utterances per wall-clock second; None if utterances are not
            logged.
        fall_at_evaluations: by what share ``wall_throughput`` falls at an evaluation,
            see `_fall_at_evaluations`.
    """

    loss: Series
    throughput: dict[str, Series]
    evaluations: list[Evaluation]
    utterances_by_epoch: dict[int, float]
    wall_throughput: Series | None = None
    fall_at_evaluations: float | None = None


def run_series(run: Run, policy: Policy) -> RunSeries:
    """Returns a run's steps over time on a policy's clock, without lost work."""
    # Imported late: most reports don't need it.
    from scipy.ndimage import gaussian_filter1d

    line = run.timeline
    steps = line.steps
    seconds = np.array(policy.times_s(line))

    # An axis that the log doesn't allow is missing.
    x = {"time": seconds[steps.indices]}
    epochs = [line.metadata[index].get("epoch_num") for index in steps.indices]
    if None not in epochs and epochs == sorted(epochs):
        x["epochs"] = _progress(epochs)

    by_epoch = {}
    utterances = steps.column("utterances")
    if np.isfinite(utterances).all():
        x["utterances"] = np.cumsum(utterances)
        by_epoch = dict(zip(epochs, x["utterances"], strict=True))
        by_epoch.pop(None, None)

    # A logarithmic axis can't show values of 0 or less.
    loss = steps.column("loss")
    shown = np.flatnonzero(np.isfinite(loss) & (loss > 0))
    some = thin(shown.size, CURVE_POINTS)
    smooth = gaussian_filter1d(loss[shown], SIGMA)[some].astype(np.float32)

    fall = None
    wall_s = np.array(PAPER.times_s(line))
    wall_throughput = _wall_throughput(wall_s, steps)

    if wall_throughput is not None:
        fall = _fall_at_evaluations(wall_throughput, _evaluations(line, wall_s))

    return RunSeries(
        loss=Series(_single(x, shown[some]), smooth),
        throughput=_throughput(x, steps),
        evaluations=_evaluations(line, seconds),
        utterances_by_epoch=by_epoch,
        wall_throughput=wall_throughput,
        fall_at_evaluations=fall,
    )


def _throughput(x: dict[str, np.ndarray], steps: Steps) -> dict[str, Series]:
    """Returns the rates of a run's steps as moving means over `_ROLLING_SHARE` of all steps.

    Args:
        x: the places of all steps, by axis.
        steps: their utterances, seconds of audio, and seconds.

    Returns:
        By rate, such as "utterances_per_s", a series of at most `CURVE_POINTS`; a rate that
        some step doesn't state is missing.
    """
    seconds = sum(steps.amounts(name) for name in _SECONDS)
    window = max(1, round(len(steps) * _ROLLING_SHARE))
    passed = _rolling_sum(seconds, window)
    shown = np.flatnonzero(passed > 0)
    shown = shown[thin(shown.size, CURVE_POINTS)]

    # Shared by both rates.
    at = _single(x, shown)
    series = {}

    for name, rate in _STATED.items():
        amount = steps.column(name)
        if len(steps) and np.isfinite(amount).all():
            speed = _rolling_sum(amount, window)[shown] / passed[shown]
            series[rate] = Series(at, speed.astype(np.float32))

    return series


def _wall_throughput(clock_s: np.ndarray, steps: Steps) -> Series | None:
    """Returns the mean rate in equal bins of the clock.

    Utterances are spread evenly over the seconds of their step. None if some step
    doesn't state its utterances. Source: arXiv 2003.12366, Figure 9.

    Args:
        clock_s: seconds of the wall clock at each event of the run.
        steps: the steps among these events.
    """
    utterances = steps.column("utterances")
    if not len(steps) or not np.isfinite(utterances).all() or not clock_s[-1] > 0:
        return None

    # The utterances trained on until each step's start, and until its end.
    stop_s = clock_s[steps.indices]
    lasted = sum(steps.amounts(name) for name in _SECONDS)
    edges = np.column_stack([stop_s - lasted, stop_s]).ravel()
    done = np.concatenate([[0.0], np.cumsum(utterances)])
    trained = np.column_stack([done[:-1], done[1:]]).ravel()

    bins = min(CURVE_POINTS, max(1, len(steps) // _STEPS_PER_BIN))
    at = np.linspace(0.0, clock_s[-1], bins + 1)
    # Clocks are rounded: a step may seem to start before the previous one ended.
    amount = np.diff(np.interp(at, np.maximum.accumulate(edges), trained))
    middles = _single({"time": (at[:-1] + at[1:]) / 2}, np.arange(bins))

    return Series(middles, (amount / np.diff(at)).astype(np.float32))


def _fall_at_evaluations(speeds: Series, evaluations: list[Evaluation]) -> float | None:
    """Returns by what share the rate falls at an evaluation, the median over all evaluations.

    The lowest bin that an evaluation touches is compared with the median of the bins
    that none touches; None if all bins or none are touched. Source: arXiv 2003.12366,
    section 5.2.
    """
    # The first bin begins at 0 and has its middle at half its width.
    width = 2 * float(speeds.x["time"][0])
    last = len(speeds.y) - 1
    touched = np.zeros(len(speeds.y), bool)
    lowest = []

    for _, start, stop in evaluations:
        first_bin = min(int(start / width), last)
        bins = slice(first_bin, int(stop / width) + 1)
        touched[bins] = True
        lowest.append(float(speeds.y[bins].min()))

    if not lowest or touched.all():
        return None

    usual = np.median(speeds.y[~touched])
    if usual <= 0:
        return None

    return float(1 - np.median(lowest) / usual)


def _rolling_sum(values: np.ndarray, window: int) -> np.ndarray:
    """Returns the sum of each value and the ``window - 1`` before it; fewer at the beginning.

    The result has the length of ``values``.
    """
    total = np.concatenate([[0.0], np.cumsum(values)])
    last = np.arange(1, total.size)

    return total[last] - total[np.maximum(last - window, 0)]


def _progress(epochs: Sequence[int]) -> np.ndarray:
    """Returns how many epochs were done after each step, in fractions.

    Args:
        epochs: the epoch of each step, ascending. Its last epoch may be incomplete, and is
            taken to be as long as the longest one.

    >>> _progress([1, 1, 2, 2]).tolist()
    [0.5, 1.0, 1.5, 2.0]
    """
    numbers = np.array(epochs, dtype=float)
    _, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    if not counts.size:
        return numbers

    first = np.concatenate([[0], np.cumsum(counts)[:-1]])[inverse]
    counts[-1] = counts.max()

    return numbers - 1 + (np.arange(numbers.size) - first + 1) / counts[inverse]


def _evaluations(line: Timeline, seconds: np.ndarray) -> list[Evaluation]:
    """Returns epoch, start and stop of each evaluation that is no lost work.

    Args:
        line: the run's events.
        seconds: of a policy's clock at each event.
    """
    evaluations = []
    started = {}

    for index in line.of("eval_start", "eval_stop"):
        epoch = evaluated_epoch(line.metadata[index])
        if not line.useful[index] or epoch is None:
            continue

        if line.keys[index] == "eval_start":
            started[epoch] = float(seconds[index])
        elif epoch in started:
            evaluations.append((epoch, started.pop(epoch), float(seconds[index])))

    return evaluations


def _single(x: dict[str, np.ndarray], indices: np.ndarray) -> dict[str, np.ndarray]:
    """Returns places at some indices, by axis, in float32.

    Figures have fewer than a thousand points, and reports may have thousands of runs.
    """
    return {name: values[indices].astype(np.float32) for name, values in x.items()}
