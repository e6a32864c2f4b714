"""The paper's tables for your runs: systems, times to accuracy, epochs, evaluation, load.

`paper_tables` fills the tables of arXiv 2003.12366 with your own runs. `published_tables`
puts your rows above those that a source has published, such as the paper or MLPerf (see
`tfasr.tta.published.results`); a study that measured more after its runs, such as error
rates over beam widths, passes them to `published_table` as `Measured`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product, starmap
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
    whole_percent,
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
from tfasr.reports.numbers import (
    Report,
    RunAnalysis,
    median_of,
    metric_label,
    target_label,
    with_counts,
)
from tfasr.reports.tables.runs import RUN, SPEEDS, minutes_of, target_name
from tfasr.tta.metrics import Target, computed_metrics, metric_named
from tfasr.tta.policies import first_sustained
from tfasr.tta.published.results import PublishedSource, PublishedTable


def paper_tables(report: Report, results: Results) -> list[Table]:
    """Returns the paper's tables for these runs: systems, times, epochs, evaluation, load.

    A table without any known value is left out, as for logs of other programs.
    """
    tables = [_table("Systems", "systems", report, _SYSTEMS, _SYSTEMS_NOTE)]
    if results:
        tables.append(time_to_accuracy_table(report, results))

    evaluations = _evaluations(report)
    tables += [
        _table(
            "Epochs and throughput", "epochs", report, _epochs(report), _EPOCHS_NOTE
        ),
        _table("Evaluation", "evaluation", report, evaluations, _EVALUATION_NOTE),
        _table("Utilisation", "utilisation", report, _LOADS, _LOADS_NOTE),
    ]

    return [table for table in tables if table is not None]


def gpus_of(run: RunAnalysis) -> str | None:
    """Returns a run's GPUs such as "2 x A100"; None if unknown, "none" without any."""
    names = run.facts["system"].get("gpus")
    if names is None:
        return None

    return with_counts(names) or "none"


# Formats a number with three digits.
_digits = "{:.3g}".format


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
    """Returns the columns of epochs: batch, devices, speed, epochs to each target.

    Source: the paper, Table 2 (batch size, devices) and section 5.3 (effect of batch
    size).
    """
    to_targets = [
        Column(
            f"epochs to\n{target_label(*target, report.metrics)}",
            f"epochs_to_{target_name(target)}",
            f"results.{index}.tta.epoch",
            missing=NEVER,
        )
        for index, target in enumerate(report.targets)
    ]

    return [
        _BATCH,
        Column("devices", "num_replicas", "facts.num_replicas"),
        Column("utterances\nan epoch", "train_samples", "facts.train_samples"),
        Column("optimizer", "optimizer", "facts.optimizer"),
        Column("epoch s", "epoch_s", "facts.epoch_s", _digits),
        *SPEEDS,
        *to_targets,
    ]


def _evaluations(report: Report) -> list[Column[RunAnalysis]]:
    """Returns the columns of evaluations: decoder, seconds, best value of each metric.

    Source: the paper, Table 3 (evaluation time and error rates over beam widths).
    """
    columns: list[Column[RunAnalysis]] = [
        Column("decoder", "decoder", "facts.decoder"),
        Column("beam\nwidth", "beam_width", "facts.beam_width"),
        Column("evaluations", "evaluations", "facts.evaluations"),
        Column("placement", "placement", "facts.placement"),
    ]
    for kind in ("swap", "forward", "decode", "wait"):
        columns.append(
            Column(f"{kind} s\neach", f"{kind}_s", f"facts.{kind}_s", _digits)
        )

    for metric in report.evaluated:
        heading = f"best\n{metric_label(metric, report.metrics)}"
        text = _digits
        if metric_named(metric, report.metrics).rate:
            heading += " %"
            text = percent

        columns.append(Column(heading, f"best_{metric}", _best(metric), text))

    return columns


