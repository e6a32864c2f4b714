"""The tables of `benchmarks/time_to_accuracy.py`, from finished runs' ledgers."""

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tfasr.commands.report import report
from tfasr.ledger.events import Ledger
from tfasr.tta.decomposition import FACTORS
from tfasr.tta.run import Run, load_run

_SHARES = {
    "startup_pct": ("init", "compile"),
    "input_wait_pct": ("input_wait",),
    "train_pct": ("train",),
    "evaluation_pct": ("eval_forward", "decode"),
    "checkpoint_pct": ("checkpoint",),
    "overhead_pct": ("overhead", "sentences", "lost_work"),
}
_COLUMNS = [
    ("minutes", "minutes"),
    ("epoch", "epochs"),
    ("utterances_per_s", "utterances/s"),
    ("startup_pct", "start-up %"),
    ("train_pct", "train %"),
    ("input_wait_pct", "input wait %"),
    ("step_input_wait_pct", "of a step %"),
    ("evaluation_pct", "evaluation %"),
    ("checkpoint_pct", "checkpoints %"),
    ("overhead_pct", "all else %"),
    ("ledger_pct", "of it ledger %"),
]
_EVENT = {
    "loss": 1.0,
    "utterances": 16,
    "audio_s": 60.0,
    "frames": 6000,
    "padded_frames": 6500,
}


def tta_tables(
    runs: dict[str, dict[int, Path]], target: tuple[str, float]
) -> list[dict[str, Any]]:
    """Returns tables: the systems (medians over seeds), the runs, which is sooner, and why.

    Args:
        runs: for each system, its runs' folders by seed; tfasr's first.
        target: metric and value.
    """
    event_s = seconds_an_event()
    rows = [
        {"system": system, "seed": seed, **run_row(load_run(path), target, event_s)}
        for system, by_seed in runs.items()
        for seed, path in by_seed.items()
    ]
    metric, value = target
    title = f"Time to dev {metric.upper()} {100 * value:g} %"
    systems = [_system_row(system, rows) for system in runs]

    return [
        {
            "title": f"{title}, medians over the seeds",
            "columns": [("system", "system"), ("reached", "reached"), *_COLUMNS],
            "rows": systems,
        },
        {
            "title": f"{title}, by run",
            "columns": [
                ("system", "system"),
                ("seed", "seed"),
                *_COLUMNS,
                ("last_pct", "last %"),
            ],
            "rows": rows,
        },
        *_factor_tables(
            runs, target, {row["system"]: row["minutes"] for row in systems}
        ),
    ]


def run_row(run: Run, target: tuple[str, float], event_s: float) -> dict[str, Any]:
    """Returns a run's times until the target, or of the entire run if it never met it.

    Args:
        run: the run.
        target: metric and value.
        event_s: seconds that an event of the ledger costs.

    Returns:
        ``minutes`` and ``epoch`` are None if never; shares are percent of the time from
        the model's creation to the target, except ``step_input_wait_pct``, of a steady
        step; ``last_pct`` is the last evaluation.
    """
    metric, value = target
    result = run.time_to_accuracy(**{metric: value})

    end_s = result.seconds
    if end_s is None:
        end_s = run.elapsed_s[-1]

    in_run = run.intervals_until(end_s)
    before = run.intervals_until(0.0)
    speed = run.throughput()

    wait_pct = None
    if speed.input_wait_share is not None:
        wait_pct = 100 * speed.input_wait_share

    events = sum(0 <= at <= end_s for at in run.elapsed_s)
    shares = {
        name: 100 * sum(in_run[part] - before[part] for part in parts) / end_s
        for name, parts in _SHARES.items()
    }
    return {
        "minutes": result.minutes,
        "epoch": result.epoch,
        "utterances_per_s": speed.utterances_per_s,
        **shares,
        "step_input_wait_pct": wait_pct,
        "ledger_pct": 100 * events * event_s / end_s,
        "last_pct": 100 * run.accuracy_curve(metric)[-1].value,
        "parameters": run.fact("parameters"),
    }


def seconds_an_event(events: int = 2000) -> float:
    """Returns the seconds to write a step into a ledger here."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(folder)
        start = time.perf_counter()
        for step in range(events):
            ledger.event("train_step", _EVENT, epoch_num=1, step=step)

        seconds = time.perf_counter() - start
        ledger.close()

    return seconds / events


def _system_row(system: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    of_system = [row for row in rows if row["system"] == system]
    reached = [row for row in of_system if row["minutes"] is not None]
    medians = {key: _median([row[key] for row in of_system]) for key, _ in _COLUMNS}

    # A run that never met the target took longer than any that did.
    if 2 * len(reached) <= len(of_system):
        medians |= {"minutes": None, "epoch": None}
    else:
        never = [float("inf")] * (len(of_system) - len(reached))
        for key in ("minutes", "epoch"):
            medians[key] = statistics.median([*(row[key] for row in reached), *never])

    return {
        "system": system,
        "reached": f"{len(reached)} of {len(of_system)}",
        **medians,
    }


def _median(values: list[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    if not present:
        return None

    return statistics.median(present)


def _factor_tables(
    runs: dict[str, dict[int, Path]],
    target: tuple[str, float],
    medians: dict[str, float | None],
) -> list[dict[str, Any]]:
    """Returns each further system's times relative to the first's, and their factors.

    Factors are geometric means over all pairs of runs that arrived; a title counts
    them.
    """
    folders = [next(iter(by_seed.values())).parent for by_seed in runs.values()]
    text = report(folders, targets=[target], policy="paper", output_format="json")
    first = next(iter(runs))
    groups = json.loads(text)
    others = list(zip(runs, groups, strict=True))[1:]
    tables = []

    if others:
        tables.append(_ratio_table(first, others, medians))

    for system, group in others:
        if group["factors"] is None:
            continue

        rows = [
            {"factor": meaning, "times": group["factors"]["factors"][name]}
            for name, meaning in FACTORS.items()
        ]
        rows.append({"factor": "together", "times": group["factors"]["ratio"]})
        arrived = [
            f"{item['reached']} of {item['n']} runs" for item in (group, groups[0])
        ]
        title = f"{system} over {first}, geometric means over those that arrived: "
        title += f"{arrived[0]} of {system}, {arrived[1]} of {first}"
        columns = [("factor", "factor"), ("times", "times as long")]
        tables.append({"title": title, "columns": columns, "rows": rows})

    return tables


def _ratio_of_medians(first: float | None, other: float | None) -> float | None:
    if first is None or other is None:
        return None

    return other / first


def _ratio_table(
    first: str,
    others: list[tuple[str, dict[str, Any]]],
    medians: dict[str, float | None],
) -> dict[str, Any]:
    """Returns the ratios of times with intervals and verdicts, as in `tfasr report`.

    Args:
        first: the system compared with the others.
        others: their names, and the report's groups of their runs.
        medians: minutes of each system; None if half of its runs never arrived.
    """
    rows = []
    for system, group in others:
        result = group["against_first"]
        low, high = result["interval"] or (None, None)
        rows.append(
            {
                "system": system,
                "of_medians": _ratio_of_medians(medians[first], medians[system]),
                "ratio": result["ratio"],
                "low": low,
                "high": high,
                "p_value": result["adjusted_p"],
                "verdict": result["verdict"],
            }
        )

    columns = [
        ("system", "system"),
        ("of_medians", f"median, times {first}'s"),
        ("ratio", "as the verdict says"),
        ("low", "95 % from"),
        ("high", "to"),
        ("p_value", "p"),
        ("verdict", "verdict"),
    ]
    return {"title": f"Ratios to {first}", "columns": columns, "rows": rows}
