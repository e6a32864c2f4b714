"""The tables of a cluster's workers: who waited for whom, the exchange, their machines."""

import math
from typing import Any, NamedTuple

from tfasr.display.table import UNKNOWN, Column, Table, fixed, percent, table_of
from tfasr.reports.numbers import Report, RunAnalysis


class _Row(NamedTuple):
    index: int
    run: RunAnalysis
    part: Any
    """A `WorkerPart`, `Exchange` or `WorkerMachine` of the run."""


_WAITED = [
    "Over the steps that all workers noted and none compiled in. waited: for the worker that was "
    "last, a lower bound; held up: what the first of the others waited for this one, where it was "
    "last; exchange: from then until all gradients were summed and applied. No clock is compared "
    "with another's: a step ends for all workers at once."
]

_EXCHANGED = [
    "MB a step: gradients that each worker has and all sum up. sent: what each sends for it in a "
    "ring of n workers, 2 (n - 1) / n of them. achieved: in the time of the exchange, which holds "
    "the update of the weights too; link: the same bytes summed up by themselves before the first "
    "step. latency: of a sum of 4 kB."
]

_USED = [
    "While each worker ran, evaluations too; 100 % of the cores are all of the host's. Energy: of "
    "the counters of the worker's host, each counted once; of a host with several workers it "
    "stands with the first."
]


def worker_tables(report: Report) -> list[Table]:
    runs = list(enumerate(report.runs))
    parts = [_Row(index, run, part) for index, run in runs for part in run.workers]
    exchanges = [_Row(index, run, run.exchange) for index, run in runs if run.exchange is not None]
    machines = [_Row(index, run, machine) for index, run in runs for machine in run.machines]
    used = [*_USED, *(_summed(run) for run in report.runs if run.worker_joules)]
    return [
        table_of(title, columns, rows, notes, name=name, colours=[row.index for row in rows])
        for title, name, columns, rows, notes in (
            ("Workers: who waited for whom", "workers", _WAITS, parts, _WAITED),
            ("Workers: exchange of gradients", "exchange", _EXCHANGES, exchanges, _EXCHANGED),
            ("Workers: machines", "worker_machines", _MACHINES, machines, used),
        )
        if rows
    ]


def _called(row: _Row) -> str:
    rank = row.part.rank
    return f"{row.run.name}, {rank}{' (chief)' if rank == 0 else ''}"


def _summed(run: RunAnalysis) -> str:
    if all(machine.measured for machine in run.machines):
        total = _watt_hours(math.fsum(run.worker_joules.values()))
        return f"{run.name}: {total} Wh over all hosts."
    return f"{run.name}: no sum of energy, since not every host shows a counter."


def _watt_hours(joules: float) -> str:
    return f"{joules / 3600:.4g}"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.4g}"


def _energy(row: _Row) -> str:
    if row.part.shares_with is not None:
        return f"with {row.part.shares_with}"
    joules = row.run.worker_joules.get(row.part.rank)
    return UNKNOWN if joules is None else _watt_hours(joules)


_WAITS: list[Column[_Row]] = [
    Column("Worker", "run", lambda row: row.run.name, shown=_called),
    Column("", "rank", lambda row: row.part.rank),
    Column("steps", "steps", lambda row: row.part.steps),
    Column("utterances", "utterances", lambda row: row.part.utterances),
    Column("input wait\ns", "input_wait_s", lambda row: row.part.input_wait_s, fixed(2)),
    Column("steps\ns", "step_s", lambda row: row.part.step_s, fixed(1)),
    Column("waited\ns", "waited_s", lambda row: row.part.waited_s, fixed(2)),
    Column("waited\n% of steps", "", lambda row: row.part.waited_share, percent),
    Column("held up\ns", "held_up_s", lambda row: row.part.held_up_s, fixed(2)),
    Column("exchange\ns", "exchange_s", lambda row: row.part.exchange_s, fixed(2)),
]

_EXCHANGES: list[Column[_Row]] = [
    Column("Exchange", "run", lambda row: row.run.name),
    Column("workers", "workers", lambda row: row.part.workers),
    Column("MB\na step", "gradient_bytes", lambda row: row.part.gradient_bytes, _megabytes),
    Column("", "steps", lambda row: row.part.steps),
    Column(
        "exchange\nms a step",
        "exchange_s",
        lambda row: row.part.exchange_s,
        shown=lambda row: f"{1e3 * row.part.exchange_s / row.part.steps:.2f}",
    ),
    Column("exchange\n% of steps", "share", lambda row: row.part.share, percent),
    Column(
        "achieved\nMB/s sent",
        "achieved_bytes_per_s",
        lambda row: row.part.achieved_bytes_per_s,
        _megabytes,
    ),
    Column(
        "link\nMB/s sent",
        "measured_bytes_per_s",
        lambda row: row.part.measured_bytes_per_s,
        _megabytes,
    ),
    Column("latency\nms", "latency_s", lambda row: row.part.latency_s, fixed(2, 1e3)),
]

_MACHINES: list[Column[_Row]] = [
    Column("Machines", "run", lambda row: row.run.name, shown=_called),
    Column("", "rank", lambda row: row.part.rank),
    Column("host", "host", lambda row: row.part.hostname),
    Column("host's cores\n% busy", "cpu_percent", lambda row: row.part.cpu_percent, fixed(1)),
    Column("by the worker\n%", "process_percent", lambda row: row.part.process_percent, fixed(1)),
    Column("GPUs\n% busy", "gpu_percent", lambda row: row.part.gpu_percent, fixed(1)),
    Column(
        "energy\nWh",
        "energy_joules",
        lambda row: row.run.worker_joules.get(row.part.rank),
        shown=_energy,
    ),
    Column("", "energy_with_rank", lambda row: row.part.shares_with),
]
