"""What the rounding of a gradient is said to be, on made errors and on a small model."""

import numpy as np
import pytest

from tfasr.data.batches import BatchSource, PipelineConfig
from tfasr.data.features import FeatureConfig
from tfasr.data.shards import open_split
from tfasr.models.recurrent import AcousticModelConfig


def test_an_error_that_all_batches_share_is_systematic():
    from rounding import compared

    generator = np.random.default_rng(1)
    exact = generator.normal(3.0, 1.0, (400, 50))
    found = compared(exact, 1.02 * exact)
    assert found["along_gradient"] == pytest.approx(0.02)
    assert found["systematic"] == pytest.approx(0.02)
    # Batches of a mean of 3 and a deviation of 1 in each weight.
    assert found["error"] == pytest.approx(0.02 * np.sqrt(1 + 1 / 9), rel=0.02)
    assert found["systematic_by_chance"] < 0.01


def test_an_error_that_batches_do_not_share_is_chance():
    from rounding import compared

    generator = np.random.default_rng(2)
    exact = generator.normal(3.0, 1.0, (400, 50))
    found = compared(exact, exact + generator.normal(0.0, 0.5, exact.shape))
    assert found["systematic"] == pytest.approx(found["systematic_by_chance"], rel=0.3)
    assert abs(found["along_gradient"]) < 0.01
    assert found["error"] == pytest.approx(0.5 / 3, rel=0.05)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_layers_that_are_set_to_a_precision_compute_as_those_made_in_it(shard_dir, bidirectional):
    from rounding import gradients, set_precision

    split = open_split(shard_dir, "train")
    source = BatchSource(split, FeatureConfig(), PipelineConfig(global_batch_size=4))
    batches = list(source.training(seed=1, epoch=1).take(2))
    config = AcousticModelConfig(
        conv_filters=8, lstm_units=8, num_lstm_layers=2, dropout=0.0, bidirectional=bidirectional
    )
    models = {}
    for precision in ("float32", "mixed_bfloat16"):
        models[precision] = config.make(93, 40, seed=3, dtype=precision)
        models[precision].build((None, None, 93))
    exact = gradients(models["float32"], batches)
    layers = models["float32"].layers[:-1]
    set_precision(layers, "mixed_bfloat16")
    rounded = gradients(models["float32"], batches)
    np.testing.assert_array_equal(rounded, gradients(models["mixed_bfloat16"], batches))
    assert 1e-4 < np.linalg.norm(rounded - exact) / np.linalg.norm(exact) < 0.1
    set_precision(layers, "float32")
    np.testing.assert_array_equal(gradients(models["float32"], batches), exact)
