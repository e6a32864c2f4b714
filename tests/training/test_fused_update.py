"""The fused updates are Keras's."""

import functools
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.models.recurrent import AcousticModelConfig
from tfasr.training.build import build_model
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.memory import batch_spec
from tfasr.training.optimizer import FusedAdam, fused

Adadelta, Adam, AdamW = keras.optimizers.Adadelta, keras.optimizers.Adam, keras.optimizers.AdamW
Muon = keras.optimizers.Muon
SHAPES = [(3, 5), (7,), (1, 1), (6, 2), (2, 3, 4)]


def decay():
    return keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=2, decay_rate=0.5)


def after_updates(optimizer, dtype="float32"):
    """All weights and states after five updates in a graph, the gradients of several sizes."""
    rng = np.random.default_rng(1)
    weights = [keras.Variable(rng.normal(size=shape), dtype=dtype) for shape in SHAPES]
    optimizer.build(weights)
    apply = tf.function(lambda *gradients: optimizer.apply(list(gradients), weights))
    for scale in (1e-6, 1.0, 0.0, 30.0, 1e-3):
        apply(*[tf.constant(rng.normal(size=shape) * scale, dtype) for shape in SHAPES])
    return [np.asarray(v) for v in [*weights, *optimizer.variables]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Adadelta(1.0),
        lambda: Adadelta(decay(), rho=0.9, epsilon=1e-4, global_clipnorm=0.5),
        lambda: Adadelta(0.5, weight_decay=0.01, use_ema=True, ema_momentum=0.5),
        lambda: Adam(0.01),
        lambda: Adam(decay(), beta_1=0.8, beta_2=0.9, epsilon=1e-3, clipvalue=0.2),
        lambda: AdamW(0.01, weight_decay=0.1, clipnorm=1.0),
        lambda: Muon(0.01),
        lambda: Muon(decay(), ns_steps=3, nesterov=False, rms_rate=None, momentum=0.8),
        lambda: Muon(0.01, adam_lr_ratio=0.3, adam_beta_1=0.8, weight_decay=None, use_ema=True),
        lambda: Muon(0.01, exclude_layers=["."], global_clipnorm=0.5, epsilon=1e-3),
    ],
)
def test_the_fused_update_is_keras_update(make):
    stock = make()
    ours_fused = fused(make())
    assert type(ours_fused) is not type(stock)
    assert isinstance(ours_fused, type(stock))
    own, keras_ = ours_fused.get_config(), stock.get_config()
    assert {**own, "name": ""} == {**keras_, "name": ""}
    for ours, theirs in zip(after_updates(ours_fused), after_updates(stock), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-7)


def test_float64_is_not_rounded_on_the_way():
    stock = Adadelta(0.3, rho=0.91)
    ours = after_updates(fused(Adadelta(0.3, rho=0.91)), "float64")
    theirs = after_updates(stock, "float64")
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(our, their, rtol=1e-12)


