"""The CTC loss on every Keras backend, by the fastest kernel that each has."""

import keras


def ctc_losses(logits, logit_lengths, labels, label_lengths):
    """Returns the CTC loss of each utterance.

    TensorFlow's and PyTorch's own kernels; on JAX, which has none, Keras's.

    Args:
        logits: float32 ``(batch, frames, classes)``, the blank last.
        logit_lengths: int32 ``(batch,)``: valid frames.
        labels: int32 ``(batch, labels)``, right-padded with anything.
        label_lengths: int32 ``(batch,)``: valid labels.

    Returns:
        float32 ``(batch,)``: negative logarithms of the labels' probabilities.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from tfasr.losses import ctc_loss

        return ctc_loss(logits, logit_lengths, labels, label_lengths)
    blank = logits.shape[-1] - 1
    if backend == "torch":
        import torch

        log_probs = torch.nn.functional.log_softmax(logits, dim=-1).transpose(0, 1)
        lengths = (logit_lengths.to(torch.int64), label_lengths.to(torch.int64))
        return torch.nn.functional.ctc_loss(
            log_probs, labels.to(torch.int64), *lengths, blank=blank, reduction="none"
        )
    return keras.ops.ctc_loss(labels, logits, label_lengths, logit_lengths, mask_index=blank)
