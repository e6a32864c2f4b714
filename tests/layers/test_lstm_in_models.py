"""The LSTM in models: saved, trained on several devices, and on Keras's other backends."""

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfasr.layers.lstm import LSTM

# TensorFlow 2.21 under numpy 2.4, wherever Keras turns a variable into an array.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)

ROOT = Path(__file__).parents[2]


def normal(seed, *shape, dtype="float32"):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), dtype)


def run_python(program, folder=ROOT, **environment):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    } | environment
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def model_of(lstm_class, **options):
    return keras.Sequential(
        [
            keras.Input((None, 3)),
            keras.layers.Masking(),
            lstm_class(4, return_sequences=True, **options),
            keras.layers.Bidirectional(lstm_class(5, **options)),
            keras.layers.Dense(2),
        ]
    )


@pytest.mark.parametrize(
    ("saver", "loader"), [(LSTM, keras.layers.LSTM), (keras.layers.LSTM, LSTM)]
)
@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_weights_travel_between_ours_and_keras_own(tmp_path, saver, loader, suffix):
    saved = model_of(saver)
    loaded = model_of(loader)
    path = tmp_path / f"model{suffix}"
    saved.save(path) if suffix == ".keras" else saved.save_weights(path)
    loaded.load_weights(path)

    inputs = normal(0, 2, 6, 3)

    np.testing.assert_allclose(loaded(inputs), saved(inputs), atol=1e-6)


def test_a_saved_model_comes_back_with_its_kernel(tmp_path):
    model = model_of(LSTM, kernel="fused")
    model.save(tmp_path / "model.keras")

    loaded = keras.models.load_model(tmp_path / "model.keras")
    inputs = normal(0, 2, 6, 3)

    np.testing.assert_array_equal(loaded(inputs), model(inputs))
    assert type(loaded.layers[1]) is LSTM
    assert loaded.layers[1].requested_kernel == "fused"
    assert loaded.layers[2].backward_layer.requested_kernel == "fused"
    assert loaded.layers[2].backward_layer.last_kernel == "fused CPU"


def test_a_saved_model_loads_where_tfasr_is_not_installed(tmp_path):
    model = model_of(LSTM)
    model.save(tmp_path / "model.keras")
    inputs = normal(0, 2, 6, 3)
    np.savez(tmp_path / "expected.npz", inputs=inputs, outputs=model(inputs))
    run_python(
        """
        import sys, keras, numpy as np
        model = keras.models.load_model(
            "model.keras", custom_objects={"tfasr>LSTM": keras.layers.LSTM}
        )
        expected = np.load("expected.npz")
        np.testing.assert_allclose(model(expected["inputs"]), expected["outputs"], atol=1e-6)
        assert "tfasr" not in sys.modules
        """,
        folder=tmp_path,
        PYTHONPATH="",
    )


def test_fit_compiled_as_a_whole():
    losses = []
    kernels = []
    for jit_compile in (False, True):
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Masking(), LSTM(3), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((None, 3)), *layers])
        model.compile("adam", "mse", jit_compile=jit_compile)
        history = model.fit(normal(0, 4, 66, 3), normal(1, 4, 1), epochs=2, verbose=0)
        losses.append(history.history["loss"])
        kernels.append(layers[1].last_kernel)

    assert kernels == ["fused CPU", "fused TensorFlow loop"]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


@pytest.mark.long
def test_fit_on_two_devices_learns_what_keras_own_learns():
    run_python(
        """
        import keras, numpy as np, tensorflow as tf
        from tfasr.layers.compiled import replicas_here
        from tfasr.layers.lstm import LSTM
        cpu = tf.config.list_physical_devices("CPU")[0]
        devices = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
        tf.config.set_logical_device_configuration(cpu, devices)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        rng = np.random.default_rng(0)
        inputs, targets = rng.normal(size=(16, 6, 3)), rng.normal(size=(16, 2))
        losses = []
        for kind in (keras.layers.LSTM, LSTM):
            keras.utils.set_random_seed(0)
            assert replicas_here() == 1
            with strategy.scope():
                assert replicas_here() == 2  # who share the cores
                layer = kind(8)
                model = keras.Sequential(
                    [keras.Input((None, 3)), keras.layers.Masking(), layer, keras.layers.Dense(2)]
                )
                model.compile("adam", "mse")
            history = model.fit(inputs, targets, batch_size=8, epochs=3, shuffle=False, verbose=0)
            losses.append(history.history["loss"])
        assert layer.last_kernel.startswith("fused CPU")
        assert losses[0][-1] < losses[0][0]
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
        """
    )


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_on_other_backends_it_is_keras_own(backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")

    run_python(
        """
        import keras, numpy as np, os
        from tfasr.layers.lstm import LSTM
        inputs = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
        keras_own, ours = keras.layers.LSTM(4), LSTM(4)
        expected = keras_own(inputs)
        ours(inputs)
        ours.set_weights(keras_own.get_weights())
        to_numpy = keras.ops.convert_to_numpy
        np.testing.assert_allclose(to_numpy(ours(inputs)), to_numpy(expected), atol=1e-6)
        assert ours.last_kernel == "Keras on " + os.environ["KERAS_BACKEND"]
        try:
            LSTM(4, kernel="fused")
        except ValueError as error:
            assert "backend=" in str(error)
        else:
            raise AssertionError("kernel='fused' was taken")
        """,
        KERAS_BACKEND=backend,
    )


def test_on_jax_cudnn_only_gets_float32():
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")

    run_python(
        """
        import keras, numpy as np
        import jax.experimental.rnn
        from tfasr.layers.lstm import LSTM

        given = []

        def cudnn(inputs, *_, **__):
            given.append(str(inputs.dtype))
            raise TypeError("no GPU here")

        jax.default_backend = lambda: "gpu"  # as Keras asks
        jax.experimental.rnn.lstm = cudnn
        inputs = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
        for dtype in ("float32", "mixed_bfloat16", "mixed_float16"):
            layer = LSTM(4, return_sequences=True, dtype=dtype)
            outputs = np.array(layer(inputs), "float32")
            keras.layers.Bidirectional(LSTM(4, dtype=dtype))(inputs)
            if dtype == "float32":
                weights, expected = layer.get_weights(), outputs
            layer.set_weights(weights)
            # Outputs are below 1, where bfloat16 rounds by up to 0.002, in each of five steps.
            np.testing.assert_allclose(np.array(layer(inputs), "float32"), expected, atol=0.02)
        assert given and set(given) == {"float32"}, given
        try:
            LSTM(4, kernel="cudnn", dtype="mixed_bfloat16")
        except ValueError as error:
            assert "kernel='auto'" in str(error)
        else:
            raise AssertionError("kernel='cudnn' was taken")
        """,
        KERAS_BACKEND="jax",
    )
