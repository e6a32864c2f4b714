"""A model that no graph is written for is converted, checked, and transcribes as on Keras."""

import dataclasses
import importlib.util
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfasr
from tests.exporting.test_onnx_graph import (
    CLASSES,
    CONFIGS,
    log_softmax,
    made,
    num_features,
)
from tests.recognising.spoken_tones import RUN, sentence, spoken
from tfasr.cli import parse, run
from tfasr.errors import RunError
from tfasr.exporting.export import check_padded
from tfasr.exporting.litert import converted_litert_graph
from tfasr.exporting.onnx import converted_graph
from tfasr.kit.config import config_class
from tfasr.models.build import build_recogniser
from tfasr.models.model import MODELS, portable
from tfasr.recognising.runtimes import LitertUtterances, OnnxAcoustics
from tfasr.recognising.spec import check_sums

onnx = pytest.importorskip(
    "onnx", reason="needs the export extra: pip install 'tfasr[export]'"
)
pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")


EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model.py"
# TensorFlow 2.21 and tf2onnx 1.17 under numpy 2.4.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tf2onnx"),
]


@pytest.fixture(scope="module")
def example():
    """The module of the example; its model is registered for these tests alone."""
    spec = importlib.util.spec_from_file_location("own_model_of_tests", EXAMPLE)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class InvertedModel(module.ConvGru):
        """One that has an operation which no exporter knows."""

        def call(self, features, lengths, training=False):
            scores = super().call(features, lengths, training=training)
            longest = tf.cast(tf.reduce_max(lengths), tf.float32)
            return tf.linalg.matmul(
                scores, tf.linalg.inv(longest * tf.eye(scores.shape[-1]))
            )

    @MODELS.register("inverted")
    @config_class
    class InvertedConfig(module.ConvGruConfig):
        def make(self, num_features, num_classes, *, seed, dtype):
            return InvertedModel(self, num_classes, dtype=dtype)

    yield module, InvertedConfig
    for name in ("conv_gru", "inverted"):
        del MODELS._entries[name]
        MODELS._things.pop(name, None)

    del sys.modules[spec.name]


def whole_of(config, model):
    def whole(features, lengths):
        log_probs = tf.nn.log_softmax(model(features, lengths, training=False))
        return {
            "log_probs": log_probs,
            "output_lengths": config.output_lengths(lengths),
        }

    return whole


def check_converted(config) -> None:
    """Both graphs compute what the model computes, of a padded batch of odd lengths."""
    trained = made(config)
    count = num_features(config)
    model = build_recogniser(portable(config), count, CLASSES, dtype="float32")
    model.set_weights(trained.get_weights())
    features = np.random.default_rng(3).normal(size=(4, 97, count)).astype(np.float32)
    lengths = np.array([97, 41, 33, 20], np.int32)
    expected = log_softmax(trained(features, lengths, training=False))
    graph = converted_graph(whole_of(config, model), count, "own", {"key": "value"})
    assert onnx.load_from_string(graph).metadata_props[0].value == "value"
    litert = converted_litert_graph(whole_of(config, model), count, int8=False)
    for acoustics in (OnnxAcoustics(graph), LitertUtterances(litert)):
        outputs = acoustics.log_probs(features, lengths)
        assert outputs.shape == expected.shape
        for row, other, frames in zip(
            outputs, expected, config.output_lengths(lengths), strict=True
        ):
            np.testing.assert_allclose(row[:frames], other[:frames], atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        *("separable convolutions", "conformer", "conformer without subsampling"),
        pytest.param("lstm both ways", marks=pytest.mark.long),
        pytest.param("deep speech 2", marks=pytest.mark.long),
    ],
)
def test_converted_graphs_say_what_a_family_says(name):
    check_converted(CONFIGS[name])


class Halves(keras.layers.Layer):
    """Rounds as Python does, below 0 too, and uses what tf2onnx lacks."""

    def call(self, features, lengths):
        shift = keras.ops.floor_divide(-lengths, 2) + keras.ops.mod(-lengths, 3)
        shift = shift + keras.ops.cast(keras.ops.floor_divide(-1.5, 1.0), "int32")
        scores = keras.ops.concatenate([features, tf.math.erfc(features)], axis=-1)
        return scores * keras.ops.cast(shift, "float32")[:, None, None] / 9


def test_rounding_below_zero_is_kept():
    whole = whole_of(CONFIGS["conformer"], lambda *inputs, training: Halves()(*inputs))
    features = np.random.default_rng(3).normal(size=(3, 9, 3)).astype(np.float32)
    lengths = np.array([9, 4, 7], np.int32)
    expected = whole(features, lengths)["log_probs"].numpy()
    graph = OnnxAcoustics(converted_graph(whole, 3, "halves", {}))
    np.testing.assert_allclose(graph.log_probs(features, lengths), expected, atol=1e-5)


