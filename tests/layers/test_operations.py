"""The compiled layers as operations of TensorFlow's graphs."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfasr.layers import operations
from tfasr.layers.batch_normalization import BatchNormalization
from tfasr.layers.clipped_rnn import ClippedReLU, SimpleRNN
from tfasr.layers.lstm import LSTM

core = pytest.importorskip(
    "tfasr.layers._recurrent_core", reason="built without a compiler"
)
if not hasattr(core, "register_operations"):
    pytest.skip(
        "the core is of an older source: install tfasr again", allow_module_level=True
    )
# TensorFlow 2.21 under numpy 2.4, wherever Keras turns a variable into an array.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)

ROOT = Path(__file__).parents[2]
NATIVE = {
    "TfasrRecurrence",
    "TfasrRecurrenceGradient",
    "TfasrNormalise",
    "TfasrNormaliseGradient",
}


def normal(seed, *shape):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), "float32")


def layer_of(kind, policy):
    """A layer that uses an operation, always with the same weights."""
    keras.utils.set_random_seed(1)
    if kind == "lstm":
        return LSTM(5, return_sequences=True, dtype=policy)

    if kind == "vanilla":
        return SimpleRNN(
            5, activation=ClippedReLU(0.5), return_sequences=True, dtype=policy
        )

    return BatchNormalization(dtype=policy)


def traced(layer, masked):
    """A function from inputs and mask to outputs and all gradients, and the types in
    its graph.
    """

    @tf.function(autograph=False)
    def step(inputs, mask):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            options = {}
            if isinstance(layer, BatchNormalization):
                options["training"] = True
                if masked:
                    options["valid"] = mask
            elif masked:
                options["mask"] = mask

            outputs = layer(inputs, **options)
            loss = tf.reduce_sum(tf.square(tf.cast(outputs, tf.float32)))

        return outputs, tape.gradient(loss, [inputs, *layer.trainable_variables])

    specs = tf.TensorSpec((None, None, 3)), tf.TensorSpec((None, None), tf.bool)
    function = step.get_concrete_function(*specs)
    return function, {operation.type for operation in function.graph.get_operations()}


@pytest.mark.parametrize(
    ("kind", "policy", "masked"),
    [
        ("lstm", "float32", False),
        ("lstm", "mixed_bfloat16", True),
        ("vanilla", "float32", True),
        ("vanilla", "mixed_bfloat16", False),
        ("normalisation", "float32", True),
        ("normalisation", "mixed_bfloat16", True),
    ],
)
def test_they_compute_what_the_callbacks_do(monkeypatch, kind, policy, masked):
    layer = layer_of(kind, policy)
    layer.build((None, None, 3))
    inputs = normal(0, 7, 9, 3)
    mask = tf.sequence_mask([9, 8, 7, 1, 2, 9, 4], 9)
    native, types = traced(layer, masked)
    monkeypatch.setattr(operations, "registered", lambda: False)
    called, callback_types = traced(layer, masked)

    expected, received = (
        tf.nest.flatten(run(inputs, mask)) for run in (called, native)
    )

    for ours, theirs in zip(received, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert native.structured_outputs[0].shape == called.structured_outputs[0].shape
    assert native.structured_outputs[0].shape[2] is not None
    assert types & NATIVE and "PyFuncStateless" not in types
    assert "PyFuncStateless" in callback_types and not callback_types & NATIVE


def test_an_empty_batch_gives_empty_outputs():
    layer = layer_of("lstm", "float32")
    layer.build((None, None, 3))
    step, types = traced(layer, masked=False)

    outputs, gradients = step(tf.zeros((0, 4, 3)), tf.ones((0, 4), tf.bool))

    assert types & NATIVE
    assert outputs.shape == (0, 4, 5)
    assert all(np.all(gradient.numpy() == 0) for gradient in gradients)


def test_second_derivatives_are_refused():
    layer = layer_of("lstm", "float32")

    @tf.function(autograph=False)
    def twice(inputs):
        with tf.GradientTape() as outer:
            outer.watch(inputs)
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                loss = tf.reduce_sum(layer(inputs) ** 2)

            gradient = inner.gradient(loss, inputs)

        return outer.gradient(gradient, inputs)

    with pytest.raises(NotImplementedError, match="first derivatives only"):
        twice(normal(0, 2, 4, 3))


def run_python(program, folder=ROOT):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


ELSEWHERE = """
import json, keras, numpy as np, tensorflow as tf
from unittest import mock
cpu = tf.config.list_physical_devices("CPU")[0]
devices = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
tf.config.set_logical_device_configuration(cpu, devices)
told = {"losses": [], "added": []}
try:
    tf.saved_model.load("model")
    told["without"] = "loaded"
except RuntimeError as error:
    told["without"] = str(error)
from tfasr.layers import operations
inputs = np.load("inputs.npy")
loaded = tf.saved_model.load("model")
told["outputs"] = loaded.serve(inputs).numpy().tolist()
from tfasr.layers.lstm import LSTM
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
targets = np.ones((len(inputs), 2), "float32")
real = operations.add
def add(operation, arguments, replicas):
    told["added"].append([operation.name, replicas])
    return real(operation, arguments, replicas)
