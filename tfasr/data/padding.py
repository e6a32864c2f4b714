"""Batches of utterances of similar lengths, padded to one of a few lengths."""

from dataclasses import dataclass

import tensorflow as tf

Element = dict[str, tf.Tensor]


@dataclass(frozen=True)
class Padding:
    """Groups utterances into batches and pads each batch to its bucket's longest.

    Elements hold ``feature_lengths``, and where they are padded also ``features`` and ``labels``.

    Args:
        boundaries: the longest lengths of the buckets, ascending.
        batch_size: utterances of a batch; the last of a bucket may have fewer.
        frames: of all batches; None where buckets differ.
    """

    boundaries: list[int]
    batch_size: int
    num_features: int
    frames: int | None

    def bucket_of(self, frames: tf.Tensor) -> tf.Tensor:
        """Returns the number of the bucket, int64, of an utterance of so many frames."""
        boundaries = tf.constant(self.boundaries, tf.int64)
        frames = tf.cast(frames, tf.int64)
        return tf.searchsorted(boundaries, frames[None], out_type=tf.int64)[0]

    def batches(self, elements: tf.data.Dataset) -> tf.data.Dataset:
        """Returns padded batches, each as soon as its bucket has enough utterances."""
        grouped = elements.group_by_window(
            self._bucket,
            lambda bucket, window: self._padded(window, bucket),
            window_size=self.batch_size,
        )
        # Shapes given as tensors leave no static ones behind.
        return grouped.map(self._with_static_shapes)

    def unpadded(self, elements: tf.data.Dataset) -> tf.data.Dataset:
        """Returns batches of the same utterances as `batches`, of elements without features."""
        return elements.group_by_window(
            self._bucket,
            lambda _, window: window.batch(self.batch_size),
            window_size=self.batch_size,
        )

    def one_batch(self, elements: tf.data.Dataset, longest: tf.Tensor) -> tf.data.Dataset:
        """Returns some utterances as one batch, padded as one whose longest has so many frames."""
        return self._padded(elements, self.bucket_of(longest)).map(self._with_static_shapes)

    def _bucket(self, element: Element) -> tf.Tensor:
        return self.bucket_of(element["feature_lengths"])

    def _padded(self, elements: tf.data.Dataset, bucket: tf.Tensor) -> tf.data.Dataset:
        shapes = dict.fromkeys(elements.element_spec, tf.constant([], tf.int64))
        shapes["labels"] = tf.constant([-1], tf.int64)
        frames = tf.gather(tf.constant(self.boundaries, tf.int64), bucket)
        shapes["features"] = tf.stack([frames, self.num_features])
        return elements.padded_batch(self.batch_size, shapes)

    def _with_static_shapes(self, batch: Element) -> Element:
        shapes = {
            "features": [None, self.frames, self.num_features],
            "labels": [None, None],
        }
        return {
            name: tf.ensure_shape(value, shapes.get(name, [None])) for name, value in batch.items()
        }
