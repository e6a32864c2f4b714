"""Sizes that layers make of their inputs: frames after a convolution, batches as compiled."""


def conv_output_frames(frames, kernel: int, stride: int):
    """Returns ``floor((frames - kernel) / stride) + 1``, the output of a valid convolution.

    Args:
        frames: an int, or an array or tensor of ints.
        kernel: frames that one output sees.
        stride: frames from one output to the next.

    Source: the paper, equation 5, which is one short whenever frames - kernel is even.
    """
    return (frames - kernel) // stride + 1


def padded_batch_size(batch: int) -> int:
    """Returns the batch size that the fused LSTM compiles for: few sizes serve all batches.

    Args:
        batch: utterances on one device.

    Returns:
        The next multiple of 2 below 8 utterances, else of 8; at least 2.
    """
    multiple = 2 if batch < 8 else 8
    return -(-max(batch, 1) // multiple) * multiple