def time_to_accuracy_table(report: Report, results: Results) -> Table:
    """Returns minutes to each target, relative to the first system.

    Source: the paper, Tables 4 to 6.
    """
    members = list(group_members(report.runs).items())
    columns = [Column("Run", "group", lambda row: members[row][0])]

    for of_target in results:
        columns += _times_of(report, of_target)

    notes = [f"Medians of the runs of each row. {NEVER}: never reached."]
    if results:
        single = of_single_runs(
            [result.statistics.n for result in results[0]],
            spread_at_hand(result for row in results for result in row),
        )
        if single:
            notes.append(f"Of the times {single}.")

    return table_of(
        "Time to accuracy, minutes (and share of the first row's)",
        columns,
        range(len(members)),
        notes,
        colours=[runs[0] for _, runs in members],
        name="time_to_accuracy_of_groups",
    )


def _times_of(report: Report, of_target: Sequence[GroupResult]) -> list[Column[int]]:
    """Returns the columns of one target: each group's median time and its share.

    Rows are the places of groups in the report; the first group is 100 %.
    """
    minutes = minutes_of(report)

    def refused(row: int) -> bool:
        return any(map(report.refused, of_target[row].members))

    def median(row: int) -> float | None:
        return of_target[row].statistics.median_s

    def share(row: int) -> float | None:
        if median(row) is None or not median(0) or refused(row):
            return None

        return median(row) / median(0)

    def text(row: int) -> str:
        time = NEVER
        if median(row) is not None:
            time = minutes(median(row))

        if refused(row):
            return f"{time} ({REFUSED})"
        if share(row) is None:
            return time

        return f"{time} ({whole_percent(share(row))})"

    name = target_name(of_target[0].target)

    return [
        Column(of_target[0].label, f"{name}_median_s", median, shown=text),
        Column("", f"{name}_relative_to_first", share),
    ]


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
    if len(table.columns) == 1:
        return None

    return table


def _best(metric: str) -> Callable[[RunAnalysis], Cell]:
    """Returns a function for a metric's value at a run's best checkpoint, as cards have it."""
    return lambda run: run.value_at_best(metric)


# Ends the names of published rows.
_MARK = " (published)"
Row = dict[str, Cell]


@dataclass(frozen=True)
class Measured:
    """What a study measured after its runs, for published tables of the same kind.

    Attributes:
        widths: evaluations of one model at several beam widths.
        scores: of the best checkpoints, one row per split.
    """

    widths: Sequence[Row] = ()
    scores: Sequence[Row] = ()


@dataclass(frozen=True)
class _PaperRow:
    """A row of a published table, yours or theirs.

    Attributes:
        run: the index of the run whose colour it gets; None for a published row.
        name: in the first column.
        values: by heading, for programs.
        texts: by heading, what readers see in place of values.
    """

    run: int | None
    name: str
    values: Row
    texts: dict[str, str] = field(default_factory=dict)


# The columns of a published table, and your rows followed by the published ones.
_Made = tuple[list[Column[_PaperRow]], list[_PaperRow]]


def published_tables(report: Report, source: PublishedSource) -> list[Table]:
    """Returns a source's tables with your rows first; your shares relate only to your rows."""
    return [
        published_table(report, source, name)
        for name, table in source.tables.items()
        if table.kind in (*_KINDS, *_OF_RUNS)
    ]


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
    make = _KINDS.get(table.kind, _of_runs)
    columns, lines = make(report, table, measured or Measured())

    notes = [
        f"Published: {source.name}, {table.name} ({source.source}). {table.conditions}"
    ]
    if table.kind == "time_to_accuracy":
        notes.append(_rule(report))

    if any(line.run is not None for line in lines):
        notes.append(_UNLIKE)
    else:
        notes.append("No run has values to compare with these.")

    # Programs get every published value, also those that no column shows.
    shown = {"run", *(column.name for column in columns)}
    named = dict.fromkeys(name for line in lines for name in line.values)
    others = [_column("", name) for name in named if name not in shown]

    return table_of(
        f"{table.what}, with {table.name} of {source.name}",
        [
            Column(
                "Run",
                "run",
                lambda line: line.name.removesuffix(_MARK),
                shown=at("name"),
            ),
            Column("", "published", lambda line: line.run is None),
            *columns,
            *others,
        ],
        lines,
        notes + table.all_notes(),
        colours=[line.run for line in lines],
        name=f"beside_{table.name.lower().replace(' ', '_')}",
    )


_UNLIKE = (
    "Published rows were measured on other data and machines: they are shown next to yours "
    "and not ranked against them."
)


