"""The numbers of a report, computed once for all its tables, figures and files.

A report begins with a `Question`: which targets, on whose clock, by which test.
`tfasr.reports.groups` reads each run's ledger and asks `analyse_run` for what the
question needs, so that the ledger, which may hold a million events, can be freed. What
remains is a `RunAnalysis` per run; `make_report` puts them together with what makes
some of them incomparable. Everything a reader sees is written from that `Report`.

Times are seconds, shares and error rates fractions; units and percent appear only where
text is made.
"""

import json
import math
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.display.table import three_digits
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

# What differs, by name: the first run's value and the other's, as text.
Differences = dict[str, tuple[str, str]]
# In place of a value that a run's ledger doesn't have.
ABSENT = "not stated"
# Marks a missing key, because None is a value that a run may state.
_MISSING = object()
# Letters of a value in a note; a decoder's settings or an alphabet would fill a screen.
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

    >>> differences({"decoder": {"beam_width": 8}}, {"decoder": {"beam_width": 64}})
    {'decoder.beam_width': ('8', '64')}
    """
    if first is None and other is None:
        return {}
    if first is None:
        return {"comparability": (ABSENT, "stated")}
    if other is None:
        return {"comparability": ("stated", ABSENT)}

    differing: Differences = {}
    for key in first | other:
        value = first.get(key, _MISSING)
        other_value = other.get(key, _MISSING)

        if isinstance(value, dict) and isinstance(other_value, dict):
            for name, both in differences(value, other_value).items():
                differing[f"{key}.{name}"] = both
        elif value != other_value:
            differing[key] = _shown(_as_text(value), _as_text(other_value))

    return differing


def difference_text(differences: Differences) -> str:
    """Describes differences in words, with both values; for hashes, names what was hashed.

    >>> difference_text({"beam_width": ("8", "64")})
    'beam_width (8, here 64)'
    """
    # The hash of all settings adds nothing, unless nothing else differs.
    named = {key: both for key, both in differences.items() if key != "hash"}
    shown = named or differences

    return ", ".join(_difference_text(key, *both) for key, both in shown.items())


def _difference_text(key: str, first: str, other: str) -> str:
    """Returns one difference; for a hash, what was hashed instead of it."""
    if key not in _HASHES:
        return f"{key} ({first}, here {other})"

    first = _whether_stated(first)
    other = _whether_stated(other)
    if first == other:
        return f"{key} ({_HASHES[key]})"

    return f"{key} ({_HASHES[key]}: {first}, here {other})"


def _whether_stated(text: str) -> str:
    """Returns "stated" in place of a hash, which tells readers nothing."""
    if text in (ABSENT, "null"):
        return text

    return "stated"


def _as_text(value: object) -> str:
    """Returns a stated value as JSON, or `ABSENT` for a missing one."""
    if value is _MISSING:
        return ABSENT

    return json.dumps(value, ensure_ascii=False, default=str)


def _shown(first: str, other: str) -> tuple[str, str]:
    """Returns two values as text, at most `_LONGEST` letters each.

    Long values that begin alike are cut to start near their first difference, with a
    third of the letters before it.
    """
    same = len(os.path.commonprefix([first, other]))
    if same > _LONGEST // 2:
        begin = same - _LONGEST // 3 + 1
        first = f"…{first[begin:]}"
        other = f"…{other[begin:]}"

    return _cut(first), _cut(other)


def _cut(text: str) -> str:
    """Returns the first `_LONGEST` letters of a text."""
    if len(text) <= _LONGEST:
        return text

    return text[: _LONGEST - 1] + "…"


def facts_of(run: Run, *, with_utilisation: bool = False) -> dict[str, Any]:
    """Returns facts that a run recorded; None or {} if unknown.

    Tables and cards name them by path, such as "facts.global_batch_size".

    Args:
        run: the whole ledger.
        with_utilisation: whether to read the samples of CPUs and GPUs too, which takes
            longer than all the rest.
    """
    useful = run.timeline.useful
    evaluations = sum(useful[index] for index in run.timeline.of("tracked_stats"))
    epochs = epoch_seconds(run)

    stated = run.comparability or {}
    decoder = stated.get("decoder")
    # A recorder's user may state the decoder's name alone.
    if not isinstance(decoder, dict):
        decoder = {"name": decoder, **stated}

    beam_width = decoder.get("beam_width")
    # A greedy decoder has no beam, whatever its config says.
    if decoder.get("name") == "greedy":
        beam_width = None

    # A standard deviation of two epochs would be one difference, not a spread.
    epoch_variation = variation(epochs) if len(epochs) > 2 else None

    began_ms = run.events[0].get("time_ms") if run.events else None

    utilisation = {}
    if with_utilisation:
        utilisation = mean_utilisation(run)

    def each(interval: str) -> float | None:
        if not evaluations:
            return None

        return run.intervals[interval] / evaluations

    return {
        # Processor, memory, GPUs and software, see `tfasr.telemetry.system`.
        "system": run.system.get("system") or {},
        # Utterances of one optimizer update, and the devices that share them.
        "global_batch_size": run.fact("global_batch_size"),
        "num_replicas": run.fact("num_replicas"),
        # Utterances of an epoch, and of an evaluation.
        "train_samples": run.fact("train_samples"),
        "eval_samples": run.fact("eval_samples"),
        # Of the training.
        "seed": run.fact("seed"),
        "optimizer": run.fact("opt_name"),
        # Of the evaluations.
        "decoder": decoder.get("name"),
        "beam_width": beam_width,
        # How many were finished.
        "evaluations": evaluations,
        # The median seconds of an epoch without its evaluation, and their coefficient
        # of variation.
        "epoch_s": median_of(epochs),
        "epoch_variation": epoch_variation,
        # Milliseconds of the wall clock at the first event.
        "began_ms": began_ms,
        # The prepared splits, as a path of the machine that trained.
        "shard_dir": run.system.get("shard_dir"),
        # What a log of MLPerf calls its machine.
        "platform": run.fact("submission_platform"),
        # Where evaluations ran: "shared", "swapped" or "beside".
        "placement": getattr(run.timeline.last(EvaluationPlacement), "name", None),
        # Mean seconds of an evaluation: forward passes, waiting for the decoder, both
        # swaps of models, waiting for an evaluation in another process.
        "forward_s": each("eval_forward"),
        "decode_s": each("decode"),
        "swap_s": each("swap") or None,
        "wait_s": each("eval_wait") or None,
        # Means over the run; ``_bytes`` are maxima.
        "utilisation": utilisation,
    }


def median_of(values: Sequence[float]) -> float | None:
    """Returns the median of values, or None if there are none."""
    if not values:
        return None

    return statistics.median(values)


def variation(values: Sequence[float]) -> float | None:
    """Returns the coefficient of variation of two values or more.

    It is the standard deviation divided by the mean; None if the mean is 0.
    """
    mean = statistics.fmean(values)
    if mean == 0:
        return None

    return statistics.stdev(values) / mean


def epoch_seconds(run: Run) -> list[float]:
    """Returns the seconds of each epoch trained entirely by one process.

    Evaluations within an epoch are not counted, nor are epochs that a later session
    repeated because they were lost.
    """
    seconds = []
    line = run.timeline
    starts = {session.start for session in line.sessions}
    partial = False
    began = None
    evaluating_since = None
    evaluated_us = 0

    for index in line.of(
        "epoch_start", "eval_start", "eval_stop", "epoch_stop", "session_start"
    ):
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


# What tables show of the samples in cpu.csv and gpu.csv: the name of the fact, the
# device, the sampled column, how it is summed up, and its factor. Shares are fractions
# of what is sampled in percent.
_UTILISATION = (
    ("cpu_share", "cpu", "cpu_percent", np.mean, 0.01),
    ("process_cpu_share", "cpu", "process_percent", np.mean, 0.01),
    ("gpu_share", "gpu", "utilisation_percent", np.mean, 0.01),
    ("gpu_power_w", "gpu", "power_w", np.mean, 1.0),
    ("gpu_memory_bytes", "gpu", "memory_used_bytes", np.max, 1.0),
)


def mean_utilisation(run: Run) -> dict[str, float]:
    """Returns what `_UTILISATION` lists, of a run's samples over all devices.

    What was never sampled is missing.
    """
    columns = {device: run.utilisation(device) for device in ("cpu", "gpu")}
    values = {}

    for name, device, sampled, summed_up, factor in _UTILISATION:
        column = columns[device].get(sampled, np.zeros(0))
        finite = column[np.isfinite(column)]
        if finite.size:
            values[name] = float(summed_up(finite)) * factor

    return values


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Returns a distinct short name for each folder: its name, with parents where needed.

    >>> distinct_names([Path("/a/seed_1"), Path("/b/seed_1"), Path("/b/seed_2")])
    ['a/seed_1', 'b/seed_1', 'seed_2']
    """
    parts = [path.resolve().parts for path in paths]
    names = ["/".join(path[-1:]) for path in parts]
    deepest = max(map(len, parts), default=0)

    for depth in range(2, deepest + 1):
        counts = Counter(names)
        for place, path in enumerate(parts):
            if counts[names[place]] > 1:
                names[place] = "/".join(path[-depth:])

    return names


