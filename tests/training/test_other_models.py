"""Other models than the paper's through the command line: Deep Speech 2 and a user's own."""

import functools
import json
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.training.conftest import TrainingProcess
from tests.warm import run_script, run_tfasr
from tfasr.alphabet import Alphabet
from tfasr.kit.gin import presets_folder
from tfasr.ledger.events import read_events
from tfasr.models.recurrent import AcousticModelConfig
from tfasr.training.build import build_model
from tfasr.training.checkpoint import (
    TrainingState,
    plain_array,
    restore,
    save_checkpoint,
)
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.from_gin import load_config
from tfasr.training.memory import batch_spec, synthetic_batch
from tfasr.training.optimizer import FusedAdam, fused, make_optimizer

# The fused updates are Keras's.

Adadelta = keras.optimizers.Adadelta
Adam = keras.optimizers.Adam
AdamW = keras.optimizers.AdamW
Muon = keras.optimizers.Muon
SHAPES = [(3, 5), (7,), (1, 1), (6, 2), (2, 3, 4)]


def decay():
    return keras.optimizers.schedules.ExponentialDecay(
        0.1, decay_steps=2, decay_rate=0.5
    )


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
        lambda: Muon(
            0.01, adam_lr_ratio=0.3, adam_beta_1=0.8, weight_decay=None, use_ema=True
        ),
        lambda: Muon(0.01, exclude_layers=["."], global_clipnorm=0.5, epsilon=1e-3),
    ],
)
def test_the_fused_update_is_keras_update(make):
    stock = make()
    ours_fused = fused(make())
    assert type(ours_fused) is not type(stock)
    assert isinstance(ours_fused, type(stock))
    own = ours_fused.get_config()
    keras_ = stock.get_config()
    assert {**own, "name": ""} == {**keras_, "name": ""}

    for ours, theirs in zip(
        after_updates(ours_fused), after_updates(stock), strict=True
    ):
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
    for ours, theirs in zip(
        after_updates(fused(Adam(0.1, amsgrad=True))), stock, strict=True
    ):
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
    return tf.IndexedSlices(
        tf.ones((2, 2)), tf.constant([1, 3]), dense_shape=tf.constant([4, 2])
    )


def test_gradients_of_some_rows_update_those_rows():
    weights = [keras.Variable(np.ones((4, 2), "float32"))]
    fused(Adam(0.1)).apply([some_rows()], weights)
    np.testing.assert_allclose(
        np.asarray(weights[0])[:, 0], [1.0, 0.9, 1.0, 0.9], atol=1e-5
    )


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


@pytest.mark.parametrize("shape", [(24, 60), (60, 24)])
def test_muon_orthogonalises_in_bfloat16_as_well_as_in_float32(shape):
    gradient = np.random.default_rng(3).normal(size=shape)
    updates = {}
    for precision in ("float32", "mixed_bfloat16"):
        config = TrainingConfig(
            optimizer=lambda: Muon(1.0, rms_rate=None), precision=precision
        )
        weights = [keras.Variable(np.zeros(shape), dtype="float32")]
        make_optimizer(config).apply([tf.constant(gradient, tf.float32)], weights)
        updates[precision] = np.asarray(weights[0])

    gap = np.linalg.norm(updates["mixed_bfloat16"] - updates["float32"])
    # 0.106 where bfloat16 products are emulated (AVX2), below 0.1 where the processor
    # has them.
    assert 1e-4 < gap / np.linalg.norm(updates["float32"]) < 0.15
    values = np.linalg.svd(updates["mixed_bfloat16"], compute_uv=False)
    assert values.min() > 0.5 and values.max() < 1.3


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
    graph = (
        model.global_step(batch_spec(config))
        .get_concrete_function(batch_spec(config))
        .graph
    )
    names = [op.type for op in graph.get_operations()]
    # mixed_float16 updates under a condition
    functions = graph.as_graph_def().library.function
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
    done = run_script(REPLICAS, check=False)
    assert done.returncode == 0, done.stderr


DS2 = """
    ModelConfig.name = 'deep_speech_2'
    DeepSpeech2Config.conv_filters = 4
    DeepSpeech2Config.num_recurrent_layers = 1
    DeepSpeech2Config.units = 32
"""
LAB = '''
    """A user's own model: a convolution over frames, then scores."""

    import keras

    from tfasr.kit.config import config_class
    from tfasr.models.model import MODELS


    @MODELS.register("one_layer")
    @config_class
    class OneLayerConfig:
        units: int = 32

        def make(self, num_features, num_classes, *, seed, dtype):
            return OneLayer(self.units, num_classes, dtype)

        def output_lengths(self, lengths):
            return (lengths + 3) // 4


    class OneLayer(keras.Model):
        def __init__(self, units, num_classes, dtype):
            super().__init__(dtype=dtype)
            self.convolution = keras.layers.Conv1D(
                units, 8, strides=4, padding="same", activation="relu", dtype=self.dtype_policy
            )
            self.classifier = keras.layers.Dense(num_classes, dtype="float32")

        def call(self, features, lengths, training=False):
            return self.classifier(self.convolution(features))
'''
TRAINING = """
    PipelineConfig.global_batch_size = 16
    PipelineConfig.num_readers = 2
    PipelineConfig.shuffle_buffer = 32
    PipelineConfig.num_buckets = 3
    TrainingConfig.epochs = 2
    TrainingConfig.sentences_every_steps = 0
    TrainingConfig.checkpoint_every_steps = 3
    TrainingConfig.optimizer = @Adam
"""