def test_other_steps_are_kept():
    class OwnStep(Adadelta):
        def update_step(self, gradient, variable, learning_rate):
            self.assign(variable, variable - learning_rate)

    for optimizer in (keras.optimizers.SGD(0.1), OwnStep(0.25)):
        assert fused(optimizer) is optimizer
    weights = [keras.Variable([1.0])]
    fused(OwnStep(0.25)).apply([tf.constant([5.0])], weights)
    assert np.asarray(weights[0]) == pytest.approx([0.75])
    stock = after_updates(Adam(0.1, amsgrad=True))
    for ours, theirs in zip(after_updates(fused(Adam(0.1, amsgrad=True))), stock, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_a_config_does_not_say_is_not_lost():
    class OwnSchedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1

    def rate():
        return 0.1

    without_biases = AdamW(0.1)
    without_biases.exclude_from_weight_decay(var_names=["bias"])
    for optimizer in (Adam(OwnSchedule()), Adam(rate), without_biases):
        assert fused(optimizer) is optimizer


def test_configs_and_states_are_exchanged_with_keras():
    weights = [keras.Variable(np.ones((2, 2), "float32"))]
    ours = fused(Adam(decay(), clipnorm=1.0, name="mine"))
    ours.apply([tf.ones((2, 2))], weights)
    theirs = Adam.from_config(ours.get_config())
    theirs.build(weights)
    store = {}
    ours.save_own_variables(store)
    theirs.load_own_variables(store)
    names = [v.path for v in ours.variables]
    assert names == [v.path for v in theirs.variables]
    back = FusedAdam.from_config(theirs.get_config())
    back.build(weights)
    for ours_, theirs_ in zip(ours.variables, theirs.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(ours_), np.asarray(theirs_))


def some_rows():
    return tf.IndexedSlices(tf.ones((2, 2)), tf.constant([1, 3]), dense_shape=tf.constant([4, 2]))


def test_gradients_of_some_rows_update_those_rows():
    weights = [keras.Variable(np.ones((4, 2), "float32"))]
    fused(Adam(0.1)).apply([some_rows()], weights)
    np.testing.assert_allclose(np.asarray(weights[0])[:, 0], [1.0, 0.9, 1.0, 0.9], atol=1e-5)


@pytest.mark.parametrize("excluded", [[], ["."]], ids=["orthogonal", "adam"])
def test_muon_takes_gradients_of_some_rows_as_keras_does(excluded):
    updated = []
    for optimizer in (
        Muon(0.1, exclude_layers=excluded),
        fused(Muon(0.1, exclude_layers=excluded)),
    ):
        weights = [keras.Variable(np.ones((4, 2), "float32"))]
        for _ in range(2):
            optimizer.apply([some_rows()], weights)
        updated.append(np.asarray(weights[0]))
    np.testing.assert_allclose(updated[1], updated[0], rtol=1e-5)
    assert not np.array_equal(updated[1], np.ones((4, 2)))


@pytest.mark.parametrize(
    ("precision", "optimizer", "operation"),
    [
        ("float32", Adadelta, "ResourceApplyAdadelta"),
        ("mixed_bfloat16", Adam, "ResourceApplyAdam"),
        ("mixed_float16", Adadelta, "ResourceApplyAdadelta"),
        ("float32", functools.partial(Muon, exclude_layers=["."]), "ResourceApplyAdam"),
    ],
)
def test_training_updates_each_weight_by_one_operation(precision, optimizer, operation):
    config = Experiment(
        model=AcousticModelConfig(conv_filters=4, num_lstm_layers=1, lstm_units=4),
        training=TrainingConfig(optimizer=optimizer, precision=precision),
    )
    model = build_model(config, Alphabet(), compiled=True)
    graph = model.global_step(batch_spec(config)).get_concrete_function(batch_spec(config)).graph
    names = [op.type for op in graph.get_operations()]
    functions = graph.as_graph_def().library.function  # mixed_float16 updates under a condition
    names += [node.op for function in functions for node in function.node_def]
    assert names.count(operation) >= len(model.trainable_variables)


REPLICAS = """
import keras, numpy as np, tensorflow as tf
from tfasr.training.optimizer import fused

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from keras.optimizers import Adadelta, Adam, Muon

for make in (lambda: Adadelta(1.0), lambda: Adam(0.1), lambda: Muon(0.1)):
    alone = keras.Variable(np.ones((2, 3), "float32"))
    single = make()
    gradient = np.arange(6, dtype="float32").reshape(2, 3)
    for _ in range(3):
        single.apply([tf.constant(gradient)], [alone])
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        shared = keras.Variable(np.ones((2, 3), "float32"))
        optimizer = fused(make())
        assert type(optimizer).__name__.startswith("Fused")
        optimizer.build([shared])

    @tf.function
    def step():
        strategy.run(lambda: optimizer.apply([tf.constant(gradient / 2)], [shared]))

    for _ in range(3):
        step()
    for replica in strategy.experimental_local_results(shared.value):
        np.testing.assert_allclose(replica.numpy(), alone.numpy(), rtol=1e-5)
"""


def test_replicas_update_their_copies_alike():
    done = subprocess.run([sys.executable, "-c", REPLICAS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
