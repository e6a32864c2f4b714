"""Which frames of a padded batch belong to their utterances, and how to keep the others out."""

import keras


def valid_frames(hidden, lengths):
    """Returns booleans ``(batch, time)``: whether a frame belongs to its utterance.

    Args:
        hidden: ``(batch, time, ...)``.
        lengths: int32 ``(batch,)``: how many do.
    """
    steps = keras.ops.arange(keras.ops.shape(hidden)[1], dtype="int32")
    return steps[None, :] < keras.ops.cast(lengths, "int32")[:, None]


def without_padding(hidden, valid):
    """Returns values with zeros where a frame belongs to no utterance.

    A convolution that looks beyond an utterance's end sees there what a batch of one would show it.

    Args:
        hidden: ``(batch, time, ...)``.
        valid: booleans ``(batch, time)``.
    """
    of_frames = valid[(..., *(None for _ in hidden.shape[2:]))]
    return keras.ops.where(of_frames, hidden, keras.ops.zeros_like(hidden))


def widened(hidden, valid, before: int, after: int):
    """Returns values without padding and with frames of zeros around them, for a convolution.

    Args:
        hidden: ``(batch, time, ...)``.
        valid: booleans ``(batch, time)``; None if all frames belong to their utterances.
        before: frames of zeros before the first.
    """
    hidden = hidden if valid is None else without_padding(hidden, valid)
    if not before and not after:
        return hidden
    return keras.ops.pad(hidden, ((0, 0), (before, after), *((0, 0) for _ in hidden.shape[2:])))
