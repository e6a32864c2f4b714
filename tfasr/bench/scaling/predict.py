"""`tfasr bench scaling`: predicts runs of several workers from recorded runs and flags."""

import math
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tfasr.bench.perform import Measured, check_results_folder, draw, is_file
from tfasr.bench.scaling import fit
from tfasr.cluster.description import Cluster
from tfasr.cluster.launcher import free_ports
from tfasr.display.chart import Area, Axis, Chart, Panel, counts_axis, curve, run_colour
from tfasr.display.table import Column, Table, check_format, fixed, records_of, table_of
from tfasr.errors import UsageError
from tfasr.kit.files import read_object
from tfasr.kit.process import call
from tfasr.ledger.intervals import evaluated_epoch
from tfasr.reports.charges import read_worker_files, times_of_workers
from tfasr.reports.numbers import difference_text, differences
from tfasr.tta.decomposition import WARMUP_STEPS
from tfasr.tta.metrics import Target, parse_target
from tfasr.tta.run import Run, load_run

_AGAIN = "Create it again with tfasr bench --gin_file bench/scaling_small.gin --out."


@dataclass
class RunData:
    steps: list[fit.MeasuredStep] = field(default_factory=list)  # each of one worker
    exchanges: list[fit.MeasuredExchange] = field(default_factory=list)
    gradient_bytes: list[int] = field(default_factory=list)  # from each source that recorded them
    weight_bytes: list[int] = field(default_factory=list)  # float32, of single-process runs
    batches: list[int] = field(default_factory=list)  # global batch sizes
    filled: list[float] = field(default_factory=list)  # mean over nominal batch size
    targets: list[fit.TargetMet] = field(default_factory=list)  # runs that met the target
    beside: list[fit.ConcurrentSteps] = field(default_factory=list)  # in the order of ``targets``
    missed: list[str] = field(default_factory=list)  # names of runs that missed the target


def read_runs(run_dirs, target: Target | None, policy: str, window: int | None) -> RunData:
    """Reads runs of one model; raises UsageError if they are unreadable or not comparable."""
    data, first = RunData(), None
    for run_dir in run_dirs:
        run = load_run(run_dir)
        first = first or run
        differing = differences(first.comparability, run.comparability)
        if target is not None and differing:
            raise UsageError(
                f"Runs with a target must be comparable. {run_dir} differs from {first.path} in "
                f"{difference_text(differing)}. Leave it out."
            )
        workers, step_s = _read_steps(run, data)
        if target is not None:
            _read_target(run, workers, step_s, target, policy, window, data)
    return data


def _read_steps(run: Run, data: RunData) -> tuple[int, float]:
    steps, cluster = run.timeline.steps, run.fact("cluster")
    workers = int(cluster["workers"]) if isinstance(cluster, dict) else 1
    steady = ~steps.compiled & (steps.places >= WARMUP_STEPS)
    if not steady.any() or (workers == 1 and (run.fact("num_replicas") or 1) != 1):
        raise UsageError(
            f"A run must have more than {WARMUP_STEPS} steps on one device per worker. Received: "
            f"{run.path}, of {len(steps)} steps and {run.fact('num_replicas')} replicas."
        )
    step_s = float((steps.amounts("train_s") + steps.amounts("input_wait_s"))[steady].mean())
    rows = float(steps.amounts("utterances")[steady].mean()) / workers
    compute_s = step_s
    if workers == 1:
        data.weight_bytes.append(4 * int(run.fact("parameters") or 0))
    else:
        parts = times_of_workers(read_worker_files(run.path))
        if len(parts) != workers:
            raise UsageError(
                f"A run of {workers} workers needs all its events-worker-*.jsonl in its folder. "
                f"{run.path} has {len(parts)}. Copy the others from their machines."
            )
        exchange_s = parts[0].exchange_s / parts[0].steps
        compute_s = max(step_s - exchange_s, 1e-9)
        size = int(cluster["gradient_bytes"])
        data.gradient_bytes.append(size)
        data.exchanges.append(fit.MeasuredExchange(workers, size, exchange_s))
        if link := cluster.get("link"):  # the exchange of few bytes shows the latency
            little = (workers, link["small_bytes"], link["small_s"])
            data.exchanges.append(fit.MeasuredExchange(*little))
    data.steps.append(fit.MeasuredStep(rows, compute_s))
    batch = int(run.fact("global_batch_size"))
    data.batches.append(batch)
    data.filled.append(rows * workers / batch)
    return workers, step_s


