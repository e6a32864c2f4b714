"""Kinds of network, lengths and frameworks as a table and as a figure."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfasr.display.chart import Axis, Chart, Line, Mark, Panel, Points
from tfasr.display.style import run_colour, run_dash
from tfasr.display.table import UNKNOWN, Table, milliseconds, number

if TYPE_CHECKING:
    from tfasr.bench.sweep.axes import AxesTimes

RUNTIMES = {
    "tensorflow": "TensorFlow graph",
    "tensorflow_xla": "TensorFlow, XLA",
    "jax": "JAX (XLA)",
    "torch": "PyTorch eager",
}
"""What tables call the frameworks beneath Keras, and the compiler."""


@dataclass(frozen=True)
class AxesRow:
    """One network at one length in one framework.

    Attributes:
        runtime: of `RUNTIMES`.
        times: what was measured.
        batch: utterances.
    """

    runtime: str
    times: "AxesTimes"
    batch: int

    @property
    def training_s(self) -> float | None:
        """Median seconds of a training step; None where it was not run."""
        return statistics.median(self.times.training_s) if self.times.training_s else None

    @property
    def inference_s(self) -> float | None:
        """Median seconds of a batch in inference; None where it was not run."""
        return statistics.median(self.times.inference_s) if self.times.inference_s else None


@dataclass(frozen=True)
class Axes:
    """All rows, and why a runtime has none.

    Attributes:
        rows: by network, then runtime, then length.
        absent: runtimes that are not installed.
        frame_s: seconds of audio from one frame to the next.
    """

    rows: Sequence[AxesRow]
    absent: Sequence[str]
    frame_s: float

    def audio_s_per_s(self, row: AxesRow) -> float | None:
        """Returns the seconds of audio that are trained on in a second."""
        audio_s = row.batch * row.times.frames * self.frame_s
        return None if row.training_s is None else audio_s / row.training_s

    def against_graph(self, row: AxesRow) -> float | None:
        """Returns how many times as fast it trains as TensorFlow's graph; None if untold."""
        same = (row.times.network, row.times.frames)
        graph = next(
            (
                other.training_s
                for other in self.rows
                if other.runtime == "tensorflow"
                and (other.times.network, other.times.frames) == same
            ),
            None,
        )
        return graph / row.training_s if graph and row.training_s else None

    def to_json(self) -> list[dict[str, Any]]:
        """Returns JSON values."""
        return [
            {
                "runtime": row.runtime,
                "batch": row.batch,
                **dataclasses.asdict(row.times),
                "training_median_s": row.training_s,
                "inference_median_s": row.inference_s,
                "audio_s_per_s": self.audio_s_per_s(row),
            }
            for row in self.rows
        ]


def axes_table(axes: Axes) -> Table:
    """Returns a row for each network, framework and length."""
    columns = ["network", "framework", "frames", "parameters\nmillions", "inference\nms"]
    columns += ["training step\nms", "audio s/s\nin training", "times TensorFlow\ngraph"]
    columns.append("first step\ns")
    rows = [
        [
            row.times.network,
            RUNTIMES[row.runtime],
            str(row.times.frames),
            f"{row.times.parameters / 1e6:.2f}",
            milliseconds(row.inference_s),
            milliseconds(row.training_s),
            number(axes.audio_s_per_s(row), ".4g"),
            number(axes.against_graph(row), ".2f"),
            number(row.times.first_s, ".1f"),
        ]
        for row in axes.rows
    ]
    notes = [
        f"Medians of batches of {axes.rows[0].batch} utterances, float32; the first steps of each "
        "length are left out, the very first, which compiles, is in the last column. The loss is "
        "the cross entropy of a class for each output frame, alike in every framework. "
        "TensorFlow's graph runs tfasr's own LSTM and normalisation, all others Keras's."
    ]
    notes += [
        f"{UNKNOWN} for {row.times.network} on {RUNTIMES[row.runtime]} from {row.times.frames} "
        f"frames on: “{row.times.reason}”"
        for row in axes.rows
        if row.times.reason
    ]
    if axes.absent:
        named = ", ".join(RUNTIMES[name] for name in axes.absent)
        notes.append(f"Not installed and left out: {named}.")
    return Table("Kinds of network, lengths and frameworks", columns, rows, notes)


def axes_chart(axes: Axes) -> Chart:
    """Returns training and inference over the length, a panel each for every kind of network."""
    networks = list(dict.fromkeys(row.times.network for row in axes.rows))
    panels = []
    for title, seconds in (("training step", "training_s"), ("inference", "inference_s")):
        for network in networks:
            own = [row for row in axes.rows if row.times.network == network]
            panels.append(_panel(own, f"{network}: {title}", seconds))
    caption = "Kinds of network over the length of their sequences, in each framework"
    return Chart("hardware_axes", caption, panels, columns=len(networks), width=290)


def _panel(rows: Sequence[AxesRow], title: str, seconds: str) -> Panel:
    marks: list[Mark] = []
    for index, (runtime, name) in enumerate(RUNTIMES.items()):
        own = [row for row in rows if row.runtime == runtime and not row.times.reason]
        if own:
            place = {
                "x": [row.times.frames for row in own],
                "y": [1000 * getattr(row, seconds) for row in own],
            }
            look = {"colour": run_colour(index)}
            marks.append(Line(**place, **look, dash=run_dash(index), series=name))
            marks.append(Points(**place, **look))
    frames = sorted({row.times.frames for row in rows})
    values = [value for mark in marks for value in mark.y] or [1.0]
    limits = (frames[0] / 1.15, frames[-1] * 1.15)
    x = Axis("feature frames", log=True, limits=limits, ticks=frames)
    y = Axis("ms", log=True, limits=(min(values) / 1.5, max(values) * 1.5))
    return Panel(marks, x, y, height=210, title=title)
