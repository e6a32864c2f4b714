"""Batch sizes at which an utterance takes longer than it does in a smaller batch."""

from collections.abc import Sequence


def is_cliff(
    batch: int,
    utterance_s: float | None,
    others: Sequence[tuple[int, float | None]],
    tolerance: float,
) -> bool:
    """Returns whether an utterance takes longer in a batch of this size than in a smaller one.

    Args:
        batch: utterances.
        utterance_s: seconds for each of them; None where it was not run.
        others: sizes of batches and seconds for each utterance, as far as they were run.
        tolerance: the largest relative slowdown of an utterance that is no cliff.

    Source: the remarks on batches of 9 and of 96 in the thread on DeepMark's Deep Speech 2.
    """
    if utterance_s is None:
        return False
    smaller = [seconds for size, seconds in others if size < batch and seconds is not None]
    return bool(smaller) and utterance_s > min(smaller) * (1 + tolerance)
