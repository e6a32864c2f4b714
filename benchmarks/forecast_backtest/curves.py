"""Runs, their targets, and what was known of them after each evaluation."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forecast_backtest import shapes
from tfasr.tta.forecast import Course, course
from tfasr.tta.policies import AccuracyPoint, medians
from tfasr.tta.published import find_logs, load_log

TIMES_TARGET = (1.0, 1.25, 1.6, 2.2)
WINDOWS = (1, 3)
_OVER_LOWEST = 1.02  # a tfasr run's own target over its lowest word error rate


@dataclass(frozen=True)
class Source:
    """Logs of one kind.

    Attributes:
        policy: whose clock they are read by.
        targets: by a word in the name of the group's folder, the word error rate to
            reach.
    """

    policy: str
    targets: dict[str, float]


SOURCES = {
    "mlperf": Source("mlperf", {"": 0.058}),
    "algoperf": Source("algoperf", {"deepspeech": 0.119936, "conformer": 0.085884}),
    "tfasr": Source("paper", {}),
}


@dataclass(frozen=True)
class Curve:
    """A run and a target.

    Attributes:
        source: of `SOURCES`, or a simulated shape.
        group: its folder or simulated system.
        run: its log.
        points: all of its evaluations.
        window: the evaluations whose median must meet the target.
        target: the value.
        hit: at which evaluation it was met, counted from 1; None where never.
    """

    source: str
    group: str
    run: str
    points: list[AccuracyPoint]
    window: int
    target: float
    hit: int | None


@dataclass(frozen=True)
class Cut:
    """A curve as it was known after ``count`` evaluations; ``present`` is None where
    unknown.
    """

    curve: Curve
    count: int
    present: Course | None
    reason: str

    @property
    def tenth(self) -> int:
        """The tenth of the way to the target, 0 to 9."""
        return 10 * self.count // self.curve.hit


def read_curves(folders: dict[str, Path]) -> list[Curve]:
    """Returns every run with each of its targets.

    Logs end where a single evaluation met the benchmark's target; what the median of
    three would have done after that is not known, and left out.
    """
    curves = []
    for source, folder in folders.items():
        for group in sorted(path for path in folder.iterdir() if path.is_dir()):
            for log in find_logs(group):
                points = load_log(log).accuracy_curve("wer", SOURCES[source].policy)
                if not points:
                    continue

                target = _target(source, group.name, points)

                for times, window in itertools.product(TIMES_TARGET, WINDOWS):
                    value = min(1.0, times * target)
                    curve = make_curve(
                        source, group.name, log.name, points, value, window
                    )
                    if curve.hit or not any(point.value <= value for point in points):
                        curves.append(curve)

    return curves


def simulated_curves(seed: int, systems: int = shapes.SYSTEMS) -> list[Curve]:
    """Returns runs of `shapes.SHAPES`, an evaluation each minute."""
    rng = np.random.default_rng(seed)
    curves = []
    for shape, system in itertools.product(shapes.SHAPES, range(systems)):
        runs, targets = shapes.simulated(shape, rng)
        for run, values in enumerate(runs):
            points = [
                AccuracyPoint(n, 60.0 * n, v)
                for n, v in enumerate(values.tolist(), start=1)
            ]
            names = (shape, f"{shape} {system}", f"run {run}")
            for target, window in itertools.product(targets, WINDOWS):
                curves.append(make_curve(*names, points, target, window))

    return curves


def _target(source: str, group: str, points: list[AccuracyPoint]) -> float:
    published = [
        value for word, value in SOURCES[source].targets.items() if word in group
    ]
    if published:
        return published[0]

    return _OVER_LOWEST * min(point.value for point in points)


def make_curve(
    source: str,
    group: str,
    run: str,
    points: list[AccuracyPoint],
    target: float,
    window: int,
) -> Curve:
    """Returns a run and a target, with the evaluation at which it was met."""
    numbered = enumerate(
        medians([point.value for point in points], window), start=window
    )
    hit = next((number for number, median in numbered if median <= target), None)
    return Curve(source, group, run, points, window, target, hit)


def cuts_of(curve: Curve) -> Iterator[Cut]:
    """Yields the curve after each evaluation before the target was met."""
    for count in range(1, (curve.hit or len(curve.points) + 1)):
        yield Cut(
            curve, count, *course(curve.points[:count], curve.target, curve.window)
        )
