"""The search for the fastest batch: sizes compared over the distribution of lengths, and cliffs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfasr.bench.ds2.data import COUNTS, LENGTHS_S, NUM_UTTERANCES
from tfasr.bench.probes.cliffs import is_cliff

_AUDIO_S = sum(n * s for n, s in zip(COUNTS, LENGTHS_S, strict=True)) / sum(COUNTS)


@dataclass(frozen=True)
class BatchTried:
    """A size of a batch, forward and backward.

    Attributes:
        batch: utterances.
        utterance_s: seconds for an utterance of each measured length, by its seconds of audio;
            empty where it was not run.
        reason: why it was not run, or "".
    """

    batch: int
    utterance_s: dict[int, float]
    reason: str = ""

    @property
    def mean_s(self) -> float | None:
        """Seconds for an utterance, the mean over DeepMark's lengths; None where it was not run.

        Seconds for a second of audio, which hardly depend on the length, are interpolated between
        the measured lengths and taken from the nearest one beyond them.
        """
        if not self.utterance_s:
            return None
        lengths = sorted(self.utterance_s)
        rates = [self.utterance_s[length] / length for length in lengths]
        per_audio_s = np.interp(LENGTHS_S, lengths, rates)
        return float(np.average(per_audio_s * LENGTHS_S, weights=COUNTS))

    @property
    def audio_s_per_s(self) -> float | None:
        """Seconds of audio per second."""
        return None if self.mean_s is None else _AUDIO_S / self.mean_s

    @property
    def epoch_s(self) -> float | None:
        """Seconds of an epoch of 128 000 utterances."""
        return None if self.mean_s is None else NUM_UTTERANCES * self.mean_s


@dataclass(frozen=True)
class Search:
    """All sizes that were tried, growing.

    Attributes:
        tried: the sizes.
        lengths_s: on which they were compared.
        tolerance: the largest relative slowdown of an utterance that is no cliff.
    """

    tried: Sequence[BatchTried]
    lengths_s: Sequence[int]
    tolerance: float

    @property
    def fastest(self) -> BatchTried | None:
        """The size with the least seconds for an utterance; None if none has run."""
        ran = [one for one in self.tried if one.mean_s is not None]
        return min(ran, key=lambda one: one.mean_s, default=None)

    @property
    def largest(self) -> BatchTried | None:
        """The largest size that has run."""
        return next((one for one in reversed(self.tried) if one.mean_s is not None), None)

    def cliff(self, one: BatchTried) -> bool:
        """Returns whether an utterance takes longer in it than in a smaller batch."""
        others = [(other.batch, other.mean_s) for other in self.tried]
        return is_cliff(one.batch, one.mean_s, others, self.tolerance)

    def to_json(self) -> dict:
        """Returns JSON values."""
        return {
            "lengths_s": list(self.lengths_s),
            "fastest": self.fastest and self.fastest.batch,
            "largest": self.largest and self.largest.batch,
            "sizes": [
                {
                    "batch": one.batch,
                    "utterance_s": one.mean_s,
                    "audio_s_per_s": one.audio_s_per_s,
                    "epoch_s": one.epoch_s,
                    "cliff": self.cliff(one),
                    "reason": one.reason,
                    "utterance_s_by_length": {str(k): v for k, v in one.utterance_s.items()},
                }
                for one in self.tried
            ],
        }
