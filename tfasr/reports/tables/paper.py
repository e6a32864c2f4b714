"""The paper's tables for your runs: systems, times to accuracy, epochs, evaluation, load."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product, starmap
from pathlib import Path
from typing import Any

from tfasr.display.table import (
    NEVER,
    REFUSED,
    UNKNOWN,
    Cell,
    Column,
    Table,
    at,
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
from tfasr.reports.tables.runs import RUN, SPEEDS, minutes_of, target_name
from tfasr.tta.metrics import Target, computed_metrics, metric_named
from tfasr.tta.policies import first_sustained
from tfasr.tta.published.results import PublishedSource, PublishedTable


def paper_tables(report: Report, results: Results) -> list[Table]:
    """Returns the paper's tables for these runs: systems, times, epochs, evaluation, load.

    A table without any known value is left out, as for logs of other programs.
    """
    made = (
        _table("Systems", "systems", report, _SYSTEMS, _SYSTEMS_NOTE),
        time_to_accuracy_table(report, results) if results else None,
        _table(
            "Epochs and throughput", "epochs", report, _epochs(report), _EPOCHS_NOTE
        ),
        _table(
            "Evaluation", "evaluation", report, _evaluations(report), _EVALUATION_NOTE
        ),
        _table("Utilisation", "utilisation", report, _LOADS, _LOADS_NOTE),
    )
    return [table for table in made if table is not None]


def gpus_of(run: RunAnalysis) -> str | None:
    """Returns a run's GPUs such as "2 x A100"; None if unknown, "none" without any."""
    names = run.facts["system"].get("gpus")
    if names is None:
        return None
    return (
        ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        or "none"
    )


def _digits(value: float) -> str:
    return f"{value:.3g}"


# Source: the paper, Table 1 (systems); prices are in the cost tables.
_SYSTEMS: list[Column[RunAnalysis]] = [
    Column("processor", "processor", "facts.system.processor"),
    Column("cores", "cores", "facts.system.cores"),
    Column("memory\nGB", "memory_bytes", "facts.system.memory_bytes", gigabytes),
    Column("GPUs", "gpus", gpus_of),
    Column("Python", "python", "facts.system.python"),
    Column("TensorFlow", "tensorflow", "facts.system.packages.tensorflow"),
    Column("Keras", "keras", "facts.system.packages.keras"),
    Column("PyTorch", "torch", "facts.system.packages.torch"),
]
_SYSTEMS_NOTE = "Cores: those that the run was allowed to use."
_BATCH: Column[RunAnalysis] = Column(
    "batch", "global_batch_size", "facts.global_batch_size"
)
_EPOCHS_NOTE = (
    "Epoch: median time of whole epochs, without evaluation. Per second: over steady training "
    f"steps, without waiting for input. {NEVER}: never reached."
)
_EVALUATION_NOTE = (
    "Seconds per evaluation (mean). Decode: time that training spent waiting for the decoder. "
    "Wait: time that training waited for an evaluation in another process, whose own times are "
    "in the ledger."
)
# Source: the paper, section 5.2 and Figure 8 (utilisation of CPU and GPU).
_LOADS: list[Column[RunAnalysis]] = [
    Column("CPU %", "cpu_share", "facts.utilisation.cpu_share", percent),
    Column(
        "CPU %\nof the run",
        "process_cpu_share",
        "facts.utilisation.process_cpu_share",
        percent,
    ),
    Column("GPU %", "gpu_share", "facts.utilisation.gpu_share", percent),
    Column(
        "GPU memory\nGB, most",
        "gpu_memory_bytes",
        "facts.utilisation.gpu_memory_bytes",
        gigabytes,
    ),
    Column(
        "GPU power\nW", "gpu_power_w", "facts.utilisation.gpu_power_w", three_digits
    ),
]
_LOADS_NOTE = "Means over the run, all cores and GPUs. Power: per GPU. Memory: the most on any GPU."


def _epochs(report: Report) -> list[Column[RunAnalysis]]:
    """Source: the paper, Table 2 (batch size, devices) and section 5.3 (effect of batch
    size).
    """
    return [
        _BATCH,
        Column("devices", "num_replicas", "facts.num_replicas"),
        Column("utterances\nan epoch", "train_samples", "facts.train_samples"),
        Column("optimizer", "optimizer", "facts.optimizer"),
        Column("epoch s", "epoch_s", "facts.epoch_s", _digits),
        *SPEEDS,
        *(
            Column(
                f"epochs to\n{target_label(*target, report.metrics)}",
                f"epochs_to_{target_name(target)}",
                f"results.{index}.tta.epoch",
                missing=NEVER,
            )
            for index, target in enumerate(report.targets)
        ),
    ]


