"""The keyword spotter has the talk's size and memory."""

import keras
import numpy as np
import pytest

from tfasr.models.keyword_spotter import (
    FORWARD,
    OF_FILTERS,
    OF_INPUTS,
    KeywordSpotter,
    KeywordSpotterConfig,
    memory_accounting,
    step_cost,
)


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


def test_operations_and_bytes_of_a_step_are_counted_from_shapes():
    # By hand: outputs, their channels, the kernel's products for each, the inputs.
    layers = [
        (90 * 36, 10, 9 * 5 * 1, 98 * 40),
        (88 * 34, 10, 3 * 3 * 10, 90 * 36 * 10),
        (42 * 15, 22, 3 * 3 * 10, 44 * 17 * 10),
        (19 * 5, 22, 3 * 3 * 22, 21 * 7 * 22),
    ]
    flops = [2 * places * filters * products for places, filters, products, _ in layers]
    assert sum(flops) == 11_624_040
    moved = [
        4 * (5 * places * filters + 5 * inputs + products * filters)
        for places, filters, products, inputs in layers
    ]
    cost = step_cost(KeywordSpotterConfig(), batch=5)
    assert cost.flops[FORWARD] == cost.flops[OF_FILTERS] == 5 * sum(flops)
    assert cost.flops[OF_INPUTS] == 5 * sum(flops[1:])  # the features need no gradient
    assert cost.moved[FORWARD] == cost.moved[OF_FILTERS] == sum(moved)
    assert cost.moved[OF_INPUTS] == sum(moved[1:])
    assert cost.flops["classifier"] == 5 * 2 * 22 * 30
    assert cost.flops["classifier gradient"] == 2 * cost.flops["classifier"]


def test_the_accounting_has_the_shapes_that_the_layers_make():
    config = KeywordSpotterConfig(
        num_frames=40, num_bins=30, filters=(2, 3, 4, 5), num_words=6
    )
    model = KeywordSpotter(config)
    model.build()
    shapes = {layer.shape for layer in memory_accounting(config)}
    hidden = np.zeros((1, 40, 30, 1), np.float32)
    for convolution, pooled in zip(
        model.convolutions, (False, True, True, False), strict=True
    ):
        hidden = convolution(hidden)
        assert tuple(hidden.shape[1:]) in shapes
        hidden = model.pooling(hidden) if pooled else hidden
        assert tuple(hidden.shape[1:]) in shapes

    assert model(keras.KerasTensor((7, 40, 30))).shape == (7, 6)


@pytest.mark.parametrize(
    "values",
    [{"num_frames": 20}, {"num_bins": 12}, {"filters": (1, 2, 0, 4)}, {"num_words": 1}],
)
def test_sizes_that_make_no_network_are_refused(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        KeywordSpotterConfig(**values)
