"""What goes into a shard, computed the quick way, is what the slow way gives."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tfasr.data.shards import FeatureSums, write_shard


@given(arrays.arrays(np.float32, 40, elements=st.floats(width=32)))
@settings(deadline=None)
def test_tensorflow_rounds_to_float16_as_numpy_does(values):
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(np.float16)
    np.testing.assert_array_equal(tf.cast(values, tf.float16).numpy(), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_sums_tell_whether_all_features_are_finite(value):
    features = np.full((5, 3), 60000, np.float16)
    sums = FeatureSums()
    sums.add(features)
    assert sums.finite
    features[3, 1] = value
    sums.add(features)
    assert not sums.finite


def test_shards_are_compressed_by_how_often_bytes_occur(tmp_path):
    """As well as with a search for matches, which finds none among features."""
    features = np.random.default_rng(0).normal(-3, 2, (600, 93)).astype(np.float16).tobytes()
    sizes = []
    for name, options in (
        ("ours", None),
        ("matches", tf.io.TFRecordOptions("GZIP", compression_level=1)),
    ):
        path = tmp_path / name
        if options is None:
            write_shard(path, [features], "GZIP")
        else:
            with tf.io.TFRecordWriter(str(path), options) as writer:
                writer.write(features)
        assert next(iter(tf.data.TFRecordDataset(str(path), "GZIP"))).numpy() == features
        sizes.append(path.stat().st_size)
    assert sizes[0] < 1.02 * sizes[1] < len(features)
