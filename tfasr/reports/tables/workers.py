"""The table of a cluster's workers: who waited for whom."""

from tfasr.analysis.report import Report
from tfasr.display.table import Records, Table

_NOTES = [
    "Over the steps that all workers noted and none compiled in. waited: for the worker that was "
    "last, a lower bound; held up: what the first of the others waited for this one, where it was "
    "last; exchange: from then until all gradients were summed and applied. No clock is compared "
    "with another's: a step ends for all workers at once."
]


def worker_tables(report: Report) -> list[Table]:
    """Returns a table of the workers of all runs of clusters; none without such a run."""
    listed = [
        (index, run.name, part) for index, run in enumerate(report.runs) for part in run.workers
    ]
    if not listed:
        return []
    columns = ["Worker", "steps", "utterances", "input wait\ns", "steps\ns"]
    columns += ["waited\ns", "waited\n% of steps", "held up\ns", "exchange\ns"]
    rows = [
        [
            f"{name}, {part.rank}{' (chief)' if part.rank == 0 else ''}",
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
            _NOTES,
            colours=[index for index, _, _ in listed],
            name="workers",
            records=records,
        )
    ]