def _evaluations(report: Report) -> list[Column[RunAnalysis]]:
    """Source: the paper, Table 3 (evaluation time and error rates over beam widths)."""
    columns: list[Column[RunAnalysis]] = [
        Column("decoder", "decoder", "facts.decoder"),
        Column("beam\nwidth", "beam_width", "facts.beam_width"),
        Column("evaluations", "evaluations", "facts.evaluations"),
        Column("placement", "placement", "facts.placement"),
        *(
            Column(f"{kind} s\neach", f"{kind}_s", f"facts.{kind}_s", _digits)
            for kind in ("swap", "forward", "decode", "wait")
        ),
    ]
    for metric in dict.fromkeys(metric for run in report.runs for metric in run.curves):
        rate = metric_named(metric, report.metrics).rate
        heading = f"best\n{metric_label(metric, report.metrics)}" + (
            " %" if rate else ""
        )
        text = percent if rate else _digits
        columns.append(Column(heading, f"best_{metric}", _best(metric), text))

    return columns


def time_to_accuracy_table(report: Report, results: Results) -> Table:
    """Source: the paper, Tables 4 to 6: minutes to each target, relative to the first
    system.
    """
    members = list(group_members(report.runs).items())
    minutes = minutes_of(report)

    def refused(result: GroupResult) -> bool:
        return any(map(report.refused, result.members))

    def of(of_target: Sequence[GroupResult]) -> list[Column[int]]:
        def median(row: int) -> float | None:
            return of_target[row].statistics.median_s

        def share(row: int) -> float | None:
            has_share = (
                median(row) is not None and median(0) and not refused(of_target[row])
            )
            return median(row) / median(0) if has_share else None

        def text(row: int) -> str:
            time = NEVER if median(row) is None else minutes(median(row))
            if refused(of_target[row]):
                return f"{time} ({REFUSED})"
            return time if share(row) is None else f"{time} ({100 * share(row):.0f} %)"

        target = of_target[0].target
        name = target_name(target)
        return [
            Column(of_target[0].label, f"{name}_median_s", median, shown=text),
            Column("", f"{name}_relative_to_first", share),
        ]

    sizes = [result.statistics.n for result in results[0]] if results else []
    single = of_single_runs(
        sizes, spread_at_hand(result for row in results for result in row)
    )
    notes = [f"Medians of the runs of each row. {NEVER}: never reached."]
    return table_of(
        "Time to accuracy, minutes (and share of the first row's)",
        [
            Column("Run", "group", lambda row: members[row][0]),
            *chain.from_iterable(map(of, results)),
        ],
        range(len(members)),
        [*notes, f"Of the times {single}."] if single else notes,
        colours=[runs[0] for _, runs in members],
        name="time_to_accuracy_of_groups",
    )


def _table(
    title: str,
    name: str,
    report: Report,
    columns: Sequence[Column[RunAnalysis]],
    note: str,
) -> Table | None:
    """Returns a table with a row for each run, or None if no run has any of its values.

    Columns without a value are left out.
    """
    columns = [*RUN, *columns]
    table = table_of(
        title, columns, report.runs, [note], name=name, leave_out_empty=True
    )
    return table if len(table.columns) > 1 else None


def _best(metric: str) -> Callable[[RunAnalysis], Cell]:
    """Returns a function for a metric's value at a run's best checkpoint, as cards have it."""
    return lambda run: run.value_at_best(metric)


_MARK = " (published)"
Row = dict[str, Cell]


@dataclass(frozen=True)
class Measured:
    """What a study measured after its runs, for published tables of the same kind.

    Attributes:
        widths: evaluations of one model at several beam widths.
        scores: of the best checkpoints, one row per split.
    """

    widths: Sequence[Row] = ()  # evaluations of one model at several beam widths
    scores: Sequence[Row] = ()  # of the best checkpoints, one row per split


@dataclass(frozen=True)
class _PaperRow:
    """A row of a table: the index of the run whose colour it gets, its name, values by
    heading.
    """

    run: int | None
    name: str
    values: Row
    texts: dict[str, str] = field(default_factory=dict)


