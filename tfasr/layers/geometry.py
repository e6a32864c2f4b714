"""How many frames a convolution returns."""


def padded_conv_output_frames(frames, stride: int):
    """Returns the number of output frames of a convolution padded so that it sees every
    frame.
    """
    return -(-frames // stride)


def conv_output_frames(frames, kernel: int, stride: int):
    """Returns ``floor((frames - kernel) / stride) + 1``, an unpadded convolution's
    output frames.

    Source: the paper, equation 5, which gives one frame too few if frames - kernel is
    even.
    """
    return (frames - kernel) // stride + 1
