"""The numbers of a report, computed once for all its tables, figures and files."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tfasr.analysis.charges import RunCharges
from tfasr.analysis.comparable import Differences, difference_text, differences
from tfasr.analysis.exchange import Exchange, exchange_of
from tfasr.analysis.facts import RunFacts, facts_of
from tfasr.analysis.question import Question
from tfasr.analysis.series import RunSeries, run_series
from tfasr.analysis.stragglers import WorkerPart, parts_of
from tfasr.analysis.worker_files import read_worker_files
from tfasr.analysis.worker_machines import WorkerMachine, machines_of
from tfasr.tta.brackets import Bracket, bracket
from tfasr.tta.costs.energy import used_joules
from tfasr.tta.decomposition import Parts, parts_until
from tfasr.tta.intervals import EVALUATION
from tfasr.tta.metrics import METRICS
from tfasr.tta.policies import Policy
from tfasr.tta.run import Run
from tfasr.tta.targets import Target
from tfasr.tta.throughput import Throughput
from tfasr.tta.time_to_accuracy import AccuracyPoint, TimeToAccuracy, first_sustained


@dataclass(frozen=True)
class TargetResult:
    """When a run met a target, and what it spent until then."""

    tta: TimeToAccuracy  # the time to the target, on the clock of the report's policy
    bracket: Bracket  # the evaluations between which the true time lies
    until_s: dict[str, float] | None  # by interval, from the run's beginning; None if not met
    parts: Parts | None  # factors of the time on the paper's clock; None without steps
    by_policy_s: dict[str, float | None]  # under each of ``Question.beside``; None if not met


@dataclass(frozen=True)
class RunAnalysis:
    name: str  # unique within the report
    group: str  # the name of the group of runs of one configuration that it belongs to
    path: Path  # the run's folder
    results: list[TargetResult]  # one for each of the report's targets, in their order
    intervals_s: dict[str, float]  # seconds by interval of the whole run
    throughput: Throughput  # utterances and seconds of audio per second in steady steps
    curves: dict[str, list[AccuracyPoint]]  # each metric's evaluations on the policy's clock
    series: RunSeries | None  # loss and throughput over time; None unless ``Question.over_time``
    comparability: dict | None  # split, text, decoder, ... in which comparable runs agree
    config: str | None  # the text of its gin configuration; None if it was not saved
    status: str  # "success", or how the run ended otherwise
    sessions: int  # how many processes trained it, one after the other
    notes: list[str]  # sentences that a reader of its results must know
    facts: RunFacts  # the machine, what was trained, how long an epoch takes
    charges: RunCharges | None = None  # cost and energy; None unless asked for
    workers: tuple[WorkerPart, ...] = ()  # parts of a cluster's workers, by rank
    exchange: Exchange | None = None  # of their gradients; None where it is not known
    machines: tuple[WorkerMachine, ...] = ()  # of the workers that noted theirs, by rank

    @cached_property
    def worker_joules(self) -> dict[int, float]:
        """Joules by rank of the workers with counters, from the first to the last sample."""
        used = {machine.rank: used_joules(machine.samples) for machine in self.machines}
        return {rank: joules for rank, joules in used.items() if joules is not None}

    @property
    def wall_s(self) -> float:
        """Seconds from the run's beginning to its last event, downtime excluded."""
        return sum(self.intervals_s.values())

    @property
    def epochs(self) -> int:
        return max((len(points) for points in self.curves.values()), default=0)


@dataclass(frozen=True)
class Report:
    """The runs of a report, and whether each may be compared with the first."""

    runs: list[RunAnalysis]  # in the order given
    question: Question  # its targets are those of the runs if none were asked for
    differences: list[Differences]  # for each run, what forbids a comparison with the first
    notes: list[str]  # sentences that a reader of the whole report must know

    @property
    def targets(self) -> list[Target]:
        return list(self.question.targets)

    @property
    def policy(self) -> Policy:
        """The policy whose clock and rule all times are read by."""
        return self.question.policy

    @property
    def window(self) -> int:
        """Over how many evaluations the median must meet a target."""
        return self.question.own_window

    @cached_property
    def longest_s(self) -> float:
        return max(run.wall_s for run in self.runs)

    def refused(self, index: int) -> bool:
        """Whether the run at that index must not be compared with the first one."""
        return bool(self.differences[index]) and not self.question.force

    def relative(self, index: int, target: int) -> float | None:
        """Returns a run's time to a target over the first run's; None without two such times."""
        first = self.runs[0].results[target].tta.seconds
        own = self.runs[index].results[target].tta.seconds
        if self.refused(index) or first is None or own is None or first <= 0:
            return None
        return own / first