def merged_targets(
    of_runs: Iterable[Sequence[Target]], metrics: Mapping[str, Metric] = METRICS
) -> list[Target]:
    """Returns every target once: metrics in their usual order, the easiest value first.

    A target that several runs set is one target of the report.

    Args:
        of_runs: the targets of each run.
        metrics: those that the runs may use, in their usual order. Others follow, by name.
    """
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
    """Returns a target as text, such as "CER 10 %" or "loss 3.5".

    >>> target_label("cer", 0.1), target_label("loss", 3.5)
    ('CER 10 %', 'loss 3.5')
    """
    label = metric_label(metric, metrics)
    if metric_named(metric, metrics).rate:
        return f"{label} {100 * value:.4g} %"

    return f"{label} {value:g}"


def metric_label(metric: str, metrics: Mapping[str, Metric] = METRICS) -> str:
    """Returns a metric's name for readers, such as "CER".

    A metric without a label is called by its own name, with spaces.
    """
    return metric_named(metric, metrics).label or metric.replace("_", " ")


def with_counts(names: Sequence[str]) -> str:
    """Returns distinct names with their numbers, in the order of their first mention.

    >>> with_counts(["A100", "A100", "L4"])
    '2 x A100, 1 x L4'
    """
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def sentence(text: str) -> str:
    """Returns text with a capital first letter; the others stay as they are."""
    return text[:1].upper() + text[1:]


