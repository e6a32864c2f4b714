"""The keyword spotter has the talk's size and memory."""

import keras
import numpy as np
import pytest

from tfasr.models.keyword_spotter import KeywordSpotter, KeywordSpotterConfig, memory_accounting


def test_the_network_has_8504_parameters_and_needs_406_kb():
    config = KeywordSpotterConfig()
    model = KeywordSpotter(config)
    model.build()
    assert sum(int(np.prod(v.shape)) for v in model.trainable_variables) == 8504
    layers = memory_accounting(config)
    assert sum(layer.weights for layer in layers) == 8504
    outputs = 98 * 40 + 90 * 36 * 10 + 88 * 34 * 10 + 44 * 17 * 10
    outputs += 42 * 15 * 22 + 21 * 7 * 22 + 19 * 5 * 22 + 22 + 30
    assert sum(layer.activations for layer in layers) == outputs
    assert sum(layer.num_bytes for layer in layers) == 4 * (8504 + outputs) == 405_840


def test_the_accounting_has_the_shapes_that_the_layers_make():
    config = KeywordSpotterConfig(num_frames=40, num_bins=30, filters=(2, 3, 4, 5), num_words=6)
    model = KeywordSpotter(config)
    model.build()
    shapes = {layer.shape for layer in memory_accounting(config)}
    hidden = np.zeros((1, 40, 30, 1), np.float32)
    for convolution, pooled in zip(model.convolutions, (False, True, True, False), strict=True):
        hidden = convolution(hidden)
        assert tuple(hidden.shape[1:]) in shapes
        hidden = model.pooling(hidden) if pooled else hidden
        assert tuple(hidden.shape[1:]) in shapes
    assert model(keras.KerasTensor((7, 40, 30))).shape == (7, 6)


@pytest.mark.parametrize(
    "values", [{"num_frames": 20}, {"num_bins": 12}, {"filters": (1, 2, 0, 4)}, {"num_words": 1}]
)
def test_sizes_that_make_no_network_are_refused(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        KeywordSpotterConfig(**values)
