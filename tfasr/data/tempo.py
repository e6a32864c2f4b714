"""Tempo perturbation of features: an utterance's frames drawn out or drawn together."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


def most_frames(frames: Any, change: float) -> Any:
    """Returns a bound on the frames that an utterance may have at the slowest tempo.

    Args:
        frames: its own: an int, or an array.
        change: of `Tempo`; 0 leaves all as they are.
    """
    return np.floor(np.multiply(frames, 1 + change)).astype(np.int64) + 1 if change else frames


def least_frames(frames: Any, change: float) -> Any:
    """Returns a bound on the frames at the fastest tempo; see `most_frames`."""
    return np.ceil(np.multiply(frames, 1 - change)).astype(np.int64) - 1 if change else frames


class Tempo:
    """Draws how many frames an utterance gets, and resamples its own to them.

    It is the tempo of speed perturbation (T. Ko et al., Audio augmentation for speech recognition,
    Interspeech 2015), but of features and not of the waveform: frames are interpolated linearly,
    and pitch and formants stay where they are, which resampled sound moves with its speed.

    Args:
        change: frames become between ``1 - change`` and ``1 + change`` times as many, evenly.
        output_lengths: of the model's config; no utterance gets fewer output frames than CTC needs
            for its labels.
        longest: frames of the split's longest utterance.
    """

    def __init__(self, change: float, output_lengths: Callable[[Any], Any], longest: int):
        self._change = change
        outputs = np.asarray(output_lengths(np.arange(1, longest + 1, dtype=np.int32)))
        # Of a length and all above it, should a model have fewer for more.
        outputs = np.minimum.accumulate(outputs[::-1])[::-1]
        needed = np.arange(max(int(outputs[-1]), 0) + 1)
        # By output frames: the feature frames from which on there are so many.
        self._least = (np.searchsorted(outputs, needed) + 1).astype(np.int32)

    def frames(self, frames: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns how many frames an utterance gets.

        Args:
            frames: int32: its own.
            labels: int32 ``(labels,)``, without padding.
            seed: integers ``(2,)``; the same seed gives the same.
        """
        span = (1 - self._change, 1 + self._change)
        # Another seed than those of the masks, see `tfasr.data.augmentation.augment`.
        factor = tf.random.stateless_uniform([], seed + 2, *span)
        drawn = tf.cast(tf.round(factor * tf.cast(frames, tf.float32)), tf.int32)
        # CTC needs a blank between two equal labels.
        needed = tf.size(labels) + tf.math.count_nonzero(labels[1:] == labels[:-1], dtype=tf.int32)
        least = tf.gather(self._least, tf.minimum(needed, len(self._least) - 1))
        return tf.maximum(drawn, tf.minimum(least, frames))

    def ranges(self, frames: np.ndarray, needed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns bounds on the frames of utterances, the fewest and the most.

        Args:
            frames: their own, int64 ``(utterances,)``.
            needed: output frames that their labels need, likewise.
        """
        least = self._least[np.minimum(needed, len(self._least) - 1)]
        fewest = np.maximum(least_frames(frames, self._change), np.minimum(least, frames))
        return fewest, most_frames(frames, self._change)


def resampled(features: tf.Tensor, frames: tf.Tensor) -> tf.Tensor:
    """Returns features ``(frames, num_features)`` at evenly spaced places of an utterance.

    Args:
        features: float32 ``(own frames, num_features)``.
        frames: how many places; the first and the last are the utterance's own.
    """
    last = tf.shape(features)[0] - 1
    step = tf.cast(last, tf.float32) / tf.cast(tf.maximum(frames - 1, 1), tf.float32)
    places = tf.cast(tf.range(frames), tf.float32) * step
    before = tf.minimum(tf.cast(places, tf.int32), last)
    weight = (places - tf.cast(before, tf.float32))[:, None]
    return (1 - weight) * tf.gather(features, before) + weight * tf.gather(
        features, tf.minimum(before + 1, last)
    )
