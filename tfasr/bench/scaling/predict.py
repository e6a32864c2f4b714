"""`tfasr bench scaling`: from run folders and flags to a table of predicted runs."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tfasr.bench.results import Measured, draw, is_file
from tfasr.bench.scaling.measured_runs import Found, read_results, read_runs
from tfasr.bench.scaling.prediction import Link
from tfasr.bench.scaling.worker_prediction import (
    SHARE,
    Measurements,
    PredictedRun,
    WorkerPrediction,
)
from tfasr.bench.scaling.worker_tables import prediction_chart, prediction_table, record
from tfasr.display.writers import check_format
from tfasr.errors import UsageError
from tfasr.tta.targets import parse_target

_BITS = 8
_GIGA = 1e9
_MEGA = 1e6
_MICRO = 1e-6


@dataclass(frozen=True)
class Asked:
    """What is to be predicted of what.

    Attributes:
        run_dirs: folders of runs.
        results: files of the scaling workload.
        target: such as "cer=0.1"; "" for steps alone.
        policy: the clock and the rule of the target.
        window: evaluations whose median must meet it; None for the policy's.
        workers: numbers of them.
        global_batch_sizes: over all workers; empty for the runs' own.
        rows_per_worker: instead, so that the batch grows with the workers.
        link_gbit_s: of the link; None to take the runs' exchanges.
        link_latency_us: of a message on it.
        over_loopback: whether the runs' exchanges went over no network.
        measure_exchange: whether one is measured here.
        gradient_mb: megabytes of gradients; None for the runs'.
        overlap: share of the exchange that is hidden.
    """

    run_dirs: Sequence[Path]
    results: Sequence[Path] = ()
    target: str = ""
    policy: str = "paper"
    window: int | None = None
    workers: tuple[int, ...] = (1, 2, 4, 8, 16)
    global_batch_sizes: tuple[int, ...] = ()
    rows_per_worker: tuple[int, ...] = ()
    link_gbit_s: float | None = None
    link_latency_us: float = 0.0
    over_loopback: bool = False
    measure_exchange: bool = False
    gradient_mb: float | None = None
    overlap: float = 0.0

    def __post_init__(self):
        counts = (*self.workers, *self.global_batch_sizes, *self.rows_per_worker)
        link = self.link_gbit_s
        checks = {
            "--workers, --global_batch_size and --rows_per_worker must be above 0": (
                bool(self.workers) and min(counts, default=0) > 0
            ),
            "--global_batch_size and --rows_per_worker exclude each other": not (
                self.global_batch_sizes and self.rows_per_worker
            ),
            "--link_gbit_s must be above 0": link is None or link > 0,
            "--link_latency_us must be finite and at least 0, beside --link_gbit_s": (
                0 <= self.link_latency_us < math.inf
                and (link is not None or not self.link_latency_us)
            ),
            "--gradient_mb must be above 0": self.gradient_mb is None or self.gradient_mb > 0,
            "--overlap must be between 0 and 1": 0 <= self.overlap <= 1,
            "A prediction must be given runs, or --measured results": bool(
                self.run_dirs or self.results
            ),
        }
        for rule, met in checks.items():
            if not met:
                raise UsageError(f"{rule}. Received: {self}.")


def predict(asked: Asked, *, out: str | Path | None = None, output_format: str = "table") -> str:
    """Predicts runs and returns the table as text; with ``out``, writes it with JSON and a figure.

    Args:
        asked: what of what.
        out: a folder, or a file ``*.json``.
        output_format: of `tfasr.display.writers.formats`.

    Raises:
        UsageError: if runs cannot be read, or say too little for what is asked.
        OSError: if a file cannot be written.
    """
    check_format(output_format)
    target = parse_target(asked.target) if asked.target else None
    found = read_runs(asked.run_dirs, target, asked.policy, asked.window)
    for path in asked.results:
        read_results(path, found)
    if target is not None and not found.targets:
        raise UsageError(
            f"A time to {asked.target} must be predicted from runs that met it. None of "
            f"{len(asked.run_dirs)} did. Choose a target that they met, or leave --target out."
        )
    measured = _measurements(asked, found)
    prediction = WorkerPrediction(measured)
    rows = [prediction.run(workers, batch) for workers, batch in _runs(asked, found)]
    written = _written(asked, found, prediction, rows)
    if out is not None:
        out = Path(out).resolve()
        written.write(out)
        if not is_file(out):
            draw({"prediction": lambda: prediction_chart(rows, asked.target)}, out)
    return written.to_format(output_format)


def _measurements(asked: Asked, found: Found) -> Measurements:
    size = _gradient_bytes(asked, found)
    link = None
    if asked.link_gbit_s is not None:
        latency_s = asked.link_latency_us * _MICRO
        link = Link(asked.link_gbit_s * _GIGA / _BITS, latency_s)
    exchanges = found.exchanges if link is None or asked.over_loopback else []
    if asked.measure_exchange:
        # Imported here: it starts TensorFlow in other processes.
        from tfasr.bench.scaling.local_exchange import local_exchanges

        exchanges = [*exchanges, *local_exchanges(size)]
    if link is None and not exchanges:
        if max(asked.workers) > 1:
            raise UsageError(
                "A prediction for several workers must know how fast they exchange. Received: "
                "neither --link_gbit_s, nor --measure_exchange, nor runs of several workers."
            )
        link = Link(math.inf)
    return Measurements(
        found.steps,
        size,
        link,
        exchanges,
        asked.overlap,
        found.targets,
        found.beside,
        statistics.median(found.filled or [1.0]),
    )


def _gradient_bytes(asked: Asked, found: Found) -> float:
    if asked.gradient_mb is not None:
        return asked.gradient_mb * _MEGA
    sizes = set(found.gradient_bytes or found.weight_bytes)
    if len(sizes) > 1 and max(sizes) > 1.05 * min(sizes) or not max(sizes):
        raise UsageError(
            "The runs must be of one model, or --gradient_mb must be given. Received: gradients "
            f"of {', '.join(f'{size:,}' for size in sorted(sizes))} bytes."
        )
    return max(sizes)


def _runs(asked: Asked, found: Found) -> list[tuple[int, int]]:
    """Returns numbers of workers, each with a global batch."""
    if asked.rows_per_worker:
        return [(n, n * rows) for rows in asked.rows_per_worker for n in asked.workers]
    batches = asked.global_batch_sizes or tuple(sorted(set(found.batches)))
    if not batches:
        raise UsageError(
            "--global_batch_size or --rows_per_worker must be given where no run names a batch. "
            "Received: neither."
        )
    runs = [(n, batch) for batch in batches for n in asked.workers if n <= batch]
    if not runs:
        raise UsageError(
            "Every worker must get an utterance of each batch. Received: --workers "
            f"{','.join(map(str, asked.workers))} and batches of {batches}."
        )
    return runs


def _written(
    asked: Asked, found: Found, prediction: WorkerPrediction, rows: list[PredictedRun]
) -> Measured:
    notes = []
    if found.missed:
        notes.append(
            f"{len(found.missed)} runs never met the target and are left out, so that the "
            f"utterances are too few: {', '.join(found.missed)}."
        )
    table = prediction_table(prediction, rows, asked.target, notes)
    measured = prediction.measured
    values = {
        "target": asked.target or None,
        "interval_share": SHARE,
        "measured": {
            "steps": [asdict(step) for step in measured.steps],
            "gradient_bytes": measured.gradient_bytes,
            "link": measured.link and asdict(measured.link),
            "exchanges": [asdict(one) for one in measured.exchanges],
            "overlap": measured.overlap,
            "targets": [asdict(point) for point in measured.targets],
            "beside": [asdict(one) for one in measured.beside],
            "missed": found.missed,
        },
        "predicted": [record(row) for row in rows],
    }
    return Measured([table], values)
