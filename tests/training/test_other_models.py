"""Other models than the paper's through the command line: Deep Speech 2 and a user's own."""

import json
import subprocess
import sys
import textwrap

import pytest

from tests.training.conftest import TrainingProcess
from tfasr.ledger.events import read_events
from tfasr.training.experiment import Experiment

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


def tfasr(*arguments, folder):
    command = [sys.executable, "-m", "tfasr.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def gin_file(folder, text):
    path = folder / "mine.gin"
    path.write_text(textwrap.dedent(text) + textwrap.dedent(TRAINING))
    return path


def test_deep_speech_2_trains_is_killed_resumes_is_evaluated_and_reported(shard_dir, tmp_path):
    config, run_dir = gin_file(tmp_path, DS2), tmp_path / "run"
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
    flags = ("--run_dir", run_dir, "--split", "test", "--shard_dir", shard_dir, "--format", "json")
    evaluated = tfasr("evaluate", *flags, folder=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["utterances"] == 12
    reported = tfasr("report", run_dir, "--target", "cer=0.99", folder=tmp_path)
    assert reported.returncode == 0, reported.stderr
    assert "run" in reported.stdout


@pytest.fixture(scope="module")
def lab_run(shard_dir, tmp_path_factory):
    """A run of a model that a module outside the package registers."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "my_lab.py").write_text(textwrap.dedent(LAB))
    config = gin_file(folder, "ModelConfig.name = 'one_layer'\nOneLayerConfig.units = 24\n")
    flags = ("--gin_file", config, "--shard_dir", shard_dir, "--run_dir", folder / "run")
    done = tfasr("train", "--import", "my_lab", *flags, folder=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_model_of_ones_own_trains_and_is_evaluated(lab_run, shard_dir):
    events = read_events(lab_run / "run")
    assert events[-1]["metadata"]["status"] == "success"
    assert [e["value"] for e in events if e["key"] == "lstm_kernel"] == [[]]
    recorded = json.loads((lab_run / "run" / "experiment.json").read_text())
    assert recorded["recogniser"] == {"name": "one_layer", "module": "my_lab"}
    assert recorded["model"] == {"units": 24}
    flags = ("--run_dir", "run", "--split", "test", "--shard_dir", shard_dir, "--format", "json")
    done = tfasr("evaluate", "--import", "my_lab", *flags, folder=lab_run)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["utterances"] == 12


def test_without_its_module_a_run_says_what_to_import(lab_run, shard_dir):
    flags = ("--run_dir", "run", "--split", "test", "--shard_dir", shard_dir)
    done = tfasr("evaluate", *flags, folder=lab_run)
    assert done.returncode == 2
    assert "one_layer" in done.stderr
    assert "--import my_lab" in done.stderr


def test_lengths_that_disagree_are_refused_before_anything_is_written(lab_run, shard_dir):
    wrong = (lab_run / "my_lab.py").read_text().replace("(lengths + 3) // 4", "lengths // 2")
    (lab_run / "wrong_lab.py").write_text(wrong)
    config = gin_file(lab_run, "ModelConfig.name = 'one_layer'\n")
    flags = ("--gin_file", config, "--shard_dir", shard_dir, "--run_dir", "wrong")
    done = tfasr("train", "--import", "wrong_lab", *flags, folder=lab_run)
    assert done.returncode == 2, done.stderr
    assert "wrong_lab.py:" in done.stderr
    assert "output_lengths" in done.stderr
    assert not (lab_run / "wrong").exists()


def test_a_run_of_tfasr_0_1_0_names_no_model_and_is_read_as_the_papers(tmp_path):
    content = Experiment().to_json()
    del content["recogniser"]
    assert Experiment.from_json(content) == Experiment()