_Made = tuple[list[Column[_PaperRow]], list[_PaperRow]]


def published_tables(report: Report, source: PublishedSource) -> list[Table]:
    """Returns a source's tables with your rows first; your shares relate only to your rows."""
    names = [
        name
        for name, table in source.tables.items()
        if table.kind in (*_KINDS, *_OF_RUNS)
    ]
    return [published_table(report, source, name) for name in names]


def published_table(
    report: Report, source: PublishedSource, name: str, measured: Measured | None = None
) -> Table:
    """Returns a published table with your rows above the published ones.

    They were measured on other data and machines, so nothing is ranked against them: the
    shares in your rows relate to your own first row.

    Args:
        report: your runs.
        source: whose results, such as the paper's.
        name: of the table in the source.
        measured: what a study measured after its runs; None for a report on runs alone.
    """
    table = source.tables[name]
    columns, lines = _KINDS.get(table.kind, _of_runs)(
        report, table, measured or Measured()
    )
    shown = {"run", *(column.name for column in columns)}
    others = dict.fromkeys(
        name for line in lines for name in line.values if name not in shown
    )
    own_rows = any(line.run is not None for line in lines)
    notes = [
        f"Published: {source.name}, {table.name} ({source.source}). {table.conditions}",
        _UNLIKE if own_rows else "No run has values to compare with these.",
        *table.all_notes(),
    ]
    if table.kind == "time_to_accuracy":
        notes.insert(1, _rule(report))
    run = Column(
        "Run", "run", lambda line: line.name.removesuffix(_MARK), shown=at("name")
    )
    return table_of(
        f"{table.what}, with {table.name} of {source.name}",
        [
            run,
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
    "Published rows were measured on other data and machines: they are shown next to yours and not "
    "ranked against them."
)


def _rule(report: Report) -> str:
    if report.window > 1:
        window = f"median of {report.window} epochs"
    else:
        window = "first evaluation"

    members = group_members(report.runs)
    single = len(members) > 1 and all(len(runs) == 1 for runs in members.values())
    shares = f" Shares are of one run each (n = 1): {one_run_each()}." if single else ""
    return (
        f"Your rows: policy {report.policy.name}, {window}; medians of the runs of each row. "
        f"{NEVER}: never reached.{shares}"
    )


def _column(
    heading: str, name: str, text: Callable[[Any], str] = str
) -> Column[_PaperRow]:
    return Column(heading, name, lambda line: line.values.get(name), text)


def _published(table: PublishedTable) -> list[_PaperRow]:
    return [
        _PaperRow(None, f"{row.get('system', table.name)}{_MARK}", row)
        for row in table.rows
    ]


def _per_device(run: RunAnalysis) -> float | None:
    batch = run.facts["global_batch_size"]
    devices = run.facts["num_replicas"]
    return batch / devices if batch is not None and devices else None


def _pipeline(key: str) -> Callable[[RunAnalysis], Any]:
    def value(run: RunAnalysis) -> Any:
        values = object_or_empty(run.path / EXPERIMENT_FILE).get("pipeline")
        return values.get(key) if isinstance(values, dict) else None

    return value


# For each kind of published table that shows facts of runs: its columns, and the one
# without whose value a run is left out ("": without any value)
_OF_RUNS: dict[str, tuple[list[Column[RunAnalysis]], str]] = {
    "systems": (
        [
            _SYSTEMS[0],
            Column("GPUs", "gpus", gpus_of),
            Column(
                "total\nUSD",
                "total_usd",
                "charges.hardware.purchase_price_usd",
                fixed(2),
            ),
            Column(
                "GPUs\nUSD", "gpus_usd", "charges.hardware.gpus_price_usd", fixed(2)
            ),
            Column(
                "CPUs\nUSD", "cpus_usd", "charges.hardware.cpus_price_usd", fixed(2)
            ),
        ],
        "",
    ),
    "parameters": (
        [
            _BATCH,
            Column(
                "batch\nper device",
                "per_replica_batch_size",
                _per_device,
                "{:g}".format,
            ),
            Column("readers", "readers", _pipeline("num_readers")),
            Column("buffer,\nbatches", "buffer_batches", _pipeline("prefetch")),
        ],
        "global_batch_size",
    ),
    "steps": (
        [
            Column("devices", "num_devices", "facts.num_replicas"),
            *(
                Column(
                    f"{part}\nms",
                    f"{part}_s",
                    lambda run: None,
                    lambda s: f"{1000 * s:.3g}",
                )
                for part in ("forward", "backward", "total")  # runs don't record them
            ),
            *SPEEDS,
            Column("epoch\ns", "epoch_s", "facts.epoch_s", three_digits),
        ],
        "utterances_per_s",
    ),
    "use": ([_BATCH, _LOADS[2]], "gpu_share"),
}


def _of_runs(report: Report, table: PublishedTable, measured: Measured) -> _Made:
    columns, required = _OF_RUNS[table.kind]
    shown = [(runs[0], group) for group, runs in group_members(report.runs).items()]
    if table.kind == "steps":
        shown = [(index, run.name) for index, run in enumerate(report.runs)]
    lines = []
    for index, name in shown:
        values = values_of(columns, report.runs[index])
        machine = at("charges.hardware.name")(report.runs[index])
        if table.kind == "systems" and machine:
            name += f": {machine}"
        if any(values[of] is not None for of in ([required] if required else values)):
            lines.append(_PaperRow(index, name, values))

    return [_column(c.heading, c.name, c.text) for c in columns], [
        *lines,
        *_published(table),
    ]


def _evaluation(report: Report, table: PublishedTable, measured: Measured) -> _Made:
    columns = [
        _column("beam\nwidth", "beam_width"),
        _column("evaluation\ns", "evaluation_s", three_digits),
        _column("WER %", "wer", fixed(2, 100)),
        _column("CER %", "cer", fixed(3, 100)),
    ]
    lines = [
        _PaperRow(_colour(report, row["run"]), str(row["run"]), row)
        for row in measured.widths
    ]
    for index, run in enumerate(report.runs if not lines else []):
        width, *seconds = (
            run.facts[name] for name in ("beam_width", "forward_s", "decode_s")
        )
        if None not in seconds:
            row: Row = {"beam_width": width, "evaluation_s": sum(seconds)}
            for metric in ("wer", "cer"):
                row[metric] = min(
                    (p.value for p in run.curves.get(metric, [])), default=None
                )

            lines.append(_PaperRow(index, f"{run.name}, best in training", row))

    return columns, [*lines, *_published(table)]


# The published column of a split, by LibriSpeech's names and by those of ``tfasr
# prepare``.
_PUBLISHED_SPLITS = {
    **dict.fromkeys(("dev-clean", "validation"), "clean validation"),
    **dict.fromkeys(("test-clean", "test"), "clean test"),
    "dev-other": "other validation",
    "test-other": "other test",
}


def _final(report: Report, table: PublishedTable, measured: Measured) -> _Made:
    def column_of(row: Row) -> str:
        split = str(row["split"])
        return _PUBLISHED_SPLITS.get(split, split)

    splits = list(dict.fromkeys(map(column_of, [*table.rows, *measured.scores])))
    columns = [
        _column("\n".join([*split.split(" "), "WER %"]), split, fixed(2, 100))
        for split in splits
    ]
    scores: dict[str, Row] = {}
    published: dict[str, Row] = {}
    for row in measured.scores:
        scores.setdefault(str(row["run"]), {}).setdefault(column_of(row), row["wer"])
    for row in table.rows:
        published.setdefault(f"{row['system']}{_MARK}", {})[str(row["split"])] = row[
            "wer"
        ]

    lines = [
        _PaperRow(_colour(report, name), name, rates) for name, rates in scores.items()
    ]
    return columns, lines + [
        _PaperRow(None, name, rates) for name, rates in published.items()
    ]


def _times(report: Report, table: PublishedTable, measured: Measured) -> _Made:
    targets = list(dict.fromkeys((row["metric"], row["target"]) for row in table.rows))
    names = {target: f"{target_name(target)}_s" for target in targets}

    def column(target: Target, name: str) -> Column[_PaperRow]:
        heading = f"{target_label(*target, report.metrics)}\nmin"
        return replace(
            _column(heading, name), shown=lambda line: line.texts.get(name, UNKNOWN)
        )

    lines: list[_PaperRow] = []
    first: dict[Target, float | None] = {}
    for group, indices in group_members(report.runs).items():
        refused = any(map(report.refused, indices))
        values: Row = {}
        texts: dict[str, str] = {}
        for target, name in names.items():
            runs = [report.runs[index] for index in indices]
            seconds, known = _median_s(report, runs, target)
            first.setdefault(target, seconds)
            values[name] = seconds
            share = seconds / first[target] if seconds and first[target] else None
            if refused:
                text = REFUSED
            elif share is None:
                text = ""
            else:
                text = f"{100 * share:.0f} %"

            if known:
                texts[name] = _time_text(seconds, text)

        if texts:
            lines.append(_PaperRow(indices[0], group, values, texts))

    for system in dict.fromkeys(row["system"] for row in table.rows):
        rows = [row for row in table.rows if row["system"] == system]
        values = {}
        texts = {}
        for row in rows:
            name, share = (
                names[row["metric"], row["target"]],
                row.get("printed_relative"),
            )
            note = "*" if "note" in row else ""
            text = "" if share is None else f"{100 * share:.0f} %{note}"
            values[name], texts[name] = row["seconds"], _time_text(row["seconds"], text)

        lines.append(_PaperRow(None, f"{system}{_MARK}", values, texts))

    return list(starmap(column, names.items())), lines


_KINDS = {"evaluation": _evaluation, "time_to_accuracy": _times, "final": _final}


def _median_s(
    report: Report, runs: Sequence[RunAnalysis], target: Target
) -> tuple[float | None, bool]:
    metric, value = target
    times_s = [
        first_sustained(
            run.curves[metric],
            value,
            metric=metric,
            window=report.window,
            metrics=report.metrics,
        ).seconds
        for run in runs
        if run.curves.get(metric)
    ]
    if not times_s:
        return None, False
    median = statistics.median(
        math.inf if seconds is None else seconds for seconds in times_s
    )
    return (median if math.isfinite(median) else None), True


def _time_text(seconds: float | None, share: str) -> str:
    if seconds is None:
        return NEVER
    return three_digits(seconds / 60) + (f" ({share})" if share else "")


def _colour(report: Report, name: object) -> int:
    return next(
        (i for i, run in enumerate(report.runs) if name in (run.name, run.group)), 0
    )


def scores_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns a row for each run and, for each split, a column of WER, CER and the
    user's metrics.

    ``rows`` has ``run``, ``split``, ``decoder``, ``beam_width``, ``wer`` and ``cer`` as
    fractions. Source: the paper, Table 5 (validation and test sets at one beam width).
    """
    splits = dict.fromkeys(str(row["split"]) for row in rows)
    runs = list(dict.fromkeys(row["run"] for row in rows))
    scores = {(row["run"], row["split"]): row for row in rows}

    user_metrics = [
        name for name in computed_metrics() if all(name in row for row in rows)
    ]

    def column(split: str, metric: str) -> Column:
        kind = metric_named(metric)

        def value(run: Any) -> float | None:
            return (row := scores.get((run, split))) and row[metric]

        heading = f"{split}\n{kind.label or metric}"
        if kind.rate:
            return Column(f"{heading} %", "", value, fixed(2, 100))
        return Column(heading, "", value, three_digits)

    note = (
        f"{_decoders(rows)}. CER: edits per character of the longer of reference and hypothesis, "
        "as in the paper."
    )
    return table_of(
        "Error rates",
        [
            Column("Run", "", str),
            *starmap(column, product(splits, ("wer", "cer", *user_metrics))),
        ],
        runs,
        [note],
        colours=[None] * len(runs),
        name="scores",
        records=records_of([_flat(row) for row in rows]),
    )


def _decoders(rows: Sequence[Mapping[str, Any]]) -> str:
    decoders = dict.fromkeys(_decoder(row) for row in rows)
    if len(decoders) == 1:
        return f"Decoder: {next(iter(decoders))}"
    runs = dict.fromkeys((row["run"], _decoder(row)) for row in rows)
    return "Decoders: " + "; ".join(f"{run}: {decoder}" for run, decoder in runs)


def _decoder(row: Mapping[str, Any]) -> str:
    name, width = row.get("decoder", UNKNOWN), row.get("beam_width")
    text = str(name) if width is None else f"{name}, beam width {width}"
    if row.get("lexicon") is not None:
        text += f", dictionary {Path(str(row['lexicon'])).name}"
    if row.get("prior_weight"):
        text += f", priors to the power {row['prior_weight']:g}"
    if row.get("middle_weight"):
        text += f", plus {row['middle_weight']:g} times the middle layer's score"
    if row.get("normalised_over"):
        text += f", features normalised by {row['normalised_over']}"
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
