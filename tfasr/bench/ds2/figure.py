"""The DeepMark speech benchmark as a figure for a slide."""

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from tfasr.bench.ds2.times import DeepMarkMeasurement
from tfasr.display.slides import add_legend, label_axes, new_slide
from tfasr.display.style import INK, run_colour


def lengths_figure(measurement: DeepMarkMeasurement, backend: str) -> Figure:
    """Returns milliseconds a batch by length, forward and backward, and the throughput by length.

    Args:
        measurement: what is drawn.
        backend: Keras's.
    """
    figure, (times, rates) = new_slide(panels=2)
    run = [(length, length.means_ms()) for length in measurement.lengths if length.utterances]
    seconds = [length.length_s for length, _ in run]
    forward = [means[0] for _, means in run]
    backward = [means[1] for _, means in run]
    handles = [
        times.bar(seconds, forward, width=0.72, color=run_colour(0)),
        times.bar(seconds, backward, width=0.72, bottom=forward, color=run_colour(1)),
    ]
    audio = [length.length_s * length.utterances / sum(length.total_s) for length, _ in run]
    rates.bar(seconds, audio, width=0.72, color=run_colour(2))
    mean = measurement.audio_s / measurement.total_s
    rates.axhline(mean, color=INK, linewidth=1.2, dashes=(4, 3))
    rates.annotate(
        f"all lengths: {mean:.3g}",
        (1.0, mean),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 3),
        textcoords="offset points",
        ha="right",
        color=INK,
        fontsize=10.5,
    )
    for axes in (times, rates):
        axes.set_xlim(0.3, 15.7)
        axes.set_xticks(range(1, 16, 2))
        axes.grid(False, axis="x")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    devices = measurement.num_devices
    on = f"{backend}, {devices} {'device' if devices == 1 else 'devices'}"
    length = "length of the utterances, s"
    label_axes(times, x=length, y=f"ms per batch of up to {measurement.batch_size}")
    label_axes(rates, x=length, y=f"seconds of audio per second ({on})")
    add_legend(figure, handles, ["forward", "backward"], columns=2)
    return figure
