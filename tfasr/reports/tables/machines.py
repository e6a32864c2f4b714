"""The tables of machines: cost and energy to each target; who waited for whom in a cluster.

A `Column` is defined once for text, CSV, JSON and the page; most name their value by a
path, such as "charge.cost.usd". Costs come from `tfasr.reports.charges`, which is told
by ``--hardware`` or by the run's own ledger what the machine was. Without either there
is no table, rather than one full of unknowns.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tfasr.display.chart import INTERVAL_LABELS
from tfasr.display.table import (
    NEVER,
    UNKNOWN,
    Column,
    Table,
    at,
    fixed,
    for_readers,
    percent,
    table_of,
    values_of,
    whole_percent,
)
from tfasr.ledger.intervals import INTERVALS
from tfasr.reports.groups import of_single_runs, some_of
from tfasr.reports.numbers import Report, RunAnalysis, target_label
from tfasr.reports.tables.runs import RunAtTarget, minutes_of
from tfasr.tta.costs import relative_cost

# Runs that a note names; the others of the same machine are counted.
_NAMED = 3
_RULE = (
    "Charged: from the start of the run's process until the target was met. Under every "
    "policy, this includes initialisation, evaluation and lost work. It doesn't include "
    "downtime between sessions, although a rented machine may cost money then too. "
    "Relative: cost in dollars, or hours times price if dollars are unknown, compared with "
    f"the first run. {NEVER}: never reached. {UNKNOWN}: not known."
)


def cost_tables(report: Report) -> list[Table]:
    """Returns a table of cost and energy for each target, or [] if no machine is known.

    A machine is known if the run recorded a description, a counter of energy, or if
    ``--hardware`` names one.
    """
    if _known(report):
        return [_table(report, index) for index in range(len(report.targets))]

    return []


def charges_json(report: Report) -> Callable[[RunAtTarget], dict[str, Any]]:
    """Returns a function for a run's cost and energy to a target.

    Unknown values are None. The function returns {} if the report has no cost tables.
    """
    columns = []
    if _known(report):
        columns = cost_columns(report)

    return lambda at: values_of(columns, at)


def cost_columns(
    report: Report, *, priced_apart: bool = False, intervals: Sequence[str] = ()
) -> list[Column[RunAtTarget]]:
    """Returns columns of a run's cost and energy to a target.

    Args:
        report: the runs.
        priced_apart: whether readers see the dollars of machine and electricity in
            columns of their own, next to their sum.
        intervals: kinds of intervals whose joules readers see; programs find all of
            them in ``energy_by_interval_joules``.
    """

    def ratio(at: RunAtTarget) -> float | None:
        first = RunAtTarget(at.report, 0, at.target).charge
        if at.charge is None or first is None or at.refused:
            return None

        return relative_cost(first.cost, at.charge.cost)

    # A column without a heading is for programs only.
    relative = machine = electricity = ""
    if len(report.runs) > 1:
        relative = "relative"

    if priced_apart:
        machine = "machine\nUSD"
        electricity = "electricity\nUSD"

    minutes = minutes_of(report)
    columns = [
        Column("", "hardware", "run.charges.hardware.name"),
        Column("charged\nmin", "charged_s", "charge.cost.charged_s", minutes, _absent),
        Column(
            "USD/h", "price_usd_per_hour", "run.charges.hardware.hourly_usd", _figure
        ),
        Column(machine, "machine_usd", "charge.cost.machine_usd", _figure, _absent),
        Column(
            electricity,
            "electricity_usd",
            "charge.cost.electricity_usd",
            shown=_electricity,
        ),
        Column("USD", "cost_usd", "charge.cost.usd", shown=_dollars),
        Column(
            relative,
            "cost_relative",
            ratio,
            whole_percent,
            lambda at: at.or_refused(_absent(at)),
        ),
        Column("kWh", "energy_kwh", "charge.cost.kwh", shown=_kwh),
        Column("", "energy_is", "charge.cost.kwh_is"),
        Column("", "energy_joules", "charge.energy.total_joules"),
        Column("", "energy_by_interval_joules", "charge.energy.joules"),
        Column("", "energy_unknown_s", "charge.energy.total_unknown_s"),
        Column("", "energy_counters", "run.charges.counters"),
    ]

    for name in intervals:
        heading = f"{INTERVAL_LABELS[name]}\nJ"
        columns.append(Column(heading, "", "charge", shown=_joules_of(name)))

    return columns


def _known(report: Report) -> bool:
    """Whether there is anything to show about some run's cost or energy."""
    return any(run.charges is not None and run.charges.known for run in report.runs)


def _table(report: Report, target: int) -> Table:
    """Returns the table of cost and energy to the target with an index."""
    rows = [RunAtTarget(report, index, target) for index in range(len(report.runs))]
    charged = [row.charge for row in rows if row.charge]
    used = [charge.energy.joules for charge in charged if charge.energy]
    columns = cost_columns(
        report,
        priced_apart=any(charge.cost.electricity_usd is not None for charge in charged),
        intervals=[
            name for name in INTERVALS if any(joules[name] != 0 for joules in used)
        ],
    )

    notes = [_RULE]
    single = of_single_runs([1] * len(report.runs))
    if single:
        notes.append(f"Relative costs depend on times, and {single}.")

    label = target_label(*report.targets[target], report.metrics)

    return table_of(
        f"Cost and energy to {label}",
        # Programs get the formatted text too: its marks say what is an estimate.
        [Column("Run", "", "run.name"), *for_readers(columns, lambda row: row)],
        rows,
        notes + _notes(report),
    )


