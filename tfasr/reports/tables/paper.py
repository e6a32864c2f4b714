"""The paper's tables for the user's runs: systems, times to accuracy, epochs, evaluation, load."""

from collections.abc import Callable, Sequence

from tfasr.analysis.findings import of_single_runs, spread_at_hand
from tfasr.analysis.groups import GroupResult, group_members
from tfasr.analysis.names import metric_label, target_label
from tfasr.analysis.report import Report, RunAnalysis
from tfasr.display.table import (
    NEVER,
    REFUSED,
    Cell,
    Column,
    Table,
    gigabytes,
    percent,
    table_of,
    three_digits,
)
from tfasr.reports.tables.runs import RUN, fact, minutes_of, speed, target_name
from tfasr.tta.metrics import metric_named


def paper_tables(report: Report, results: Sequence[Sequence[GroupResult]]) -> list[Table]:
    tables = [
        systems_table(report),
        time_to_accuracy_table(report, results) if results else None,
        epochs_table(report),
        evaluation_table(report),
        utilisation_table(report),
    ]
    return [table for table in tables if table is not None]


def systems_table(report: Report) -> Table | None:
    """Returns the machines of the runs; None where no run describes its own.

    Source: the paper, Table 1 (systems); prices stand in the cost tables.
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
    """Returns what an epoch takes at each batch size, and how many reach each target.

    Source: the paper, Table 2 (batch size, devices) and section 5.3 (the batch size's effect).
    """
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
    """Returns what the evaluations took with which decoder, and the best that they saw.

    Source: the paper, Table 3 (evaluation time and error rates over beam widths); for one model
    under many widths see ``tfasr bench decoder``.
    """
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
    """Returns the mean load of processors and GPUs; None where no run sampled it.

    Source: the paper, section 5.2 and Figure 8 (utilisation of CPU and GPU).
    """
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


def time_to_accuracy_table(report: Report, results: Sequence[Sequence[GroupResult]]) -> Table:
    """Returns minutes to each target and their share of the first row's, a row for each group.

    Source: the paper, Tables 4 to 6: minutes to each target, and relative to the first system.
    """
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


def _single(results: Sequence[Sequence[GroupResult]]) -> list[str]:
    sizes = [result.statistics.n for result in results[0]] if results else []
    single = of_single_runs(sizes, spread_at_hand(one for row in results for one in row))
    return [f"Of the times {single}."] if single else []


def _table(
    title: str,
    name: str,
    report: Report,
    columns: Sequence[Column[RunAnalysis]],
    notes: list[str],
) -> Table | None:
    if all(column.value(run) is None for column in columns for run in report.runs):
        return None
    columns = [*RUN, *columns]
    return table_of(title, columns, report.runs, notes, name=name, leave_out_empty=True)


def gpus_of(run: RunAnalysis) -> str | None:
    """Returns a run's GPUs, as "2 x A100"; None where it does not tell."""
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
