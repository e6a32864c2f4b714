"""The scaling analysis as tables."""

import math
import statistics
from typing import Any

from tfasr.bench.scaling.analysis import ScalingAnalysis, ScalingRow
from tfasr.bench.scaling.replicas import straggling
from tfasr.display.table import UNKNOWN, Table, milliseconds, number


def scaling_tables(analysis: ScalingAnalysis) -> list[Table]:
    """Returns scaling, first steps, modules (where timed) and devices."""
    found = [_scaling(analysis), _first_steps(analysis)]
    timed = [answer for answer in analysis.answers if answer.get("modules")]
    return [*found, *([_modules(timed)] if timed else []), _devices(analysis)]


def _scaling(analysis: ScalingAnalysis) -> Table:
    columns = ["scaling", "devices", "batch per\ndevice", "step\nms", "input wait\nms"]
    columns += ["utterances/s", "speed-up", "efficiency\n%", "predicted\nstep ms", "error\n%"]
    return Table(
        "Scaling of data parallelism",
        columns,
        [_cells(row) for row in analysis.rows],
        _notes(analysis),
    )


def _cells(row: ScalingRow) -> list[str]:
    error = row.prediction_error
    return [
        _label(row),
        str(row.devices),
        str(row.per_device_batch),
        milliseconds(row.step_s),
        milliseconds(row.input_wait_s),
        f"{row.utterances_per_s:.4g}",
        f"{row.speedup:.2f}",
        f"{100 * row.efficiency:.1f}",
        milliseconds(row.predicted_s),
        UNKNOWN if error is None else f"{100 * error:+.0f}",
    ]


def _label(row: ScalingRow) -> str:
    return f"{row.mode}, with loader" if row.loader else row.mode


def _notes(analysis: ScalingAnalysis) -> list[str]:
    notes = [
        f"Medians of the steps after the first {analysis.warmup_steps}, input wait included. Weak: "
        f"a full batch on every device; strong: {analysis.strong_utterances} utterances over all. "
        "Without loader one batch lies in memory. Efficiency: throughput over that of one device "
        "times the devices."
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


def _first_steps(analysis: ScalingAnalysis) -> Table:
    steps = [f"step {index + 1}\nms" for index in range(analysis.warmup_steps)]
    rows = [
        [
            _label(row),
            str(row.devices),
            *(milliseconds(seconds) for seconds in row.first_s),
            milliseconds(row.step_s),
        ]
        for row in analysis.rows
    ]
    note = "The first step traces and compiles. None of these counts in any other figure."
    return Table(
        "First steps, left out", ["scaling", "devices", *steps, "median\nafter"], rows, [note]
    )


def _modules(timed: list[dict[str, Any]]) -> Table:
    columns = ["module"]
    for answer in timed:
        plural = "device" if answer["devices"] == 1 else "devices"
        on = f"{answer['devices']} {plural}"
        columns += [f"{on}\nalone ms", "in the step\nms", "share\n%"]
    rows = []
    for index, module in enumerate(timed[0]["modules"]):
        cells = [module["module"]]
        for answer in timed:
            found, whole_s = answer["modules"][index], _sum(answer, "in_step_s")
            cells += [milliseconds(found["alone_s"]), milliseconds(found["in_step_s"])]
            cells.append(f"{100 * found['in_step_s'] / whole_s:.1f}")
        rows.append(cells)
    whole = ["whole step"]
    for answer in timed:
        sums = (_sum(answer, "alone_s"), _sum(answer, "in_step_s"))
        whole += [*map(milliseconds, sums), "100.0"]
    notes = [
        "Forward and backward pass. Alone: all other modules off, random input. In the step: what "
        "the module adds to those before it, all on; a difference of two medians, which noise can "
        "make negative. The update holds the exchange of the gradients."
    ]
    return Table("Time per module", columns, [*rows, whole], notes)


def _sum(answer: dict[str, Any], name: str) -> float:
    return sum(module[name] for module in answer["modules"])


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


def _device_cells(answer: dict[str, Any]) -> list[str]:
    use = [gpu["utilisation_percent"] for gpu in answer["gpus"][: answer["devices"]]]
    memory = [one / 2**30 for one in answer["peak_device_bytes"] if one is not None]
    first, others = _first_and_others(memory)
    peak_mib, replicas = answer["peak_memory_mib"], answer.get("replica_s")
    lone = answer["devices"] == 1
    return [
        str(answer["devices"]),
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