@dataclass(frozen=True)
class Question:
    """What a report asks of runs; it is the same for all of them.

    It has many fields because each is an option of `tfasr report` or of a study.
    """

    # Metrics and values; by default those that the runs set.
    targets: tuple[Target, ...] = ()
    # The clock and the rule that define times to targets.
    policy: Policy = PAPER
    # Evaluations whose median must meet a target; None: the policy's.
    window: int | None = None
    # Further policies, each with its own window.
    beside: tuple[Policy, ...] = ()
    # Whether to keep the series that figures over time need.
    over_time: bool = False
    # Whether to read the load of CPUs and GPUs even without figures.
    utilisation: bool = False
    # Whether to compare runs whose results are not comparable.
    force: bool = False
    # The test that decides, see `tfasr.tta.comparison.TESTS`.
    test: str = "groups"
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
        """How many evaluations' median must meet a target."""
        if self.window is None:
            return self.policy.window

        return self.window


def ask(
    targets: Iterable[str | Target] = (),
    policy: str | Policy = PAPER,
    window: int | None = None,
    *,
    beside: Iterable[Policy] = (),
    test: str = "groups",
    **options: bool,
) -> Question:
    """Creates a question from targets and a policy as on the command line.

    Args:
        targets: as "cer=0.10" or ``("cer", 0.10)``.
        policy: a policy or its name.
        window: evaluations whose median must meet a target; None: the policy's.
        beside: further policies.
        test: a name in `tfasr.tta.comparison.TESTS`.
        **options: other fields of `Question` that are true or false.

    Raises:
        UsageError: if one of them is wrong; the message names the right ones.
    """
    if window is not None and window < 1:
        raise UsageError(
            f"The window must be at least 1 evaluation. Received: {window}."
        )

    if test not in TESTS:
        raise UsageError(
            f"The test must be one of {', '.join(TESTS)}. Received: {test!r}."
        )

    wanted = []
    for target in targets:
        if isinstance(target, str):
            wanted.append(written_target(target))
        else:
            wanted.append((target[0], target[1]))

    return Question(
        targets=tuple(wanted),
        policy=policies.policy_named(policy),
        window=window,
        beside=tuple(beside),
        test=test,
        **options,
    )


