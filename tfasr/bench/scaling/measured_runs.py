"""What a prediction takes from measured runs, and from the results of `tfasr bench`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfasr.analysis.comparable import difference_text, differences
from tfasr.analysis.stragglers import worker_parts
from tfasr.bench.scaling.batch_curve import TargetMet
from tfasr.bench.scaling.worker_prediction import BesideSteps, MeasuredExchange, MeasuredStep
from tfasr.checked_files import read_object
from tfasr.errors import UsageError
from tfasr.tta.load import load_run
from tfasr.tta.run import Run
from tfasr.tta.targets import Target
from tfasr.tta.throughput import WARMUP_STEPS

_EVALUATION = ("eval_forward", "decode")
_BYTES_OF_A_WEIGHT = 4
_AGAIN = "Write it anew with tfasr bench --gin_file bench/scaling_small.gin --out."


@dataclass
class Found:
    """What runs and results say.

    Attributes:
        steps: of one worker each.
        exchanges: of gradients.
        gradient_bytes: of each source that noted them.
        weight_bytes: of the runs of one process, which exchange nothing, in float32.
        batches: global batches of the runs.
        filled: of each run, its mean batch over its global batch.
        targets: runs that met the target.
        beside: what those did beside their steps.
        missed: names of runs that did not meet it.
    """

    steps: list[MeasuredStep] = field(default_factory=list)
    exchanges: list[MeasuredExchange] = field(default_factory=list)
    gradient_bytes: list[int] = field(default_factory=list)
    weight_bytes: list[int] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    filled: list[float] = field(default_factory=list)
    targets: list[TargetMet] = field(default_factory=list)
    beside: list[BesideSteps] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)


def read_runs(
    run_dirs: Sequence[Path], target: Target | None, policy: str, window: int | None
) -> Found:
    """Returns what runs of one model say; they may differ in batch and number of workers.

    Args:
        run_dirs: their folders.
        target: to be met; None to read steps alone.
        policy: the clock and the rule.
        window: evaluations whose median must meet the target; None for the policy's.

    Raises:
        UsageError: if one cannot be read, says too little, or is not comparable with the first.
    """
    found, first = Found(), None
    for run_dir in run_dirs:
        run = load_run(run_dir)
        first = first or run
        differing = differences(first.comparability, run.comparability)
        if target is not None and differing:
            raise UsageError(
                "Runs that tell how many utterances a target takes must be comparable. "
                f"{run_dir} differs from {first.path} in {difference_text(differing)}. "
                "Leave it out."
            )
        workers, step_s = _read_steps(run, found)
        if target is not None:
            _read_target(run, workers, step_s, target, policy, window, found)
    return found


def _read_steps(run: Run, found: Found) -> tuple[int, float]:
    """Notes a run's mean step; returns its workers, and the seconds of a whole step."""
    steps, cluster = run.timeline.steps, run.fact("cluster")
    workers = int(cluster["workers"]) if isinstance(cluster, dict) else 1
    steady = ~steps.compiled & (steps.places >= WARMUP_STEPS)
    if not steady.any() or (workers == 1 and (run.fact("num_replicas") or 1) != 1):
        raise UsageError(
            f"A run must have more than {WARMUP_STEPS} steps on one device a worker. Received: "
            f"{run.path}, of {len(steps)} steps and {run.fact('num_replicas')} replicas."
        )
    step_s = float((steps.amounts("train_s") + steps.amounts("input_wait_s"))[steady].mean())
    rows = float(steps.amounts("utterances")[steady].mean()) / workers
    compute_s = step_s
    if workers == 1:
        found.weight_bytes.append(_BYTES_OF_A_WEIGHT * int(run.fact("parameters") or 0))
    else:
        parts = worker_parts(run.path)
        if len(parts) != workers:
            raise UsageError(
                f"Of a run of {workers} workers all of events-worker-*.jsonl must be in its "
                f"folder. {run.path} has {len(parts)}. Copy them there from the other machines."
            )
        exchange_s = parts[0].exchange_s / parts[0].steps
        compute_s = max(step_s - exchange_s, 1e-9)
        size = int(cluster["gradient_bytes"])
        found.gradient_bytes.append(size)
        found.exchanges.append(MeasuredExchange(workers, size, exchange_s))
        link = cluster.get("link")
        if link:  # of a few numbers: all latency
            little = MeasuredExchange(workers, link["small_bytes"], link["small_s"])
            found.exchanges.append(little)
    found.steps.append(MeasuredStep(rows, compute_s))
    batch = int(run.fact("global_batch_size"))
    found.batches.append(batch)
    found.filled.append(rows * workers / batch)
    return workers, step_s


def _read_target(
    run: Run,
    workers: int,
    step_s: float,
    target: Target,
    policy: str,
    window: int | None,
    found: Found,
) -> None:
    metric, value = target
    reached = run.time_to_accuracy(policy=policy, window=window, **{metric: value})
    if not reached.reached:
        found.missed.append(run.name)
        return
    line = run.timeline
    until_s = max(
        line.elapsed_s[index]
        for index in line.of("eval_stop", "epoch_stop")
        if line.useful[index] and line.metadata[index].get("epoch_num") == reached.epoch
    )
    before = [
        number
        for number, index in enumerate(line.steps.indices)
        if line.metadata[index].get("epoch_num", 0) <= reached.epoch
    ]
    utterances = float(line.steps.amounts("utterances")[before].sum())
    intervals = run.intervals_until(until_s)
    beside_s = max(reached.seconds - step_s * len(before), 0.0)
    shared_s = min(sum(intervals.get(name, 0.0) for name in _EVALUATION), beside_s)
    found.targets.append(TargetMet(int(run.fact("global_batch_size")), utterances))
    rest = BesideSteps(beside_s - shared_s, shared_s * workers, utterances)
    found.beside.append(rest)


def read_results(path: Path, found: Found) -> None:
    """Adds what the scaling workload measured: one device's steps, and its all-reduces.

    Args:
        path: its ``results.json``.
        found: gets it.

    Raises:
        UsageError: if it is no such file.
    """
    values = read_object(path, _AGAIN, ("workload",))
    results, processes = values.get("results"), None
    if isinstance(results, dict):
        processes = results.get("processes")
    if values["workload"] != "scaling" or not processes:
        raise UsageError(
            f"--measured must be results.json of the workload 'scaling'. Received: {path}, of "
            f"{values['workload']!r}. {_AGAIN}"
        )
    warmup = int(values["warmup_steps"])
    for process in processes:
        _read_process(process, warmup, found)


def _read_process(process: dict[str, Any], warmup: int, found: Found) -> None:
    found.gradient_bytes.append(process["gradient_bytes"])
    for one in process["all_reduce"] if process["devices"] > 1 else ():
        exchange = MeasuredExchange(process["devices"], one["size_bytes"], one["seconds"])
        found.exchanges.append(exchange)
    for times in process["loads"] if process["devices"] == 1 else ():
        if times["load"]["loader"]:
            continue
        seconds = times["step_s"][warmup:]
        found.steps.append(
            MeasuredStep(times["load"]["per_device_batch"], sum(seconds) / len(seconds))
        )