def _read_target(run: Run, workers: int, step_s, target, policy, window, data: RunData) -> None:
    metric, value = target
    reached = run.time_to_accuracy(policy=policy, window=window, **{metric: value})
    if not reached.reached:
        data.missed.append(run.name)
        return
    line = run.timeline
    until_s = max(
        line.elapsed_s[index]
        for index in line.of("eval_stop", "epoch_stop")
        if line.useful[index] and evaluated_epoch(line.metadata[index]) == reached.epoch
    )
    before = [
        number
        for number, index in enumerate(line.steps.indices)
        if line.metadata[index].get("epoch_num", 0) <= reached.epoch
        or (reached.epoch % 1 and line.elapsed_s[index] <= until_s)
    ]
    utterances = float(line.steps.amounts("utterances")[before].sum())
    intervals = run.intervals_until(until_s)
    beside_s = max(reached.seconds - step_s * len(before), 0.0)
    shared_s = min(sum(intervals.get(name, 0.0) for name in ("eval_forward", "decode")), beside_s)
    data.targets.append(fit.TargetMet(int(run.fact("global_batch_size")), utterances))
    data.beside.append(fit.ConcurrentSteps(beside_s - shared_s, shared_s * workers, utterances))


def read_results(path: Path, data: RunData) -> None:
    """Adds one device's steps and all-reduces from results of the scaling workload."""
    values = read_object(path, _AGAIN, ("workload",))
    results = values.get("results")
    processes = results.get("processes") if isinstance(results, dict) else None
    if values["workload"] != "scaling" or not processes:
        raise UsageError(
            f"--measured must be results.json of the workload 'scaling'. Received: {path}, of "
            f"{values['workload']!r}. {_AGAIN}"
        )
    warmup = int(values["warmup_steps"])
    for process in processes:
        data.gradient_bytes.append(process["gradient_bytes"])
        devices = process["devices"]
        for reduce in process["all_reduce"] if devices > 1 else ():
            measured = (devices, reduce["size_bytes"], reduce["seconds"])
            data.exchanges.append(fit.MeasuredExchange(*measured))
        for times in process["loads"] if devices == 1 else ():
            if not times["load"]["loader"]:
                seconds = times["step_s"][warmup:]
                rows = times["load"]["per_device_batch"]
                data.steps.append(fit.MeasuredStep(rows, sum(seconds) / len(seconds)))


def local_exchanges(gradient_bytes: int) -> list[fit.MeasuredExchange]:
    """Measures exchanges of a few bytes and of all gradients between two processes on loopback."""
    large_bytes = max(int(gradient_bytes), 8192)  # fewer bytes would measure only latency
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with ThreadPoolExecutor(2) as threads:
        options = {"backend": "tensorflow", "task": "Measuring an exchange", "show_messages": False}
        answers = [
            threads.submit(call, measured_sums, rank, addresses, large_bytes, **options)
            for rank in range(2)
        ]
        of_rank = [answer.result() for answer in answers]
    return [
        fit.MeasuredExchange(2, size, max(own_s, others_s))
        for (size, own_s), (_, others_s) in zip(*of_rank, strict=True)
    ]


def measured_sums(rank: int, addresses: list[str], large_bytes: int) -> list[tuple[int, float]]:
    """Returns bytes and median seconds of a small and a large sum, in a worker's process."""
    from tfasr.training.workers.exchange import measure_link
    from tfasr.training.workers.team import joined

    with joined(Cluster(tuple(addresses), rank)) as team:
        link = measure_link(team.workers, team.strategy, large_bytes, "float32")
        team.part()
    return [(link.small_bytes, link.small_s), (link.large_bytes, link.large_s)]


@dataclass(frozen=True)
class Asked:
    """The flags of ``tfasr bench scaling``; raises UsageError for invalid values."""

    run_dirs: Sequence[Path]
    measured: Sequence[Path]  # results.json files of the scaling workload
    target: str  # such as "cer=0.1"; "" to predict only steps
    policy: str  # the target's clock and rule
    window: int | None  # evaluations whose median must meet the target; None: the policy's
    workers: tuple[int, ...]
    global_batch_size: tuple[int, ...]  # utterances on all workers; empty for the runs' own
    rows_per_worker: tuple[int, ...]  # instead: utterances of each worker
    link_gbit_s: float | None  # None to use the runs' exchanges
    link_latency_us: float  # per message
    over_loopback: bool  # the runs' exchanges used no network
    measure_exchange: bool  # measures an exchange on this machine
    gradient_mb: float | None  # None to use the runs' gradients
    overlap: float  # fraction of the exchange hidden behind the backward pass

    def __post_init__(self):
        counts = (*self.workers, *self.global_batch_size, *self.rows_per_worker)
        link, latency_us = self.link_gbit_s, self.link_latency_us
        finite = 0 <= latency_us < math.inf and (link is not None or not latency_us)
        two_sizes = self.global_batch_size and self.rows_per_worker
        sources = self.run_dirs or self.measured
        checks = {
            "--workers, --global_batch_size and --rows_per_worker must be above 0": (
                self.workers and min(counts) > 0
            ),
            "--global_batch_size and --rows_per_worker exclude each other": not two_sizes,
            "--link_gbit_s must be above 0": link is None or link > 0,
            "--link_latency_us must be finite and at least 0, and needs --link_gbit_s": finite,
            "--gradient_mb must be above 0": self.gradient_mb is None or self.gradient_mb > 0,
            "--overlap must be between 0 and 1": 0 <= self.overlap <= 1,
            "A prediction needs runs, or --measured results": bool(sources),
        }
        for rule, met in checks.items():
            if not met:
                raise UsageError(f"{rule}. Received: {self}.")


