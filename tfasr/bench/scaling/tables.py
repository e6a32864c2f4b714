"""The scaling analysis as tables."""

import math
import statistics

from tfasr.bench.probes.device_use import PROCESS
from tfasr.bench.scaling.analysis import ScalingAnalysis, ScalingRow
from tfasr.bench.scaling.answer import ScalingAnswer
from tfasr.display.table import UNKNOWN, Table, milliseconds, number


def scaling_tables(analysis: ScalingAnalysis) -> list[Table]:
    """Returns scaling, first steps, modules (where timed) and devices."""
    modules = [_first_steps_of_modules(analysis), _modules(analysis)] if analysis.timed else []
    return [_scaling(analysis), _first_steps(analysis), *modules, _devices(analysis)]


def straggling(seconds_of_replicas: list[list[float]]) -> float:
    """Returns the slowest device's seconds over the median device's, the median over rounds.

    Args:
        seconds_of_replicas: ``(rounds, devices)``.
    """
    return statistics.median(
        max(one) / statistics.median(one) if statistics.median(one) > 0 else 1.0
        for one in seconds_of_replicas
    )


def label(row: ScalingRow) -> str:
    """Returns what tables call a row's way of scaling."""
    return f"{row.mode}, {row.loader}" if row.loader else row.mode


def _scaling(analysis: ScalingAnalysis) -> Table:
    columns = ["scaling", "devices", "batch per\ndevice", "steps", "step\nms", "mean step\nms"]
    columns += ["input wait\nms", "use\n%", "utterances/s", "speed-up", "efficiency\n%"]
    columns += ["predicted\nstep ms", "error\n%"]
    return Table(
        "Scaling of data parallelism",
        columns,
        [_cells(row) for row in analysis.rows],
        _notes(analysis),
    )


def _cells(row: ScalingRow) -> list[str]:
    error = row.prediction_error
    return [
        label(row),
        str(row.devices),
        str(row.per_device_batch),
        str(row.steps),
        milliseconds(row.step_s),
        milliseconds(row.mean_step_s),
        milliseconds(row.input_wait_s),
        number(_use_of(row), ".0f"),
        f"{row.utterances_per_s:.4g}",
        f"{row.speedup:.2f}",
        f"{100 * row.efficiency:.1f}",
        milliseconds(row.predicted_s),
        UNKNOWN if error is None else f"{100 * error:+.0f}",
    ]


def _use_of(row: ScalingRow) -> float | None:
    """Returns how busy the GPUs were on average, or where there is none the processor's cores."""
    gpus = [use for name, use in row.use_percent.items() if name != PROCESS and use is not None]
    return statistics.fmean(gpus) if gpus else row.use_percent.get(PROCESS)


def _notes(analysis: ScalingAnalysis) -> list[str]:
    notes = [
        f"The first {analysis.warmup_steps} steps are left out; step: the median, input wait "
        "included. Weak: a full batch on every device, and as many steps for each device as on "
        f"one; strong: {analysis.strong_utterances} utterances over all. Without loader one batch "
        "lies in memory; the sorting loader sorts utterances by length while training waits. "
        "Efficiency: throughput (with a loader by the mean step, which its pauses belong to) over "
        "that of one device times the devices. Use: of GPUs, or where there is none of all cores "
        "by this process."
    ]
    if analysis.shared_cores:
        notes.append(
            "The devices are slices of one processor and share its cores: N of them have no more "
            "to compute with than one, so 100 % cannot be reached. A speed-up of 1 means that "
            "distribution itself cost nothing. Only separate devices show scaling."
        )
    if analysis.model is not None:
        link = analysis.model.link
        bandwidth = (
            "no limit found" if math.isinf(link.bytes_per_s) else f"{link.bytes_per_s / 1e9:.3g}"
        )
        notes.append(
            f"Predicted from one device's steps ({1e3 * analysis.model.single.fixed_s:.3g} ms and "
            f"{1e3 * analysis.model.single.per_utterance_s:.3g} ms per utterance), a ring "
            f"all-reduce of {analysis.model.gradient_bytes / 1e6:.4g} MB of gradients and a link "
            f"of {bandwidth} GB/s and {1e6 * link.latency_s:.3g} us ({analysis.link_source}), "
            f"{100 * analysis.model.overlap:.0f} % overlapped. Error: predicted over measured."
        )
    return notes


