"""Sizes that layers make of their inputs."""

import pytest

from tfasr.layers.geometry import conv_output_frames, padded_batch_size


@pytest.mark.parametrize(
    ("batch", "padded"), [(0, 2), (1, 2), (2, 2), (3, 4), (7, 8), (8, 8), (9, 16), (64, 64)]
)
def test_batches_are_padded_to_few_sizes(batch, padded):
    assert padded_batch_size(batch) == padded


@pytest.mark.parametrize(("frames", "left"), [(10, 0), (11, 1), (12, 1), (13, 2), (1670, 830)])
def test_a_valid_convolution_leaves_whole_windows(frames, left):
    assert conv_output_frames(frames, 11, 2) == left == len(range(0, frames - 11 + 1, 2))