def predict(asked: Asked, *, out: str | Path | None = None, output_format: str = "table") -> str:
    """Predicts runs and returns their table as text; writes table, JSON and figure to ``out``."""
    check_format(output_format)
    target = parse_target(asked.target) if asked.target else None
    data = read_runs(asked.run_dirs, target, asked.policy, asked.window)
    for path in asked.measured:
        read_results(path, data)
    if target is not None and not data.targets:
        raise UsageError(
            f"No run reached {asked.target}, so the time to it can't be predicted. Received: "
            f"{len(asked.run_dirs)} runs. Choose a target that they met, or leave --target out."
        )
    prediction = fit.WorkerPrediction(_measurements(asked, data))
    rows = [prediction.run(workers, batch) for workers, batch in _runs(asked, data)]
    measured = asdict(prediction.measured) | {"missed": data.missed}
    del measured["filled"]
    values = {"target": asked.target or None, "interval_share": fit.SHARE, "measured": measured}
    values["predicted"] = rows
    written = Measured([prediction_table(prediction, rows, asked.target, data.missed)], values)
    if out is not None:
        out = Path(out).resolve()
        check_results_folder(out)
        written.write(out)
        if not is_file(out):
            draw({"prediction": lambda: prediction_chart(rows, asked.target)}, out)
    return written.to_format(output_format)


def _measurements(asked: Asked, data: RunData) -> fit.Measurements:
    size = _gradient_bytes(asked, data)
    link = None
    if asked.link_gbit_s is not None:
        link = fit.Link(asked.link_gbit_s * 1e9 / 8, asked.link_latency_us * 1e-6)
    exchanges = data.exchanges if link is None or asked.over_loopback else []
    if asked.measure_exchange:
        exchanges = [*exchanges, *local_exchanges(size)]
    if link is None and not exchanges:
        if max(asked.workers) > 1:
            raise UsageError(
                "A prediction for several workers needs the speed of their exchange. Received: "
                "neither --link_gbit_s, nor --measure_exchange, nor runs of several workers."
            )
        link = fit.Link(math.inf)
    filled = statistics.median(data.filled or [1.0])
    runs = (data.targets, data.beside, filled)
    return fit.Measurements(data.steps, size, link, exchanges, asked.overlap, *runs)


def _gradient_bytes(asked: Asked, data: RunData) -> float:
    if asked.gradient_mb is not None:
        return asked.gradient_mb * 1e6
    sizes = set(data.gradient_bytes or data.weight_bytes)
    if len(sizes) > 1 and max(sizes) > 1.05 * min(sizes) or not max(sizes):
        raise UsageError(
            "The runs must be of one model unless --gradient_mb is set. Received: gradients "
            f"of {', '.join(f'{size:,}' for size in sorted(sizes))} bytes."
        )
    return max(sizes)


def _runs(asked: Asked, data: RunData) -> list[tuple[int, int]]:
    if asked.rows_per_worker:
        return [(n, n * rows) for rows in asked.rows_per_worker for n in asked.workers]
    batches = asked.global_batch_size or tuple(sorted(set(data.batches)))
    if not batches:
        raise UsageError(
            "--global_batch_size or --rows_per_worker is needed if no run records a batch size. "
            "Received: neither."
        )
    runs = [(n, batch) for batch in batches for n in asked.workers if n <= batch]
    if not runs:
        raise UsageError(
            "Every batch must have an utterance for each worker. Received: --workers "
            f"{','.join(map(str, asked.workers))} and batches of {batches}."
        )
    return runs


