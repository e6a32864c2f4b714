"""The paper's tables for the user's runs: systems, times to accuracy, epochs, evaluation, load."""

from collections.abc import Callable, Sequence

from tfasr.analysis.findings import of_single_runs, spread_at_hand
from tfasr.analysis.groups import GroupResult, group_members
from tfasr.analysis.names import metric_label, target_label
from tfasr.analysis.report import Report, RunAnalysis
from tfasr.display.table import NEVER, REFUSED, UNKNOWN, Cell, Table, records_of
from tfasr.reports.tables.runs import minutes_text
from tfasr.tta.metrics import metric_named

_GB = 1e9

Column = tuple[str, str, Callable[[RunAnalysis], Cell], Callable[[Cell], str]]
"""Heading of the table, heading of the records, what a run has there, how that is written."""


def paper_tables(report: Report, results: Sequence[Sequence[GroupResult]]) -> list[Table]:
    """Returns the tables that have something to say on the runs.

    Args:
        report: the runs.
        results: what their groups say of each target.
    """
    found = [
        systems_table(report),
        time_to_accuracy_table(report, results) if results else None,
        epochs_table(report),
        evaluation_table(report),
        utilisation_table(report),
    ]
    return [table for table in found if table is not None]


def systems_table(report: Report) -> Table | None:
    """Returns the machines of the runs; None where no run describes its own.

    Source: the paper, Table 1 (systems); prices stand in the cost tables.
    """
    return _table(
        "Systems",
        "systems",
        report,
        [
            ("processor", "processor", _system("processor"), _text),
            ("cores", "cores", _system("cores"), _text),
            ("memory\nGB", "memory_bytes", _system("memory_bytes"), _giga),
            ("GPUs", "gpus", _gpus, _text),
            ("Python", "python", _system("python"), _text),
            ("TensorFlow", "tensorflow", _package("tensorflow"), _text),
            ("Keras", "keras", _package("keras"), _text),
            ("PyTorch", "torch", _package("torch"), _text),
        ],
        ["Cores: those that the run was allowed to use."],
    )


def epochs_table(report: Report) -> Table | None:
    """Returns what an epoch takes at each batch size, and how many reach each target.

    Source: the paper, Table 2 (batch size, devices) and section 5.3 (the batch size's effect).
    """
    columns: list[Column] = [
        ("batch", "global_batch_size", lambda run: run.facts.global_batch_size, _text),
        ("devices", "num_replicas", lambda run: run.facts.num_replicas, _text),
        ("utterances\nan epoch", "train_samples", lambda run: run.facts.train_samples, _text),
        ("optimizer", "optimizer", lambda run: run.facts.optimizer, _text),
        ("epoch s", "epoch_s", lambda run: run.facts.epoch_s, _seconds),
        ("utterances/s", "utterances_per_s", lambda run: run.throughput.utterances_per_s, _figure),
        ("audio s/s", "audio_s_per_s", lambda run: run.throughput.audio_s_per_s, _figure),
    ]
    for index, target in enumerate(report.targets):
        heading = f"epochs to\n{target_label(*target)}"
        columns.append((heading, f"epochs_to_{target[0]}_{target[1]:g}", _epoch_of(index), _never))
    notes = [
        "Epoch: the median of whole epochs, without evaluation. Per second: steady training steps "
        f"and waiting for input. {NEVER}: never reached."
    ]
    return _table("Epochs and throughput", "epochs", report, columns, notes)


def evaluation_table(report: Report) -> Table | None:
    """Returns what the evaluations took with which decoder, and the best that they saw.

    Source: the paper, Table 3 (evaluation time and error rates over beam widths); for one model
    under many widths see ``tfasr bench decoder``.
    """
    columns: list[Column] = [
        ("decoder", "decoder", lambda run: run.facts.decoder, _text),
        ("beam\nwidth", "beam_width", lambda run: run.facts.beam_width, _text),
        ("evaluations", "evaluations", lambda run: run.facts.evaluations, _text),
        ("placement", "placement", lambda run: run.facts.placement, _text),
        ("swap s\neach", "swap_s", lambda run: run.facts.swap_s, _seconds),
        ("forward s\neach", "forward_s", lambda run: run.facts.forward_s, _seconds),
        ("decode s\neach", "decode_s", lambda run: run.facts.decode_s, _seconds),
        ("wait s\neach", "wait_s", lambda run: run.facts.wait_s, _seconds),
    ]
    for metric in dict.fromkeys(metric for run in report.runs for metric in run.curves):
        rate = metric_named(metric).rate
        heading = f"best\n{metric_label(metric)}" + (" %" if rate else "")
        columns.append((heading, f"best_{metric}", _best(metric), _percent if rate else _seconds))
    notes = [
        "Seconds: means of the run's evaluations. Decode: what training waited for it. Wait: "
        "likewise for an evaluation in another process; its own work is in the ledger."
    ]
    return _table("Evaluation", "evaluation", report, columns, notes)


