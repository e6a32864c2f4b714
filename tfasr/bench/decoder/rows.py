"""What one decoder at one beam width costs, and what it hears."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfasr.decoding.choice import DECODERS, DecoderConfig
from tfasr.metrics import ErrorCounts


@dataclass(frozen=True)
class DecoderMeasurement:
    """One decoder at one beam width.

    Attributes:
        build_s: wall-clock seconds to make the decoder, its dictionary included.
        cpu_s: processor seconds of one pass over all utterances, of all threads together.
        wall_s: wall-clock seconds of the same.
        passes: how many were measured; the seconds are their medians.
        audio_hours: hours of audio of all utterances.
        counts: errors and rates.
        peak_memory_mib: the most that the measuring process ever held; None where it cannot be
            told.
        memory_before_mib: the most that it held before the decoder was made.
    """

    build_s: float
    cpu_s: float
    wall_s: float
    passes: int
    audio_hours: float
    counts: ErrorCounts
    peak_memory_mib: float | None = None
    memory_before_mib: float | None = None

    @property
    def cpu_s_per_audio_hour(self) -> float:
        """Processor seconds for an hour of audio."""
        return self.cpu_s / self.audio_hours

    @property
    def wall_s_per_audio_hour(self) -> float:
        """Wall-clock seconds for an hour of audio."""
        return self.wall_s / self.audio_hours


@dataclass(frozen=True)
class DecoderRow:
    """A decoder of the comparison, and what was measured."""

    config: DecoderConfig
    measured: DecoderMeasurement

    @property
    def label(self) -> str:
        """The decoder's name, for readers."""
        return decoder_label(self.config)

    @property
    def beam_width(self) -> int | None:
        """Hypotheses kept per frame; None of a decoder without a beam."""
        return self.config.beam_width if DECODERS[self.config.name].has_beam else None

    def to_json(self) -> dict[str, Any]:
        """Returns one flat JSON object; rates as fractions, null for what could not be told."""
        measured = self.measured
        return {
            "decoder": self.config.name,
            "beam_width": self.beam_width,
            "recombine": self.config.recombine,
            "cpu_s_per_audio_hour": measured.cpu_s_per_audio_hour,
            "wall_s_per_audio_hour": measured.wall_s_per_audio_hour,
            **measured.counts.to_json(),
            "peak_memory_mib": measured.peak_memory_mib,
            "memory_before_mib": measured.memory_before_mib,
            "build_s": measured.build_s,
            "cpu_s": measured.cpu_s,
            "wall_s": measured.wall_s,
            "passes": measured.passes,
        }


def decoder_label(config: DecoderConfig) -> str:
    """Returns what tables and figures call a decoder, beam width aside."""
    kind = DECODERS[config.name]
    recombined = ", recombined" if kind.recombines and config.recombine else ""
    return (kind.label or config.name) + recombined


def decoder_configs(
    decoders: Sequence[str], beam_widths: Sequence[int], *, recombine: bool = False
) -> list[DecoderConfig]:
    """Returns all decoders to be measured: greedy decoding once, others at each beam width.

    Args:
        decoders: of `tfasr.decoding.choice.DECODERS`, in the order of the table.
        beam_widths: each at least 1.
        recombine: whether what can recombine is also measured with recombination.

    Raises:
        ValueError: if a name or a beam width is none.
    """
    strange = [name for name in decoders if name not in DECODERS]
    if strange:
        raise ValueError(f"Decoders must be some of {DECODERS.listed()}. Received: {strange}.")
    configs = []
    for name in dict.fromkeys(decoders):
        kind = DECODERS[name]
        widths = sorted(set(beam_widths)) if kind.has_beam else [1]
        ways = (False, True) if kind.recombines and recombine else (False,)
        configs += [
            DecoderConfig(name=name, beam_width=width, recombine=way)
            for way in ways
            for width in widths
        ]
    return configs
