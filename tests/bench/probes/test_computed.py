import numpy as np
import tensorflow as tf

from tfasr.bench.steppers import after


def test_what_a_value_comes_after_is_computed():
    calls = []

    def count(x):
        calls.append(1)
        return x

    @tf.function
    def run(x):
        # Stateless, so that the graph optimizer may drop it.
        tensor = tf.numpy_function(count, [x], tf.float32, stateful=False)
        return after(tf.constant(3.0), [tf.reshape(tensor, (2, 2)), None])

    assert run(tf.ones((2, 2))).numpy() == 3
    assert calls == [1]


def test_no_number_is_shown():
    assert np.isnan(after(tf.constant([1.0, 2.0]), [tf.constant([float("nan")])])).all()
    assert after(tf.constant(1.0), []).numpy() == 1
