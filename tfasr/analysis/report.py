"""Everything a report says about its runs, computed once, before it is written in any form."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tfasr.analysis.charges import RunCharges
from tfasr.analysis.comparable import Differences, difference_text, differences
from tfasr.analysis.facts import RunFacts, facts_of
from tfasr.analysis.names import Target
from tfasr.analysis.series import RunSeries, run_series
from tfasr.tta.brackets import Bracket, bracket
from tfasr.tta.decomposition import Parts
from tfasr.tta.policies import POLICIES, Policy
from tfasr.tta.run import Run
from tfasr.tta.throughput import Throughput
from tfasr.tta.time_to_accuracy import AccuracyPoint, TimeToAccuracy, first_sustained


@dataclass(frozen=True)
class TargetResult:
    """A run and one target.

    Attributes:
        tta: when the run met the target, on the report's policy's clock.
        bracket: between which evaluations that lies.
        until_s: seconds by interval from the run's first event until then, or None where never.
        parts: what the time is made of on the paper's clock; None where never, or where the
            log has no steps.
        by_policy_s: seconds under each policy, each with its own window; {} unless asked for.
    """

    tta: TimeToAccuracy
    bracket: Bracket
    until_s: dict[str, float] | None
    parts: Parts | None
    by_policy_s: dict[str, float | None]


@dataclass(frozen=True)
class RunAnalysis:
    """What a report says about one run.

    Attributes:
        name: distinct within the report.
        group: the name of the group of runs of one configuration that it belongs to.
        path: the run's folder.
        results: one for each of the report's targets, in their order.
        intervals_s: seconds by interval of the whole run.
        throughput: the steady speed.
        curves: evaluations by metric on the policy's clock, of the metrics that were evaluated.
        series: what its steps say over time; None unless asked for.
        comparability: what makes the results comparable, None where not stated.
        config: gin's text, None where it was not saved.
        notes: what a reader has to know about the run.
        facts: the machine, what was trained, how long an epoch takes.
        charges: cost and energy; None unless asked for.
    """

    name: str
    group: str
    path: Path
    results: list[TargetResult]
    intervals_s: dict[str, float]
    throughput: Throughput
    curves: dict[str, list[AccuracyPoint]]
    series: RunSeries | None
    comparability: dict | None
    config: str | None
    status: str
    sessions: int
    notes: list[str]
    facts: RunFacts
    charges: RunCharges | None = None

    @property
    def wall_s(self) -> float:
        """Seconds from the run's first event to its last, downtime excluded."""
        return sum(self.intervals_s.values())

    @property
    def epochs(self) -> int:
        """The number of evaluated epochs."""
        return max((len(points) for points in self.curves.values()), default=0)


@dataclass(frozen=True)
class Report:
    """The runs of a report, and how they stand to the first one.

    Attributes:
        runs: in the order given.
        targets: metrics and values.
        policy: whose clock and rule they are measured by.
        window: the evaluations whose median must meet a target.
        differences: for each run, what keeps it from being compared with the first.
        force: whether relative times are given all the same.
        notes: what a reader has to know about the report as a whole.
    """

    runs: list[RunAnalysis]
    targets: list[Target]
    policy: Policy
    window: int
    differences: list[Differences]
    force: bool
    notes: list[str]

    @cached_property
    def longest_s(self) -> float:
        """The wall time of the longest run."""
        return max(run.wall_s for run in self.runs)

    def refused(self, index: int) -> bool:
        """Whether the run of that index is refused a comparison with the first one."""
        return bool(self.differences[index]) and not self.force

    def relative(self, index: int, target: int) -> float | None:
        """Returns a run's time to a target over the first run's; None where there is no such."""
        first = self.runs[0].results[target].tta.seconds
        own = self.runs[index].results[target].tta.seconds
        if self.refused(index) or first is None or own is None or first <= 0:
            return None
        return own / first


def train_s(intervals_s: Mapping[str, float]) -> float:
    """Returns the seconds spent on optimizer updates: input wait, compilation, training."""
    return intervals_s["input_wait"] + intervals_s["compile"] + intervals_s["train"]