def train_s(intervals_s: Mapping[str, float]) -> float:
    """Returns the seconds spent on optimizer updates: input wait, compilation, training."""
    return intervals_s["input_wait"] + intervals_s["compile"] + intervals_s["train"]


def eval_s(intervals_s: Mapping[str, float]) -> float:
    """Returns the seconds that evaluation took: forward passes, decoding, swaps and waiting."""
    return math.fsum(intervals_s[name] for name in EVALUATION)


def analyse_run(run: Run, question: Question, *, group: str = "") -> RunAnalysis:
    """Returns what a report says about a run, without a reference to the run itself."""
    asked = (metric for metric, _ in question.targets)
    metrics = dict.fromkeys(["cer", "wer", *asked, *run.declared_metrics])
    curves = {metric: run.accuracy_curve(metric, question.policy) for metric in metrics}
    if not any(curves.values()):  # a run of another task, without targets
        curves = {metric: run.accuracy_curve(metric, question.policy) for metric in METRICS}
    files = read_worker_files(run.path)
    workers = tuple(parts_of(files))
    return RunAnalysis(
        name=run.name,
        group=group or run.name,
        path=run.path,
        results=[_result(run, target, question) for target in question.targets],
        intervals_s=run.intervals,
        throughput=run.throughput(),
        curves={metric: points for metric, points in curves.items() if points},
        series=run_series(run, question.policy) if question.over_time else None,
        comparability=run.comparability,
        config=run.config,
        status=run.status,
        sessions=run.sessions,
        notes=_notes(run, any(curves.values())),
        facts=facts_of(run, with_utilisation=question.over_time or bool(question.beside)),
        workers=workers,
        exchange=exchange_of(workers, run.fact("cluster")),
        machines=tuple(machines_of(files)),
    )


def _result(run: Run, target: Target, question: Question) -> TargetResult:
    metric, value = target
    clock, window = question.policy, question.own_window
    points = run.accuracy_curve(metric, clock)
    tta = first_sustained(points, value, metric=metric, window=window)
    by_policy: dict[str, float | None] = {}
    for other in question.beside:
        curve = run.accuracy_curve(metric, other)
        under_other = first_sustained(curve, value, metric=metric, window=other.window)
        by_policy[other.name] = under_other.seconds
    until_s = parts = None
    if tta.reached:
        readings = clock.readings(run.timeline, metric)
        index = next(reading.index for reading in readings if reading.epoch == tta.epoch)
        elapsed_s = run.timeline.elapsed_s[index]
        until_s = run.intervals_until(elapsed_s)
        # Logs of other benchmarks may hold no steps, without which there are no factors.
        with suppress(ValueError):
            parts = parts_until(run.timeline, elapsed_s)
    return TargetResult(
        tta, bracket(points, value, window=window, metric=metric), until_s, parts, by_policy
    )


def make_report(
    runs: Sequence[RunAnalysis], question: Question, *, notes: Sequence[str] = ()
) -> Report:
    """Returns the report on runs that were analysed for the question's targets."""
    of_runs = [differences(runs[0].comparability, run.comparability) for run in runs]
    notes = list(notes)
    for run, differing in zip(runs, of_runs, strict=True):
        if differing and question.force:
            notes.append(
                f"{run.name} is compared with {runs[0].name} by force: they differ in "
                f"{difference_text(differing)}."
            )
        elif differing:
            notes.append(
                f"{run.name} is not compared with {runs[0].name}: they differ in "
                f"{difference_text(differing)}. --force compares them all the same."
            )
    if not question.targets:
        notes.append("The runs set no targets. Name them, such as --target cer=0.10.")
    return Report(list(runs), question, of_runs, notes)


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
    given_up = run.fact("given_up")
    if isinstance(given_up, dict) and isinstance(given_up.get("budget_s"), int | float):
        notes.append(
            f"it was given up for its budget of {given_up['budget_s'] / 3600:.3g} h: what it had "
            "not reached by then is censored, its time longer than what was seen"
        )
    missing = run.fact("missing_compiled_parts")
    if isinstance(missing, list) and missing:
        parts = ", ".join(map(str, missing))
        notes.append(f"compiled parts were missing ({parts}): the run was slower than with them")
    instructions = run.fact("instruction_set")
    if isinstance(instructions, dict) and instructions.get("forced"):
        notes.append(
            f"TFASR_INSTRUCTION_SET held its compiled layers to {instructions.get('name')}: they "
            "may be slower than the processor allows"
        )
    return notes + _shared_notes(run.fact("shared_with_training"))


def _shared_notes(shared: Any) -> list[str]:
    notes = []
    for what in ("utterances", "speakers"):
        count = shared.get(what) if isinstance(shared, dict) else None
        if isinstance(count, int) and count > 0:
            total = shared.get(f"of_{what}")
            notes.append(f"{count} of {total} {what} of the validation split are trained on too")
    return notes