def _rule(report: Report) -> str:
    """Returns a note on how the times in your rows were measured."""
    window = "first evaluation"
    if report.window > 1:
        window = f"median of {report.window} epochs"

    shares = ""
    sizes = [len(runs) for runs in group_members(report.runs).values()]
    if len(sizes) > 1 and max(sizes) == 1:
        shares = f" Shares are of one run each (n = 1): {one_run_each()}."

    return (
        f"Your rows: policy {report.policy.name}, {window}; medians of the runs of each "
        f"row. {NEVER}: never reached.{shares}"
    )


def _column(
    heading: str, name: str, text: Callable[[Any], str] = str
) -> Column[_PaperRow]:
    """Returns a column of the values with a name."""
    return Column(heading, name, lambda line: line.values.get(name), text)


def _published(table: PublishedTable) -> list[_PaperRow]:
    """Returns the published rows as they are; a row without a system is the table's."""
    return [
        _PaperRow(None, f"{row.get('system', table.name)}{_MARK}", row)
        for row in table.rows
    ]


def _per_device(run: RunAnalysis) -> float | None:
    """Returns a run's utterances per step and device; None if unknown."""
    batch = run.facts["global_batch_size"]
    devices = run.facts["num_replicas"]
    if batch is None or not devices:
        return None

    return batch / devices


def _pipeline(key: str) -> Callable[[RunAnalysis], Any]:
    """Returns a function for a setting of the pipeline that a run saved, or None."""

    def value(run: RunAnalysis) -> Any:
        values = object_or_empty(run.path / EXPERIMENT_FILE).get("pipeline")
        if isinstance(values, dict):
            return values.get(key)

        return None

    return value


def _dollars(heading: str, name: str, price: str) -> Column[RunAnalysis]:
    """Returns a column of a price in a machine's description."""
    return Column(f"{heading}\nUSD", name, f"charges.hardware.{price}", fixed(2))


def _unrecorded(part: str) -> Column[RunAnalysis]:
    """Returns a column of milliseconds that only published rows have."""
    return Column(
        f"{part}\nms", f"{part}_s", lambda run: None, lambda s: f"{1000 * s:.3g}"
    )


# For each kind of published table that shows facts of runs: its columns, and the one
# without whose value a run is left out ("": without any value).
_OF_RUNS: dict[str, tuple[list[Column[RunAnalysis]], str]] = {
    "systems": (
        [
            _SYSTEMS[0],
            Column("GPUs", "gpus", gpus_of),
            _dollars("total", "total_usd", "purchase_price_usd"),
            _dollars("GPUs", "gpus_usd", "gpus_price_usd"),
            _dollars("CPUs", "cpus_usd", "cpus_price_usd"),
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
            _unrecorded("forward"),
            _unrecorded("backward"),
            _unrecorded("total"),
            *SPEEDS,
            Column("epoch\ns", "epoch_s", "facts.epoch_s", three_digits),
        ],
        "utterances_per_s",
    ),
    "use": ([_BATCH, _LOADS[2]], "gpu_share"),
}


def _of_runs(report: Report, table: PublishedTable, measured: Measured) -> _Made:
    """Returns a table of facts, see `_OF_RUNS`.

    It has a row for each group, with the facts of its first run; a table of steps has a
    row for each run, as speeds differ within a group.
    """
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

        needed = [required] if required else values
        if any(values[of] is not None for of in needed):
            lines.append(_PaperRow(index, name, values))

    columns = [_column(c.heading, c.name, c.text) for c in columns]
    return columns, lines + _published(table)


def _evaluation(report: Report, table: PublishedTable, measured: Measured) -> _Made:
    """Returns a table of evaluations over beam widths, for the paper's Table 3.

    Without evaluations at several widths, your rows are those made in training.
    """
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
    if not lines:
        lines = [
            _in_training(index, run)
            for index, run in enumerate(report.runs)
            if None not in (run.facts["forward_s"], run.facts["decode_s"])
        ]

    return columns, lines + _published(table)


