"""DeepMark's Deep Speech 2: forward and backward passes on utterances of 1 to 15 s.

A workload of ``tfasr bench`` that repeats a published benchmark on this machine: its
numbers of utterances of each length, random features, and gradients without updates. It
first searches the fastest batch size if several are given.
"""

import contextlib
import dataclasses
import logging
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import keras
import numpy as np

from tfasr.bench.devices import (
    cliff_rings,
    devices_text,
    fate_of,
    growing_batches,
    is_cliff,
    visible_gpus,
)
from tfasr.bench.steppers import Batch, ctc_losses, make_stepper, make_strategy
from tfasr.bench.workload import (
    Context,
    Result,
    Workload,
    columns_of_tuples,
    seconds_of,
)
from tfasr.display import chart
from tfasr.display.chart import (
    Axis,
    Chart,
    Panel,
    Rects,
    Rule,
    counts_axis,
    curve,
    run_colour,
)
from tfasr.display.table import (
    UNKNOWN,
    Column,
    Table,
    fixed,
    milliseconds,
    plural,
    table_of,
    three_digits,
)
from tfasr.errors import RunError
from tfasr.kit.config import config_class, require, require_numbers
from tfasr.models.deep_speech_2 import DeepSpeech2, DeepSpeech2Config, output_frames

# How many of every hundred utterances last 1, 2, ... 15 s, and how many labels each of
# them has.
COUNTS = (3, 10, 11, 13, 14, 13, 9, 8, 5, 4, 3, 2, 2, 2, 1)
LABEL_LENGTHS = (7, 17, 35, 48, 62, 78, 93, 107, 120, 134, 148, 163, 178, 193, 209)
LENGTHS_S = tuple(range(1, len(COUNTS) + 1))
# Hundreds of utterances in an epoch.
HUNDREDS = 1280
NUM_UTTERANCES = HUNDREDS * sum(COUNTS)
FRAMES_PER_S = 100
_log = logging.getLogger(__name__)


def utterance_counts(fraction: float) -> list[int]:
    """Returns the numbers of utterances of 1, 2, ... 15 s in a fraction of an epoch.

    The largest remainders are rounded up, so that all proportions stay.

    Source: DeepMark's issue 1 for the counts, its torch/audio/Dataset.lua for the
    rounding.
    """
    # Fractions, as floats would round some shares wrongly.
    total = max(1, round(Fraction(fraction) * NUM_UTTERANCES))
    shares = [Fraction(count * total, sum(COUNTS)) for count in COUNTS]
    counts = [math.floor(share) for share in shares]
    by_loss = sorted(
        range(len(counts)), key=lambda index: counts[index] - shares[index]
    )

    for index in by_loss[: total - sum(counts)]:
        counts[index] += 1

    return counts