@dataclass(frozen=True)
class TargetResult:
    """What is known about a run at one target.

    A run that never met the target still has a bracket, which begins at its last miss.
    """

    # The time to the target, on the clock of the report's policy.
    tta: TimeToAccuracy
    # The evaluations between which the true time lies.
    bracket: Bracket
    # By interval, from the run's beginning; None if not met.
    until_s: dict[str, float] | None
    # Factors of the time on the paper's clock; None without steps.
    parts: Parts | None
    # Under each of ``Question.beside``; None if not met.
    by_policy_s: dict[str, float | None]


@dataclass(frozen=True)
class RunAnalysis:
    """What a report knows of a run; many fields, so that the run itself can be freed.

    Everything that tables, figures and files show comes from here. Only the figures of
    utilisation and of what machines took read a run's ledger again.
    """

    # Unique within the report.
    name: str
    # The name of its group: the runs with the same configuration.
    group: str
    # The run's folder.
    path: Path
    # One for each of the report's targets, in their order.
    results: list[TargetResult]
    # Seconds by interval of the whole run.
    intervals_s: dict[str, float]
    # Utterances and seconds of audio per second in steady steps.
    throughput: Throughput
    # Each metric's evaluations on the policy's clock.
    curves: dict[str, list[AccuracyPoint]]
    # Loss and throughput over time; None unless ``Question.over_time``.
    series: RunSeries | None
    # What comparable runs agree in, such as split, texts and decoder.
    comparability: dict | None
    # The text of its gin configuration; None if it was not saved.
    config: str | None
    # "success" or another end, see `Run.status`.
    status: str
    # How many processes trained it, one after the other.
    sessions: int
    # Caveats about its results.
    notes: list[str]
    # The machine, batch size, decoder, ..., see `facts_of`.
    facts: dict[str, Any]
    # Cost and energy; None unless asked for.
    charges: RunCharges | None = None
    # By rank, if a cluster's workers trained in rounds.
    rounds: tuple[dict[str, Any], ...] = ()
    # Times of a cluster's workers, by rank.
    workers: tuple[WorkerTimes, ...] = ()
    # How workers exchanged gradients; None if unknown.
    exchange: dict[str, Any] | None = None
    # By rank, if the worker recorded its machine.
    machines: tuple[WorkerMachine, ...] = ()
    # The weights it began with, and their cost.
    start: dict[str, Any] = field(default_factory=dict)
    # What the machine gave its steps; None if not recorded.
    host: HostUse | None = None
    # The registered metrics and its own.
    metrics: Metrics = field(default_factory=Metrics)

    @cached_property
    def worker_joules(self) -> dict[int, float]:
        """Joules of workers with energy counters, by rank.

        They are counted from each worker's first sample to its last one.
        """
        joules = {
            machine.rank: used_joules(machine.samples) for machine in self.machines
        }
        return {rank: used for rank, used in joules.items() if used is not None}

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
        for point in self.curves.get(metric, []):
            if point.epoch == epoch:
                if math.isnan(point.value):
                    return None

                return point.value

        return None

    @property
    def wall_s(self) -> float:
        """Seconds of the whole run, without downtime between its sessions."""
        return sum(self.intervals_s.values())

    def with_start_s(self, seconds: float | None) -> float | None:
        """Adds the training time of the starting weights to a time.

        None if either is unknown; a run that began with random weights adds nothing.
        """
        if seconds is None or not self.start:
            return seconds

        start_s = self.start.get("seconds")
        if start_s is None:
            return None

        return seconds + start_s

    @property
    def epochs(self) -> int:
        """The number of epochs that were evaluated.

        Of the metric with the most of them. Evaluations within an epoch don't count.
        """
        curves = map(policies.at_epoch_ends, self.curves.values())
        return max(map(len, curves), default=0)


