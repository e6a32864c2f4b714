"""Training through the Python API, in this process."""

import dataclasses
import json
import sys
import textwrap
import threading
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.tones import SHARDS
from tests.warm import run_script, run_tfasr
from tfasr.alphabet import Alphabet
from tfasr.cli import parse, run
from tfasr.commands.report import report
from tfasr.data.augmentation import AugmentationConfig
from tfasr.data.batches import PipelineConfig
from tfasr.data.features import FeatureConfig
from tfasr.data.shards import open_split
from tfasr.decoding.choice import DecoderConfig
from tfasr.errors import RunError, UsageError
from tfasr.ledger.events import read_events
from tfasr.models.recurrent import AcousticModelConfig
from tfasr.recognising.recogniser import load_recogniser
from tfasr.training.dry_run import dry_run
from tfasr.training.experiment import (
    Experiment,
    TrainingConfig,
    at_demo_size,
    is_closed,
    open_settings,
)
from tfasr.training.from_gin import load_config
from tfasr.training.train import comparability, train
from tfasr.training.trained import evaluate
from tfasr.tta.energy import read_samples
from tfasr.tta.run import load_run

# Which runs follow the paper's recipe, and that reports do not rank them among others.


@pytest.fixture(scope="module")
def paper():
    return load_config("paper_sys1.gin").experiment


@pytest.mark.parametrize(
    ("preset", "closed"),
    [
        ("paper_sys2.gin", True),
        ("paper_sys10.gin", True),
        ("equal_batch_sys10.gin", True),
        ("paper_demo.gin", True),
        ("an4.gin", False),
        ("fast/an4.gin", False),
        ("fast/an4_accurate.gin", False),
        ("fast/an4_pretraining.gin", False),
        ("fast/mini_librispeech.gin", False),
        ("demo.gin", False),
        ("gru_an4.gin", False),
    ],
)
def test_the_papers_presets_alone_are_closed(preset, closed):
    assert is_closed(load_config(preset).experiment) is closed


def test_the_default_is_the_papers_recipe():
    default = Experiment()
    assert is_closed(default)
    assert open_settings(default) == []
    assert default.decoder == DecoderConfig(name="word_beam", beam_width=256)
    assert default.training.evaluation_placement == "swapped"
    gin = load_config(None).experiment
    contents = [gin.to_json(), default.to_json()]
    for content in contents:
        # Which counts the process's optimizers.
        del content["training"]["optimizer"]["name"]

    assert contents[0] == contents[1]
    sys10 = load_config("paper_sys10.gin").experiment
    for group in ("features", "model", "decoder", "augmentation"):
        assert getattr(gin, group) == getattr(sys10, group), group

    assert (gin.pipeline.padding, gin.pipeline.max_frames) == ("fixed", 1670)


def test_the_demos_recipe_is_the_papers_but_for_its_size():
    demo = load_config("paper_demo.gin").experiment
    assert at_demo_size(demo)
    assert demo.training.evaluation_placement == "swapped"
    assert demo.decoder.name == "word_beam"
    differing = {"pipeline.max_frames", "model.conv_filters", "model.lstm_units"}
    assert set(open_settings(demo)) == differing | {"model.num_lstm_layers"}
    wider = dataclasses.replace(demo.model, lstm_units=129)
    assert not is_closed(dataclasses.replace(demo, model=wider))
    dropout = dataclasses.replace(demo.model, dropout=0.1)
    assert not is_closed(dataclasses.replace(demo, model=dropout))


def test_the_demos_two_recipes_are_ranked(tmp_path):
    """They are scored alike on the same data, and the small model is in no division."""
    paper = load_config("paper_demo.gin").experiment
    fast = load_config(["fast/demo.gin", "train/demo_race.gin"]).experiment
    assert not is_closed(fast)
    assert paper.features == fast.features
    assert paper.training.targets == fast.training.targets
    split = open_split(SHARDS, "validation")
    alphabet = Alphabet()
    facts = [comparability(each, split, alphabet, ["a"]) for each in (paper, fast)]
    assert facts[0] == facts[1]


