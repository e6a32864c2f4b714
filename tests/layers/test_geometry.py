"""Sizes that layers make of their inputs."""

import pytest

from tfasr.layers.geometry import conv_output_frames


@pytest.mark.parametrize(("frames", "left"), [(10, 0), (11, 1), (12, 1), (13, 2), (1670, 830)])
def test_a_valid_convolution_leaves_whole_windows(frames, left):
    assert conv_output_frames(frames, 11, 2) == left == len(range(0, frames - 11 + 1, 2))