@dataclass(frozen=True)
class Report:
    """Runs that were analysed alike, and what readers should know about all of them.

    The first run is the one with which others are compared. `tfasr.reports.groups`
    compares groups instead of runs, again with the first.
    """

    # In the order given.
    runs: list[RunAnalysis]
    # Its targets are those of the runs if none were asked for.
    question: Question
    # For each run, what forbids a comparison with the first.
    differences: list[Differences]
    # Caveats about the whole report.
    notes: list[str]

    @property
    def targets(self) -> list[Target]:
        """Metrics and values, the same for all runs."""
        return list(self.question.targets)

    @property
    def metrics(self) -> Metrics:
        """The registered metrics and those that the runs declare."""
        return self.question.metrics

    @property
    def policy(self) -> Policy:
        """The clock and the rule of all times."""
        return self.question.policy

    @property
    def window(self) -> int:
        """How many evaluations' median must meet a target."""
        return self.question.own_window

    @property
    def evaluated(self) -> list[str]:
        """The metrics of all runs' evaluations, in the order of the runs."""
        return list(dict.fromkeys(name for run in self.runs for name in run.curves))

    @property
    def longest_s(self) -> float:
        """Seconds of the longest run, by which units and decimals are chosen."""
        return max(run.wall_s for run in self.runs)

    def refused(self, index: int) -> bool:
        """Whether the run can't be compared with the first one."""
        return bool(self.differences[index]) and not self.question.force

    def relative(self, index: int, target: int) -> float | None:
        """A run's time to a target divided by the first run's.

        None if either run never met the target, or if they can't be compared.
        """
        if self.refused(index):
            return None

        first = self.runs[0].results[target].tta.seconds
        seconds = self.runs[index].results[target].tta.seconds
        if first is None or seconds is None or first <= 0:
            return None

        return seconds / first


@dataclass(frozen=True)
class TimeUnit:
    """The unit in which a report's first screen and figures show times.

    Attributes:
        name: on axes and in sentences, such as "minutes".
        short: behind numbers, such as "min".
        seconds: how long the unit is.
    """

    name: str
    short: str
    seconds: float

    def number(self, seconds: float) -> str:
        """Returns a time without its unit, with three digits or all before the point."""
        return three_digits(seconds / self.seconds)

    def text(self, seconds: float) -> str:
        """Returns a time with its unit.

        >>> TimeUnit("minutes", "min", 60.0).text(557.0)
        '9.28 min'
        """
        return f"{self.number(seconds)} {self.short}"


def time_unit(report: Report) -> TimeUnit:
    """Returns the unit for all times of a report, by its longest run.

    Seconds up to 20 minutes, minutes up to 20 hours: the longest time then has at most
    four digits before the point.
    """
    if report.longest_s < 20 * 60:
        return TimeUnit("seconds", "s", 1.0)
    if report.longest_s < 20 * 3600:
        return TimeUnit("minutes", "min", 60.0)

    return TimeUnit("hours", "h", 3600.0)


def rule_of(report: Report) -> str:
    """Returns when a target counts as met, in words, with the window asked for."""
    rule = report.policy.rule
    if report.window != report.policy.window:
        rule += f"; here, by request, the median of the last {report.window}"

    return rule


def holds_report(out: Path) -> bool:
    """Whether a folder holds a report of tfasr, also one that was killed midway.

    Only such a folder may be written again without asking.
    """
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
    """Turns errors of the disk inside the block into a `RunError` with a remedy.

    The remedy is for a reader who has waited for hours of runs, and now has a full
    disk.
    """
    try:
        yield
    except OSError as error:
        raise RunError(
            f"The report can't be written to {out}: {error}. Choose another --out, or make room."
        ) from error


