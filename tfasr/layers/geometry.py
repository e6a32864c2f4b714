"""How many frames a convolution returns.

Configs of models compute their output lengths by these, for ints, arrays and tensors
alike.
"""


def padded_conv_output_frames(frames, stride: int):
    """Returns the output frames of a convolution padded so that it sees every frame.

    That is ``frames / stride``, rounded up.
    """
    # Not math.ceil, which takes no arrays and tensors.
    return -(-frames // stride)


def conv_output_frames(frames, kernel: int, stride: int):
    """Returns ``floor((frames - kernel) / stride) + 1``, those of an unpadded convolution.

    Below 1 if the frames are fewer than the kernel.

    Source: the paper, equation 5, which gives one frame too few if frames - kernel is
    even.
    """
    return (frames - kernel) // stride + 1
