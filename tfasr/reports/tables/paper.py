"""The paper's tables for the user's runs: systems, times to accuracy, epochs, evaluation, load."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from tfasr.display.table import (
    NEVER,
    REFUSED,
    UNKNOWN,
    Cell,
    Column,
    Table,
    fixed,
    gigabytes,
    percent,
    records_of,
    table_of,
    three_digits,
    values_of,
)
from tfasr.kit.files import EXPERIMENT_FILE, object_or_empty
from tfasr.reports.groups import (
    GroupResult,
    Results,
    group_members,
    of_single_runs,
    one_run_each,
    spread_at_hand,
)
from tfasr.reports.numbers import Report, RunAnalysis, metric_label, target_label
from tfasr.reports.tables.runs import RUN, fact, minutes_of, speed, target_name
from tfasr.tta.metrics import Target, metric_named
from tfasr.tta.policies import first_sustained
from tfasr.tta.published.results import PublishedSource, PublishedTable


def paper_tables(report: Report, results: Results) -> list[Table]:
    tables = [
        systems_table(report),
        time_to_accuracy_table(report, results) if results else None,
        epochs_table(report),
        evaluation_table(report),
        utilisation_table(report),
    ]
    return [table for table in tables if table is not None]


def systems_table(report: Report) -> Table | None:
    """Returns the machines of the runs, or None. Source: the paper, Table 1 (systems); prices stand
    in the cost tables.
    """
    return _table(
        "Systems",
        "systems",
        report,
        [
            Column("processor", "processor", _system("processor")),
            Column("cores", "cores", _system("cores")),
            Column("memory\nGB", "memory_bytes", _system("memory_bytes"), gigabytes),
            Column("GPUs", "gpus", gpus_of),
            Column("Python", "python", _system("python")),
            Column("TensorFlow", "tensorflow", _package("tensorflow")),
            Column("Keras", "keras", _package("keras")),
            Column("PyTorch", "torch", _package("torch")),
        ],
        ["Cores: those that the run was allowed to use."],
    )


def epochs_table(report: Report) -> Table | None:
    """Source: the paper, Table 2 (batch size, devices) and section 5.3 (its effect)."""
    columns: list[Column[RunAnalysis]] = [
        Column("batch", "global_batch_size", fact("global_batch_size")),
        Column("devices", "num_replicas", fact("num_replicas")),
        Column("utterances\nan epoch", "train_samples", fact("train_samples")),
        Column("optimizer", "optimizer", fact("optimizer")),
        Column("epoch s", "epoch_s", fact("epoch_s"), _digits),
        Column("utterances/s", "utterances_per_s", speed("utterances_per_s"), three_digits),
        Column("audio s/s", "audio_s_per_s", speed("audio_s_per_s"), three_digits),
    ]
    columns += [
        Column(
            f"epochs to\n{target_label(*target)}",
            f"epochs_to_{target_name(target)}",
            lambda run, index=index: run.results[index].tta.epoch,
            missing=NEVER,
        )
        for index, target in enumerate(report.targets)
    ]
    notes = [
        "Epoch: the median of whole epochs, without evaluation. Per second: steady training steps "
        f"and waiting for input. {NEVER}: never reached."
    ]
    return _table("Epochs and throughput", "epochs", report, columns, notes)


def evaluation_table(report: Report) -> Table | None:
    """Source: the paper, Table 3 (evaluation time and error rates over beam widths)."""
    columns: list[Column[RunAnalysis]] = [
        Column("decoder", "decoder", fact("decoder")),
        Column("beam\nwidth", "beam_width", fact("beam_width")),
        Column("evaluations", "evaluations", fact("evaluations")),
        Column("placement", "placement", fact("placement")),
        Column("swap s\neach", "swap_s", fact("swap_s"), _digits),
        Column("forward s\neach", "forward_s", fact("forward_s"), _digits),
        Column("decode s\neach", "decode_s", fact("decode_s"), _digits),
        Column("wait s\neach", "wait_s", fact("wait_s"), _digits),
    ]
    for metric in dict.fromkeys(metric for run in report.runs for metric in run.curves):
        rate = metric_named(metric).rate
        heading = f"best\n{metric_label(metric)}" + (" %" if rate else "")
        columns.append(
            Column(heading, f"best_{metric}", _best(metric), percent if rate else _digits)
        )
    notes = [
        "Seconds: means of the run's evaluations. Decode: what training waited for it. Wait: "
        "likewise for an evaluation in another process; its own work is in the ledger."
    ]
    return _table("Evaluation", "evaluation", report, columns, notes)


def utilisation_table(report: Report) -> Table | None:
    """Source: the paper, section 5.2 and Figure 8 (utilisation of CPU and GPU)."""
    return _table(
        "Utilisation",
        "utilisation",
        report,
        [
            Column("CPU %", "cpu_share", _load("cpu_percent", 0.01), percent),
            Column(
                "CPU %\nof the run", "process_cpu_share", _load("process_percent", 0.01), percent
            ),
            Column("GPU %", "gpu_share", _load("gpu_percent", 0.01), percent),
            Column(
                "GPU memory\nGB, most", "gpu_memory_bytes", _load("gpu_memory_bytes"), gigabytes
            ),
            Column("GPU power\nW", "gpu_power_w", _load("gpu_power_w"), three_digits),
        ],
        ["Means over the whole run, over all cores and over all devices; power is a device's."],
    )


def time_to_accuracy_table(report: Report, results: Results) -> Table:
    """Source: the paper, Tables 4 to 6: minutes to each target, relative to the first system."""
    members = list(group_members(report.runs).items())
    minutes = minutes_of(report)
    columns: list[Column[int]] = [Column("Run", "group", lambda row: members[row][0])]

    def refused(result: GroupResult) -> bool:
        return any(report.refused(run) for run in result.members)

    def share(of_target: Sequence[GroupResult], row: int) -> float | None:
        first, median = (of_target[index].statistics.median_s for index in (0, row))
        known = median is not None and first and not refused(of_target[row])
        return median / first if known else None

    def text(of_target: Sequence[GroupResult], row: int) -> str:
        median, ratio = of_target[row].statistics.median_s, share(of_target, row)
        time = NEVER if median is None else minutes(median)
        if refused(of_target[row]):
            return f"{time} ({REFUSED})"
        return time if ratio is None else f"{time} ({100 * ratio:.0f} %)"

    for of_target in results:
        target = of_target[0].target
        columns += [
            Column(
                target_label(*target),
                f"{target_name(target)}_median_s",
                lambda row, of=of_target: of[row].statistics.median_s,
                shown=lambda row, of=of_target: text(of, row),
            ),
            Column(
                "",
                f"{target_name(target)}_relative_to_first",
                lambda row, of=of_target: share(of, row),
            ),
        ]
    return table_of(
        "Time to accuracy, minutes (and share of the first row's)",
        columns,
        range(len(members)),
        [f"Medians of the runs of each row. {NEVER}: never reached.", *_single(results)],
        colours=[runs[0] for _, runs in members],
        name="time_to_accuracy_of_groups",
    )


def _single(results: Results) -> list[str]:
    sizes = [result.statistics.n for result in results[0]] if results else []
    single = of_single_runs(sizes, spread_at_hand(one for row in results for one in row))
    return [f"Of the times {single}."] if single else []


def _table(
    title: str, name: str, report: Report, columns: Sequence[Column[RunAnalysis]], notes: list[str]
) -> Table | None:
    if all(column.value(run) is None for column in columns for run in report.runs):
        return None
    columns = [*RUN, *columns]
    return table_of(title, columns, report.runs, notes, name=name, leave_out_empty=True)


def gpus_of(run: RunAnalysis) -> str | None:
    names = run.facts.system.get("gpus")
    if names is None:
        return None
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"


def _system(key: str) -> Callable[[RunAnalysis], Cell]:
    return lambda run: run.facts.system.get(key)


def _package(name: str) -> Callable[[RunAnalysis], Cell]:
    return lambda run: (run.facts.system.get("packages") or {}).get(name)


def _best(metric: str) -> Callable[[RunAnalysis], Cell]:
    kind = metric_named(metric)
    return lambda run: kind.best([point.value for point in run.curves.get(metric, [])])


def _load(name: str, scale: float = 1.0) -> Callable[[RunAnalysis], Cell]:
    def load(run: RunAnalysis) -> Cell:
        value = run.facts.utilisation.get(name)
        return None if value is None else value * scale

    return load


def _digits(value: float) -> str:
    return f"{value:.3g}"


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
    """Returns a table for each of a source's, the report's rows first. Published shares are of the
    published first row, the report's of its own.
    """
    return [
        beside_table(report, source, name, measured)
        for name, table in source.tables.items()
        if table.kind in _KINDS
    ]


def beside_table(
    report: Report, source: PublishedSource, name: str, measured: Measured | None = None
) -> Table:
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


_RATES = {"wer": "WER %", "cer": "CER %"}


def scores_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns a row for each run and two columns for each split; ``rows`` has ``run``, ``split``,
    ``decoder``, ``beam_width``, ``wer`` and ``cer`` as fractions. Source: the paper, Table 5
    (validation and test sets at one beam width).
    """
    splits = list(dict.fromkeys(str(row["split"]) for row in rows))
    runs = list(dict.fromkeys(row["run"] for row in rows))
    scores = {(row["run"], row["split"]): row for row in rows}

    def rate_of(split: str, rate: str) -> Callable[[Any], float | None]:
        return lambda run: (row := scores.get((run, split))) and row[rate]

    return table_of(
        "Error rates",
        [
            Column("Run", "", lambda run: run),
            *(
                Column(f"{split}\n{heading}", "", rate_of(split, rate), fixed(2, 100))
                for split in splits
                for rate, heading in _RATES.items()
            ),
        ],
        runs,
        [f"{_decoders(rows)}. CER is over the longer of reference and hypothesis, as in the "
         "paper."],
        colours=[None] * len(runs),
        name="scores",
        records=records_of([_flat(row) for row in rows]),
    )  # fmt: skip


def _decoders(rows: Sequence[Mapping[str, Any]]) -> str:
    decoders = dict.fromkeys(_decoder(row) for row in rows)
    if len(decoders) == 1:
        return f"Decoder: {next(iter(decoders))}"
    runs = dict.fromkeys((row["run"], _decoder(row)) for row in rows)
    return "Decoders: " + "; ".join(f"{run}: {decoder}" for run, decoder in runs)


def _decoder(row: Mapping[str, Any]) -> str:
    name, width = row.get("decoder", UNKNOWN), row.get("beam_width")
    text = str(name) if width is None else f"{name}, beam width {width}"
    model = row.get("language_model")
    return text if model is None else f"{text}, language model {Path(model).name}"


def _flat(row: Mapping[str, Any]) -> dict[str, Cell]:
    flat: dict[str, Cell] = {}
    for key, value in row.items():
        if isinstance(value, list | tuple):
            flat |= {f"{key}_low": value[0], f"{key}_high": value[1]}
        else:
            flat[key] = value
    return flat
