"""The exchange of gradients between workers: what is sent, and where it is summed."""

import math
from collections.abc import Sequence

import keras
import tensorflow as tf


def summed_over_workers(
    gradients: Sequence[tf.Tensor | None], exchange: str = "float32"
) -> list[tf.Tensor | None]:
    """Returns the sums of all workers' gradients, the same on all of them.

    They travel as one buffer, round the ring of the workers. Must be called in a replica's context.

    Args:
        gradients: this worker's; None for a variable that the loss does not depend on.
        exchange: "float32", or "bfloat16": then each worker rounds its own gradients to 8 bits of
            mantissa, and so is each partial sum on its way round the ring. The sums come back in
            the gradients' own type, in which they are clipped and applied.
    """
    own = [gradient for gradient in gradients if gradient is not None]
    sent = [tf.cast(gradient, exchange) for gradient in own]
    context = tf.distribute.get_replica_context()
    totals = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, sent))
    return [
        None if gradient is None else tf.cast(next(totals), gradient.dtype)
        for gradient in gradients
    ]


def exchanged_bytes(variables: Sequence[keras.Variable], exchange: str) -> int:
    """Returns how many bytes of gradients each worker has and all sum up in a step."""
    return sum(math.prod(variable.shape) for variable in variables) * tf.as_dtype(exchange).size
