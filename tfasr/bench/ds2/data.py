"""The synthetic data set of the DeepMark speech benchmark: lengths, batches, random numbers."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

# Utterances of 1, 2, ... 15 s in every hundred, and the labels of each.
COUNTS = (3, 10, 11, 13, 14, 13, 9, 8, 5, 4, 3, 2, 2, 2, 1)
LABEL_LENGTHS = (7, 17, 35, 48, 62, 78, 93, 107, 120, 134, 148, 163, 178, 193, 209)
LENGTHS_S = tuple(range(1, len(COUNTS) + 1))
HUNDREDS = 1280
NUM_UTTERANCES = HUNDREDS * sum(COUNTS)
FRAMES_PER_S = 100


def utterance_counts(fraction: float) -> list[int]:
    """Returns how many utterances there are of 1, 2, ... 15 s.

    A share that is no whole number is rounded by the largest remainder: all are rounded down, and
    the utterances that are then missing go to the lengths that lost most; of equals, the shorter.

    Args:
        fraction: share of the 128 000 utterances, above 0 and at most 1; at least one is left.

    Source: the counts, DeepMark issue 1; the rounding, its torch/audio/Dataset.lua.
    """
    total = max(1, round(Fraction(fraction) * NUM_UTTERANCES))
    shares = [Fraction(count * total, sum(COUNTS)) for count in COUNTS]
    counts = [math.floor(share) for share in shares]
    by_loss = sorted(range(len(counts)), key=lambda index: counts[index] - shares[index])
    for index in by_loss[: total - sum(counts)]:
        counts[index] += 1
    return counts


def batch_sizes(count: int, batch_size: int) -> list[int]:
    """Returns the sizes of the batches of one length: all full, but for the last."""
    sizes = [batch_size] * (count // batch_size)
    return [*sizes, count % batch_size] if count % batch_size else sizes


def epoch_batches(counts: Sequence[int], batch_size: int) -> Iterator[tuple[int, int]]:
    """Yields length in seconds and size of each batch of an epoch, from short to long."""
    for length_s, count in zip(LENGTHS_S, counts, strict=True):
        for size in batch_sizes(count, batch_size):
            yield length_s, size


class RandomBlock:
    """Random numbers drawn once, from which every batch is cut; a larger batch repeats them.

    Args:
        batch_size: utterances that are drawn.
        num_bins: features of a frame.
        num_labels: labels to draw from, 0 first; the blank is not among them.
        longest_s: seconds of the longest utterance.
        seed: of the random numbers.
    """

    def __init__(self, batch_size: int, num_bins: int, num_labels: int, longest_s: int, seed: int):
        random = np.random.default_rng(seed)
        frames = FRAMES_PER_S * longest_s
        self._features = random.standard_normal((batch_size, frames, num_bins), np.float32)
        labels = (batch_size, LABEL_LENGTHS[longest_s - 1])
        self._labels = random.integers(0, num_labels, labels, np.int32)

    def cut(self, length_s: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns features ``(size, frames, num_bins)`` and labels ``(size, labels)``."""
        rows = np.arange(size) % len(self._labels)
        labels = self._labels[rows, : LABEL_LENGTHS[length_s - 1]]
        return self._features[rows, : FRAMES_PER_S * length_s], labels