def run_of(folder: Path, config) -> Path:
    """A run of a model whose weights are random, but large enough to write letters."""
    from tfasr.alphabet import Alphabet
    from tfasr.training.build import build_model
    from tfasr.training.checkpoint import TrainingState, keep_as_best, save_checkpoint
    from tfasr.training.experiment import Experiment

    folder.mkdir()
    for name in ("alphabet.json", "lexicon.txt", "run.json"):
        (folder / name).write_bytes((RUN / name).read_bytes())
    experiment = dataclasses.replace(Experiment.load(RUN), model=config)
    alphabet = Alphabet.load(RUN / "alphabet.json")
    model = build_model(experiment, alphabet, compiled=False)
    rng = np.random.default_rng(4)
    for variable in model.recogniser.trainable_variables:
        variable.assign(rng.normal(0, 0.7, variable.shape))
    experiment.save(folder, alphabet)
    keep_as_best(save_checkpoint(folder, model, TrainingState(step=1), keep=1))
    return folder


def export(work: Path, run_dir: Path, to: str, out: Path, *words: str) -> int:
    given = [
        "--to",
        to,
        "--run_dir",
        run_dir,
        "--shard_dir",
        work / "shards",
        "--out",
        out,
        *words,
    ]
    return run(parse(["tfasr", "export", *map(str, given)]))


@pytest.fixture(scope="module")
def own_run(example, tmp_path_factory) -> Path:
    return run_of(
        tmp_path_factory.mktemp("own") / "run", example[0].ConvGruConfig(units=24)
    )


@pytest.mark.parametrize("to", ["onnx", "litert"])
def test_a_model_of_your_own_writes_what_it_writes_on_keras(
    to, own_run, work, tmp_path, capsys
):
    assert export(work, own_run, to, tmp_path / "out") == 0
    assert "6 of 6 utterances" in capsys.readouterr().out
    check_sums(tmp_path / "out")
    assert "It cannot stream." in (tmp_path / "out" / "README.md").read_text()
    recogniser = tfasr.load_recogniser(own_run)
    exported = tfasr.load_recogniser(tmp_path / "out")
    rng = np.random.default_rng(12)
    recordings = [spoken(sentence(rng, 1 + seed % 5), seed=seed) for seed in range(6)]
    expected = recogniser.transcribe_many(recordings)
    # It writes more than nothing.
    assert len({transcript.text for transcript in expected}) > 4
    transcripts = exported.transcribe_many(recordings)
    assert [one.text for one in transcripts] == [one.text for one in expected]
    starts = [[word.start_s for word in one.words] for one in transcripts]
    assert starts == [[word.start_s for word in one.words] for one in expected]


@pytest.mark.long
def test_int8_takes_it_too(own_run, work, tmp_path, capsys):
    for to in ("onnx", "litert"):
        assert export(work, own_run, to, tmp_path / to, "--int8") == 0
        assert "int8 against float32: WER " in capsys.readouterr().out


@pytest.mark.parametrize("to", ["onnx", "litert"])
def test_what_cannot_be_converted_is_told_in_a_line(
    to, example, work, tmp_path, capsys
):
    run_dir = run_of(tmp_path / "run", example[1](units=8))
    assert export(work, run_dir, to, tmp_path / "out") == 1
    message = capsys.readouterr().err
    assert "can't be converted to" in message
    assert "MatrixInverse" in message
    lines = [line for line in message.splitlines() if "Assets written to" not in line]
    assert len(lines) == 1  # TensorFlow's own goes nowhere but into capsys
    assert not (tmp_path / "out").exists()


def test_a_missing_converter_is_named_before_any_work(
    own_run, work, tmp_path, capsys, monkeypatch
):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "tfasr.exporting.export.find_spec",
        lambda name: None if name == "tf2onnx" else find_spec(name),
    )
    assert export(work, own_run, "onnx", tmp_path / "out") == 2
    assert "needs tf2onnx, which is not installed: pip install 'tfasr[export]'" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


def test_a_graph_that_ignores_lengths_is_refused(recogniser):
    class Longer:
        """What padding changes."""

        def log_probs(self, features, lengths):
            lengths = np.full_like(lengths, features.shape[1])
            return recogniser.acoustics.log_probs(features[:, ::-1], lengths)

    check_padded(recogniser.spec, recogniser.acoustics, recogniser.acoustics)
    with pytest.raises(RunError, match="a padded batch of noise"):
        check_padded(recogniser.spec, recogniser.acoustics, Longer())