for registered in (True, False):
    keras.utils.set_random_seed(0)
    native = mock.patch.object(operations, "registered", lambda: registered)
    with native, mock.patch.object(operations, "add", add):
        with strategy.scope():
            model = keras.Sequential([keras.Input((None, 3)), LSTM(8), keras.layers.Dense(2)])
            model.compile("adam", "mse")
        fitted = model.fit(inputs, targets, batch_size=8, epochs=3, shuffle=False, verbose=0)
        told["losses"].append(fitted.history["loss"])
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def exported():
    """A model of an LSTM layer, and inputs for it."""
    layers = [
        keras.layers.Masking(),
        LSTM(4, return_sequences=True),
        keras.layers.Dense(2),
    ]
    return keras.Sequential([keras.Input((None, 3)), *layers]), normal(0, 16, 6, 3)


@pytest.fixture(scope="module")
def elsewhere(exported, tmp_path_factory):
    """What a process tells that loads an exported model and trains another on two replicas."""
    model, inputs = exported
    folder = tmp_path_factory.mktemp("exported")
    model.export(folder / "model", verbose=False)
    np.save(folder / "inputs.npy", inputs)

    return json.loads(run_python(ELSEWHERE, folder).splitlines()[-1])


def test_an_exported_model_runs_where_the_operations_are_known(exported, elsewhere):
    model, inputs = exported

    np.testing.assert_array_equal(np.float32(elsewhere["outputs"]), model(inputs))
    assert "Op type not registered 'TfasrRecurrence" in elsewhere["without"]


def test_replicas_compute_what_they_do_with_callbacks(elsewhere):
    native, called = elsewhere["losses"]

    assert native == called
    assert native[-1] < native[0]
    assert ["TfasrRecurrence", 2] in elsewhere["added"]
    assert ["TfasrRecurrenceGradient", 2] in elsewhere["added"]


def steps(projected, units):
    """The recurrence as an operation of a graph."""
    attributes = {"T": tf.float32, "masks": 0, "ceiling": np.inf}
    kind = operations.Operation("TfasrRecurrence", [tf.float32] * 3, attributes)
    states = [tf.zeros((1, units))] * 2
    arguments = [projected, tf.zeros(8), tf.zeros((2, 8)), *states]

    return operations.add(kind, arguments, replicas=1)


def test_wrong_shapes_are_an_error_of_tensorflow():
    count = tf.TensorSpec((), tf.int32)
    run = tf.function(steps, autograph=False).get_concrete_function(
        tf.TensorSpec(None), count
    )

    assert run(tf.zeros((1, 3, 8)), 2)[2].shape == (1, 3, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="h has a wrong shape"):
        run(tf.zeros((1, 3, 8)), 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="projected must be"):
        run(tf.zeros((3, 8)), 2)
    with pytest.raises(ValueError, match="must be rank 3"):
        tf.function(steps, autograph=False).get_concrete_function(
            tf.TensorSpec((3, 8)), count
        )


def test_they_keep_to_the_limit_of_threads(monkeypatch):
    monkeypatch.setattr(operations, "quota", lambda: 2.5)
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count()

    try:
        for told, limit in ((0, 2), (1, 1), (7, 2)):
            operations.limit_threads(told)

            assert core.operation_threads(1) == min(limit, cores)
            assert core.operation_threads(2) == max(min(limit, cores) // 2, 1)
    finally:
        monkeypatch.undo()
        operations.limit_threads(0)


def test_a_second_copy_of_tfasr_does_not_add_them_again(caplog):
    assert operations.registered()
    assert not operations.registered.__wrapped__()
    assert "another copy of tfasr in this process" in caplog.text


def test_without_tensorflows_library_they_are_not_added(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(op_def_registry, "get", lambda name: None)
    monkeypatch.setattr(tf.sysconfig, "get_lib", lambda: str(tmp_path))

    assert not operations.registered.__wrapped__()
    assert f"no libtensorflow_framework in {tmp_path}" in caplog.text


def test_without_the_compiled_core_they_are_not_added(monkeypatch):
    monkeypatch.setattr(op_def_registry, "get", lambda name: None)
    monkeypatch.setattr(operations, "core", None)

    assert not operations.registered.__wrapped__()


def test_the_core_loads_without_tensorflow_and_says_what_is_missing():
    run_python(
        """
        import ctypes.util, sys
        from tfasr.layers import _recurrent_core as core
        libc = ctypes.util.find_library("c")
        reasons = []
        for library in ("libtensorflow_framework.so.2", libc):
            try:
                core.register_operations(library)
            except RuntimeError as error:
                reasons.append(str(error))
        assert reasons[0] == "libtensorflow_framework.so.2 is not loaded.", reasons
        assert reasons[1] == "TensorFlow has no TF_NewStatus.", reasons
        assert "tensorflow" not in sys.modules
        """
    )