def _absent(at: RunAtTarget) -> str:
    """Returns why a value is missing: the target was never met, or it is not known."""
    if at.charge is None:
        return NEVER

    return UNKNOWN


def _joules_of(interval: str) -> Callable[[RunAtTarget], str]:
    """Returns a formatter of the joules of a kind of interval.

    They are a lower bound, "> 12", if counters were not read for some of the time.
    """

    def shown(at: RunAtTarget) -> str:
        used = at.charge and at.charge.energy
        if used is None or used.joules[interval] is None:
            return _absent(at)

        text = _figure(used.joules[interval])
        if used.unknown_s[interval] > 0:
            return f"> {text}"

        return text

    return shown


def _kwh(at: RunAtTarget) -> str:
    return _of_energy(at, at.charge and at.charge.cost.kwh)


def _electricity(at: RunAtTarget) -> str:
    return _of_energy(at, at.charge and at.charge.cost.electricity_usd)


def _dollars(at: RunAtTarget) -> str:
    """Formats the sum of a run's dollars; electricity in it may be an estimate."""
    usd = at.charge and at.charge.cost.usd
    if usd is not None and at.charge.cost.electricity_usd is None:
        return _figure(usd)

    return _of_energy(at, usd)


def _of_energy(at: RunAtTarget, value: float | None) -> str:
    """Formats a figure that energy is part of.

    A mark says whether it is a lower bound ("> 12") or an estimate from nominal power
    ("12 (est.)").
    """
    if value is None:
        return _absent(at)

    text = _figure(value)
    marked = {"at least": f"> {text}", "estimate": f"{text} (est.)"}

    return marked.get(at.charge.cost.kwh_is, text)


def _notes(report: Report) -> list[str]:
    """Returns which machine the runs' costs are based on, and what is unknown about them.

    Runs with the same facts share a note, which names the first few.
    """
    names: dict[str, list[str]] = {}
    for run in report.runs:
        if run.charges is None:
            continue

        facts = list(run.charges.notes)
        machine = run.charges.hardware
        if machine and machine.name:
            source = f" ({machine.source})" if machine.source else ""
            facts.insert(0, f"machine {machine.name}{source}")

        if facts:
            names.setdefault("; ".join(facts), []).append(run.name)

    return [f"{some_of(runs, _NAMED)}: {facts}." for facts, runs in names.items()]


def _figure(value: float) -> str:
    """Formats an amount with four digits, or with all digits before the point."""
    if abs(value) >= 1000:
        return f"{value:.0f}"

    return f"{value:.4g}"


class _Row(NamedTuple):
    """A worker, or the exchange of all workers, of one run of a report."""

    # The run's place in the report, which gives the row its colour.
    index: int
    run: RunAnalysis
    # Of `RunAnalysis.workers`, `rounds` or `machines`, or its `exchange`.
    part: Any


_WAITED = [
    "Over the steps that all workers recorded, without compilation. waited: time spent "
    "waiting for the last worker (a lower bound). held up: over the steps in which this "
    "worker was last, how long the worker that was ready first waited for it. exchange: "
    "from when the last worker was ready until all gradients were summed and applied. "
    "Workers' clocks are not compared: a step ends for all workers at the same time."
]

_IN_ROUNDS = [
    "Read from the chief's ledger. held up: how long the chief waited in rounds in which "
    "this worker came last. staleness: the largest number of other workers' changes that "
    "were added to the weights during one of its rounds. left out: how often the others "
    "went on without it."
]

_EXCHANGED = [
    "MB a step: size of the gradients that each worker computes and that are summed over "
    "all workers. sent: in a ring of n workers, each sends 2 (n - 1) / n of that size. "
    "achieved: MB sent, divided by the time of the exchange, which includes the update of "
    "the weights. link: the speed measured before the first step, when as many bytes were "
    "summed without training. latency: time to sum 4 kB over all workers."
]

_USED = [
    "Means over the time that each worker ran, including evaluations. 100 % means that all "
    "cores of the host are busy. Of the machine: how much of the processors that it wanted "
    "a worker got. Energy: from the counters of the worker's host, each counted once. If "
    "several workers share a host, its energy is in the row of the first."
]
# In place of the joules of a cluster some of whose hosts can't measure them.
_NO_SUM = "no sum of energy, because not every host has a counter"


