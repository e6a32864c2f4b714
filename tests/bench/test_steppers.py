"""Steps give the same numbers on every backend."""

import numpy as np
import pytest
import tensorflow as tf

from tests.bench.backend_probes import probe, probe_devices
from tfasr.bench.devices import installed_backends
from tfasr.bench.steppers import after
from tfasr.kit.process import call


@pytest.fixture(scope="module")
def expected():
    return probe()


def test_a_step_updates_and_the_others_do_not(expected):
    for model in ("speech", "words"):
        found = expected[model]
        first, second, third = found["updates"]
        assert found["forward"] == pytest.approx(found["gradients"], rel=1e-5)
        assert found["forward"] == pytest.approx(first, rel=1e-5)
        assert third < second < first


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_all_backends_agree(backend, expected):
    if backend not in installed_backends():
        pytest.skip(f"needs {backend}: pip install {backend}")
    found = call(probe, backend=backend)
    assert found["backend"] == backend
    for model in ("speech", "words"):
        for key, value in expected[model].items():
            np.testing.assert_allclose(found[model][key], value, rtol=2e-3, atol=1e-4)


def test_two_devices_take_the_steps_of_one():
    found = call(probe_devices, backend="tensorflow")
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    assert found[0][-1] < found[0][0]


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
