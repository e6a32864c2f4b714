"""The tables of the DeepMark speech benchmark, the published figures beside the measured ones."""

from collections.abc import Sequence

from tfasr.bench.ds2.data import NUM_UTTERANCES
from tfasr.bench.ds2.search import Search
from tfasr.bench.ds2.times import DeepMarkMeasurement, LengthMeasurement
from tfasr.display.table import UNKNOWN, Table, milliseconds, number

# As published: name, devices, batch a device; forward, backward and total ms; utterances/s, audio
# s/s, seconds of an epoch. The first is DeepMark's issue 1.
PUBLISHED = (
    ("1 Titan X (Torch), published", 1, 32, 83, 72, 154, 32, 189, 4013),
    ("4 Titan X (Torch), published", 4, 32, 99, 81, 180, 106, 632, 1204),
)

_BY_LENGTH = ["length, s", "utterances", "batches", "forward, ms", "backward, ms", "both, ms"]
_BY_LENGTH += ["utterances/s", "audio s/s"]
_SUMMARY = ["run", "devices", "batch per\ndevice", "batches", "forward\nms", "backward\nms"]
_SUMMARY += ["both\nms", "utterances/s", "audio s/s", "epoch, s", "multi-device\nscaling"]


def deepmark_tables(
    measured: Sequence[DeepMarkMeasurement],
    search: Search | None,
    backend: str,
    parameters: int,
    warmup_steps: int,
    visible_gpus: int,
) -> list[Table]:
    """Returns the search, the times by length and the comparison with the published ones.

    Args:
        measured: on one device, then, where there are more, on all.
        search: of the fastest batch, or None.
        backend: Keras's.
        parameters: trainable ones of the network.
        warmup_steps: passes left out.
        visible_gpus: that the backend sees.
    """
    return [
        *([_search_table(search)] if search is not None else []),
        *(_length_table(measurement) for measurement in measured),
        Table(
            title="DeepMark Deep Speech 2: means over all batches",
            columns=_SUMMARY,
            rows=[*(_row(m, measured[0], backend) for m in measured), *_published_rows()],
            notes=[*_notes(measured, parameters, warmup_steps), *_scaling(measured, visible_gpus)],
        ),
    ]


def _search_table(search: Search) -> Table:
    lengths = ", ".join(map(str, search.lengths_s))
    return Table(
        title="Search for the fastest batch",
        columns=["batch", "ms per\nutterance", "audio s/s", "epoch, s", ""],
        rows=[
            [
                str(one.batch),
                milliseconds(one.mean_s),
                number(one.audio_s_per_s, ".4g"),
                number(one.epoch_s, ".0f"),
                one.reason or _verdict(search, one),
            ]
            for one in search.tried
        ],
        notes=[
            f"Forward and backward, batches of utterances of {lengths} s, weighted as DeepMark's "
            f"{NUM_UTTERANCES:,} utterances are. Cliff: an utterance takes over "
            f"{100 * search.tolerance:g} % longer than in a smaller batch. The largest that ran: "
            f"{search.largest.batch}."
        ],
    )


def _verdict(search: Search, one) -> str:
    if one is search.fastest:
        return "fastest"
    return "cliff" if search.cliff(one) else ""


def _length_table(measurement: DeepMarkMeasurement) -> Table:
    devices = measurement.num_devices
    total = [
        "sum, s",
        str(measurement.utterances),
        str(measurement.num_batches),
        f"{measurement.forward_s:.2f}",
        f"{measurement.backward_s:.2f}",
        f"{measurement.total_s:.2f}",
        _rate(measurement.utterances_per_s),
        _rate(measurement.audio_s / measurement.total_s),
    ]
    return Table(
        title=f"A batch of each length, {devices} {'device' if devices == 1 else 'devices'}",
        columns=_BY_LENGTH,
        rows=[*(_length_row(length) for length in measurement.lengths), total],
    )


def _length_row(length: LengthMeasurement) -> list[str]:
    means_ms = length.means_ms()
    counts = [str(length.length_s), str(length.utterances), str(len(length.sizes))]
    if means_ms is None:
        return counts + [UNKNOWN] * 5
    rate = length.utterances / sum(length.total_s)
    return [*counts, *map(_ms, means_ms), _rate(rate), _rate(rate * length.length_s)]


def _row(measurement: DeepMarkMeasurement, alone: DeepMarkMeasurement, backend: str) -> list[str]:
    devices = measurement.num_devices
    return [
        f"here ({backend})",
        str(devices),
        str(measurement.batch_size // devices),
        str(measurement.num_batches),
        *map(_ms, measurement.means_ms()),
        _rate(measurement.utterances_per_s),
        _rate(measurement.audio_s / measurement.total_s),
        f"{'' if measurement.is_whole else '~'}{measurement.epoch_s:.0f}",
        f"{measurement.scaling(alone):.2f}" if devices > 1 else UNKNOWN,
    ]


def _published_rows() -> list[list[str]]:
    alone = PUBLISHED[0][6]
    rows = []
    for name, devices, batch, *figures in PUBLISHED:
        scaling = UNKNOWN if devices == 1 else f"{figures[3] / alone:.2f}"
        rows.append([name, str(devices), str(batch), UNKNOWN, *map(str, figures), scaling])
    return rows


def _notes(
    measured: Sequence[DeepMarkMeasurement], parameters: int, warmup_steps: int
) -> list[str]:
    notes = [
        f"{parameters:,} trainable parameters. {warmup_steps} warm-up passes, one way and both, "
        "are left out: they compile. Forward and then backward are run and waited for, each with a "
        "time of its own; both is the two as one step, and what all rates are made of. Weights are "
        "not updated, as in DeepMark.",
        "Published: DeepMark's figures, quoted as they stand. 32 utterances a second in batches "
        "of 32 are a second a batch: the 154 ms cannot be the mean of such batches.",
    ]
    if not all(measurement.timed_apart for measurement in measured):
        notes.append(
            "On several devices backward is both less a forward pass alone: they cannot be waited "
            "for between the two."
        )
    if not measured[0].is_whole:
        notes.append(
            f"~: extrapolated to the {NUM_UTTERANCES:,} utterances of an epoch from "
            f"{measured[0].utterances:,}, each length with its own seconds an utterance."
        )
    return notes


def _scaling(measured: Sequence[DeepMarkMeasurement], visible_gpus: int) -> list[str]:
    scaling = "Multi-device scaling: utterances per second over those of one device, each device "
    scaling += "with a full batch."
    if len(measured) > 1 and not visible_gpus:
        return [f"{scaling} The devices here are slices of one processor and share its cores."]
    if len(measured) > 1:
        return [scaling]
    visible = f"{visible_gpus} {'GPU is' if visible_gpus == 1 else 'GPUs are'} visible"
    return [
        f"{scaling} {UNKNOWN} for one device: {visible}. DeepMarkConfig.num_devices takes more"
        + (", where there is no GPU slices of the processor." if not visible_gpus else ".")
    ]


def _ms(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _rate(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
