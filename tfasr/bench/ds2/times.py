"""What the DeepMark speech benchmark measured: by length, in sum, and for a whole epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfasr.bench.ds2.data import COUNTS, HUNDREDS, LENGTHS_S, NUM_UTTERANCES


@dataclass(frozen=True)
class LengthMeasurement:
    """The batches of utterances of one length.

    Attributes:
        length_s: seconds of an utterance.
        sizes: utterances of each batch; empty where the fraction left none.
        forward_s: seconds that the network and the loss took forward, for each batch.
        backward_s: seconds that the gradients took after that, for each batch.
        total_s: seconds of forward and backward in one step, for each batch.
    """

    length_s: int
    sizes: Sequence[int]
    forward_s: Sequence[float]
    backward_s: Sequence[float]
    total_s: Sequence[float]

    @property
    def utterances(self) -> int:
        """Utterances of this length."""
        return sum(self.sizes)

    def means_ms(self) -> tuple[float, float, float] | None:
        """Returns milliseconds a batch, forward, backward and both; None without a batch."""
        return _means_ms([self])

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values."""
        forward_ms, backward_ms, total_ms = self.means_ms() or (None, None, None)
        return {
            "length_s": self.length_s,
            "utterances": self.utterances,
            "batches": len(self.sizes),
            "forward_ms": forward_ms,
            "backward_ms": backward_ms,
            "total_ms": total_ms,
        }


@dataclass(frozen=True)
class DeepMarkMeasurement:
    """An epoch, or the fraction of one, on some devices.

    Attributes:
        batch_size: utterances of a full batch, over all devices.
        num_devices: devices.
        lengths: 1, 2, ... 15 s.
        timed_apart: whether the backward pass has a time of its own; otherwise it is forward and
            backward together, less a forward pass alone.
    """

    batch_size: int
    num_devices: int
    lengths: Sequence[LengthMeasurement]
    timed_apart: bool = True

    @property
    def num_batches(self) -> int:
        """Batches that were run."""
        return sum(len(length.sizes) for length in self.lengths)

    @property
    def utterances(self) -> int:
        """Utterances that were run."""
        return sum(length.utterances for length in self.lengths)

    @property
    def audio_s(self) -> int:
        """Seconds of audio that were run."""
        return sum(length.length_s * length.utterances for length in self.lengths)

    @property
    def forward_s(self) -> float:
        """Seconds forward, over all batches."""
        return sum(sum(length.forward_s) for length in self.lengths)

    @property
    def backward_s(self) -> float:
        """Seconds backward, over all batches."""
        return sum(sum(length.backward_s) for length in self.lengths)

    @property
    def total_s(self) -> float:
        """Seconds forward and backward in one step, over all batches."""
        return sum(sum(length.total_s) for length in self.lengths)

    @property
    def utterances_per_s(self) -> float:
        """Utterances forward and backward, per second."""
        return self.utterances / self.total_s

    @property
    def is_whole(self) -> bool:
        """Whether all 128 000 utterances were run."""
        return self.utterances == NUM_UTTERANCES

    @property
    def epoch_s(self) -> float:
        """Seconds of an epoch of 128 000 utterances, extrapolated unless all were run.

        Each length counts with its own seconds an utterance; a length of which none was run, with
        the seconds a second of audio of all others together.
        """
        a_second = self.total_s / self.audio_s
        return sum(
            HUNDREDS
            * count
            * (
                sum(length.total_s) / length.utterances
                if length.utterances
                else a_second * length_s
            )
            for length_s, count, length in zip(LENGTHS_S, COUNTS, self.lengths, strict=True)
        )

    def means_ms(self) -> tuple[float, float, float]:
        """Returns milliseconds a batch over all lengths: forward, backward and both."""
        return _means_ms(self.lengths)

    def scaling(self, alone: "DeepMarkMeasurement") -> float:
        """Returns how many times one device's utterances per second these are."""
        return self.utterances_per_s / alone.utterances_per_s

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values."""
        forward_ms, backward_ms, total_ms = self.means_ms()
        return {
            "num_devices": self.num_devices,
            "batch_size": self.batch_size,
            "batches": self.num_batches,
            "utterances": self.utterances,
            "audio_s": self.audio_s,
            "forward_ms": forward_ms,
            "backward_ms": backward_ms,
            "total_ms": total_ms,
            "timed_apart": self.timed_apart,
            "forward_s": self.forward_s,
            "backward_s": self.backward_s,
            "total_s": self.total_s,
            "utterances_per_s": self.utterances_per_s,
            "audio_s_per_s": self.audio_s / self.total_s,
            "epoch_s": self.epoch_s,
            "epoch_is_extrapolated": not self.is_whole,
            "lengths": [length.to_json() for length in self.lengths],
        }


def _means_ms(lengths: Sequence[LengthMeasurement]) -> tuple[float, float, float] | None:
    batches = sum(len(length.sizes) for length in lengths)
    if not batches:
        return None
    return tuple(
        1000 * sum(sum(getattr(length, name)) for length in lengths) / batches
        for name in ("forward_s", "backward_s", "total_s")
    )
