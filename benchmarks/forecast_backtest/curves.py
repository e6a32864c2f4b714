"""Runs, their targets, and what was known of them after each evaluation."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfasr.tta.forecast import course
from tfasr.tta.policies import AccuracyPoint, medians
from tfasr.tta.published import find_logs, load_log

TIMES_TARGET = (1.0, 1.25, 1.6, 2.2)
WINDOWS = (1, 3)


@dataclass(frozen=True)
class Source:
    """Logs of one kind.

    Attributes:
        policy: whose clock they are read by.
        targets: by a word in the name of the group's folder, the word error rate to reach.
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
        source: of `SOURCES`.
        group: its folder.
        run: its log.
        points: all of its evaluations.
        window: the evaluations whose median must meet the target.
        times: the target over the benchmark's own.
        target: the value.
        hit: at which evaluation it was met, counted from 1; None where never.
    """

    source: str
    group: str
    run: str
    points: list[AccuracyPoint]
    window: int
    times: float
    target: float
    hit: int | None


@dataclass(frozen=True)
class Cut:
    """A curve as it was known after ``count`` evaluations."""

    curve: Curve
    count: int
    features: np.ndarray | None
    reason: str

    @property
    def share(self) -> float:
        """The share of the way to the target, or of the whole run where it never got there."""
        return self.count / (self.curve.hit or len(self.curve.points))


def read_curves(folders: dict[str, Path]) -> list[Curve]:
    """Returns every run with each of its targets.

    Logs end where a single evaluation met the benchmark's target; what the median of three would
    have done after that is not known, and left out.
    """
    found = []
    for source, folder in folders.items():
        for group in sorted(path for path in folder.iterdir() if path.is_dir()):
            for log in find_logs(group):
                run = load_log(log)
                points = run.accuracy_curve("wer", SOURCES[source].policy)
                for target in _targets(source, group.name, run):
                    for times, window in itertools.product(TIMES_TARGET, WINDOWS):
                        curve = _curve(source, group.name, log, points, times, target, window)
                        touched = any(point.value <= curve.target for point in points)
                        if curve.hit or not touched:
                            found.append(curve)
    return found


def _targets(source: str, group: str, run) -> list[float]:
    stated = [value for word, value in SOURCES[source].targets.items() if word in group]
    return stated[:1] or [value for metric, value in run.targets if metric == "wer"]


def _curve(source, group, log, points, times, target, window) -> Curve:
    value = min(1.0, times * target)
    found = list(medians([point.value for point in points], window))
    hit = next((n for n, median in enumerate(found, start=window) if median <= value), None)
    return Curve(source, group, log.name, points, window, times, value, hit)


def cuts_of(curve: Curve) -> Iterator[Cut]:
    """Yields the curve after each evaluation before the target was met."""
    for count in range(1, (curve.hit or len(curve.points) + 1)):
        features, reason = course(curve.points[:count], curve.target, curve.window)
        yield Cut(curve, count, features, reason)