def train_s(intervals_s: Mapping[str, float]) -> float:
    """Returns the seconds of training: steps, compilation, waiting for input.

    Waiting belongs to training, because faster steps would wait longer for the same
    input.
    """
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

    # A run of another task, without targets, has other metrics than these.
    if not any(curves.values()):
        curves = {
            metric: run.accuracy_curve(metric, question.policy)
            for metric in run.metrics
        }

    files = charges.read_worker_files(run.path)
    workers = tuple(charges.times_of_workers(files))
    samples = read_host_file(run.path)
    host = host_use(samples, run.timeline)

    series = run_series(run, question.policy) if question.over_time else None

    # Tables of the use of processors belong to the figures and to the paper's tables.
    sampled = question.utilisation or question.over_time or bool(question.beside)

    return RunAnalysis(
        name=run.name,
        group=run.name,
        path=run.path,
        results=[
            _result(run, target, question, samples) for target in question.targets
        ],
        intervals_s=run.intervals,
        throughput=run.throughput(),
        curves={metric: points for metric, points in curves.items() if points},
        series=series,
        comparability=run.comparability,
        config=run.config,
        status=run.status,
        sessions=run.sessions,
        notes=_notes(run, any(curves.values()), host),
        facts=facts_of(run, with_utilisation=sampled),
        rounds=tuple(charges.rounds_of_workers(run.timeline)),
        workers=workers,
        exchange=charges.exchange_of(workers, run.timeline.last(Cluster)),
        machines=tuple(charges.machines_of(files, run.path)),
        start=run.fact("start_from") or {},
        host=host,
        metrics=run.metrics,
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
        reached = policies.first_sustained(
            run.accuracy_curve(metric, other),
            value,
            metric=metric,
            window=other.window,
            metrics=run.metrics,
        )
        by_policy[other.name] = reached.seconds

    until_s = None
    parts = None
    if tta.reached:
        readings = clock.readings(run.timeline, metric)
        index = next(
            reading.index for reading in readings if reading.epoch == tta.epoch
        )
        elapsed_s = run.timeline.elapsed_s[index]
        until_s = run.intervals_until(elapsed_s)

        # Logs of other benchmarks may contain no steps, and then have no factors.
        with suppress(ValueError):
            host_share = 1.0
            host = host_use(samples, run.timeline, until_s=elapsed_s)
            if host is not None:
                host_share = host.share

            parts = parts_until(run.timeline, elapsed_s, host_share=host_share)

    limits = policies.bracket(
        points, value, window=window, metric=metric, metrics=run.metrics
    )
    # A clock that counts utterances is not delayed by a busy machine.
    if clock.name != policies.UTTERANCES.name:
        limits = replace(limits, undisturbed=undisturbed_part(samples, run.timeline))

    return TargetResult(tta, limits, until_s, parts, by_policy)


def make_report(
    runs: Sequence[RunAnalysis], question: Question, *, notes: Sequence[str] = ()
) -> Report:
    """Returns the report on analysed runs.

    ``notes`` are completed by which runs can't be compared with the first one, and why.
    """
    first = runs[0]
    of_runs = [differences(first.comparability, run.comparability) for run in runs]
    notes = list(notes)

    for run, differing in zip(runs, of_runs, strict=True):
        if not differing:
            continue

        why = f"they differ in {difference_text(differing)}"
        if question.force:
            notes.append(f"{run.name} is compared with {first.name} by force: {why}.")
        else:
            notes.append(
                f"{run.name} is not compared with {first.name}: {why}. "
                "--force compares them anyway."
            )

    if not question.targets:
        notes.append("The runs set no targets. Name them, such as --target cer=0.10.")

    return Report(list(runs), question, of_runs, notes)


# What tfasr computes itself from the texts that a recorder's user hands over.
_CHECKED = {
    "validation_references",
    "validation_utterances",
    "target_rule",
    "hash",
}


def _start_note(start: Mapping[str, Any]) -> str:
    """Returns a note on a warm start: which layers, from where, at what cost."""
    copied = len(start.get("layers") or ())
    new = len(start.get("new_layers") or ())

    seconds = start.get("seconds")
    cost = "at an unknown cost"
    if seconds is not None:
        cost = f"after {seconds / 60:.3g} min of training"

    joules = start.get("joules")
    if joules is not None:
        cost += f" and {joules:.3g} J"

    return (
        f"{copied} of its {copied + new} layers began with the weights of "
        f"{start.get('run')} (SHA-256 {str(start.get('sha256'))[:16]}), {cost}; only its "
        "time with start includes this"
    )


def _notes(run: Run, evaluated: bool, host: HostUse | None) -> list[str]:
    """Returns all caveats about a run, for readers of its times.

    They tell of disturbances, crashes, a budget that ended it, what slowed it down, and
    claims that tfasr did not check.
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
            f"it was given up because of its budget of {given_up.budget_s / 3600:.3g} h, "
            "so the times to targets that it had not reached are censored: they are longer "
            "than observed"
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
        declared = ", ".join(name for name in run.comparability if name not in _CHECKED)
        notes.append(
            f"its program declared or copied from {model.run}, and tfasr did not check: "
            f"{declared}"
        )

    start = run.fact("start_from")
    if start:
        notes.append(_start_note(start))

    shared = run.timeline.last(SharedWithTraining)
    if shared is not None:
        for count, total, what in (
            (shared.utterances, shared.of_utterances, "utterances"),
            (shared.speakers, shared.of_speakers, "speakers"),
        ):
            if count > 0:
                notes.append(
                    f"{count} of {total} {what} of the validation split are trained on too"
                )

    return notes
