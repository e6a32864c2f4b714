"""Published results and one's own in the same tables; shares of one never cross to the other."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from tfasr.analysis.findings import one_run_each
from tfasr.analysis.groups import group_members
from tfasr.analysis.names import target_label
from tfasr.analysis.report import Report, RunAnalysis
from tfasr.checked_files import object_or_empty
from tfasr.display.table import (
    NEVER,
    REFUSED,
    UNKNOWN,
    Cell,
    Column,
    Table,
    fixed,
    table_of,
    three_digits,
    values_of,
)
from tfasr.reports.tables.paper import gpus_of
from tfasr.reports.tables.runs import fact, speed, target_name
from tfasr.run_files import EXPERIMENT_FILE
from tfasr.tta.published.results import PublishedSource, PublishedTable
from tfasr.tta.targets import Target
from tfasr.tta.time_to_accuracy import first_sustained

_MARK = " (published)"

Row = dict[str, Cell]


@dataclass(frozen=True)
class Measured:
    """What was measured of runs after their training."""

    # Evaluations of one model at several beam widths: ``run``, ``beam_width``, ``evaluation_s``,
    # ``wer``, ``cer``
    widths: Sequence[Row] = field(default_factory=list)
    # Evaluations of best checkpoints: ``run``, ``split``, ``beam_width``, ``wer``, ``cer``
    scores: Sequence[Row] = field(default_factory=list)


@dataclass(frozen=True)
class _Line:
    """A row of a table: the run whose colour it has, its name, its values by heading."""

    run: int | None
    name: str
    values: Row
    texts: dict[str, str] = field(default_factory=dict)


_Made = tuple[list[Column[_Line]], list[_Line]]


def beside_tables(
    report: Report, source: PublishedSource, measured: Measured | None = None
) -> list[Table]:
    """Returns a table for each of a source's: one's own rows first, then the published ones.

    Own rows without anything to say there are left out. Times to accuracy are those to the
    published targets, on the report's policy; their shares are of one's own first row, published
    shares of the published first row.
    """
    return [
        beside_table(report, source, name, measured)
        for name, table in source.tables.items()
        if table.kind in _KINDS
    ]


def beside_table(
    report: Report, source: PublishedSource, name: str, measured: Measured | None = None
) -> Table:
    """Returns one of a source's tables with one's own rows before the published ones."""
    table = source.tables[name]
    columns, lines = _KINDS[table.kind](report, table, measured or Measured())
    known = {"run", *(column.name for column in columns)}
    others = dict.fromkeys(name for line in lines for name in line.values if name not in known)
    own = any(line.run is not None for line in lines)
    notes = [
        f"Published: {source.name}, {table.name} ({source.source}). {table.conditions}",
        *([_UNLIKE] if own else ["None of the runs has anything to stand beside these."]),
        *table.all_notes(),
    ]
    if table.kind == "time_to_accuracy":
        notes.insert(1, _rule(report))
    return table_of(
        f"{table.what}, beside {table.name} of {source.name}",
        [
            Column(
                "Run", "run", lambda line: line.name.removesuffix(_MARK), shown=attrgetter("name")
            ),
            Column("", "published", lambda line: line.run is None),
            *columns,
            *(_column("", name) for name in others),
        ],
        lines,
        notes,
        colours=[line.run for line in lines],
        name=f"beside_{table.name.lower().replace(' ', '_')}",
    )


_UNLIKE = (
    "Published rows were measured on other data and machines: they stand beside one's own and are "
    "not ranked against them."
)


def _rule(report: Report) -> str:
    window = f"median of {report.window}" if report.window > 1 else "first evaluation"
    said = (
        f"One's own: policy {report.policy.name}, {window}; medians of the runs of each row. "
        f"{NEVER}: never reached."
    )
    members = group_members(report.runs)
    if len(members) > 1 and all(len(own) == 1 for own in members.values()):
        said += f" Shares are of one run each (n = 1): {one_run_each()}."
    return said


def _column(heading: str, name: str, text: Callable[[Any], str] = str) -> Column[_Line]:
    return Column(heading, name, lambda line: line.values.get(name), text)


def _published(table: PublishedTable) -> list[_Line]:
    return [_Line(None, f"{row.get('system', table.name)}{_MARK}", row) for row in table.rows]


def _lines(columns: Sequence[Column[RunAnalysis]]) -> list[Column[_Line]]:
    return [_column(column.heading, column.name, column.text) for column in columns]


def _of_groups(report: Report, columns: Sequence[Column[RunAnalysis]]) -> list[_Line]:
    firsts = [(group, own[0]) for group, own in group_members(report.runs).items()]
    lines = [_Line(run, group, values_of(columns, report.runs[run])) for group, run in firsts]
    return [line for line in lines if any(value is not None for value in line.values.values())]


def _systems(report: Report, table: PublishedTable, measured: Measured) -> _Made:
    def hardware(name: str) -> Callable[[RunAnalysis], Any]:
        def of_run(run: RunAnalysis) -> Any:
            machine = run.charges and run.charges.hardware
            return machine and getattr(machine, name)

        return of_run

    columns = [
        Column("processor", "processor", lambda run: run.facts.system.get("processor")),
        Column("GPUs", "gpus", gpus_of),
        Column("total\nUSD", "total_usd", hardware("purchase_price_usd"), fixed(2)),
        Column("GPUs\nUSD", "gpus_usd", hardware("gpus_price_usd"), fixed(2)),
        Column("CPUs\nUSD", "cpus_usd", hardware("cpus_price_usd"), fixed(2)),
    ]
    lines = []
    for line in _of_groups(report, columns):
        machine = hardware("name")(report.runs[line.run])
        lines.append(replace(line, name=f"{line.name}: {machine}") if machine else line)
    return _lines(columns), [*lines, *_published(table)]


def _parameters(report: Report, table: PublishedTable, measured: Measured) -> _Made:
    def per_device(run: RunAnalysis) -> float | None:
        batch, devices = run.facts.global_batch_size, run.facts.num_replicas
        return batch / devices if batch is not None and devices else None

    columns = [
        Column("batch", "global_batch_size", fact("global_batch_size")),
        Column("batch\nper device", "per_replica_batch_size", per_device, "{:g}".format),
        Column("readers", "readers", lambda run: _pipeline(run).get("num_readers")),
        Column("buffer,\nbatches", "buffer_batches", lambda run: _pipeline(run).get("prefetch")),
    ]
    lines = _of_groups(report, columns)
    lines = [line for line in lines if line.values["global_batch_size"] is not None]
    return _lines(columns), [*lines, *_published(table)]


def _evaluation(report: Report, table: PublishedTable, measured: Measured) -> _Made:
    columns = [
        _column("beam\nwidth", "beam_width"),
        _column("evaluation\ns", "evaluation_s", three_digits),
        _column("WER %", "wer", fixed(2, 100)),
        _column("CER %", "cer", fixed(3, 100)),
    ]
    lines = [_Line(_colour(report, row["run"]), str(row["run"]), row) for row in measured.widths]
    if not lines:
        for index, run in enumerate(report.runs):
            facts = run.facts
            if facts.forward_s is None or facts.decode_s is None:
                continue
            best = {m: min((p.value for p in run.curves.get(m, [])), default=None)
                    for m in ("wer", "cer")}  # fmt: skip
            seconds = facts.forward_s + facts.decode_s
            own: Row = {"beam_width": facts.beam_width, "evaluation_s": seconds, **best}
            name = f"{run.name}, best in training"
            lines.append(_Line(index, name, own))
    return columns, [*lines, *_published(table)]


def _final(report: Report, table: PublishedTable, measured: Measured) -> _Made:
    splits = list(dict.fromkeys(str(row["split"]) for row in [*measured.scores, *table.rows]))
    columns = [
        _column("\n".join([*split.split(" "), "WER %"]), split, fixed(2, 100)) for split in splits
    ]
    lines: list[_Line] = []
    for rows, name_of, own in (
        (measured.scores, lambda row: str(row["run"]), True),
        (table.rows, lambda row: f"{row['system']}{_MARK}", False),
    ):
        values: dict[str, Row] = {}
        for row in rows:
            values.setdefault(name_of(row), {})[str(row["split"])] = row["wer"]
        lines += [
            _Line(_colour(report, name) if own else None, name, rates)
            for name, rates in values.items()
        ]
    return columns, lines


def _times(report: Report, table: PublishedTable, measured: Measured) -> _Made:
    targets = list(dict.fromkeys((row["metric"], row["target"]) for row in table.rows))
    names = {target: f"{target_name(target)}_s" for target in targets}
    columns = [
        Column(
            f"{target_label(*target)}\nmin",
            name,
            lambda line, name=name: line.values.get(name),
            shown=lambda line, name=name: line.texts.get(name, UNKNOWN),
        )
        for target, name in names.items()
    ]
    lines: list[_Line] = []
    first: dict[Target, float | None] = {}
    for group, own in group_members(report.runs).items():
        runs = [report.runs[index] for index in own]
        refused = any(report.refused(index) for index in own)
        values: Row = {}
        texts: dict[str, str] = {}
        for target in targets:
            seconds, known = _median_s(report, runs, target)
            first.setdefault(target, seconds)
            values[names[target]] = seconds
            share = seconds / first[target] if seconds and first[target] else None
            text = REFUSED if refused else "" if share is None else f"{100 * share:.0f} %"
            if known:
                texts[names[target]] = _time_text(seconds, text)
        if texts:
            lines.append(_Line(own[0], group, values, texts))
    for system in dict.fromkeys(row["system"] for row in table.rows):
        rows = {(r["metric"], r["target"]): r for r in table.rows if r["system"] == system}
        seconds_of = {names[target]: row["seconds"] for target, row in rows.items()}
        texts = {
            names[target]: _time_text(row["seconds"], _printed(row)) for target, row in rows.items()
        }
        lines.append(_Line(None, f"{system}{_MARK}", seconds_of, texts))
    return columns, lines


def _steps(report: Report, table: PublishedTable, measured: Measured) -> _Made:
    def unknown(run: RunAnalysis) -> None:
        return None

    columns = [
        Column("devices", "num_devices", fact("num_replicas")),
        Column("forward\nms", "forward_s", unknown, _milliseconds),
        Column("backward\nms", "backward_s", unknown, _milliseconds),
        Column("total\nms", "total_s", unknown, _milliseconds),
        Column("utterances/s", "utterances_per_s", speed("utterances_per_s"), three_digits),
        Column("audio s/s", "audio_s_per_s", speed("audio_s_per_s"), three_digits),
        Column("epoch\ns", "epoch_s", fact("epoch_s"), three_digits),
    ]
    lines = [
        _Line(index, run.name, values_of(columns, run))
        for index, run in enumerate(report.runs)
        if run.throughput.utterances_per_s is not None
    ]
    return _lines(columns), [*lines, *_published(table)]


_KINDS = {
    "systems": _systems,
    "parameters": _parameters,
    "evaluation": _evaluation,
    "time_to_accuracy": _times,
    "final": _final,
    "steps": _steps,
}


def _median_s(
    report: Report, runs: Sequence[RunAnalysis], target: Target
) -> tuple[float | None, bool]:
    metric, value = target
    found = [
        first_sustained(run.curves[metric], value, metric=metric, window=report.window).seconds
        for run in runs
        if run.curves.get(metric)
    ]
    if not found:
        return None, False
    median = statistics.median(math.inf if seconds is None else seconds for seconds in found)
    return (median if math.isfinite(median) else None), True


def _time_text(seconds: float | None, share: str) -> str:
    if seconds is None:
        return NEVER
    return f"{_minutes(seconds)} ({share})" if share else _minutes(seconds)


def _printed(row: Row) -> str:
    share = row.get("printed_relative")
    return "" if share is None else f"{100 * share:.0f} %{'*' if 'note' in row else ''}"


def _pipeline(run: RunAnalysis) -> dict[str, Any]:
    pipeline = object_or_empty(run.path / EXPERIMENT_FILE).get("pipeline")
    return pipeline if isinstance(pipeline, dict) else {}


def _colour(report: Report, name: object) -> int:
    return next((i for i, run in enumerate(report.runs) if name in (run.name, run.group)), 0)


def _minutes(seconds: float) -> str:
    return three_digits(seconds / 60)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g}"
