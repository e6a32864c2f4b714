"""What a study's later steps measured of its runs: final scores, and evaluations by beam width."""

from collections.abc import Sequence
from pathlib import Path

from tfasr.display.table import Cell, Column, Table, fixed, table_of
from tfasr.studies.plan import Plan
from tfasr.studies.steps import rows_of, scores_path, widths_path, widths_run


def scores_of(plan: Plan, folder: Path) -> list[dict[str, Cell]]:
    """Returns the final scores of every run that has any: run, split, beam width, rates."""
    found = []
    for run in plan.runs:
        seeds = [other for other in plan.runs if other.experiment == run.experiment]
        label = plan.label(run.experiment)
        name = label if len(seeds) == 1 else f"{label}, seed {run.seed}"
        for row in rows_of(scores_path(folder, run)):
            wanted = ("split", "decoder", "beam_width", "wer", "cer")
            found.append({"run": name, **{key: row[key] for key in wanted}})
    return found


def widths_of(plan: Plan, folder: Path) -> list[dict[str, Cell]]:
    """Returns the evaluations of one run at several beam widths, narrow to wide."""
    name = plan.label(widths_run(plan).experiment)
    wanted = ("beam_width", "evaluation_s", "wer", "cer")
    rows = [row for row in rows_of(widths_path(folder)) if row["beam_width"] is not None]
    return [{"run": name, **{key: row[key] for key in wanted}} for row in rows]


def widths_table(widths: Sequence[dict[str, Cell]]) -> Table:
    return table_of(
        f"A whole evaluation of {widths[0]['run']} over beam widths",
        [
            Column("", "run", lambda row: row["run"]),
            Column("beam width", "beam_width", lambda row: row["beam_width"]),
            Column("seconds", "evaluation_s", lambda row: row["evaluation_s"], "{:.3g}".format),
            Column("WER %", "wer", lambda row: row["wer"], fixed(2, 100)),
            Column("CER %", "cer", lambda row: row["cer"], fixed(3, 100)),
        ],
        widths,
        ["Seconds: forward passes and decoding, one after the other."],
        colours=[None] * len(widths),
        name="beam_widths",
    )
