"""The tables of a cluster's workers: who waited for whom, the exchange, their machines."""

import dataclasses
import math

from tfasr.analysis.report import Report, RunAnalysis
from tfasr.display.table import UNKNOWN, Records, Table, records_of

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
    """Returns the tables of all runs of clusters; none without such a run."""
    return [*_waited(report), *_exchanged(report), *_machines(report)]


def _exchanged(report: Report) -> list[Table]:
    listed = [(index, run.name, run.exchange) for index, run in enumerate(report.runs)]
    listed = [one for one in listed if one[2] is not None]
    if not listed:
        return []
    rows, records = [], []
    for _, name, found in listed:
        latency_s = found.latency_s
        rows.append(
            [
                name,
                str(found.workers),
                f"{found.gradient_bytes / 1e6:.4g}",
                f"{1e3 * found.exchange_s / found.steps:.2f}",
                f"{100 * found.share:.1f}",
                f"{found.achieved_bytes_per_s / 1e6:.4g}",
                _megabytes(found.measured_bytes_per_s),
                UNKNOWN if latency_s is None else f"{1e3 * latency_s:.2f}",
            ]
        )
        records.append({"run": name, **dataclasses.asdict(found)})
    columns = ["Exchange", "workers", "MB\na step", "exchange\nms a step", "exchange\n% of steps"]
    columns += ["achieved\nMB/s sent", "link\nMB/s sent", "latency\nms"]
    return [
        Table(
            "Workers: exchange of gradients",
            columns,
            rows,
            _EXCHANGED,
            colours=[index for index, _, _ in listed],
            name="exchange",
            records=records_of(records),
        )
    ]


def _machines(report: Report) -> list[Table]:
    listed = [
        (index, run, machine) for index, run in enumerate(report.runs) for machine in run.machines
    ]
    if not listed:
        return []
    rows, records = [], []
    for _, run, machine in listed:
        joules = run.worker_joules.get(machine.rank)
        shared = machine.shares_with
        energy = _watt_hours(joules) if shared is None else f"with {shared}"
        uses = (machine.cpu_percent, machine.process_percent, machine.gpu_percent)
        called = _called(run.name, machine.rank)
        rows.append([called, machine.hostname, *map(_percent, uses), energy])
        records.append(
            {
                "run": run.name,
                "rank": machine.rank,
                "host": machine.hostname,
                "cpu_percent": machine.cpu_percent,
                "process_percent": machine.process_percent,
                "gpu_percent": machine.gpu_percent,
                "energy_joules": joules,
                "energy_with_rank": shared,
            }
        )
    columns = ["Machines", "host", "host's cores\n% busy", "by the worker\n%"]
    columns += ["GPUs\n% busy", "energy\nWh"]
    return [
        Table(
            "Workers: machines",
            columns,
            rows,
            [*_USED, *(_summed(run) for run in report.runs if run.worker_joules)],
            colours=[index for index, _, _ in listed],
            name="worker_machines",
            records=records_of(records),
        )
    ]


def _summed(run: RunAnalysis) -> str:
    if all(machine.measured for machine in run.machines):
        total = _watt_hours(math.fsum(run.worker_joules.values()))
        return f"{run.name}: {total} Wh over all hosts."
    return f"{run.name}: no sum of energy, since not every host shows a counter."


def _called(run: str, rank: int) -> str:
    return f"{run}, {rank}{' (chief)' if rank == 0 else ''}"


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f}"


def _watt_hours(joules: float | None) -> str:
    return UNKNOWN if joules is None else f"{joules / 3600:.4g}"


def _megabytes(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value / 1e6:.4g}"


def _waited(report: Report) -> list[Table]:
    listed = [
        (index, run.name, part) for index, run in enumerate(report.runs) for part in run.workers
    ]
    if not listed:
        return []
    columns = ["Worker", "steps", "utterances", "input wait\ns", "steps\ns"]
    columns += ["waited\ns", "waited\n% of steps", "held up\ns", "exchange\ns"]
    rows = [
        [
            _called(name, part.rank),
            str(part.steps),
            str(part.utterances),
            f"{part.input_wait_s:.2f}",
            f"{part.step_s:.1f}",
            f"{part.waited_s:.2f}",
            f"{100 * part.waited_share:.1f}",
            f"{part.held_up_s:.2f}",
            f"{part.exchange_s:.2f}",
        ]
        for _, name, part in listed
    ]
    records = Records(
        [
            "run",
            "rank",
            "steps",
            "utterances",
            "input_wait_s",
            "step_s",
            "waited_s",
            "held_up_s",
            "exchange_s",
        ],
        [
            [
                name,
                part.rank,
                part.steps,
                part.utterances,
                part.input_wait_s,
                part.step_s,
                part.waited_s,
                part.held_up_s,
                part.exchange_s,
            ]
            for _, name, part in listed
        ],
    )
    return [
        Table(
            "Workers: who waited for whom",
            columns,
            rows,
            _WAITED,
            colours=[index for index, _, _ in listed],
            name="workers",
            records=records,
        )
    ]
