"""The tables of a cluster's workers: who waited for whom, the exchange, their machines."""

import math
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from tfasr.display.table import UNKNOWN, Column, Table, fixed, percent, table_of
from tfasr.reports.numbers import Report, RunAnalysis


class _Row(NamedTuple):
    index: int
    run: RunAnalysis
    part: Any  # a `WorkerTimes`, `Exchange` or `WorkerMachine` of the run


_WAITED = [
    "Over the steps that all workers recorded, without compilation. waited: for the worker that "
    "was last, a lower bound; held up: what the first of the others waited for this one, where it "
    "was last; exchange: from then until all gradients were summed and applied. No clock is "
    "compared with another's: a step ends for all workers at once."
]

_IN_ROUNDS = [
    "From the chief's ledger. held up: what the chief waited where this worker came last; "
    "staleness: the most changes of others that were added to the weights during one of its "
    "rounds; left out: how often the others went on without it."
]

_EXCHANGED = [
    "MB a step: gradients that each worker has and all sum up. sent: what each sends for it in a "
    "ring of n workers, 2 (n - 1) / n of them. achieved: in the time of the exchange, which holds "
    "the update of the weights too; link: the same bytes summed up by themselves before the first "
    "step. latency: of a sum of 4 kB."
]

_USED = [
    "While each worker ran, including evaluations; 100 % of the cores are all of the host's. "
    "Energy: of the counters of the worker's host, each counted once; of a host with several "
    "workers it stands with the first."
]
_NO_SUM = "no sum of energy, because not every host has a counter"


def worker_tables(report: Report) -> list[Table]:
    runs = list(enumerate(report.runs))
    parts = [_Row(index, run, part) for index, run in runs for part in run.workers]
    exchanges = [_Row(index, run, run.exchange) for index, run in runs if run.exchange is not None]
    rounds = [_Row(index, run, part) for index, run in runs for part in run.rounds]
    machines = [_Row(index, run, machine) for index, run in runs for machine in run.machines]
    used = list(_USED)
    for run in report.runs:
        if run.worker_joules:
            total = _watt_hours(math.fsum(run.worker_joules.values()))
            complete = all(machine.measured for machine in run.machines)
            sum_of = f"{total} Wh over all hosts" if complete else _NO_SUM
            used.append(f"{run.name}: {sum_of}.")
    return [
        table_of(title, columns, rows, notes, name=name, colours=[row.index for row in rows])
        for title, name, columns, rows, notes in (
            ("Workers: who waited for whom", "workers", _WAITS, parts, _WAITED),
            ("Workers: rounds", "worker_rounds", _ROUNDS, rounds, _IN_ROUNDS),
            ("Workers: exchange of gradients", "exchange", _EXCHANGES, exchanges, _EXCHANGED),
            ("Workers: machines", "worker_machines", _MACHINES, machines, used),
        )
        if rows
    ]


def _called(row: _Row) -> str:
    rank = row.part.rank
    return f"{row.run.name}, {rank}{' (chief)' if rank == 0 else ''}"


def _watt_hours(joules: float) -> str:
    return f"{joules / 3600:.4g}"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.4g}"


def _energy(row: _Row) -> str:
    if row.part.shares_with is not None:
        return f"with {row.part.shares_with}"
    joules = row.run.worker_joules.get(row.part.rank)
    return UNKNOWN if joules is None else _watt_hours(joules)


def _part(heading: str, name: str, text: Callable[[Any], str] = str, of: str = "") -> Column[_Row]:
    return Column(heading, name, attrgetter(f"part.{of or name}"), text)


_WAITS: list[Column[_Row]] = [
    Column("Worker", "run", lambda row: row.run.name, shown=_called),
    _part("", "rank"),
    _part("steps", "steps"),
    _part("utterances", "utterances"),
    _part("input wait\ns", "input_wait_s", fixed(2)),
    _part("steps\ns", "step_s", fixed(1)),
    _part("waited\ns", "waited_s", fixed(2)),
    _part("waited\n% of steps", "", percent, "waited_share"),
    _part("held up\ns", "held_up_s", fixed(2)),
    _part("exchange\ns", "exchange_s", fixed(2)),
]


_ROUNDS: list[Column[_Row]] = [
    Column("Worker", "run", lambda row: row.run.name, shown=_called),
    _part("", "rank"),
    _part("rounds", "rounds"),
    _part("utterances", "utterances"),
    _part("steps\ns", "train_s", fixed(1)),
    _part("link\ns", "link_s", fixed(2)),
    _part("held up\ns", "held_up_s", fixed(2)),
    _part("staleness", "staleness"),
    _part("left out", "left"),
]


def _milliseconds_a_step(row: _Row) -> str:
    return f"{1e3 * row.part.exchange_s / row.part.steps:.2f}"


_EXCHANGES: list[Column[_Row]] = [
    Column("Exchange", "run", lambda row: row.run.name),
    _part("workers", "workers"),
    _part("MB\na step", "gradient_bytes", _megabytes),
    _part("", "steps"),
    replace(_part("exchange\nms a step", "exchange_s"), shown=_milliseconds_a_step),
    _part("exchange\n% of steps", "share", percent),
    _part("achieved\nMB/s sent", "achieved_bytes_per_s", _megabytes),
    _part("link\nMB/s sent", "measured_bytes_per_s", _megabytes),
    _part("latency\nms", "latency_s", fixed(2, 1e3)),
]


def _joules(row: _Row) -> float | None:
    return row.run.worker_joules.get(row.part.rank)


_MACHINES: list[Column[_Row]] = [
    Column("Machines", "run", lambda row: row.run.name, shown=_called),
    _part("", "rank"),
    _part("host", "host", of="hostname"),
    _part("host's cores\n% busy", "cpu_percent", fixed(1)),
    _part("by the worker\n%", "process_percent", fixed(1)),
    _part("GPUs\n% busy", "gpu_percent", fixed(1)),
    Column("energy\nWh", "energy_joules", _joules, shown=_energy),
    _part("", "energy_with_rank", of="shares_with"),
]
