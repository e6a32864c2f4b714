"""Every preset is read and built; the paper's numbers are where they belong."""

import pytest

from tfasr.alphabet import Alphabet
from tfasr.errors import UsageError
from tfasr.kit.gin import presets_folder
from tfasr.training.build import build_model, check_batch_size
from tfasr.training.from_gin import load_config

PRESETS = sorted(path.name for path in presets_folder().glob("*.gin"))

# The paper, Tables 2 and 4, sections 4.4.2 and 5.3 and Table 6: batch, readers, buffer, devices,
# targets in percent, beam width.
DEFAULT_TARGETS = {"cer": [10, 8, 7], "wer": [22, 20.2, 19.2]}
EQUAL_TARGETS = {"cer": [10, 8, 7], "wer": [22, 20, 19]}
PAPER = {
    "paper_sys1.gin": (96, 8, 40, 4, DEFAULT_TARGETS, 256),
    "paper_sys2.gin": (240, 16, 100, 4, DEFAULT_TARGETS, 256),
    "paper_sys10.gin": (300, 16, 100, 2, DEFAULT_TARGETS, 256),
    "equal_batch_sys1.gin": (96, 8, 40, 4, EQUAL_TARGETS, 64),
    "equal_batch_sys2.gin": (96, 8, 40, 4, EQUAL_TARGETS, 64),
    "equal_batch_sys10.gin": (96, 8, 40, 2, EQUAL_TARGETS, 64),
}


def in_percent(targets):
    return {
        name: [pytest.approx(100 * value) for metric, value in targets if metric == name]
        for name in ("cer", "wer")
    }


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds(name):
    experiment = load_config(name).experiment
    check_batch_size(experiment)
    model = build_model(experiment, Alphabet(), compiled=True)
    assert model.optimizer.built
    assert model.count_params() > 10_000


@pytest.mark.parametrize("name", sorted(PAPER))
def test_the_papers_presets_hold_its_numbers(name):
    experiment = load_config(name).experiment
    pipeline, training = experiment.pipeline, experiment.training
    assert (
        pipeline.global_batch_size,
        pipeline.num_readers,
        pipeline.prefetch,
        training.num_replicas,
        in_percent(training.targets),
        experiment.decoder.beam_width,
    ) == PAPER[name]
    assert (pipeline.padding, pipeline.max_frames) == ("fixed", 1670)
    assert (experiment.decoder.name, experiment.decoder.recombine) == ("word_beam", False)
    model = experiment.model
    assert (model.conv_filters, model.conv_kernel, model.conv_stride) == (600, 11, 2)
    assert (model.num_lstm_layers, model.lstm_units, model.dropout) == (5, 800, 0.05)
    assert experiment.features.num_features == 93
    assert float(training.optimizer().learning_rate) == 1.0
    assert training.target_window == 3


def test_the_presets_asked_for_are_there():
    assert {*PAPER, "an4.gin", "demo.gin"} <= set(PRESETS)


def test_bindings_override_and_leave_no_trace():
    changed = load_config("an4.gin", ["TrainingConfig.epochs = 3", "Adadelta.rho = 0.9"])
    assert changed.experiment.training.epochs == 3
    assert changed.experiment.training.optimizer().rho == 0.9
    assert load_config("an4.gin").experiment.training.epochs == 50
    assert "TrainingConfig.epochs = 3" in changed.operative


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("TrainingConfig.epochz = 3\n", r"mine\.gin:1.*epochz"),
        ("# title\nNoSuchConfig.epochs = 3\n", r"mine\.gin:2.*NoSuchConfig"),
        ("\nTrainingConfig.epochs = 'three'\n", r"mine\.gin:2.*must be int.*'three'"),
        ("TrainingConfig.epochs = 0\n", r"mine\.gin:1.*at least 1"),
        ("TrainingConfig.epochs = \n", r"mine\.gin:1"),
        ("Adam.learning_rate = 1.0\n", r"mine\.gin:1.*nothing uses it"),
        ("TrainingConfig.optimizer = 'adam'\n", r"mine\.gin:1.*optimizer"),
        ("TrainingConfig.targets = [('per', 0.1)]\n", r"mine\.gin:1.*targets"),
        ("include 'models/none.gin'\n", r"mine\.gin:1.*models/none\.gin"),
        ("include 'models/paper.gin'\ninclude 'other.gin'\n", r"other\.gin:1 binds"),
        ("include 'nested.gin'\n", r"nested\.gin:1"),
    ],
)
def test_bad_presets_are_refused_by_file_and_line(tmp_path, content, message):
    (tmp_path / "other.gin").write_text("AcousticModelConfig.lstm_units = 8\n")
    (tmp_path / "nested.gin").write_text("include 'other.gin'\n")
    (tmp_path / "mine.gin").write_text(content)
    with pytest.raises(UsageError, match=message):
        load_config(str(tmp_path / "mine.gin"))


def test_an_unknown_preset_lists_the_known():
    with pytest.raises(UsageError, match=r"an4\.gin.*demo\.gin"):
        load_config("nowhere.gin")


def test_any_keras_optimizer_and_schedule_can_be_bound(tmp_path):
    (tmp_path / "mine.gin").write_text(
        "TrainingConfig.optimizer = @AdamW\n"
        "AdamW.learning_rate = @CosineDecay()\n"
        "AdamW.clipnorm = 1.0\n"
        "CosineDecay.initial_learning_rate = 0.01\n"
        "CosineDecay.decay_steps = 100\n"
    )
    optimizer = load_config(str(tmp_path / "mine.gin")).experiment.training.optimizer()
    assert type(optimizer).__name__ == "AdamW"
    assert optimizer.clipnorm == 1.0
    assert float(optimizer.learning_rate) == pytest.approx(0.01)