def batch_sizes(count: int, batch_size: int) -> list[int]:
    """Splits the utterances of one length into full batches and a remainder."""
    sizes = [batch_size] * (count // batch_size)
    if count % batch_size:
        sizes.append(count % batch_size)

    return sizes


class RandomBlock:
    """Random features and labels, drawn once for all batches.

    Drawing them takes longer than a step; large batches repeat utterances.
    """

    def __init__(
        self,
        batch_size: int,
        num_bins: int,
        num_labels: int,
        longest_s: int,
        seed: int,
    ):
        random = np.random.default_rng(seed)
        frames = FRAMES_PER_S * longest_s
        self._features = random.standard_normal(
            (batch_size, frames, num_bins), np.float32
        )
        labels = (batch_size, LABEL_LENGTHS[longest_s - 1])
        self._labels = random.integers(0, num_labels, labels, np.int32)

    def cut(self, length_s: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns features and labels of so many utterances of one length."""
        # Repeats utterances if the batch is larger than the block.
        rows = np.arange(size) % len(self._labels)
        labels = self._labels[rows, : LABEL_LENGTHS[length_s - 1]]

        return self._features[rows, : FRAMES_PER_S * length_s], labels


# Measurements of each batch size and length.
SEARCH_ROUNDS = 2
# An utterance slower by this share in a larger batch is a cliff.
CLIFF_TOLERANCE = 0.05
# Fraction of free memory that the search may use.
MEMORY_SHARE = 0.8
# Untimed passes for each batch shape.
WARMUP_STEPS = 1
# The seed of initial weights and random data.
SEED = 0


@config_class
class DeepMarkConfig:
    """Settings of the benchmark.

    Attributes:
        search_batches: utterances per batch on each device: sizes to try, growing, of
            which the fastest is used.
        search_lengths_s: seconds of the utterances with which sizes are compared;
            empty: all.
        num_devices: devices, each with a batch; several only on TensorFlow.

    Source: DeepMark's torch/audio/benchmark.lua for the batch size, the remarks on the
    fastest minibatch in its issue 1 for the search.
    """

    search_batches: tuple[int, ...] = (32,)
    search_lengths_s: tuple[int, ...] = ()
    num_devices: int = 1

    def check(self) -> None:
        require_numbers(self, "num_devices", "search_batches")
        sizes = list(self.search_batches)
        rising = bool(sizes) and sizes == sorted(set(sizes))
        require(rising, self, "search_batches", "one or more, growing")
        valid = set(self.search_lengths_s) <= set(LENGTHS_S)
        require(
            valid,
            self,
            "search_lengths_s",
            f"of {LENGTHS_S[0]}..{LENGTHS_S[-1]} s",
        )


@dataclass(frozen=True)
class Passes:
    """Forward and backward passes over utterances of one length, or of all lengths.

    Attributes:
        audio_s: seconds of audio.
        utterances: 0 if this length was not run.
        batches: how many were timed.
        forward_s: seconds of network and loss.
        backward_s: seconds of the gradients alone.
        total_s: seconds of forward and backward in one step.
    """

    audio_s: int
    utterances: int
    batches: int
    forward_s: float
    backward_s: float
    total_s: float

    @property
    def means_ms(self) -> dict[str, float | None]:
        """Milliseconds per batch; None without a batch."""
        if not self.batches:
            return dict.fromkeys(("forward_ms", "backward_ms", "total_ms"))

        return {
            "forward_ms": 1000 * self.forward_s / self.batches,
            "backward_ms": 1000 * self.backward_s / self.batches,
            "total_ms": 1000 * self.total_s / self.batches,
        }

    @property
    def utterances_per_s(self) -> float | None:
        """Utterances per second; None if this length was not run."""
        if not self.utterances:
            return None

        return self.utterances / self.total_s

    @property
    def audio_s_per_s(self) -> float | None:
        """Seconds of audio per second; None if this length was not run."""
        if not self.utterances:
            return None

        return self.audio_s / self.total_s


def summed(parts: Sequence[Passes]) -> Passes:
    """Returns the sums of all fields; 0 without parts."""
    names = [field.name for field in dataclasses.fields(Passes)]
    return Passes(*(sum(getattr(part, name) for part in parts) for name in names))


@dataclass(frozen=True)
class DeepMarkMeasurement:
    """What was measured of an epoch, or of a fraction of it."""

    # Utterances of a full batch on all devices.
    batch_size: int
    num_devices: int
    # Over utterances of 1, 2, ... 15 s.
    lengths: Sequence[Passes]

    @property
    def overall(self) -> Passes:
        """Sums over all lengths."""
        return summed(self.lengths)

    @property
    def is_whole(self) -> bool:
        """Whether the whole epoch was run."""
        return self.overall.utterances == NUM_UTTERANCES

    @property
    def epoch_s(self) -> float:
        """Seconds for all 128 000 utterances.

        Lengths that were not run use the mean rate.
        """
        rates = [
            passes.audio_s_per_s or self.overall.audio_s_per_s
            for passes in self.lengths
        ]
        return float(HUNDREDS * np.sum(np.multiply(COUNTS, LENGTHS_S) / rates))

    def to_json(self) -> dict[str, Any]:
        """Returns all sums and rates, and the means of each length, as JSON values."""
        overall = self.overall
        lengths = []
        for length_s, passes in enumerate(self.lengths, 1):
            counts = {"utterances": passes.utterances, "batches": passes.batches}
            lengths.append({"length_s": length_s} | counts | passes.means_ms)

        return {
            "num_devices": self.num_devices,
            "batch_size": self.batch_size,
            "batches": overall.batches,
            "utterances": overall.utterances,
            "audio_s": overall.audio_s,
            **overall.means_ms,
            # Several devices can't wait in between: there, backward_s is total_s minus
            # forward_s.
            "timed_apart": self.num_devices == 1,
            "forward_s": overall.forward_s,
            "backward_s": overall.backward_s,
            "total_s": overall.total_s,
            "utterances_per_s": overall.utterances_per_s,
            "audio_s_per_s": overall.audio_s_per_s,
            "epoch_s": self.epoch_s,
            "epoch_is_extrapolated": not self.is_whole,
            "lengths": lengths,
        }


# Mean of an utterance.
_AUDIO_S = float(np.average(LENGTHS_S, weights=COUNTS))


@dataclass(frozen=True)
class BatchTried:
    """A batch size of the search.

    Attributes:
        batch: utterances.
        utterance_s: seconds per utterance, by length in seconds.
        reason: why it was not run, or "".
    """

    batch: int
    utterance_s: dict[int, float]
    reason: str = ""

    @property
    def mean_s(self) -> float | None:
        """Mean seconds per utterance over DeepMark's lengths; None if it was not run.

        Seconds per second of audio are interpolated between the measured lengths.
        """
        if not self.utterance_s:
            return None

        lengths = sorted(self.utterance_s)
        rates = [self.utterance_s[length] / length for length in lengths]
        per_audio_s = np.interp(LENGTHS_S, lengths, rates)

        return float(np.average(per_audio_s * LENGTHS_S, weights=COUNTS))


@dataclass(frozen=True)
class Search:
    """Batch sizes that were compared on one device."""

    tried: Sequence[BatchTried]
    # Of the utterances with which batch sizes were compared.
    lengths_s: Sequence[int]
    # An utterance slower by this share in a larger batch is a cliff.
    tolerance: float

    @property
    def fastest(self) -> BatchTried | None:
        """The size with the fewest seconds per utterance; None if none fitted into memory."""
        ran = [size for size in self.tried if size.mean_s is not None]
        return min(ran, key=lambda size: size.mean_s, default=None)

    @property
    def largest(self) -> BatchTried | None:
        """The largest size that fitted into memory; None if none did."""
        return next(
            (size for size in reversed(self.tried) if size.mean_s is not None), None
        )

    def sizes(self) -> list[dict[str, Any]]:
        """Returns the sizes that were tried as JSON values."""
        others = [(other.batch, other.mean_s) for other in self.tried]

        return [
            {
                "batch": size.batch,
                "audio_s_per_s": size.mean_s and _AUDIO_S / size.mean_s,
                "epoch_s": size.mean_s and NUM_UTTERANCES * size.mean_s,
                "reason": size.reason,
                "utterance_s": size.mean_s,
                "cliff": is_cliff(size.batch, size.mean_s, others, self.tolerance),
                "utterance_s_by_length": {
                    str(k): v for k, v in size.utterance_s.items()
                },
            }
            for size in self.tried
        ]

    def to_json(self) -> dict[str, Any]:
        """Returns the search as JSON values; None where no size fitted into memory."""
        return {
            "lengths_s": list(self.lengths_s),
            "fastest": self.fastest and self.fastest.batch,
            "largest": self.largest and self.largest.batch,
            "sizes": self.sizes(),
        }


class DeepMarkTimer:
    """A network whose passes are timed, on one device or on those of a strategy."""

    def __init__(
        self,
        network: DeepSpeech2Config,
        bench: DeepMarkConfig,
        longest_s,
        strategy=None,
    ):
        self.num_devices = strategy.num_replicas_in_sync if strategy else 1
        self.warmups = 0  # untimed passes so far
        self._bench = bench

        with strategy.scope() if strategy else contextlib.nullcontext():
            model = DeepSpeech2(network, seed=SEED)
            model.build()

        self.parameters = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
        self._stepper = make_stepper(model, ctc_losses, strategy=strategy)
        # Batches repeat 64 utterances; different ones would take as long.
        self._block = RandomBlock(
            64,
            model.num_bins,
            model.num_classes - 1,
            longest_s,
            SEED,
        )

    def epoch(self, counts: Sequence[int], batch_size: int) -> DeepMarkMeasurement:
        """Times passes over so many utterances of each length."""
        size = self.num_devices * batch_size
        pairs = zip(LENGTHS_S, counts, strict=True)
        lengths = [
            self._length(length_s, batch_sizes(n, size)) for length_s, n in pairs
        ]

        return DeepMarkMeasurement(size, self.num_devices, lengths)

    def search(self, lengths_s: Sequence[int]) -> Search:
        """Compares the configured batch sizes on one device.

        Raises:
            RunError: if none fits into memory.
        """
        longest_first = sorted(lengths_s)[::-1]  # the longest needs the most memory

        def by_length(size: int) -> dict[int, float]:
            return {length: self._utterance_s(length, size) for length in longest_first}

        tried = []
        sizes = self._bench.search_batches

        for size, seconds, reason in growing_batches(sizes, MEMORY_SHARE, by_length):
            tried.append(BatchTried(size, seconds or {}, reason))
            if not reason:
                _log.info(
                    "batch %d: %.1f ms per utterance", size, 1000 * tried[-1].mean_s
                )

        search = Search(tried, sorted(lengths_s), CLIFF_TOLERANCE)
        if search.fastest is None:
            raise RunError(
                "No batch size fits into memory; start with a smaller one. Received: "
                f"DeepMarkConfig.search_batches = {sizes}: {tried[0].reason}."
            )

        return search

    def _utterance_s(self, length_s: int, size: int) -> float:
        """Returns the seconds per utterance of one length in a batch of this size."""
        batch = self._placed(length_s, size)
        for _ in range(WARMUP_STEPS):
            self._stepper.gradients(batch)

        self.warmups += WARMUP_STEPS
        gradients = self._stepper.gradients
        seconds = [seconds_of(gradients, batch) for _ in range(SEARCH_ROUNDS)]

        return statistics.median(seconds) / size

    def _length(self, length_s: int, sizes: Sequence[int]) -> Passes:
        """Times all batches of one length, each with so many utterances.

        Batches of equal size are the same one, whose first passes are not timed.
        """
        batches = {size: self._placed(length_s, size) for size in dict.fromkeys(sizes)}
        for size, batch in batches.items():
            for _ in range(WARMUP_STEPS):
                self._passes(length_s, size, batch)

        self.warmups += len(batches) * WARMUP_STEPS
        passes = summed([self._passes(length_s, size, batches[size]) for size in sizes])
        if passes.batches:
            _log.info(
                "%2d s: %d batches, %.0f ms each",
                length_s,
                passes.batches,
                passes.means_ms["total_ms"],
            )

        return passes

    def _passes(self, length_s: int, size: int, batch: Batch) -> Passes:
        """Times one batch: the forward pass, the backward pass, and both in one step.

        Several devices can't wait in between, so their backward pass is what remains.
        """
        apart = self._stepper.apart(batch)
        if apart is None:
            forward_s = seconds_of(self._stepper.forward, batch)
            total_s = seconds_of(self._stepper.gradients, batch)
            backward_s = total_s - forward_s
        else:
            forward_s, backward_s = apart
            total_s = seconds_of(self._stepper.gradients, batch)

        return Passes(length_s * size, size, 1, forward_s, backward_s, total_s)

    def _placed(self, length_s: int, size: int) -> Batch:
        """Returns a batch of utterances of one length on the device."""
        features, labels = self._block.cut(length_s, size)
        frames = np.full(size, output_frames(features.shape[1]), np.int32)
        label_lengths = np.full(size, labels.shape[1], np.int32)
        targets = (frames, labels, label_lengths)

        return self._stepper.place(Batch((features,), targets))


# DeepMark's issue 1: name, devices, batch per device; forward, backward and total ms;
# utterances/s, audio s/s, seconds per epoch.
PUBLISHED = (
    ("1 Titan (Torch), published", 1, 32, 83, 72, 154, 32, 189, 4013),
    ("4 Titan (Torch), published", 4, 32, 99, 81, 180, 106, 632, 1204),
)


def deepmark_tables(
    measured,
    search: Search | None,
    backend: str,
    parameters: int,
    warmup_steps: int,
    visible_gpus,
) -> list[Table]:
    """Returns the tables of the search, of each length, and of the whole.

    The last one has DeepMark's published figures below this machine's.

    Args:
        measured: of one device, then of several if they were measured.
        search: the batch sizes that were compared; None without a search.
        backend: of Keras.
        parameters: trainable ones.
        warmup_steps: untimed passes of all measurements.
        visible_gpus: how many GPUs TensorFlow could use.
    """
    notes = [
        *_notes(measured, parameters, warmup_steps),
        _scaling(measured, visible_gpus),
    ]
    runs = [_here(m, measured[0], backend) for m in measured]

    for name, devices, batch, *figures in PUBLISHED:
        scaling = figures[3] / PUBLISHED[0][6] if devices > 1 else None

        runs.append((name, devices, batch, None, *map(str, figures), scaling))

    tables = [_length_table(measurement) for measurement in measured]
    if search is not None:
        tables.insert(0, _search_table(search))

    title = "DeepMark Deep Speech 2: means over all batches"
    tables.append(
        table_of(title, columns_of_tuples(_SUMMARY, fixed(2), 4), runs, notes)
    )

    return tables


def _search_table(search: Search) -> Table:
    """Returns a line per batch size, with what became of it."""

    def fate(row: dict[str, Any]) -> str:
        if row["batch"] == search.fastest.batch:
            return "fastest"

        return fate_of(row)

    columns = [
        Column("batch", "", "batch"),
        Column("ms per\nutterance", "", "utterance_s", milliseconds),
        Column("audio s/s", "", "audio_s_per_s", "{:.4g}".format),
        Column("epoch, s", "", "epoch_s", fixed(0)),
        Column("fate", "", fate),
    ]
    lengths = ", ".join(map(str, search.lengths_s))
    note = (
        f"Forward and backward, batches of utterances of {lengths} s, weighted like "
        f"DeepMark's {NUM_UTTERANCES:,} utterances. Cliff: an utterance takes over "
        f"{100 * search.tolerance:g} % longer than in a smaller batch. Largest that ran: "
        f"{search.largest.batch}."
    )
    table = table_of("Search for the fastest batch", columns, search.sizes(), [note])

    # The last column needs no heading.
    return dataclasses.replace(table, columns=[*table.columns[:-1], ""])


def _length_table(run: DeepMarkMeasurement) -> Table:
    """Returns a line per length, and their sum."""

    def row(name: Any, passes: Passes, times: Iterable[str | None]) -> tuple:
        rates = (passes.utterances_per_s, passes.audio_s_per_s)
        return (name, passes.utterances, passes.batches, *times, *rates)

    overall = run.overall
    lengths = enumerate(run.lengths, 1)
    rows = [row(n, passes, map(_ms, passes.means_ms.values())) for n, passes in lengths]
    sums_s = (overall.forward_s, overall.backward_s, overall.total_s)
    rows.append(row("sum, s", overall, map(fixed(2), sums_s)))
    title = f"A batch of each length, {devices_text(run.num_devices)}"

    return table_of(title, columns_of_tuples(_BY_LENGTH, three_digits, 3), rows)


def _here(
    measurement: DeepMarkMeasurement,
    alone: DeepMarkMeasurement,
    backend: str,
) -> tuple:
    """Returns this machine's line above DeepMark's published ones.

    ``alone`` is the measurement of one device.
    """
    devices = measurement.num_devices
    overall = measurement.overall
    sizes = (devices, measurement.batch_size // devices, overall.batches)
    means = map(_ms, overall.means_ms.values())
    rates = map(three_digits, (overall.utterances_per_s, overall.audio_s_per_s))

    epoch_s = f"{measurement.epoch_s:.0f}"
    if not measurement.is_whole:
        epoch_s = f"~{epoch_s}"

    scaling = None
    if devices > 1:
        scaling = overall.utterances_per_s / alone.overall.utterances_per_s

    return (f"here ({backend})", *sizes, *means, *rates, epoch_s, scaling)


def _notes(
    measured: Sequence[DeepMarkMeasurement],
    parameters: int,
    warmups: int,
) -> list[str]:
    """Returns what was timed, and caveats about the rates and the published figures."""
    notes = [
        f"{parameters:,} trainable parameters. Not timed: {warmups} warm-up passes, which "
        "compile. Forward and backward are timed separately. Both: forward and backward as "
        "one step; all rates use this time. Weights are not updated, as in DeepMark.",
        "Published: DeepMark's figures. They contradict each other: 32 utterances/s in "
        "batches of 32 mean 1 s per batch, not 154 ms.",
    ]
    if any(measurement.num_devices > 1 for measurement in measured):
        notes.append(
            "On several devices, backward is both passes minus a separate forward pass."
        )

    if not measured[0].is_whole:
        notes.append(
            f"~: extrapolated from {measured[0].overall.utterances:,} utterances to the "
            f"{NUM_UTTERANCES:,} of an epoch, with each length's own seconds per utterance."
        )

    return notes


def _scaling(measured: Sequence[DeepMarkMeasurement], visible_gpus: int) -> str:
    """Returns the note about several devices."""
    scaling = (
        "Multi-device scaling: utterances per second relative to one device, with a full "
        "batch on each device."
    )
    if len(measured) > 1:
        if visible_gpus:
            return scaling

        return (
            f"{scaling} Here, devices are slices of one processor and share its cores."
        )

    verb = "is" if visible_gpus == 1 else "are"

    slices = "" if visible_gpus else ", as slices of the processor"

    return (
        f"{scaling} {UNKNOWN} for one device: {plural(visible_gpus, 'GPU')} {verb} "
        f"visible. Set DeepMarkConfig.num_devices to use more{slices}."
    )


def _ms(value: float | None) -> str | None:
    """Formats milliseconds with a digit after the point below 100."""
    if not value:
        return value
    if value < 100:
        return f"{value:.1f}"

    return f"{value:.0f}"


# Headings of the tables.
_BY_LENGTH = [
    "length, s",
    "utterances",
    "batches",
    "forward, ms",
    "backward, ms",
    "both, ms",
    "utterances/s",
    "audio s/s",
]
_SUMMARY = [
    "run",
    "devices",
    "batch per\ndevice",
    "batches",
    "forward\nms",
    "backward\nms",
    "both\nms",
    "utterances/s",
    "audio s/s",
    "epoch, s",
    "multi-device\nscaling",
]


def lengths_chart(measurement: DeepMarkMeasurement, backend: str) -> Chart:
    """Draws times per batch and audio seconds per second over the utterances' length."""
    lengths = enumerate(measurement.lengths, 1)
    run = {length_s: passes for length_s, passes in lengths if passes.utterances}
    means = [passes.means_ms for passes in run.values()]
    forward = [of_length["forward_ms"] for of_length in means]
    both_ms = [
        of_length["forward_ms"] + of_length["backward_ms"] for of_length in means
    ]
    audio = [passes.audio_s_per_s for passes in run.values()]
    zeros = [0.0] * len(run)
    at = np.array(list(run))

    def bars(
        low: Sequence[float], high: Sequence[float], colour: int, series=""
    ) -> Rects:
        return Rects(
            x0=at - 0.36,
            x1=at + 0.36,
            y0=low,
            y1=high,
            colour=run_colour(colour),
            series=series,
        )

    mean = measurement.overall.audio_s_per_s
    on = f"{backend}, {devices_text(measurement.num_devices)}"
    length_axis = Axis(
        "length of the utterances, s",
        limits=(0.3, 15.7),
        ticks=range(1, 16, 2),
        grid=False,
    )
    ms = f"ms per batch of up to {measurement.batch_size}"
    panels = [
        Panel(
            [bars(zeros, forward, 0, "forward"), bars(forward, both_ms, 1, "backward")],
            length_axis,
            Axis(ms, limits=(0, 1.05 * max(both_ms))),
        ),
        Panel(
            [bars(zeros, audio, 2), Rule(value=mean, label=f"all: {mean:.3g}")],
            length_axis,
            Axis(f"audio s per s ({on})", limits=(0, 1.05 * max(audio))),
        ),
    ]
    caption = (
        "DeepMark's Deep Speech 2: time per batch, and seconds of audio per second"
    )

    return Chart("ds2", caption, panels, columns=2, width=400)


def search_chart(search: Search, backend: str) -> Chart:
    """Draws milliseconds per utterance over the batch size."""
    ran = [row for row in search.sizes() if not row["reason"]]
    batches = [row["batch"] for row in ran]
    means = [1000 * row["utterance_s"] for row in ran]
    cliffs = [
        (n, ms) for n, ms, row in zip(batches, means, ran, strict=True) if row["cliff"]
    ]
    fastest = search.fastest
    best = chart.Points(
        x=[fastest.batch],
        y=[1000 * fastest.mean_s],
        symbol="star",
        size=26,
        colour=run_colour(2),
        series=f"fastest: {fastest.batch}",
    )

    marks = [
        *curve(batches, means, run_colour(0), f"forward and backward ({backend})"),
        best,
        *cliff_rings([batch for batch, _ in cliffs], [ms for _, ms in cliffs]),
    ]
    x = counts_axis("batch, utterances", batches, 1.2)
    y = Axis(
        "ms per utterance, mean over DeepMark's lengths", limits=(0, 1.1 * max(means))
    )
    caption = "Search for the fastest batch size"

    return Chart("ds2_search", caption, [Panel(marks, x, y)], width=620)


def run(network: DeepSpeech2Config, bench: DeepMarkConfig, context: Context) -> Result:
    """Measures one device and, if several are wanted, then all of them."""
    counts = utterance_counts(context.fraction)
    occurring = [
        length for length, count in zip(LENGTHS_S, counts, strict=True) if count
    ]
    longest_s = max(occurring)

    # A single size needs no search.
    searched = len(bench.search_batches) > 1
    compared = bench.search_lengths_s or tuple(occurring)
    if searched:
        longest_s = max(longest_s, *compared)

    # A processor can be split into devices only before anything is computed.
    strategy = make_strategy(bench.num_devices)
    timers = [DeepMarkTimer(network, bench, longest_s)]
    search = None
    size = bench.search_batches[0]
    if searched:
        search = timers[0].search(compared)
        size = search.fastest.batch
        _log.info("fastest batch: %d utterances", size)

    scaling = None
    measured = [timers[0].epoch(counts, size)]
    if strategy is not None:
        timers.append(DeepMarkTimer(network, bench, longest_s, strategy))
        measured.append(timers[1].epoch(counts, size))
        rates = [measurement.overall.utterances_per_s for measurement in measured]
        scaling = rates[1] / rates[0]

    parameters = timers[0].parameters
    warmups = sum(timer.warmups for timer in timers)
    backend = keras.backend.backend()
    gpus = visible_gpus()
    figures = {"ds2": lambda: lengths_chart(measured[-1], backend)}
    if search is not None:
        figures["ds2_search"] = lambda: search_chart(search, backend)

    return Result(
        tables=deepmark_tables(measured, search, backend, parameters, warmups, gpus),
        values={
            "parameters": parameters,
            "full_counts": [HUNDREDS * count for count in COUNTS],
            "search": search and search.to_json(),
            "runs": [measurement.to_json() for measurement in measured],
            "visible_gpus": gpus,
            "scaling": scaling,
        },
        warmup_steps=warmups,
        figures=figures,
    )


DS2 = Workload(run, (DeepSpeech2Config, DeepMarkConfig))