def worker_tables(report: Report) -> list[Table]:
    """Returns the tables on workers of clusters: waiting, rounds, exchange, machines.

    Tables without data are left out; a run in one process adds no rows.
    """
    waits = []
    rounds = []
    exchanges = []
    machines = []

    for index, run in enumerate(report.runs):
        waits += [_Row(index, run, worker) for worker in run.workers]
        rounds += [_Row(index, run, worker) for worker in run.rounds]
        machines += [_Row(index, run, machine) for machine in run.machines]

        if run.exchange is not None:
            exchanges.append(_Row(index, run, run.exchange))

    made = (
        ("who waited for whom", "workers", _WAITS, waits, _WAITED),
        ("rounds", "worker_rounds", _ROUNDS, rounds, _IN_ROUNDS),
        ("exchange of gradients", "exchange", _EXCHANGES, exchanges, _EXCHANGED),
        ("machines", "worker_machines", _MACHINES, machines, _USED + _sums(report)),
    )

    return [
        table_of(
            f"Workers: {what}",
            columns,
            rows,
            notes,
            name=name,
            colours=[row.index for row in rows],
        )
        for what, name, columns, rows, notes in made
        if rows
    ]


def _sums(report: Report) -> list[str]:
    """Returns a note on the energy of all hosts of each run that has counters."""
    notes = []
    for run in report.runs:
        if not run.worker_joules:
            continue

        sum_of = _NO_SUM
        if all(machine.measured for machine in run.machines):
            total = _watt_hours(math.fsum(run.worker_joules.values()))
            sum_of = f"{total} Wh over all hosts"

        notes.append(f"{run.name}: {sum_of}.")

    return notes


def _called(row: _Row) -> str:
    """Returns a worker's name: its run and rank; rank 0 is the chief."""
    rank = at("part.rank")(row)
    if rank == 0:
        return f"{row.run.name}, 0 (chief)"

    return f"{row.run.name}, {rank}"


def _exchange_ms(row: _Row) -> str:
    return f"{1e3 * row.part['exchange_s'] / row.part['steps']:.2f}"


def _watt_hours(joules: float) -> str:
    return f"{joules / 3600:.4g}"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.4g}"


def _joules(row: _Row) -> float | None:
    return row.run.worker_joules.get(row.part.rank)


def _used_energy(row: _Row) -> str:
    """Formats the energy of a worker's host, or names the rank that counts it."""
    if row.part.shares_with is not None:
        return f"with {row.part.shares_with}"

    joules = _joules(row)
    if joules is None:
        return UNKNOWN

    return _watt_hours(joules)


# Times of workers whose gradients are summed in each step, see
# `tfasr.reports.charges.WorkerTimes`.
_WAITS: list[Column[_Row]] = [
    Column("Worker", "run", "run.name", shown=_called),
    Column("", "rank", "part.rank"),
    Column("steps", "steps", "part.steps"),
    Column("utterances", "utterances", "part.utterances"),
    Column("input wait\ns", "input_wait_s", "part.input_wait_s", fixed(2)),
    Column("steps\ns", "step_s", "part.step_s", fixed(1)),
    Column("waited\ns", "waited_s", "part.waited_s", fixed(2)),
    Column("waited\n% of steps", "", "part.waited_share", percent),
    Column("held up\ns", "held_up_s", "part.held_up_s", fixed(2)),
    Column("exchange\ns", "exchange_s", "part.exchange_s", fixed(2)),
]


_ROUNDS: list[Column[_Row]] = [
    *_WAITS[:2],
    Column("rounds", "rounds", "part.rounds"),
    Column("utterances", "utterances", "part.utterances"),
    Column("steps\ns", "train_s", "part.train_s", fixed(1)),
    Column("link\ns", "link_s", "part.link_s", fixed(2)),
    Column("held up\ns", "held_up_s", "part.held_up_s", fixed(2)),
    Column("staleness", "staleness", "part.staleness"),
    Column("left out", "left", "part.left"),
]


_EXCHANGES: list[Column[_Row]] = [
    Column("Exchange", "run", "run.name"),
    Column("workers", "workers", "part.workers"),
    Column("MB\na step", "gradient_bytes", "part.gradient_bytes", _megabytes),
    Column("", "steps", "part.steps"),
    Column("exchange\nms a step", "exchange_s", "part.exchange_s", shown=_exchange_ms),
    Column("exchange\n% of steps", "share", "part.share", percent),
    Column(
        "achieved\nMB/s sent",
        "achieved_bytes_per_s",
        "part.achieved_bytes_per_s",
        _megabytes,
    ),
    Column(
        "link\nMB/s sent",
        "measured_bytes_per_s",
        "part.measured_bytes_per_s",
        _megabytes,
    ),
    Column("latency\nms", "latency_s", "part.latency_s", fixed(2, 1e3)),
]


_MACHINES: list[Column[_Row]] = [
    Column("Machines", "run", "run.name", shown=_called),
    Column("", "rank", "part.rank"),
    Column("host", "host", "part.hostname"),
    Column("host's cores\n% busy", "cpu_percent", "part.cpu_percent", fixed(1)),
    Column("by the worker\n%", "process_percent", "part.process_percent", fixed(1)),
    Column("GPUs\n% busy", "gpu_percent", "part.gpu_percent", fixed(1)),
    Column("energy\nWh", "energy_joules", _joules, shown=_used_energy),
    Column("", "energy_with_rank", "part.shares_with"),
    Column("of the\nmachine %", "host_share", "part.host.share", percent),
]
