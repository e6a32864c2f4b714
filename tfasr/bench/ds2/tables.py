"""The tables of the DeepMark speech benchmark, the published figures beside the measured ones."""

from collections.abc import Sequence

from tfasr.bench.ds2.data import NUM_UTTERANCES
from tfasr.bench.ds2.times import DeepMarkMeasurement, LengthMeasurement
from tfasr.display.table import UNKNOWN, Table

# The published figures: name, devices, forward, backward and total ms, utterances/s, audio s/s.
REFERENCES = (
    ("1 Titan X (Torch)", 1, "83", "72", "154", 32, 189),
    ("4 Titan X (Torch)", 4, UNKNOWN, UNKNOWN, UNKNOWN, 106, 632),
)
REFERENCE_BATCH_SIZE = 32

_BY_LENGTH = ["length, s", "utterances", "batches", "forward, ms", "backward, ms", "total, ms"]
_BY_LENGTH += ["utterances/s", "audio s/s"]
_SUMMARY = ["run", "devices", "batch", "batches", "forward, ms", "backward, ms", "total, ms"]
_SUMMARY += ["utterances/s", "audio s/s", "epoch, min", "against one"]


def deepmark_tables(
    measured: Sequence[DeepMarkMeasurement], backend: str, parameters: int, warmup_steps: int
) -> list[Table]:
    """Returns the times by length and the comparison with the published ones.

    Args:
        measured: on one device, then, where there are more, on all.
        backend: Keras's.
        parameters: trainable ones of the network.
        warmup_steps: passes left out.
    """
    return [
        *(_length_table(measurement) for measurement in measured),
        Table(
            title="DeepMark Deep Speech 2: means over all batches",
            columns=_SUMMARY,
            rows=[*(_row(m, measured[0], backend) for m in measured), *_reference_rows()],
            notes=_notes(measured, parameters, warmup_steps),
        ),
    ]


def _length_table(measurement: DeepMarkMeasurement) -> Table:
    devices = measurement.num_devices
    total = [
        "sum, s",
        str(measurement.utterances),
        str(measurement.num_batches),
        f"{measurement.forward_s:.2f}",
        f"{measurement.total_s - measurement.forward_s:.2f}",
        f"{measurement.total_s:.2f}",
        _rate(measurement.utterances / measurement.total_s),
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
    scaling = f"{measurement.scaling(alone):.2f}" if devices > 1 else UNKNOWN
    return [
        f"here ({backend})",
        str(devices),
        str(measurement.batch_size),
        str(measurement.num_batches),
        *map(_ms, measurement.means_ms()),
        _rate(measurement.utterances / measurement.total_s),
        _rate(measurement.audio_s / measurement.total_s),
        f"{'' if measurement.is_whole else '~'}{measurement.epoch_s / 60:.1f}",
        scaling,
    ]


def _reference_rows() -> list[list[str]]:
    one = REFERENCES[0][5]
    return [
        [
            name,
            str(devices),
            str(REFERENCE_BATCH_SIZE) if devices == 1 else UNKNOWN,
            UNKNOWN,
            forward_ms,
            backward_ms,
            total_ms,
            str(utterances),
            str(audio_s),
            f"~{NUM_UTTERANCES / utterances / 60:.1f}",
            UNKNOWN if devices == 1 else f"{utterances / one:.2f}",
        ]
        for name, devices, forward_ms, backward_ms, total_ms, utterances, audio_s in REFERENCES
    ]


def _notes(
    measured: Sequence[DeepMarkMeasurement], parameters: int, warmup_steps: int
) -> list[str]:
    notes = [
        f"{parameters:,} trainable parameters. {warmup_steps} warm-up passes, forward and both "
        "ways, are left out: they compile. Every pass is waited for; backward is forward and "
        "backward together, less forward alone. Weights are not updated, as in DeepMark.",
        "Published: DeepMark's figures, quoted as they stand. 32 utterances a second in batches "
        "of 32 are a second a batch: the 154 ms cannot be the mean of such batches.",
    ]
    if not measured[0].is_whole:
        notes.append(
            f"~: extrapolated to the {NUM_UTTERANCES:,} utterances of an epoch from "
            f"{measured[0].utterances:,}, each length with its own seconds an utterance."
        )
    return notes


def _ms(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _rate(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