def _in_training(index: int, run: RunAnalysis) -> _PaperRow:
    """Returns a run's mean evaluation in training, with its lowest rates."""
    row: Row = {
        "beam_width": run.facts["beam_width"],
        "evaluation_s": run.facts["forward_s"] + run.facts["decode_s"],
    }
    for metric in ("wer", "cer"):
        rates = [point.value for point in run.curves.get(metric, [])]
        row[metric] = min(rates, default=None)

    return _PaperRow(index, f"{run.name}, best in training", row)


# The published column of a split, by LibriSpeech's names and by those of ``tfasr
# prepare``.
_PUBLISHED_SPLITS = {
    **dict.fromkeys(("dev-clean", "validation"), "clean validation"),
    **dict.fromkeys(("test-clean", "test"), "clean test"),
    "dev-other": "other validation",
    "test-other": "other test",
}


def _final(report: Report, table: PublishedTable, measured: Measured) -> _Made:
    """Returns a table of WER on validation and test sets, a column for each split."""

    def column_of(row: Row) -> str:
        split = str(row["split"])
        return _PUBLISHED_SPLITS.get(split, split)

    scores: dict[str, Row] = {}
    for row in measured.scores:
        scores.setdefault(str(row["run"]), {}).setdefault(column_of(row), row["wer"])

    published: dict[str, Row] = {}
    for row in table.rows:
        rates = published.setdefault(f"{row['system']}{_MARK}", {})
        rates[str(row["split"])] = row["wer"]

    columns = []
    for split in dict.fromkeys(map(column_of, [*table.rows, *measured.scores])):
        heading = "\n".join([*split.split(" "), "WER %"])
        columns.append(_column(heading, split, fixed(2, 100)))

    lines = [
        _PaperRow(_colour(report, name), name, rates) for name, rates in scores.items()
    ]
    lines += [_PaperRow(None, name, rates) for name, rates in published.items()]

    return columns, lines


def _times(report: Report, table: PublishedTable, measured: Measured) -> _Made:
    """Returns a table of times to the published targets, a row for each group.

    Groups whose runs never evaluated one of the targets' metrics have no row.
    """
    targets = dict.fromkeys((row["metric"], row["target"]) for row in table.rows)
    names = {target: f"{target_name(target)}_s" for target in targets}

    def column(target: Target, name: str) -> Column[_PaperRow]:
        heading = f"{target_label(*target, report.metrics)}\nmin"
        return replace(
            _column(heading, name), shown=lambda line: line.texts.get(name, UNKNOWN)
        )

    lines = _own_times(report, names)
    for system in dict.fromkeys(row["system"] for row in table.rows):
        values: Row = {}
        texts: dict[str, str] = {}

        for row in table.rows:
            if row["system"] == system:
                name = names[row["metric"], row["target"]]
                values[name] = row["seconds"]
                texts[name] = _time_text(row["seconds"], _printed_share(row))

        lines.append(_PaperRow(None, f"{system}{_MARK}", values, texts))

    return list(starmap(column, names.items())), lines


def _own_times(report: Report, names: Mapping[Target, str]) -> list[_PaperRow]:
    """Returns the median times of your groups; shares are of the first group's.

    ``names`` has the name of each target's column.
    """
    lines: list[_PaperRow] = []
    first: dict[Target, float | None] = {}

    for group, indices in group_members(report.runs).items():
        runs = [report.runs[index] for index in indices]
        refused = any(map(report.refused, indices))
        values: Row = {}
        texts: dict[str, str] = {}

        for target, name in names.items():
            times_s = _times_s(report, runs, target)
            seconds = _finite_median(times_s)
            values[name] = seconds
            first.setdefault(target, seconds)

            share = ""
            if refused:
                share = REFUSED
            elif seconds and first[target]:
                share = whole_percent(seconds / first[target])

            if times_s:
                texts[name] = _time_text(seconds, share)

        if texts:
            lines.append(_PaperRow(indices[0], group, values, texts))

    return lines


def _printed_share(row: Mapping[str, Any]) -> str:
    """Formats the share that a source prints; a star marks one with a note."""
    share = row.get("printed_relative")
    if share is None:
        return ""
    if "note" in row:
        return f"{whole_percent(share)}*"

    return whole_percent(share)


# How to make the kinds of published tables that show more than facts of runs.
_KINDS = {"evaluation": _evaluation, "time_to_accuracy": _times, "final": _final}


