"""Gradients of a batch computed in parts, one after the other, so that only one needs memory."""

from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tfasr.data.pipeline import Batch

Compute = Callable[[Batch, tf.Tensor], tuple[tf.Tensor, list[tf.Tensor]]]


def accumulate(
    batch: Batch,
    parts: int,
    compute: Compute,
    shapes: Sequence[tuple[int, ...]],
    *,
    unroll: bool = False,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Sums the gradients of a batch's parts.

    Args:
        batch: at least one utterance.
        parts: how many parts are made of it, as far as there are so many utterances.
        compute: takes a part and the weight of each of its utterances; returns their losses
            ``(part,)`` and the gradients of the weighted losses' sum.
        shapes: the gradients'.
        unroll: whether the parts stand one after the other in the graph, instead of in a loop: in
            the context of a mirrored replica nothing else may update a variable.

    Returns:
        The losses ``(batch,)`` and the sums of the gradients: those of the losses' mean, whatever
        the sizes of the parts.
    """
    utterances = tf.shape(batch["feature_lengths"])[0]
    weight = 1.0 / tf.cast(utterances, tf.float32)
    if unroll:
        return _unrolled(batch, utterances, parts, weight, compute)
    parts = tf.minimum(parts, utterances)

    def add(number, losses, sums):
        start, stop = number * utterances // parts, (number + 1) * utterances // parts
        part_losses, gradients = compute(_rows(batch, start, stop), weight)
        sums = [total + gradient for total, gradient in zip(sums, gradients, strict=True)]
        return number + 1, losses.write(number, part_losses), sums

    losses = tf.TensorArray(tf.float32, parts, element_shape=[None], infer_shape=False)
    _, losses, sums = tf.while_loop(
        lambda number, *_: number < parts,
        add,
        (tf.constant(0), losses, [tf.zeros(shape) for shape in shapes]),
        parallel_iterations=1,
    )
    return losses.concat(), sums


def _unrolled(
    batch: Batch, utterances: tf.Tensor, parts: int, weight: tf.Tensor, compute: Compute
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    losses, sums = [], []
    for start, stop in _bounds(utterances, parts):
        # A part must not begin before the one before has left its memory.
        with tf.control_dependencies(sums):
            # Where there are fewer utterances than parts, one that counts for nothing fills in.
            empty = tf.equal(start, stop)
            first = tf.minimum(start, utterances - 1)
            rows = _rows(batch, first, tf.where(empty, first + 1, stop))
            part_losses, gradients = compute(rows, tf.where(empty, 0.0, weight))
        losses.append(part_losses[: stop - start])
        sums = [a + b for a, b in zip(sums, gradients, strict=True)] if sums else gradients
    return tf.concat(losses, axis=0), sums


def _bounds(utterances: tf.Tensor, parts: int) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    for number in range(parts):
        yield number * utterances // parts, (number + 1) * utterances // parts


def _rows(batch: Batch, start: tf.Tensor, stop: tf.Tensor) -> Batch:
    return {name: value[start:stop] for name, value in batch.items()}