def eval_s(intervals_s: Mapping[str, float]) -> float:
    """Returns the seconds spent on evaluation: forward passes and decoding."""
    return intervals_s["eval_forward"] + intervals_s["decode"]


def analyse_run(
    run: Run,
    targets: Sequence[Target],
    *,
    group: str = "",
    policy: Policy = POLICIES["paper"],
    window: int | None = None,
    all_policies: bool = False,
    with_loss: bool = False,
) -> RunAnalysis:
    """Returns what a report says about a run; the run itself can be let go afterwards.

    Args:
        run: the run.
        targets: metrics and values.
        group: the name of the group it belongs to; its own by default.
        policy: whose clock and rule it is measured by.
        window: replaces the policy's own.
        all_policies: also measure it under every other policy.
        with_loss: also keep what figures over time are made of.
    """
    metrics = dict.fromkeys(["cer", "wer", *(metric for metric, _ in targets)])
    curves = {metric: run.accuracy_curve(metric, policy) for metric in metrics}
    return RunAnalysis(
        name=run.name,
        group=group or run.name,
        path=run.path,
        results=[
            _result(run, target, curves[target[0]], policy, window, all_policies)
            for target in targets
        ],
        intervals_s=run.intervals,
        throughput=run.throughput(),
        curves={metric: points for metric, points in curves.items() if points},
        series=run_series(run, policy) if with_loss else None,
        comparability=run.comparability,
        config=run.config,
        status=run.status,
        sessions=run.sessions,
        notes=_notes(run, any(curves.values())),
        facts=facts_of(run, with_utilisation=with_loss or all_policies),
    )


def _result(
    run: Run,
    target: Target,
    points: Sequence[AccuracyPoint],
    policy: Policy,
    window: int | None,
    all_policies: bool,
) -> TargetResult:
    metric, value = target
    own_window = policy.window if window is None else window
    tta = first_sustained(points, value, metric=metric, window=own_window)
    by_policy: dict[str, float | None] = {}
    for name, other in POLICIES.items() if all_policies else ():
        # The report's own curve is there already: only the other policies' are made anew.
        curve = points if other is policy else run.accuracy_curve(metric, other)
        found = first_sustained(curve, value, metric=metric, window=other.window)
        by_policy[name] = found.seconds
    until_s = parts = None
    if tta.reached:
        elapsed = run.elapsed_at(metric, tta.epoch, policy)
        until_s = run.intervals_until(elapsed)
        # Logs of other makers need not have steps to decompose by.
        with suppress(ValueError):
            parts = run.parts_until(elapsed)
    return TargetResult(tta, bracket(points, value, window=own_window), until_s, parts, by_policy)


def compare(
    runs: Sequence[RunAnalysis],
    targets: Sequence[Target],
    *,
    policy: Policy = POLICIES["paper"],
    window: int | None = None,
    force: bool = False,
    notes: Sequence[str] = (),
) -> Report:
    """Returns the report on runs whose ``results`` are those of ``targets``."""
    found = [differences(runs[0].comparability, run.comparability) for run in runs]
    notes = list(notes)
    for run, differing in zip(runs, found, strict=True):
        if differing and force:
            notes.append(
                f"{run.name} is compared with {runs[0].name} by force: they differ in "
                f"{difference_text(differing)}."
            )
        elif differing:
            notes.append(
                f"{run.name} is not compared with {runs[0].name}: they differ in "
                f"{difference_text(differing)}. --force compares them all the same."
            )
    if not targets:
        notes.append("The runs set no targets. Name them, such as --target cer=0.10.")
    window = policy.window if window is None else window
    return Report(list(runs), list(targets), policy, window, found, force, notes)


def _notes(run: Run, evaluated: bool) -> list[str]:
    notes = []
    if run.cut:
        notes.append("a crash cut the ledger's last line, which is left out")
    if not evaluated:
        notes.append("it has no finished evaluation")
    if run.status != "success":
        notes.append(f"the run is {run.status}")
    if run.sessions > 1:
        lost = run.intervals["lost_work"]
        notes.append(f"{run.sessions} sessions; {lost:.1f} s of work were lost and are counted")
    return notes
