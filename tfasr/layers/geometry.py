"""Sizes that layers make of their inputs: frames after a convolution."""


def padded_conv_output_frames(frames, stride: int):
    """The output frames of a convolution padded to see every frame."""
    return -(-frames // stride)


def conv_output_frames(frames, kernel: int, stride: int):
    """Output frames ``floor((frames - kernel) / stride) + 1`` of a valid convolution.

    Source: the paper, equation 5, which is one short whenever frames - kernel is even.
    """
    return (frames - kernel) // stride + 1