def test_what_the_papers_systems_differ_in_is_free(paper):
    batch = dataclasses.replace(paper.pipeline, global_batch_size=7)
    training = dataclasses.replace(paper.training, precision="mixed_bfloat16", epochs=3)
    model = dataclasses.replace(paper.model, lstm_kernel="generic")
    changed = dataclasses.replace(paper, pipeline=batch, training=training, model=model)
    assert is_closed(changed)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Adam(1.0),
        lambda: keras.optimizers.Adadelta(0.5),
        lambda: keras.optimizers.Adadelta(1.0, clipnorm=1.0),
        lambda: keras.optimizers.Adadelta(
            keras.optimizers.schedules.CosineDecay(1.0, 9)
        ),
    ],
)
def test_another_update_rule_is_open(paper, optimizer):
    training = dataclasses.replace(paper.training, optimizer=optimizer)
    assert not is_closed(dataclasses.replace(paper, training=training))


def test_another_dropout_or_augmentation_is_open(paper):
    model = dataclasses.replace(paper.model, dropout=0.1)
    assert not is_closed(dataclasses.replace(paper, model=model))
    masked = AugmentationConfig(time_masks=1)
    assert not is_closed(dataclasses.replace(paper, augmentation=masked))


def test_another_beginning_is_open(paper):
    zeroed = dataclasses.replace(paper.training, zero_output_layer=True)
    assert not is_closed(dataclasses.replace(paper, training=zeroed))
    growing = dataclasses.replace(paper.pipeline, batch_size_schedule=[(3, 128)])
    assert not is_closed(dataclasses.replace(paper, pipeline=growing))


def test_another_loss_is_open(paper):
    middle = dataclasses.replace(paper.training, intermediate_loss_weight=0.3)
    assert not is_closed(dataclasses.replace(paper, training=middle))


# A run records its machine's price and energy, and the report charges for both.

TINY = str(Path(__file__).parent / "tiny.gin")
WATTS = 80


@pytest.fixture
def powercap(tmp_path, monkeypatch):
    """A processor whose counter rises by 80 W."""
    folder = tmp_path / "powercap" / "intel-rapl:0"
    folder.mkdir(parents=True)
    (folder / "name").write_text("package-0\n")
    (folder / "max_energy_range_uj").write_text("262143328850\n")
    begin = time.monotonic()
    ended = threading.Event()

    def show():
        part = folder / "part"
        part.write_text(f"{(time.monotonic() - begin) * WATTS * 1e6:.0f}\n")
        part.replace(folder / "energy_uj")

    def keep_rising():
        while not ended.wait(0.05):
            show()

    show()
    thread = threading.Thread(target=keep_rising)
    thread.start()
    monkeypatch.setattr("tfasr.telemetry.energy.POWERCAP", tmp_path / "powercap")
    monkeypatch.setattr("tfasr.telemetry.energy.ENERGY_INTERVAL_S", 0.1)
    # The tests' own machine may have GPUs.
    monkeypatch.setitem(sys.modules, "pynvml", None)
    yield
    ended.set()
    thread.join()


def test_price_and_energy_are_recorded_and_charged(powercap, shard_dir, tmp_path):
    files = [TINY, "hardware/rented_per_hour.gin"]
    more = ["TrainingConfig.epochs = 1", "TrainingConfig.target_window = 1"]
    config = load_config(files, [*more, "HardwareConfig.price_usd_per_hour = 3600"])
    run_dir = tmp_path / "run"
    train(
        config.experiment,
        shard_dir=shard_dir,
        run_dir=run_dir,
        hardware=config.hardware,
    )
    assert "HardwareConfig.price_usd_per_hour = 3600" in config.operative
    (stated,) = [e["value"] for e in read_events(run_dir) if e["key"] == "hardware"]
    assert stated["name"] == "rented by the hour"
    (row,) = json.loads(
        report([run_dir], output_format="json", targets=["cer=1.0"], window=1)
    )
    wall_s = load_run(run_dir).wall_s
    assert 0 < row["charged_s"] <= wall_s
    assert row["cost_usd"] == pytest.approx(row["charged_s"])
    assert row["energy_unknown_s"] == 0
    samples = read_samples(run_dir)
    assert 0 < row["energy_joules"] <= samples[-1].joules - samples[0].joules
    assert row["energy_counters"] == ["package-0"]
    spent = row["energy_by_interval_joules"]
    assert sum(spent.values()) == pytest.approx(row["energy_joules"])
    assert spent["init"] > 0
    assert spent["compile"] + spent["train"] > 0


