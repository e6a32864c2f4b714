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
    """Returns ``(batch, time, channels)`` with zeros where a frame belongs to no utterance.

    A convolution that looks beyond an utterance's end sees there what a batch of one would show it.
    """
    return keras.ops.where(valid[:, :, None], hidden, keras.ops.zeros_like(hidden))
