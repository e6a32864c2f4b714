"""The numbers of a report, computed once for all its tables, figures and files."""

import json
import math
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.errors import RunError, UsageError
from tfasr.kit.files import object_or_empty
from tfasr.ledger.intervals import EVALUATION
from tfasr.ledger.schema import (
    Cluster,
    ComparableWith,
    EvaluationPlacement,
    GivenUp,
    InstructionSet,
    SharedWithTraining,
)
from tfasr.reports import charges
from tfasr.reports.charges import RunCharges, WorkerMachine, WorkerTimes
from tfasr.reports.series import RunSeries, run_series
from tfasr.tta import policies
from tfasr.tta.comparison import TESTS
from tfasr.tta.decomposition import Parts, Throughput, parts_until
from tfasr.tta.energy import used_joules
from tfasr.tta.gpus import gpu_notes
from tfasr.tta.host import (
    HostUse,
    disturbance,
    host_use,
    read_host_file,
    undisturbed_part,
)
from tfasr.tta.metrics import (
    METRICS,
    Metric,
    Metrics,
    Target,
    metric_named,
    written_target,
)
from tfasr.tta.policies import PAPER, AccuracyPoint, Bracket, Policy, TimeToAccuracy
from tfasr.tta.run import Run

# what differs, by name: the first run's value and the other's, as text
Differences = dict[str, tuple[str, str]]
ABSENT = "not stated"
_LONGEST = 60
# Values that are hashes: readers see what was hashed instead.
_HASHES = {
    "validation_references": "the transcripts that are scored",
    "validation_audio": "the recordings that are scored",
    "training_audio": "the recordings that are trained on",
    "lexicon": "the lexicon",
    "start_from": "the trained weights that it began with",
}


def differences(
    first: Mapping[str, Any] | None, other: Mapping[str, Any] | None
) -> Differences:
    """Returns the differences that make two runs incomparable, by setting.

    Inner settings are named "decoder.beam_width". {} if all agree, or if neither run
    states anything; a run that states nothing differs from one that does.
    """
    if first is None or other is None:
        states = tuple(
            ABSENT if value is None else "stated" for value in (first, other)
        )
        return {} if first is other else {"comparability": states}

    missing = object()
    differing: Differences = {}
    for key in first | other:
        values = first.get(key, missing), other.get(key, missing)
        if all(isinstance(value, dict) for value in values):
            within = differences(*values)
            differing |= {f"{key}.{name}": shown for name, shown in within.items()}
        elif values[0] != values[1]:
            differing[key] = _shown(
                *(ABSENT if v is missing else _json(v) for v in values)
            )

    return differing


def difference_text(differences: Differences) -> str:
    """Describes differences in words, with both values; for hashes, names what was hashed."""
    # The hash of all settings adds nothing, unless nothing else differs.
    named = {
        key: both for key, both in differences.items() if key != "hash"
    } or differences
    return ", ".join(_difference_text(key, *both) for key, both in named.items())


def _difference_text(key: str, first: str, other: str) -> str:
    """Returns one difference; for a hash, what was hashed instead of it."""
    if key not in _HASHES:
        return f"{key} ({first}, here {other})"
    states = [text if text in (ABSENT, "null") else "stated" for text in (first, other)]
    lacking = f": {states[0]}, here {states[1]}" if states[0] != states[1] else ""
    return f"{key} ({_HASHES[key]}{lacking})"


_json = partial(json.dumps, ensure_ascii=False, default=str)