def test_without_a_machine_nothing_of_it_is_in_the_configuration():
    config = load_config(TINY)
    assert config.hardware is None
    assert "HardwareConfig" not in config.operative


def test_wrong_prices_name_file_and_line(tmp_path):
    with pytest.raises(
        UsageError, match=r"rented_per_hour\.gin:\d+: .*nothing, bind it"
    ):
        load_config([TINY, "hardware/rented_per_hour.gin"])

    with pytest.raises(UsageError, match=r"--gin_binding:1: .*greater than 0"):
        load_config(TINY, ["HardwareConfig.price_usd_per_hour = -3"])

    with pytest.raises(UsageError, match="must be None if amortisation_years is given"):
        load_config(
            [TINY, "hardware/rented_per_hour.gin"],
            [
                "HardwareConfig.price_usd_per_hour = 3",
                "HardwareConfig.purchase_price_usd = 900",
                "HardwareConfig.amortisation_years = 3",
            ],
        )

    mine = tmp_path / "mine.gin"
    mine.write_text(f"include '{TINY}'\ninclude 'hardware/paper_sys1.gin'\n")
    assert load_config(str(mine)).hardware.name == "Sys1$"


# Which runs a folder may hold, and which may be resumed.


MODEL = AcousticModelConfig(
    conv_filters=32, num_lstm_layers=1, lstm_units=32, dropout=0.0
)
PIPELINE = PipelineConfig(
    padding="bucketed",
    global_batch_size=16,
    shuffle_buffer=32,
    num_buckets=2,
    num_readers=2,
)


def adam():
    return keras.optimizers.Adam(0.003)


def experiment(**training) -> Experiment:
    values = {"epochs": 1, "optimizer": adam, "sentences_every_steps": 0, **training}
    return Experiment(model=MODEL, pipeline=PIPELINE, training=TrainingConfig(**values))


