"""A loss of your own: CTC with label smoothing, which keeps a model from being too sure.

tfasr train --import examples/own_loss.py --gin_binding "TrainingConfig.loss = 'smoothed_ctc'"
"""

import tensorflow as tf

from tfasr.training.ctc import LOSSES, ctc_loss

SMOOTHING = 0.05


@LOSSES.register("smoothed_ctc")
def smoothed_ctc(
    logits: tf.Tensor,
    logit_lengths: tf.Tensor,
    labels: tf.Tensor,
    label_lengths: tf.Tensor,
) -> tf.Tensor:
    """Returns each utterance's loss, float32 ``(batch,)``.

    It is CTC's, mixed with the cross entropy between the uniform distribution and each
    frame's. Source: S. Kim et al., Improved training for online end-to-end speech
    recognition systems, 2018.
    """
    # (batch, frames, classes)
    log_probs = tf.nn.log_softmax(tf.cast(logits, tf.float32))
    # (batch, frames)
    valid = tf.sequence_mask(logit_lengths, tf.shape(logits)[1], tf.float32)
    from_uniform = -tf.reduce_sum(tf.reduce_mean(log_probs, axis=-1) * valid, axis=1)
    exact = ctc_loss(logits, logit_lengths, labels, label_lengths)
    return (1 - SMOOTHING) * exact + SMOOTHING * from_uniform
