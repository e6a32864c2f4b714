"""The DeepMark speech benchmark as figures: times by length, and the search for the batch."""

from tfasr.bench.ds2.search import Search
from tfasr.bench.ds2.times import DeepMarkMeasurement
from tfasr.display.chart import Axis, Chart, Line, Panel, Points, Rects, Rule
from tfasr.display.style import CLIFF_COLOUR, run_colour

_HALF_BAR = 0.36


def lengths_chart(measurement: DeepMarkMeasurement, backend: str) -> Chart:
    """Returns milliseconds a batch by length, forward and backward, and the throughput by length.

    Args:
        measurement: what is drawn.
        backend: Keras's.
    """
    run = [(length, length.means_ms()) for length in measurement.lengths if length.utterances]
    forward = [means[0] for _, means in run]
    whole = [means[0] + means[1] for _, means in run]
    audio = [length.length_s * length.utterances / sum(length.total_s) for length, _ in run]
    edges = {
        "x0": [length.length_s - _HALF_BAR for length, _ in run],
        "x1": [length.length_s + _HALF_BAR for length, _ in run],
    }
    zeros = [0.0] * len(run)
    mean = measurement.audio_s / measurement.total_s
    devices = measurement.num_devices
    on = f"{backend}, {devices} {'device' if devices == 1 else 'devices'}"
    length_axis = Axis(
        "length of the utterances, s", limits=(0.3, 15.7), ticks=range(1, 16, 2), grid=False
    )
    times = [
        Rects(**edges, y0=zeros, y1=forward, colour=run_colour(0), series="forward"),
        Rects(**edges, y0=forward, y1=whole, colour=run_colour(1), series="backward"),
    ]
    rates = [
        Rects(**edges, y0=zeros, y1=audio, colour=run_colour(2)),
        Rule(value=mean, label=f"all: {mean:.3g}"),
    ]
    ms = f"ms per batch of up to {measurement.batch_size}"
    panels = [
        Panel(times, length_axis, Axis(ms, limits=(0, 1.05 * max(whole)))),
        Panel(rates, length_axis, Axis(f"audio s per s ({on})", limits=(0, 1.05 * max(audio)))),
    ]
    caption = "DeepMark's Deep Speech 2: a batch of each length, and seconds of audio per second"
    return Chart("ds2", caption, panels, columns=2, width=400)


def search_chart(search: Search, backend: str) -> Chart:
    """Returns milliseconds for an utterance over sizes of a batch; rings are cliffs."""
    ran = [one for one in search.tried if one.mean_s is not None]
    batches, means = [one.batch for one in ran], [1000 * one.mean_s for one in ran]
    fastest, cliffs = search.fastest, [one for one in ran if search.cliff(one)]
    marks = [
        Line(x=batches, y=means, colour=run_colour(0), series=f"forward and backward ({backend})"),
        Points(x=batches, y=means, colour=run_colour(0)),
        Points(
            x=[fastest.batch],
            y=[1000 * fastest.mean_s],
            symbol="star",
            size=26,
            colour=run_colour(2),
            series=f"fastest: {fastest.batch}",
        ),
        *_rings(cliffs),
    ]
    x = Axis(
        "batch, utterances",
        log=True,
        limits=(batches[0] / 1.2, batches[-1] * 1.2),
        ticks=batches,
    )
    y = Axis("ms per utterance, mean over DeepMark's lengths", limits=(0, 1.1 * max(means)))
    caption = "The search for the fastest batch"
    return Chart("ds2_search", caption, [Panel(marks, x, y)], width=620)


def _rings(cliffs) -> list[Points]:
    if not cliffs:
        return []
    return [
        Points(
            x=[one.batch for one in cliffs],
            y=[1000 * one.mean_s for one in cliffs],
            symbol="ring",
            size=15,
            colour=CLIFF_COLOUR,
            series="cliff: slower than in a smaller batch",
        )
    ]