@pytest.fixture(scope="module")
def run_dir(shard_dir, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    train(experiment(epochs=2), shard_dir=shard_dir, run_dir=folder)
    return folder


def test_evaluation_scores_every_utterance_and_writes_them_down(
    run_dir, shard_dir, tmp_path
):
    result = evaluate(run_dir=run_dir, split="test", shard_dir=shard_dir)
    assert result.counts.utterances == len(result.hypotheses) == 12
    result.write_hypotheses(tmp_path / "hypotheses.jsonl")
    text = (tmp_path / "hypotheses.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["reference"] for line in lines] == [u.text for u in result.utterances]


def test_the_best_checkpoint_gives_the_best_epochs_accuracy(run_dir):
    stats = [e["value"] for e in read_events(run_dir) if e["key"] == "tracked_stats"]
    best = min(stats, key=lambda s: s["cer"])
    result = evaluate(run_dir=run_dir, split="validation")
    assert result.counts.cer == pytest.approx(best["cer"], abs=1e-9)
    assert result.loss == pytest.approx(best["loss"], rel=1e-4)


def test_evaluate_prints_one_json_object(run_dir, shard_dir):
    words = ["--run_dir", run_dir, "--shard_dir", shard_dir, "--split", "validation"]
    words += ["--decoder", "greedy", "--format", "json"]
    finished = run_tfasr("evaluate", *words, check=True)
    scores = json.loads(finished.stdout)
    assert scores["utterances"] == 24
    keys = {"wer", "cer", "cer_reference", "substitutions", "deletions", "insertions"}
    assert keys <= scores.keys()
    edits = scores["substitutions"] + scores["deletions"] + scores["insertions"]
    assert scores["wer"] == pytest.approx(edits / scores["words"])
    assert scores["confidence"] == 0.95

    for rate in ("wer", "cer"):
        low, high = scores[f"{rate}_interval"]
        assert low <= scores[rate] <= high


def test_the_best_prefix_is_at_least_as_probable_as_the_best_path(run_dir):
    greedy = evaluate(run_dir=run_dir, split="validation", decoder="greedy")
    beam = evaluate(run_dir=run_dir, split="validation", decoder="beam", beam_width=16)
    assert beam.counts.characters == greedy.counts.characters
    scores = zip(beam.hypotheses, greedy.hypotheses, strict=True)
    # A prefix's probability sums over its paths, so the best is at least the best
    # path's.
    assert all(b.score >= g.score - 1e-3 for b, g in scores)


def test_missing_checkpoints_and_runs_are_named(run_dir, tmp_path):
    with pytest.raises(UsageError, match="must be a folder that tfasr train wrote"):
        evaluate(run_dir=tmp_path, split="validation")

    with pytest.raises(UsageError, match=r"best\.npz"):
        evaluate(run_dir=run_dir, split="validation", checkpoint="nowhere.npz")

    with pytest.raises(UsageError, match="'nonsense'"):
        evaluate(run_dir=run_dir, split="nonsense")


def test_a_loss_that_is_no_number_names_step_and_utterances(shard_dir, tmp_path):
    def exploding():
        return keras.optimizers.SGD(1e30)

    with pytest.raises(RunError, match=r"Step \d+ \(epoch 1\).*train") as caught:
        train(
            experiment(optimizer=exploding, checkpoint_every_steps=1),
            shard_dir=shard_dir,
            run_dir=tmp_path / "run",
        )

    assert "last good checkpoint is kept" in str(caught.value)
    assert list((tmp_path / "run" / "checkpoints").glob("step-*.npz"))
    last = read_events(tmp_path / "run")[-1]
    assert last["key"] == "run_stop"
    assert last["metadata"]["status"] == "aborted"


@pytest.mark.parametrize(("more", "epochs"), [((), 2), ((("wer", 0.0),), 3)])
def test_training_ends_when_all_targets_are_met(shard_dir, tmp_path, more, epochs):
    # A CER over the longer string is never above 1; a WER of a model that has hardly
    # begun can be.
    config = experiment(
        epochs=3, targets=(("cer", 1.0), *more), target_window=2, stop_at_targets=True
    )
    assert len(train(config, shard_dir=shard_dir, run_dir=tmp_path / "run")) == epochs


@pytest.mark.parametrize("normalisation", ["corpus", "speaker"])
def test_normalisation_takes_the_training_splits_statistics(
    normalisation, shard_dir, tmp_path
):
    features = FeatureConfig(normalisation=normalisation)
    config = dataclasses.replace(experiment(), features=features)
    history = train(config, shard_dir=shard_dir, run_dir=tmp_path / "run")
    result = evaluate(run_dir=tmp_path / "run", split="validation")
    assert result.loss == pytest.approx(history[-1]["loss"], rel=1e-4)
    (facts,) = (
        e["value"] for e in read_events(tmp_path / "run") if e["key"] == "comparability"
    )
    assert facts.get("normalised_over") == (
        None if normalisation == "corpus" else "speaker"
    )
    words = [
        "--run_dir",
        tmp_path / "run",
        "--split",
        "validation",
        "--out",
        tmp_path / "scores",
    ]
    assert run(parse(["tfasr", "evaluate", *map(str, words)])) == 0
    told = (
        "features normalised by speaker"
        in (tmp_path / "scores" / "scores.md").read_text()
    )
    assert told == (normalisation == "speaker")
    recogniser = load_recogniser(tmp_path / "run")
    assert not recogniser.spec.can_stream or normalisation == "corpus"
    assert recogniser.transcribe(np.zeros(16000, np.float32)).text is not None


def test_a_dry_run_estimates_and_writes_nothing(shard_dir):
    before = sorted(shard_dir.rglob("*"))
    text = dry_run(experiment(), shard_dir=shard_dir)
    assert "parameters:" in text
    assert "memory:" in text
    assert sorted(shard_dir.rglob("*")) == before


def test_an_experiment_is_read_back_as_it_was_saved(run_dir):
    loaded = Experiment.load(run_dir)
    assert loaded.model == MODEL
    assert loaded.pipeline == PIPELINE
    assert loaded.decoder == DecoderConfig()


def test_shards_whose_utterances_the_model_leaves_without_a_path_are_refused(
    shard_dir, tmp_path
):
    config = Experiment(model=AcousticModelConfig(conv_stride=30), pipeline=PIPELINE)
    with pytest.raises(
        UsageError, match="CTC path.*'acoustic_model'.*Prepare 'train' again"
    ):
        train(config, shard_dir=shard_dir, run_dir=tmp_path / "run")

    assert not (tmp_path / "run").exists()


def test_two_logical_devices_learn_what_one_learns(shard_dir, tmp_path):
    """Without batch statistics and dropout, half a batch on each device is the whole on
    one.
    """
    script = """
        import sys
        import keras
        import tensorflow as tf

        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
        )
        from tfasr.data.batches import PipelineConfig
        from tfasr.models.recurrent import AcousticModelConfig
        from tfasr.training.experiment import Experiment, TrainingConfig
        from tfasr.training.train import train

        for replicas in (1, 2):
            model = AcousticModelConfig(
                conv_filters=16, num_lstm_layers=1, lstm_units=16, dropout=0.0,
                batch_normalisation=False,
            )
            pipeline = PipelineConfig(global_batch_size=16, num_buckets=2, padding="bucketed")
            training = TrainingConfig(
                epochs=2, num_replicas=replicas, optimizer=lambda: keras.optimizers.SGD(1e-4)
            )
            train(
                Experiment(model=model, pipeline=pipeline, training=training),
                shard_dir=sys.argv[1], run_dir=f"{sys.argv[2]}/{replicas}",
            )
    """
    run_script(textwrap.dedent(script), shard_dir, tmp_path)
    one, two = (
        [
            e["value"]
            for e in read_events(tmp_path / replicas)
            if e["key"] == "train_step"
        ]
        for replicas in ("1", "2")
    )
    assert [step["utterances"] for step in one] == [step["utterances"] for step in two]
    np.testing.assert_allclose(
        [step["loss"] for step in one], [step["loss"] for step in two], rtol=2e-4
    )


def test_augmentation_changes_training_alone(shard_dir, tmp_path):
    config = experiment(epochs=1)
    losses = {}
    for masks in (0, 3):
        with_masks = Experiment(
            model=MODEL,
            pipeline=PIPELINE,
            augmentation=AugmentationConfig(
                frequency_masks=masks, frequency_mask_bins=40
            ),
            training=config.training,
        )
        run = tmp_path / str(masks)
        train(with_masks, shard_dir=shard_dir, run_dir=run)
        first = next(e for e in read_events(run) if e["key"] == "train_step")
        losses[masks] = first["value"]["loss"]

    assert losses[0] != losses[3]


@pytest.mark.parametrize("decoder", ["greedy", "beam", "word_beam"])
def test_overlapped_evaluation_books_the_same_accuracy(shard_dir, tmp_path, decoder):
    scores = {}
    for overlap in (False, True):
        config = Experiment(
            model=MODEL,
            pipeline=PIPELINE,
            decoder=DecoderConfig(name=decoder, beam_width=8),
            training=TrainingConfig(
                epochs=2,
                optimizer=adam,
                overlap_evaluation=overlap,
                sentences_every_steps=0,
            ),
        )
        run = tmp_path / f"{overlap}"
        history = train(config, shard_dir=shard_dir, run_dir=run)
        events = read_events(run)
        stats = [e["value"] for e in events if e["key"] == "tracked_stats"]
        assert [s["cer"] for s in stats] == [h["cer"] for h in history]
        assert all(e["value"] > 0 for e in events if e["key"] == "decode_work")
        assert len(load_run(run).accuracy_curve("cer")) == 2
        scores[overlap] = [(s["cer"], s["wer"], s["utterances"]) for s in stats]

    assert scores[True] == scores[False]


def test_word_beam_search_writes_the_training_words_alone(run_dir, shard_dir):
    result = evaluate(
        run_dir=run_dir, split="validation", decoder="word_beam", beam_width=8
    )
    words = {
        w for u in open_split(shard_dir, "train").utterances for w in u.text.split()
    }
    heard = [h.text.split() for h in result.hypotheses]
    assert {w for text in heard for w in text[:-1]} <= words
    # An utterance may end inside a word.
    assert all(any(w.startswith(text[-1]) for w in words) for text in heard if text)
    exact = evaluate(
        run_dir=run_dir, split="validation", decoder="word_beam", recombine=True
    )
    assert exact.counts.utterances == result.counts.utterances == 24
