"""Long recordings cut where it is quiet, with enough around each cut to clip no word."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

LONGEST_S = 16.0
CONTEXT_S = 0.5
# Over so long the energy is averaged: the quietest such stretch is a pause, not a stop consonant.
_PAUSE_S = 0.3
_BLOCK_S = 0.01


@dataclass(frozen=True)
class Segment:
    """A part of a recording that goes through the model in one piece."""

    samples: np.ndarray  # float32 (samples,)
    start_s: float  # where its first sample is in the recording
    from_s: float  # from here on, in the recording, words are not the segment's before
    to_s: float  # from here on they are the next one's


class PauseCutter:
    """Cuts a recording, given block by block, into segments that a model can hear at once.

    One that is short enough stays whole. A longer one is cut in the middle of the quietest 0.3 s
    of the second half of what fits. Each segment reaches half a second beyond its cuts, so that a
    word at a cut is heard whole by both of its neighbours; whose it is, the middle of the word
    decides.

    `longest_s` is of a segment, what is around its cuts included.
    """

    def __init__(self, sample_rate_hz: int, longest_s: float = LONGEST_S):
        self._rate_hz = sample_rate_hz
        self._longest = int(longest_s * sample_rate_hz)
        self._context = int(min(CONTEXT_S, longest_s / 8) * sample_rate_hz)
        self._blocks: list[np.ndarray] = []
        self._held = 0
        self._start = 0  # of what is held, in the recording
        self._from = 0  # of the segment that goes on, in the recording

    def push(self, samples: np.ndarray) -> list[Segment]:
        """Takes the next samples; returns the segments that are complete."""
        self._blocks.append(samples)
        self._held += len(samples)
        segments = []
        while self._held > self._longest:
            segments.append(self._cut())
        return segments

    def finish(self) -> list[Segment]:
        """Returns the last segment; none of a recording without samples."""
        held = self._all()
        if not len(held):
            return []
        return [self._segment(held, self._from, None)]

    def _cut(self) -> Segment:
        held = self._all()
        begun = self._from - self._start
        fits = self._longest - self._context
        cut = _quietest(held[:fits], (begun + fits) // 2, self._rate_hz)
        segment = self._segment(held[: cut + self._context], self._from, self._start + cut)
        self._from = self._start + cut
        kept = max(cut - self._context, 0)
        self._blocks, self._held = [held[kept:].copy()], len(held) - kept
        self._start += kept
        return segment

    def _segment(self, samples: np.ndarray, start: int, end: int | None) -> Segment:
        from_s = start / self._rate_hz if start else -np.inf
        to_s = np.inf if end is None else end / self._rate_hz
        return Segment(samples, self._start / self._rate_hz, from_s, to_s)

    def _all(self) -> np.ndarray:
        if len(self._blocks) != 1:
            self._blocks = [np.concatenate([np.zeros(0, np.float32), *self._blocks])]
        return self._blocks[0]


def cut_segments(
    blocks: Iterable[np.ndarray], sample_rate_hz: int, count: Callable[[float], None]
) -> Iterator[Segment]:
    """Yields the segments of a recording of float32 blocks; ``count`` gets each block's seconds."""
    cutter = PauseCutter(sample_rate_hz)
    for block in blocks:
        count(len(block) / sample_rate_hz)
        yield from cutter.push(block)
    yield from cutter.finish()


def _quietest(samples: np.ndarray, earliest: int, rate_hz: int) -> int:
    """Returns the middle of the quietest stretch whose middle is not before ``earliest``."""
    block = max(int(_BLOCK_S * rate_hz), 1)
    count = len(samples) // block
    power = np.square(samples[: count * block].reshape(count, block), dtype=np.float64).mean(axis=1)
    level = np.log(power + 1e-9)
    width = min(int(_PAUSE_S / _BLOCK_S), count)
    sums = np.cumsum(np.append(0.0, level))
    stretches = sums[width:] - sums[:-width]  # stretch i: blocks i .. i + width
    first = min(max(earliest // block - width // 2, 0), len(stretches) - 1)
    # Of several equally quiet ones, as in digital silence, the last: segments are long.
    last_quietest = len(stretches) - 1 - int(np.argmin(np.round(stretches[first:][::-1], 6)))
    return (last_quietest + width // 2) * block
