"""Sizes that layers make of their inputs: frames after a convolution."""


def padded_conv_output_frames(frames, stride: int):
    """Returns ``ceil(frames / stride)``, the output of a convolution padded to see every frame.

    Args:
        frames: an int, or an array or tensor of ints.
        stride: frames from one output to the next.
    """
    return -(-frames // stride)


def conv_output_frames(frames, kernel: int, stride: int):
    """Returns ``floor((frames - kernel) / stride) + 1``, the output of a valid convolution.

    Args:
        frames: an int, or an array or tensor of ints.
        kernel: frames that one output sees.
        stride: frames from one output to the next.

    Source: the paper, equation 5, which is one short whenever frames - kernel is even.
    """
    return (frames - kernel) // stride + 1