def _times_s(
    report: Report, runs: Sequence[RunAnalysis], target: Target
) -> list[float]:
    """Returns the seconds to a target of the runs that evaluated its metric.

    Infinity for runs that never met it.
    """
    metric, value = target
    times_s = []

    for run in runs:
        if run.curves.get(metric):
            reached = first_sustained(
                run.curves[metric],
                value,
                metric=metric,
                window=report.window,
                metrics=report.metrics,
            )
            times_s.append(math.inf if reached.seconds is None else reached.seconds)

    return times_s


def _finite_median(times_s: Sequence[float]) -> float | None:
    """Returns the median of times; None without times, or if half of them are infinite."""
    middle = median_of(times_s)
    if middle is None or not math.isfinite(middle):
        return None

    return middle


def _time_text(seconds: float | None, share: str) -> str:
    """Formats a time in minutes, with its share if known."""
    if seconds is None:
        return NEVER

    text = three_digits(seconds / 60)
    if share:
        return f"{text} ({share})"

    return text


def _colour(report: Report, name: object) -> int:
    """Returns the index of the run, or of the first run of the group, with a name."""
    for index, run in enumerate(report.runs):
        if name in (run.name, run.group):
            return index

    return 0


def scores_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns a row for each run, and a column for each split and metric.

    The metrics are WER, CER and the user's own. ``rows`` has ``run``, ``split``,
    ``decoder``, ``beam_width``, ``wer`` and ``cer`` as fractions. Source: the paper,
    Table 5 (validation and test sets at one beam width).
    """
    splits = dict.fromkeys(str(row["split"]) for row in rows)
    runs = list(dict.fromkeys(row["run"] for row in rows))
    scores = {(row["run"], row["split"]): row for row in rows}
    user_metrics = [
        name for name in computed_metrics() if all(name in row for row in rows)
    ]

    def column(split: str, metric: str) -> Column:
        def value(run: Any) -> float | None:
            return scores.get((run, split), {}).get(metric)

        kind = metric_named(metric)
        heading = f"{split}\n{kind.label or metric}"
        if kind.rate:
            return Column(f"{heading} %", "", value, fixed(2, 100))

        return Column(heading, "", value, three_digits)

    return table_of(
        "Error rates",
        [
            Column("Run", "", str),
            *starmap(column, product(splits, ("wer", "cer", *user_metrics))),
        ],
        runs,
        [
            f"{_decoders(rows)}. CER: edits per character of the longer of reference and "
            "hypothesis, as in the paper."
        ],
        colours=[None] * len(runs),
        name="scores",
        records=records_of([_flat(row) for row in rows]),
    )


def _decoders(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns how all rows were decoded, run by run if that differs."""
    decoders = dict.fromkeys(_decoder(row) for row in rows)
    if len(decoders) == 1:
        return f"Decoder: {next(iter(decoders))}"

    runs = dict.fromkeys((row["run"], _decoder(row)) for row in rows)
    return "Decoders: " + "; ".join(f"{run}: {decoder}" for run, decoder in runs)


def _decoder(row: Mapping[str, Any]) -> str:
    """Returns a decoder with all that its error rates depend on."""
    text = str(row.get("decoder", UNKNOWN))
    if row.get("beam_width") is not None:
        text += f", beam width {row['beam_width']}"
    if row.get("lexicon") is not None:
        text += f", dictionary {Path(str(row['lexicon'])).name}"
    if row.get("prior_weight"):
        text += f", priors to the power {row['prior_weight']:g}"
    if row.get("middle_weight"):
        text += f", plus {row['middle_weight']:g} times the middle layer's score"
    if row.get("normalised_over"):
        text += f", features normalised by {row['normalised_over']}"
    if row.get("language_model") is not None:
        text += f", language model {Path(row['language_model']).name}"

    return text


def _flat(row: Mapping[str, Any]) -> dict[str, Cell]:
    """Returns a row whose intervals are two columns, since CSV has no lists."""
    flat: dict[str, Cell] = {}
    for key, value in row.items():
        if isinstance(value, list | tuple):
            flat[f"{key}_low"] = value[0]
            flat[f"{key}_high"] = value[1]
        else:
            flat[key] = value

    return flat