def gin_file(folder, text):
    path = folder / "mine.gin"
    path.write_text(textwrap.dedent(text) + textwrap.dedent(TRAINING))
    return path


@pytest.mark.long
def test_deep_speech_2_trains_is_killed_resumes_is_evaluated_and_reported(
    shard_dir, tmp_path
):
    config = gin_file(tmp_path, DS2)
    run_dir = tmp_path / "run"
    arguments = (shard_dir, run_dir, "--no_memory_probe")
    killed = TrainingProcess(*arguments, gin_file=config)
    killed.kill_when(lambda events: any(e["key"] == "checkpoint_stop" for e in events))
    code, output = TrainingProcess(*arguments, "--resume", gin_file=config).finish()
    assert code == 0, output
    events = read_events(run_dir)
    steps = [e["metadata"]["step"] for e in events if e["key"] == "train_step"]
    assert steps[-1] >= 2 * 96 / 16
    assert [e["value"] for e in events if e["key"] == "lstm_kernel"][0] == ["fused CPU"]
    recorded = json.loads((run_dir / "experiment.json").read_text())
    assert recorded["recogniser"]["name"] == "deep_speech_2"
    assert recorded["model"]["units"] == 32
    flags = (
        "--run_dir",
        run_dir,
        "--split",
        "test",
        "--shard_dir",
        shard_dir,
        "--format",
        "json",
    )
    evaluated = run_tfasr("evaluate", *flags, folder=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["utterances"] == 12
    reported = run_tfasr("report", run_dir, "--target", "cer=0.99", folder=tmp_path)
    assert reported.returncode == 0, reported.stderr
    assert "run" in reported.stdout


@pytest.fixture(scope="module")
def lab_run(shard_dir, tmp_path_factory):
    """A run of a model that a module outside the package registers."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "my_lab.py").write_text(textwrap.dedent(LAB))
    config = gin_file(
        folder, "ModelConfig.name = 'one_layer'\nOneLayerConfig.units = 24\n"
    )
    flags = (
        "--gin_file",
        config,
        "--shard_dir",
        shard_dir,
        "--run_dir",
        folder / "run",
    )
    # With the probe of memory, the plug-ins are tried in tests/test_examples.py.
    words = ["--import", "my_lab", "--no_memory_probe"]
    done = run_tfasr("train", *words, *flags, folder=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_model_of_ones_own_trains_and_is_evaluated(lab_run, shard_dir):
    events = read_events(lab_run / "run")
    assert events[-1]["metadata"]["status"] == "success"
    assert [e["value"] for e in events if e["key"] == "lstm_kernel"] == [[]]
    recorded = json.loads((lab_run / "run" / "experiment.json").read_text())
    assert recorded["recogniser"] == {"name": "one_layer", "module": "my_lab"}
    assert recorded["model"] == {"units": 24}
    flags = (
        "--run_dir",
        "run",
        "--split",
        "test",
        "--shard_dir",
        shard_dir,
        "--format",
        "json",
    )
    done = run_tfasr("evaluate", "--import", "my_lab", *flags, folder=lab_run)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["utterances"] == 12


def test_without_its_module_a_run_says_what_to_import(lab_run, shard_dir):
    flags = ("--run_dir", "run", "--split", "test", "--shard_dir", shard_dir)
    done = run_tfasr("evaluate", *flags, folder=lab_run)
    assert done.returncode == 2
    assert "one_layer" in done.stderr
    assert "--import my_lab" in done.stderr


def test_lengths_that_disagree_are_refused_before_anything_is_written(
    lab_run, shard_dir
):
    wrong = (
        (lab_run / "my_lab.py")
        .read_text()
        .replace("(lengths + 3) // 4", "lengths // 2")
    )
    (lab_run / "wrong_lab.py").write_text(wrong)
    config = gin_file(lab_run, "ModelConfig.name = 'one_layer'\n")
    flags = ("--gin_file", config, "--shard_dir", shard_dir, "--run_dir", "wrong")
    done = run_tfasr("train", "--import", "wrong_lab", *flags, folder=lab_run)
    assert done.returncode == 2, done.stderr
    assert "wrong_lab.py:" in done.stderr
    assert "output_lengths" in done.stderr
    assert not (lab_run / "wrong").exists()


# The three precisions: each learns, saves and resumes; overflow changes no weight.

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


def experiment(precision, parts=1, layers=0, dropout=0.0, **optimizer):
    return Experiment(
        model=AcousticModelConfig(
            conv_filters=16, num_lstm_layers=layers, lstm_units=16, dropout=dropout
        ),
        training=TrainingConfig(
            precision=precision,
            gradient_accumulation_steps=parts,
            optimizer=lambda: keras.optimizers.Adam(0.01, **optimizer),
        ),
    )


def losses(model, config, batch, steps):
    step = model.global_step(batch_spec(config))
    return [float(tf.reduce_mean(step(batch)["utterance_loss"])) for _ in range(steps)]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision_learns_saves_and_resumes(precision, tmp_path):
    config = experiment(precision, layers=1, dropout=0.1, global_clipnorm=5.0)
    batch = synthetic_batch(config, 4, 60)
    model = build_model(config, Alphabet(), compiled=True)
    first = losses(model, config, batch, 4)
    assert first[-1] < first[0]
    # Master weights, the optimizer's slots and the logits are float32 whatever
    # computes.
    dtypes = {v.dtype for v in [*model.trainable_variables, *model.optimizer.variables]}
    assert {dtype for dtype in dtypes if "float" in dtype} == {"float32"}
    assert model(batch).dtype == tf.float32
    assert model.recogniser.recurrent[0].compute_dtype == precision.removeprefix(
        "mixed_"
    )
    path = save_checkpoint(tmp_path, model, TrainingState(step=4), keep=1)
    resumed = build_model(config, Alphabet(), compiled=True)
    assert restore(path, resumed).step == 4
    # Two graphs: a value that one of them rounds to 16 bits the other way moves all
    # that follow.
    tolerance = 1e-4 if precision == "float32" else 1e-2
    np.testing.assert_allclose(
        losses(resumed, config, batch, 2),
        losses(model, config, batch, 2),
        rtol=tolerance,
    )


@pytest.mark.parametrize(
    ("speedup", "gpus", "expected"),
    [
        (1.5, [], "mixed_bfloat16"),
        (1.5, ["a GPU"], "float32"),
        (1.1, [], "float32"),  # not worth it
        (None, [], "float32"),  # emulated products, or no compiled layers
    ],
)
def test_a_fast_preset_takes_the_precision_that_is_fastest_here(
    monkeypatch, speedup, gpus, expected
):
    monkeypatch.setattr("tfasr.training.from_gin.bfloat16_speedup", lambda: speedup)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    assert load_config("fast/an4.gin").experiment.training.precision == expected
    told = load_config("fast/an4.gin", ["TrainingConfig.precision = 'mixed_float16'"])
    assert told.experiment.training.precision == "mixed_float16"
    assert load_config("an4.gin").experiment.training.precision == "float32"


def test_sixteen_bits_learn_what_thirty_two_learn():
    curves = {}
    for precision in PRECISIONS:
        config = experiment(precision)
        model = build_model(config, Alphabet(), compiled=True)
        curves[precision] = losses(model, config, synthetic_batch(config, 4, 60), 6)

    for precision in PRECISIONS[1:]:
        # Activations of 8 bits are off by up to 0.4 %, and six steps carry that on.
        np.testing.assert_allclose(curves[precision], curves["float32"], rtol=0.03)


@pytest.mark.parametrize("parts", [1, 2])
def test_gradients_that_overflow_in_float16_change_no_weight(parts):
    config = experiment("mixed_float16", parts)
    batch = synthetic_batch(config, 4, 60)
    model = build_model(config, Alphabet(), compiled=True)
    losses(model, config, batch, 1)
    scale = model.optimizer.dynamic_scale
    scale.assign(2.0**100)
    watched = [*model.trainable_variables, *model.optimizer.inner_optimizer.variables]
    before = [plain_array(variable) for variable in watched]
    assert np.isfinite(losses(model, config, batch, 1)).all()

    for variable, value in zip(watched, before, strict=True):
        np.testing.assert_array_equal(plain_array(variable), value)

    assert float(plain_array(scale)) == 2.0**99
    scale.assign(2.0**10)
    losses(model, config, batch, 1)
    changed = [
        (plain_array(v) != b).any() for v, b in zip(watched, before, strict=True)
    ]
    assert all(changed[: len(model.trainable_variables)])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_precision_is_a_leaf_that_any_preset_can_include(precision, tmp_path):
    (tmp_path / "mine.gin").write_text(
        f"include 'models/paper.gin'\ninclude 'train/{precision}.gin'\nTrainingConfig.epochs = 1\n"
    )
    config = load_config(str(tmp_path / "mine.gin")).experiment
    assert config.training.precision == precision
    assert (presets_folder() / "train" / f"{precision}.gin").is_file()