def utilisation_table(report: Report) -> Table | None:
    """Returns the mean load of processors and GPUs; None where no run sampled it.

    Source: the paper, section 5.2 and Figure 8 (utilisation of CPU and GPU).
    """
    return _table(
        "Utilisation",
        "utilisation",
        report,
        [
            ("CPU %", "cpu_share", _load("cpu_percent", 0.01), _percent),
            ("CPU %\nof the run", "process_cpu_share", _load("process_percent", 0.01), _percent),
            ("GPU %", "gpu_share", _load("gpu_percent", 0.01), _percent),
            ("GPU memory\nGB, most", "gpu_memory_bytes", _load("gpu_memory_bytes"), _giga),
            ("GPU power\nW", "gpu_power_w", _load("gpu_power_w"), _figure),
        ],
        ["Means over the whole run, over all cores and over all devices; power is a device's."],
    )


def time_to_accuracy_table(report: Report, results: Sequence[Sequence[GroupResult]]) -> Table:
    """Returns minutes to each target and their share of the first row's, a row for each group.

    Source: the paper, Tables 4 to 6: minutes to each target, and relative to the first system.
    """
    members = group_members(report.runs)
    rows = [[group] for group in members]
    records: list[dict[str, Cell]] = [{"group": group} for group in members]
    for of_target in results:
        first = of_target[0].statistics.median_s
        for row, record, result in zip(rows, records, of_target, strict=True):
            median = result.statistics.median_s
            refused = any(report.refused(run) for run in result.members)
            known = median is not None and first and not refused
            share = median / first if known else None
            row.append(_share_text(minutes_text(report, median, NEVER), share, refused))
            heading = f"{result.target[0]}_{result.target[1]:g}"
            record |= {f"{heading}_median_s": median, f"{heading}_relative_to_first": share}
    return Table(
        "Time to accuracy, minutes (and share of the first row's)",
        ["Run", *(target_label(*target) for target in report.targets)],
        rows,
        [f"Medians of the runs of each row. {NEVER}: never reached.", *_single(results)],
        colours=[own[0] for own in members.values()],
        name="time_to_accuracy_of_groups",
        records=records_of(records),
    )


def _single(results: Sequence[Sequence[GroupResult]]) -> list[str]:
    """Returns a sentence where a share is of times of single runs."""
    sizes = [result.statistics.n for result in results[0]] if results else []
    said = of_single_runs(sizes, spread_at_hand(one for row in results for one in row))
    return [f"Of the times {said}."] if said else []


def _table(
    title: str, name: str, report: Report, columns: Sequence[Column], notes: list[str]
) -> Table | None:
    """Returns a row for each run; columns that no run has are left out, of the records too."""
    values = [[of_run(run) for run in report.runs] for _, _, of_run, _ in columns]
    kept = [
        (column, cells)
        for column, cells in zip(columns, values, strict=True)
        if any(cell is not None for cell in cells)
    ]
    if not kept:
        return None
    rows, records = [], []
    for index, run in enumerate(report.runs):
        rows.append([run.name, *(column[3](cells[index]) for column, cells in kept)])
        own = {column[1]: cells[index] for column, cells in kept}
        records.append({"run": run.name, "group": run.group, **own})
    headings = ["Run", *(column[0] for column, _ in kept)]
    return Table(title, headings, rows, notes, name=name, records=records_of(records))


def _system(key: str) -> Callable[[RunAnalysis], Cell]:
    return lambda run: run.facts.system.get(key)


def _package(name: str) -> Callable[[RunAnalysis], Cell]:
    return lambda run: (run.facts.system.get("packages") or {}).get(name)


def _gpus(run: RunAnalysis) -> Cell:
    names = run.facts.system.get("gpus")
    if names is None:
        return None
    counts = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return ", ".join(counts) or "none"


def _epoch_of(target: int) -> Callable[[RunAnalysis], Cell]:
    return lambda run: run.results[target].tta.epoch


def _best(metric: str) -> Callable[[RunAnalysis], Cell]:
    def best(run: RunAnalysis) -> Cell:
        return metric_named(metric).best([point.value for point in run.curves.get(metric, [])])

    return best


def _load(name: str, scale: float = 1.0) -> Callable[[RunAnalysis], Cell]:
    def load(run: RunAnalysis) -> Cell:
        value = run.facts.utilisation.get(name)
        return None if value is None else value * scale

    return load


def _share_text(minutes: str, share: float | None, refused: bool) -> str:
    if refused:
        return f"{minutes} ({REFUSED})"
    return minutes if share is None else f"{minutes} ({100 * share:.0f} %)"


def _text(cell: Cell) -> str:
    return UNKNOWN if cell is None else str(cell)


def _never(cell: Cell) -> str:
    return NEVER if cell is None else str(cell)


def _giga(cell: Cell) -> str:
    return UNKNOWN if cell is None else f"{cell / _GB:.1f}"


def _seconds(cell: Cell) -> str:
    return UNKNOWN if cell is None else f"{cell:.3g}"


def _percent(cell: Cell) -> str:
    return UNKNOWN if cell is None else f"{100 * cell:.1f}"


def _figure(cell: Cell) -> str:
    if cell is None:
        return UNKNOWN
    return f"{cell:.0f}" if cell >= 100 else f"{cell:.3g}"