def prediction_table(
    prediction: fit.WorkerPrediction, rows: Sequence[dict[str, Any]], target: str, missed
) -> Table:
    columns = [
        Column("workers", "", "workers"),
        Column("global\nbatch", "", "global_batch"),
        Column("rows per\nworker", "", _rows_per_worker, "{:.4g}".format),
        *_both("steps/s", "steps_per_s"),
        Column("exchange\n%", "", lambda row: row["exchange_s"] / row["step_s"], fixed(0, 100)),
        *_both("efficiency\n%", "efficiency", 100, ".0f"),
    ]
    if target:
        columns += _both("utterances\nto target", "utterances")
        columns += _both("minutes", "target_s", 1 / 60)
    heading = "beyond what\nwas measured"
    beyond = Column(heading, "", lambda row: row["beyond"].replace(",", ", ") or "-")
    title = f"Predicted runs{f' to {target}' if target else ''}"
    notes = _notes(prediction, missed)
    return table_of(title, [*columns, beyond], rows, notes, records=records_of(rows))


def _rows_per_worker(row: dict[str, Any]) -> float:
    return row["global_batch"] / row["workers"]


def _both(heading: str, name: str, scale: float = 1.0, form: str = ".3g") -> list[Column]:
    """Returns two columns of an interval: its median and its ends."""

    def text(value: float) -> str:
        value *= scale
        return f"{value:,.0f}" if value >= 1000 else format(value, form)

    def ends(row: dict[str, Any]) -> str:
        return f"{text(row[f'{name}_low'])} to {text(row[f'{name}_high'])}"

    return [Column(heading, "", name, text), Column("interval", "", ends)]


def _notes(prediction: fit.WorkerPrediction, missed: Sequence[str]) -> list[str]:
    constant_s, per_row_s = prediction.coefficients
    measured = prediction.measured
    link, sources = measured.link, []
    if link is not None:
        gbit_s, latency_us = 8e-9 * link.bytes_per_s, 1e6 * link.latency_s
        sources.append(f"a link of {gbit_s:.4g} Gbit/s and {latency_us:.4g} us per message")
    if measured.exchanges:
        sources.append(f"{len(measured.exchanges)} measured exchanges")
    rows = sorted({step.rows for step in measured.steps})
    listed = ", ".join(f"{count:.4g}" for count in rows)
    unknown = "; a single number of rows can't show the fixed part" if len(rows) == 1 else ""
    notes = [
        f"Medians, with intervals for {100 * fit.SHARE:.0f} % of new runs by a parametric "
        f"bootstrap. A step takes {1000 * constant_s:.3g} ms and {1000 * per_row_s:.3g} "
        f"ms per row, from steps with {listed} rows per worker{unknown}.",
        f"Exchange: a ring all-reduce of {measured.gradient_bytes / 1e6:.4g} MB, "
        f"{' and '.join(sources)}; {100 * measured.overlap:.0f} % of it is hidden.",
    ]
    if measured.targets:
        sizes = ", ".join(f"{point:.4g}" for point in sorted({p.batch for p in measured.targets}))
        growth = "; a single batch size can't show how their number grows with it"
        critical = prediction.critical_batch
        if critical is not None:
            low, middle, high = (f"{n:,.0f}" if n < 1e9 else "any" for n in critical)
            growth = f"; a batch of {middle} ({low} to {high}) needs twice the minimum, "
            growth += "if the curve with a critical batch is right"
        runs = len(measured.targets)
        notes.append(f"Utterances: from {runs} runs with batches of {sizes}{growth}.")
    if missed:
        notes.append(
            f"{len(missed)} runs never met the target and are left out, so the utterances are "
            f"underestimated: {', '.join(missed)}."
        )
    return notes


def prediction_chart(rows: Sequence[dict[str, Any]], target: str) -> Chart:
    panels = [_panel(rows, "steps_per_s", 1.0, "steps per second")]
    if target:
        panels.append(_panel(rows, "target_s", 1 / 60, f"minutes to {target}"))
    caption = f"Predicted for N workers, with intervals for {100 * fit.SHARE:.0f} % of new runs"
    return Chart("prediction", caption, panels, columns=2, width=420)


def _panel(rows: Sequence[dict[str, Any]], name: str, scale: float, title: str) -> Panel:
    marks = []
    for number, batch in enumerate(dict.fromkeys(_key(row, rows) for row in rows)):
        of_batch = [row for row in rows if _key(row, rows) == batch]
        xs, colour = [row["workers"] for row in of_batch], run_colour(number)
        low, middle, high = (
            [scale * row[key] for row in of_batch] for key in (f"{name}_low", name, f"{name}_high")
        )
        marks += [Area(x=xs, low=low, high=high, colour=colour), *curve(xs, middle, colour, batch)]
    counts = sorted({row["workers"] for row in rows})
    return Panel(marks, counts_axis("workers", counts), Axis(title, log=True))


def _key(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    batches = {other["global_batch"] for other in rows}
    if len(batches) > 1 and len(set(map(_rows_per_worker, rows))) == 1:
        return f"{_rows_per_worker(row):.4g} rows per worker"
    return f"batch {row['global_batch']}"