def _shown(first: str, other: str) -> tuple[str, str]:
    """Returns two values as text, at most `_LONGEST` letters each.

    Long values that begin alike are cut to start near their first difference.
    """
    # Long values are cut to start where they differ.
    same = len(os.path.commonprefix([first, other]))
    begin = max(0, same - _LONGEST // 3) if same > _LONGEST // 2 else 0
    shown = [f"…{text[begin + 1 :]}" if begin else text for text in (first, other)]
    cut = [
        text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…" for text in shown
    ]
    return cut[0], cut[1]


def facts_of(run: Run, *, with_utilisation: bool = False) -> dict[str, Any]:
    """Returns facts that a run recorded; None or {} if unknown."""
    stated = run.comparability or {}
    useful = run.timeline.useful
    spent = run.intervals
    evaluations = sum(useful[index] for index in run.timeline.of("tracked_stats"))
    epochs = epoch_seconds(run)
    decoder = stated.get("decoder")
    # A recorder's user may state the decoder's name alone.
    decoder = decoder if isinstance(decoder, dict) else {"name": decoder, **stated}
    placement = run.timeline.last(EvaluationPlacement)

    def each(interval: str) -> float | None:
        return spent[interval] / evaluations if evaluations else None

    return {
        # processor, memory, GPUs and software, see `tfasr.telemetry.system`
        "system": run.system.get("system") or {},
        # Utterances of one optimizer update.
        "global_batch_size": run.fact("global_batch_size"),
        "num_replicas": run.fact("num_replicas"),  # devices that share this batch
        "train_samples": run.fact("train_samples"),  # utterances of an epoch
        "seed": run.fact("seed"),  # of the training
        "optimizer": run.fact("opt_name"),
        "decoder": decoder.get("name"),  # of the evaluations
        # A greedy decoder has no beam, whatever its config says.
        "beam_width": None
        if decoder.get("name") == "greedy"
        else decoder.get("beam_width"),
        "evaluations": evaluations,  # how many were finished
        # the median seconds of an epoch without its evaluation; their coefficient of
        # variation
        "epoch_s": statistics.median(epochs) if epochs else None,
        "epoch_variation": variation(epochs) if len(epochs) > 2 else None,
        # Milliseconds of the wall clock at the first event.
        "began_ms": run.events[0].get("time_ms") if run.events else None,
        "eval_samples": run.fact("eval_samples"),  # utterances of an evaluation
        # The prepared splits, as a path of the machine that trained.
        "shard_dir": run.system.get("shard_dir"),
        # What a log of MLPerf calls its machine.
        "platform": run.fact("submission_platform"),
        # where evaluations ran: "shared", "swapped" or "beside"
        "placement": None if placement is None else placement.name,
        # mean seconds of an evaluation: forward passes, waiting for the decoder, both
        # swaps of models, waiting for an evaluation in another process
        "forward_s": each("eval_forward"),
        "decode_s": each("decode"),
        "swap_s": each("swap") or None,
        "wait_s": each("eval_wait") or None,
        # means over the run; ``_bytes`` are maxima
        "utilisation": mean_utilisation(run) if with_utilisation else {},
    }


def variation(values: Sequence[float]) -> float | None:
    """Returns the coefficient of variation of two values or more, or None if their mean
    is 0.
    """
    mean = statistics.fmean(values)
    return statistics.stdev(values) / mean if mean else None


def epoch_seconds(run: Run) -> list[float]:
    """Returns the seconds of each epoch trained entirely by one process, without
    evaluations.
    """
    seconds = []
    line = run.timeline
    starts = {session.start for session in line.sessions}
    partial = False
    began = None
    evaluating_since = None
    evaluated_us = 0
    edges = ("epoch_start", "eval_start", "eval_stop", "epoch_stop", "session_start")
    for index in line.of(*edges):
        key = line.keys[index]
        now = line.clock_us[index]
        if index in starts:
            # The first epoch of a resumed session may be the rest of an epoch.
            partial = index > 0
            began = None
            evaluating_since = None

        if key == "epoch_start":
            began = now
            evaluated_us = 0
        elif key == "eval_start":
            evaluating_since = now
        elif key == "eval_stop" and evaluating_since is not None:
            evaluated_us += now - evaluating_since
            evaluating_since = None
        elif key == "epoch_stop" and began is not None:
            if not partial and line.useful[index]:
                seconds.append((now - began - evaluated_us) / 1e6)
            partial = False
            began = None

    return seconds


def mean_utilisation(run: Run) -> dict[str, float]:
    """Returns the means of a run's samples over all devices, and the most memory of a GPU."""
    columns = {device: run.utilisation(device) for device in ("cpu", "gpu")}
    values = {}
    for heading, device, name, of in (
        ("cpu_share", "cpu", "cpu_percent", np.mean),
        ("process_cpu_share", "cpu", "process_percent", np.mean),
        ("gpu_share", "gpu", "utilisation_percent", np.mean),
        ("gpu_power_w", "gpu", "power_w", np.mean),
        ("gpu_memory_bytes", "gpu", "memory_used_bytes", np.max),
    ):
        column = columns[device].get(name, np.zeros(0))
        finite = column[np.isfinite(column)]
        if finite.size:
            values[heading] = float(of(finite)) * (
                0.01 if heading.endswith("share") else 1.0
            )

    return values


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Returns a distinct short name for each folder: its name, with parents where needed."""
    parts = [path.resolve().parts for path in paths]
    depths = [1] * len(parts)
    names = [path[-1] if path else "" for path in parts]
    for depth in range(2, max(map(len, parts), default=0) + 1):
        counts = Counter(names)
        if max(counts.values()) == 1:
            break
        depths = [
            depth if counts[name] > 1 else d
            for name, d in zip(names, depths, strict=True)
        ]
        names = [
            "/".join(path[-deep:]) for path, deep in zip(parts, depths, strict=True)
        ]

    return names


def merged_targets(
    of_runs: Iterable[Sequence[Target]], metrics: Mapping[str, Metric] = METRICS
) -> list[Target]:
    """Returns every target once: metrics in their usual order, the easiest value first."""
    order = {metric: place for place, metric in enumerate(metrics)}

    def rank(target: Target) -> tuple[int, str, float]:
        metric, value = target
        return (
            order.get(metric, len(order)),
            metric,
            metric_named(metric, metrics).hardness(value),
        )

    return sorted({target for targets in of_runs for target in targets}, key=rank)


def target_label(
    metric: str, value: float, metrics: Mapping[str, Metric] = METRICS
) -> str:
    """Returns a target as text, such as "CER 10 %" or "loss 3.5"."""
    label = metric_label(metric, metrics)
    if metric_named(metric, metrics).rate:
        return f"{label} {100 * value:.4g} %"

    return f"{label} {value:g}"


def metric_label(metric: str, metrics: Mapping[str, Metric] = METRICS) -> str:
    """Returns a metric's name for readers, such as "CER"."""
    return metric_named(metric, metrics).label or metric.replace("_", " ")


def sentence(text: str) -> str:
    """Returns text with a capital first letter."""
    return text[:1].upper() + text[1:]


@dataclass(frozen=True)
class Question:
    """What a report asks of runs; it is the same for all of them.

    It has many fields because each is an option of `tfasr report` or of a study.
    """

    # Metrics and values; by default those that the runs set.
    targets: tuple[Target, ...] = ()
    policy: Policy = PAPER  # the clock and the rule that define times to targets
    # Evaluations whose median must meet a target; None: the policy's.
    window: int | None = None
    beside: tuple[Policy, ...] = ()  # further policies, each with its own window
    over_time: bool = False  # whether to keep the series that figures over time need
    # Whether to read the load of CPUs and GPUs even without figures.
    utilisation: bool = False
    force: bool = False  # whether to compare runs whose results are not comparable
    test: str = "groups"  # the test that decides, see `tfasr.tta.comparison.TESTS`
    # The error probability of a study that decided by looks. The report then has
    # intervals that hold at all looks, and gives the study's own verdict, at the target
    # that it decided.
    looks_level: float | None = None
    # That target; None if the report uses another clock or rule.
    decided: Target | None = None
    # The registered metrics and those that the runs declare.
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def own_window(self) -> int:
        return self.policy.window if self.window is None else self.window


def ask(
    targets: Iterable[str | Target] = (),
    policy: str | Policy = PAPER,
    window: int | None = None,
    *,
    beside: Iterable[Policy] = (),
    test: str = "groups",
    **options: bool,
) -> Question:
    """Creates a question from targets and a policy as on the command line, such as
    "cer=0.10".
    """
    if window is not None and window < 1:
        raise UsageError(
            f"The window must be at least 1 evaluation. Received: {window}."
        )

    if test not in TESTS:
        raise UsageError(
            f"The test must be one of {', '.join(TESTS)}. Received: {test!r}."
        )

    written = tuple(
        written_target(t) if isinstance(t, str) else (t[0], t[1]) for t in targets
    )
    about = (policies.policy_named(policy), window, tuple(beside))
    return Question(written, *about, test=test, **options)


@dataclass(frozen=True)
class TargetResult:
    """What is known about a run at one target."""

    tta: TimeToAccuracy  # the time to the target, on the clock of the report's policy
    bracket: Bracket  # the evaluations between which the true time lies
    # By interval, from the run's beginning; None if not met.
    until_s: dict[str, float] | None
    parts: Parts | None  # factors of the time on the paper's clock; None without steps
    # Under each of ``Question.beside``; None if not met.
    by_policy_s: dict[str, float | None]


@dataclass(frozen=True)
class RunAnalysis:
    """What a report knows of a run; many fields, so that the run itself can be freed."""

    name: str  # unique within the report
    group: str  # the name of its group: the runs with the same configuration
    path: Path  # the run's folder
    results: list[TargetResult]  # one for each of the report's targets, in their order
    intervals_s: dict[str, float]  # seconds by interval of the whole run
    throughput: Throughput  # utterances and seconds of audio per second in steady steps
    # Each metric's evaluations on the policy's clock.
    curves: dict[str, list[AccuracyPoint]]
    # Loss and throughput over time; None unless ``Question.over_time``.
    series: RunSeries | None
    # split, text, decoder, ... in which comparable runs agree
    comparability: dict | None
    config: str | None  # the text of its gin configuration; None if it was not saved
    status: str  # "success" or another end, see `Run.status`
    sessions: int  # how many processes trained it, one after the other
    notes: list[str]  # caveats about its results
    facts: dict[str, Any]  # the machine, batch size, decoder, ..., see `facts_of`
    charges: RunCharges | None = None  # cost and energy; None unless asked for
    # By rank, if a cluster's workers trained in rounds.
    rounds: tuple[dict[str, Any], ...] = ()
    workers: tuple[WorkerTimes, ...] = ()  # times of a cluster's workers, by rank
    # How workers exchanged gradients; None if unknown.
    exchange: dict[str, Any] | None = None
    # By rank, if the worker recorded its machine.
    machines: tuple[WorkerMachine, ...] = ()
    # The weights it began with, and their cost.
    start: dict[str, Any] = field(default_factory=dict)
    host: HostUse | None = None  # what the machine gave its steps; None if not recorded
    metrics: Metrics = field(default_factory=Metrics)  # its own among them

    @cached_property
    def worker_joules(self) -> dict[int, float]:
        """Joules of workers with energy counters, by rank, from the first to the last
        sample.
        """
        used = (
            (machine.rank, used_joules(machine.samples)) for machine in self.machines
        )
        return {rank: joules for rank, joules in used if joules is not None}

    @cached_property
    def best(self) -> tuple[str, AccuracyPoint] | None:
        """The evaluation of the best checkpoint, with the metric that chose it.

        It is the earliest with the lowest CER, or with the best value of the run's
        first metric if it has no CER. NaN is never the best. None without evaluations.
        """
        if not self.curves:
            return None

        metric = "cer" if "cer" in self.curves else next(iter(self.curves))
        kind = metric_named(metric, self.metrics)

        def rank(point: AccuracyPoint) -> tuple[bool, float, float]:
            return math.isnan(point.value), -kind.hardness(point.value), point.epoch

        return metric, min(self.curves[metric], key=rank)

    def value_at_best(self, metric: str) -> float | None:
        """A metric's value at the best checkpoint; None if unknown or not a number."""
        if self.best is None:
            return None
        epoch = self.best[1].epoch
        values = [p.value for p in self.curves.get(metric, []) if p.epoch == epoch]
        if not values or math.isnan(values[0]):
            return None

        return values[0]

    @property
    def wall_s(self) -> float:
        return sum(self.intervals_s.values())

    def with_start_s(self, seconds: float | None) -> float | None:
        """Adds the training time of the starting weights to a time; None if either is
        unknown.
        """
        start_s = self.start.get("seconds") if self.start else 0.0
        return None if seconds is None or start_s is None else seconds + start_s

    @property
    def epochs(self) -> int:
        """The number of epochs that were evaluated."""
        curves = map(policies.at_epoch_ends, self.curves.values())
        return max(map(len, curves), default=0)


@dataclass(frozen=True)
class Report:
    """Runs that were analysed alike, and what readers should know about all of them."""

    runs: list[RunAnalysis]  # in the order given
    question: Question  # its targets are those of the runs if none were asked for
    # For each run, what forbids a comparison with the first.
    differences: list[Differences]
    notes: list[str]  # caveats about the whole report

    @property
    def targets(self) -> list[Target]:
        return list(self.question.targets)

    @property
    def metrics(self) -> Metrics:
        return self.question.metrics

    @property
    def policy(self) -> Policy:
        return self.question.policy

    @property
    def window(self) -> int:
        return self.question.own_window

    def refused(self, index: int) -> bool:
        """Whether the run can't be compared with the first one."""
        return bool(self.differences[index]) and not self.question.force

    def relative(self, index: int, target: int) -> float | None:
        """A run's time to a target divided by the first run's; None without two such times."""
        first = self.runs[0].results[target].tta.seconds
        seconds = self.runs[index].results[target].tta.seconds
        if self.refused(index) or first is None or seconds is None or first <= 0:
            return None
        return seconds / first


@dataclass(frozen=True)
class TimeUnit:
    """The unit in which a report's first screen and figures show times."""

    name: str  # on axes and in sentences
    short: str  # behind numbers
    seconds: float

    def number(self, seconds: float) -> str:
        """Returns a time without its unit, with three digits or all before the point."""
        value = seconds / self.seconds
        return f"{value:.3g}" if value < 1000 else f"{value:.0f}"

    def text(self, seconds: float) -> str:
        """Returns a time with its unit, such as "9.28 s"."""
        return f"{self.number(seconds)} {self.short}"


def time_unit(report: Report) -> TimeUnit:
    """Returns the unit for all times: seconds up to 20 minutes, minutes up to 20 hours."""
    longest_s = max(run.wall_s for run in report.runs)
    if longest_s < 20 * 60:
        return TimeUnit("seconds", "s", 1.0)
    if longest_s < 20 * 3600:
        return TimeUnit("minutes", "min", 60.0)

    return TimeUnit("hours", "h", 3600.0)


def rule_of(report: Report) -> str:
    """Returns when a target counts as met, in words, with the window asked for."""
    rule = report.policy.rule
    if report.window != report.policy.window:
        rule += f"; here, by request, the median of the last {report.window}"
    return rule


def holds_report(out: Path) -> bool:
    """Whether a folder holds a report of tfasr, also one that was killed midway."""
    with suppress(OSError):
        if b"<footer>tfasr " in (out / "report.html").read_bytes():
            return True

    # If tfasr was killed while it wrote a report, one of these may exist without the
    # page.
    with suppress(OSError, ValueError, TypeError, KeyError, IndexError):
        return "time_to_accuracy_s" in json.loads((out / "report.json").read_bytes())[0]
    return "comparisons" in object_or_empty(out / "errors.json")


@contextmanager
def report_written_to(out: object) -> Iterator[None]:
    """Turns errors of the disk inside the block into a `RunError` with a remedy."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"The report can't be written to {out}: {error}. Choose another --out, or make room."
        ) from error


def train_s(intervals_s: Mapping[str, float]) -> float:
    """Returns the seconds of training: steps, compilation, waiting for input."""
    return intervals_s["input_wait"] + intervals_s["compile"] + intervals_s["train"]


def eval_s(intervals_s: Mapping[str, float]) -> float:
    """Returns the seconds of evaluation, by the intervals that belong to it."""
    return math.fsum(intervals_s[name] for name in EVALUATION)


def analyse_run(run: Run, question: Question) -> RunAnalysis:
    """Returns all that a report needs to know of a run, so that the run can be freed.

    Figures over time and the use of processors are computed only if asked for, as
    they take most of the time.
    """
    asked = (metric for metric, _ in question.targets)
    metrics = dict.fromkeys(["cer", "wer", *asked, *run.declared_metrics])
    curves = {metric: run.accuracy_curve(metric, question.policy) for metric in metrics}
    if not any(curves.values()):  # a run of another task, without targets
        curves = {
            metric: run.accuracy_curve(metric, question.policy)
            for metric in run.metrics
        }

    files = charges.read_worker_files(run.path)
    samples = read_host_file(run.path)
    host = host_use(samples, run.timeline)
    workers = tuple(charges.times_of_workers(files))
    sampled = question.utilisation or question.over_time or bool(question.beside)
    same = (
        "name",
        "path",
        "comparability",
        "config",
        "status",
        "sessions",
        "metrics",
    )
    return RunAnalysis(
        group=run.name,
        results=[
            _result(run, target, question, samples) for target in question.targets
        ],
        intervals_s=run.intervals,
        throughput=run.throughput(),
        curves={metric: points for metric, points in curves.items() if points},
        series=run_series(run, question.policy) if question.over_time else None,
        notes=_notes(run, any(curves.values()), host),
        facts=facts_of(run, with_utilisation=sampled),
        workers=workers,
        rounds=tuple(charges.rounds_of_workers(run.timeline)),
        exchange=charges.exchange_of(workers, run.timeline.last(Cluster)),
        machines=tuple(charges.machines_of(files, run.path)),
        start=run.fact("start_from") or {},
        host=host,
        **{name: getattr(run, name) for name in same},
    )


def _result(
    run: Run, target: Target, question: Question, samples: dict[int, np.ndarray]
) -> TargetResult:
    """Returns a run's time to a target under the report's policy and all others.

    Args:
        run: the run.
        target: metric and value.
        question: the policy, its window, and further policies.
        samples: what the machine gave the run, by session (`read_host_file`).
    """
    metric, value = target
    clock = question.policy
    window = question.own_window
    points = run.accuracy_curve(metric, clock)
    tta = policies.first_sustained(
        points, value, metric=metric, window=window, metrics=run.metrics
    )
    by_policy: dict[str, float | None] = {}
    for other in question.beside:
        curve = run.accuracy_curve(metric, other)
        reached = policies.first_sustained(
            curve,
            value,
            metric=metric,
            window=other.window,
            metrics=run.metrics,
        )
        by_policy[other.name] = reached.seconds

    until_s = parts = None
    if tta.reached:
        readings = clock.readings(run.timeline, metric)
        index = next(
            reading.index for reading in readings if reading.epoch == tta.epoch
        )
        elapsed_s = run.timeline.elapsed_s[index]
        until_s = run.intervals_until(elapsed_s)
        # Logs of other benchmarks may contain no steps, and then have no factors.
        with suppress(ValueError):
            host = host_use(samples, run.timeline, until_s=elapsed_s)
            host_share = 1.0 if host is None else host.share
            parts = parts_until(run.timeline, elapsed_s, host_share=host_share)

    limits = policies.bracket(
        points, value, window=window, metric=metric, metrics=run.metrics
    )
    if clock.name != policies.UTTERANCES.name:
        limits = replace(limits, undisturbed=undisturbed_part(samples, run.timeline))
    return TargetResult(tta, limits, until_s, parts, by_policy)


def make_report(
    runs: Sequence[RunAnalysis], question: Question, *, notes: Sequence[str] = ()
) -> Report:
    """Returns the report on analysed runs; notes say which can't be compared and why."""
    of_runs = [differences(runs[0].comparability, run.comparability) for run in runs]
    notes = list(notes)
    compared = "not compared"
    ending = " --force compares them anyway."
    if question.force:
        compared = "compared"
        ending = ""

    for run, differing in zip(runs, of_runs, strict=True):
        if differing:
            force = " by force" if question.force else ""
            notes.append(
                f"{run.name} is {compared} with {runs[0].name}{force}: they differ in "
                f"{difference_text(differing)}.{ending}"
            )

    if not question.targets:
        notes.append("The runs set no targets. Name them, such as --target cer=0.10.")
    return Report(list(runs), question, of_runs, notes)


def _start_note(start: Mapping[str, Any]) -> str:
    """Returns a note on a warm start: which layers, from where, at what cost."""
    copied, new = (len(start.get(name) or ()) for name in ("layers", "new_layers"))
    minutes = start.get("seconds")
    joules = start.get("joules")
    if minutes is None:
        cost = "at an unknown cost"
    else:
        cost = f"after {minutes / 60:.3g} min of training"

    cost += "" if joules is None else f" and {joules:.3g} J"
    return (
        f"{copied} of its {copied + new} layers began with the weights of {start.get('run')} "
        f"(SHA-256 {str(start.get('sha256'))[:16]}), {cost}; only its time with start includes this"
    )


def _notes(run: Run, evaluated: bool, host: HostUse | None) -> list[str]:
    """Returns all caveats about a run: disturbances, crashes, given up, unchecked
    claims.
    """
    notes = []
    if host is not None and host.disturbed:
        notes.append(disturbance(host))
    notes += gpu_notes(run.utilisation("gpu"))
    if run.cut:
        notes.append("a crash cut the ledger's last line, which is left out")
    if not evaluated:
        notes.append("it has no finished evaluation")
    if run.status != "success":
        notes.append(f"the run is {run.status}")
    for extended in (run.comparability or {}).get("extended") or []:
        notes.append(
            f"it had finished after epoch {extended['after_epoch']} and was trained longer"
        )

    if run.sessions > 1:
        lost = run.intervals["lost_work"]
        notes.append(f"{run.sessions} sessions; {lost:.1f} s of lost work are included")

    given_up = run.timeline.last(GivenUp)
    if given_up is not None:
        notes.append(
            f"it was given up because of its budget of {given_up.budget_s / 3600:.3g} h, so the "
            "times to targets that it had not reached are censored: they are longer than observed"
        )

    missing = run.fact("missing_compiled_parts")
    if missing:
        parts = ", ".join(missing)
        notes.append(
            f"compiled parts were missing ({parts}): the run was slower than with them"
        )

    instructions = run.timeline.last(InstructionSet)
    if instructions is not None and instructions.forced:
        notes.append(
            f"TFASR_INSTRUCTION_SET limited its compiled layers to {instructions.name}: "
            "they may be slower than the processor allows"
        )

    model = run.timeline.last(ComparableWith)
    if model is not None and run.comparability:
        checked = {
            "validation_references",
            "validation_utterances",
            "target_rule",
            "hash",
        }
        declared = ", ".join(name for name in run.comparability if name not in checked)
        notes.append(
            f"its program declared or copied from {model.run}, and tfasr did not check: {declared}"
        )

    start = run.fact("start_from")
    notes += [_start_note(start)] if start else []
    shared = run.timeline.last(SharedWithTraining)
    if shared is not None:
        for count, total, what in (
            (shared.utterances, shared.of_utterances, "utterances"),
            (shared.speakers, shared.of_speakers, "speakers"),
        ):
            if count > 0:
                text = f"{count} of {total} {what} of the validation split are trained on too"
                notes.append(text)

    return notes
