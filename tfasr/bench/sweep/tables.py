"""The hardware sweep as tables and as JSON."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfasr.bench.sweep.rows import SweepRow, speedup
from tfasr.display.table import UNKNOWN, Table, milliseconds, number
from tfasr.precision import PRECISIONS


@dataclass(frozen=True)
class SweepAnalysis:
    """Everything that the hardware sweep found.

    Attributes:
        rows: of inference, then of training, batch sizes growing.
        errors: error counts and rates of a run in every precision; None without a run.
        logit_errors: relative error of the logits against float32, random weights.
        frames: feature frames of each utterance.
        frame_s: seconds of audio from one frame to the next.
        calls: batches measured in inference.
        warmup: calls and steps left out before each measurement.
        split: what the errors were counted on; None without a run.
    """

    rows: Sequence[SweepRow]
    errors: dict[str, dict[str, Any]] | None
    logit_errors: dict[str, float]
    frames: int
    frame_s: float
    calls: int
    warmup: int
    split: str | None

    def of(self, mode: str) -> list[SweepRow]:
        """Returns the rows of "inference" or "training"."""
        return [row for row in self.rows if row.mode == mode]

    def audio_s_per_s(self, row: SweepRow) -> float | None:
        """Returns the seconds of audio that a row works through in a second."""
        return row.utterance_s and self.frames * self.frame_s / row.utterance_s

    def cost(self, precision: str) -> str:
        """Returns what a precision costs, for a table's cell."""
        if self.errors is not None:
            return f"{100 * self.errors[precision]['wer']:.2f}"
        error = self.logit_errors.get(precision)
        return UNKNOWN if error is None else f"{error:.2g}"

    @property
    def cost_name(self) -> str:
        """What `cost` is, for a heading."""
        return "relative\nlogit error" if self.errors is None else "WER\n%"

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values; rates are fractions, what could not be told is null."""
        rows = [
            {
                **dataclasses.asdict(row),
                "utterance_s": row.utterance_s,
                "audio_s_per_s": self.audio_s_per_s(row),
                "speedup_over_float32": speedup(row, self.rows),
            }
            for row in self.rows
        ]
        return {
            "rows": rows,
            "errors": self.errors,
            "split": self.split,
            "relative_logit_error": self.logit_errors,
            "frames": self.frames,
        }


def sweep_tables(analysis: SweepAnalysis) -> list[Table]:
    """Returns inference, training (where measured) and errors (of a run)."""
    found = [_inference(analysis)]
    if analysis.of("training"):
        found.append(_training(analysis))
    return [*found, *([_errors(analysis)] if analysis.errors is not None else [])]


def _inference(analysis: SweepAnalysis) -> Table:
    columns = ["precision", "batch", "p50\nms", "p90\nms", "p99\nms", "ms per\nutterance"]
    columns += ["audio\ns/s", "times\nfloat32", analysis.cost_name, "peak\nMiB", "cliff"]
    rows = [
        [
            PRECISIONS[row.precision].label,
            str(row.batch),
            *map(milliseconds, (row.p50_s, row.p90_s, row.p99_s, row.utterance_s)),
            number(analysis.audio_s_per_s(row), ".4g"),
            number(speedup(row, analysis.rows), ".2f"),
            analysis.cost(row.precision),
            number(_memory(row), ".0f"),
            _cliff(row),
        ]
        for row in analysis.of("inference")
    ]
    notes = [
        f"Latency of a batch of {analysis.frames} frames each, {analysis.calls} calls, the first "
        f"{analysis.warmup} of each size left out. Each precision runs in a process of its own.",
        *_common_notes(analysis),
    ]
    return Table("Inference over batch sizes and precisions", columns, rows, notes)


def _training(analysis: SweepAnalysis) -> Table:
    columns = ["precision", "batch", "step\nms", "ms per\nutterance", "utterances/s"]
    columns += ["audio\ns/s", "times\nfloat32", analysis.cost_name, "peak\nMiB", "cliff"]
    rows = [
        [
            PRECISIONS[row.precision].label,
            str(row.batch),
            *map(milliseconds, (row.p50_s, row.utterance_s)),
            number(row.utterance_s and 1 / row.utterance_s, ".4g"),
            number(analysis.audio_s_per_s(row), ".4g"),
            number(speedup(row, analysis.rows), ".2f"),
            analysis.cost(row.precision),
            number(_memory(row), ".0f"),
            row.reason or _cliff(row),
        ]
        for row in analysis.of("training")
    ]
    notes = [
        f"Medians of whole training steps, the first {analysis.warmup} of each size left out; "
        "larger batches stop where the memory would be full. What a precision costs is that of "
        "inference in it.",
        *_common_notes(analysis),
    ]
    return Table("Training over batch sizes and precisions", columns, rows, notes)


def _common_notes(analysis: SweepAnalysis) -> list[str]:
    notes = [
        "Cliff: an utterance takes longer than in a smaller batch. Peak: of the GPU's memory for "
        "this size, or else the most that the process held up to this size.",
        "float16 and bfloat16: Keras's mixed precision. LiteRT int8: 8-bit weights, dynamic range "
        "quantisation after training, Keras's LSTM loop.",
    ]
    if analysis.errors is None:
        notes.append(
            "Relative logit error: root mean square of the difference from float32 over that of "
            "float32, one batch, random weights. It says nothing about word errors: give a trained "
            "run with --run_dir for those."
        )
    return notes


def _errors(analysis: SweepAnalysis) -> Table:
    columns = ["precision", "WER\n%", "CER\n%", "WER against\nfloat32", "utterances"]
    exact = analysis.errors["float32"]["wer"]
    rows = [
        [
            PRECISIONS[precision].label,
            f"{100 * found['wer']:.2f}",
            f"{100 * found['cer']:.2f}",
            f"{100 * (found['wer'] - exact):+.2f}",
            str(found["utterances"]),
        ]
        for precision, found in analysis.errors.items()
    ]
    note = f"The run's best checkpoint on {analysis.split}, decoded greedily."
    return Table("What each precision costs in errors", columns, rows, [note])


def _memory(row: SweepRow) -> float | None:
    return row.peak_memory_mib if row.device_memory_mib is None else row.device_memory_mib


def _cliff(row: SweepRow) -> str:
    return "cliff" if row.cliff else ""