def _steps_columns(count: int) -> list[str]:
    return [*(f"step {index + 1}\nms" for index in range(count)), "median\nafter"]


def _first_steps(analysis: ScalingAnalysis) -> Table:
    rows = [
        [label(row), str(row.devices), *map(milliseconds, [*row.first_s, row.step_s])]
        for row in analysis.rows
    ]
    columns = ["scaling", "devices", *_steps_columns(analysis.warmup_steps)]
    note = "The first step traces and compiles. None of these counts in any other figure."
    return Table("First steps, left out", columns, rows, [note])


def _first_steps_of_modules(analysis: ScalingAnalysis) -> Table:
    count = max(len(answer.modules.first_host_s) for answer in analysis.timed)
    rows = []
    for answer in analysis.timed:
        devices, times = str(answer.devices), answer.modules
        for module in times.modules:
            cells = map(milliseconds, [*module.first_s, module.in_step_s])
            rows.append([module.module, devices, *cells])
        host = [*map(milliseconds, times.first_host_s), UNKNOWN]
        rows.append(["tracing, host", devices, *host])
    note = (
        "The first steps of each process, before all others: seconds of each function within the "
        "step, forward and backward. Tracing, host: what the call took beside them."
    )
    return Table(
        "First steps of each function",
        ["function", "devices", *_steps_columns(count)],
        rows,
        [note],
    )


def _modules(analysis: ScalingAnalysis) -> Table:
    timed = analysis.timed
    columns = ["module"]
    for answer in timed:
        on = f"{answer.devices} {'device' if answer.devices == 1 else 'devices'}"
        columns += [f"{on}\nalone ms", "forward\nms", "backward\nms", "share\n%"]
    rows = []
    for index, module in enumerate(timed[0].modules.modules):
        cells = [module.module]
        for answer in timed:
            own = answer.modules.modules[index]
            cells += map(milliseconds, (own.alone_s, own.forward_s, own.backward_s))
            cells.append(f"{100 * own.in_step_s / answer.modules.step_s:.1f}")
        rows.append(cells)
    whole = ["whole step"]
    for answer in timed:
        own = answer.modules.modules
        for name in ("alone_s", "forward_s", "backward_s"):
            whole.append(milliseconds(sum(getattr(module, name) for module in own)))
        whole.append("100.0")
    notes = [
        "Within the step the clock is read after each module's forward and backward pass, and what "
        "comes next begins after the reading: the seconds follow each other, add up to the step "
        "and cannot be negative; medians of the steps after the first. Alone: all other modules "
        "off, random input. The update's backward pass holds the exchange of the gradients. A "
        "step whose clock is not read may overlap modules and be shorter."
    ]
    return Table("Time per module", columns, [*rows, whole], notes)


def _devices(analysis: ScalingAnalysis) -> Table:
    columns = ["devices", "slowest over\nmedian device", "GPU use\nfirst %", "GPU use\nothers %"]
    columns += ["memory first\nGiB", "memory others\nGiB", "first over\nothers"]
    columns.append("process peak\nGiB")
    note = (
        "Slowest over median: forward and backward pass of each device, begun together. GPU use is "
        "NVML's mean while training, memory the most that TensorFlow used on a device, others: "
        "their median."
    )
    return Table("Devices", columns, [_device_cells(one) for one in analysis.answers], [note])


def _device_cells(answer: ScalingAnswer) -> list[str]:
    use = answer.gpu_percents()[: answer.devices]
    memory = [one / 2**30 for one in answer.peak_device_bytes if one is not None]
    first, others = _first_and_others(memory)
    peak_mib, replicas = answer.peak_memory_mib, answer.replica_s
    lone = answer.devices == 1
    return [
        str(answer.devices),
        number(None if lone or not replicas else straggling(replicas), ".2f"),
        *(number(one, ".0f") for one in _first_and_others(use)),
        number(first, ".2f"),
        number(others, ".2f"),
        number(first / others if first and others else None, ".2f"),
        number(None if peak_mib is None else peak_mib / 1024, ".2f"),
    ]


def _first_and_others(values: list[float]) -> tuple[float | None, float | None]:
    others = statistics.median(values[1:]) if len(values) > 1 else None
    return (values[0] if values else None), others
