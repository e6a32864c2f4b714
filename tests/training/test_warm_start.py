"""Runs that begin with trained weights: what is copied, resumed, recorded and refused."""

import dataclasses
import os
import shutil
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.tones import SHARDS, tones_experiment
from tests.training.test_signals import same_weights
from tests.warm import run_module
from tfasr.alphabet import Alphabet
from tfasr.errors import UsageError
from tfasr.exporting.export import export
from tfasr.ledger.events import read_events
from tfasr.models.recurrent import GruModelConfig
from tfasr.reports.numbers import analyse_run, ask, make_report
from tfasr.reports.tables.runs import tables
from tfasr.training.build import build_model
from tfasr.training.checkpoint import plain_array
from tfasr.training.dry_run import dry_run
from tfasr.training.experiment import is_closed, paper_recipe
from tfasr.training.train import train
from tfasr.training.warm_start import named_layers, open_start
from tfasr.tta.run import load_run

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)
ALPHABET = Alphabet()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("warm") / "trained"
    train(
        tones_experiment(epochs=1),
        shard_dir=SHARDS,
        run_dir=run_dir,
        memory_probe=False,
    )
    return run_dir


def warm(run_dir, start, **training):
    experiment = tones_experiment(start_from=str(start), **training)
    train(experiment, shard_dir=SHARDS, run_dir=run_dir, memory_probe=False)
    return run_dir


def of(run_dir, key):
    return [event for event in read_events(run_dir) if event["key"] == key]


def weights(recogniser):
    return {
        n: [plain_array(w) for w in v.weights]
        for n, v in named_layers(recogniser).items()
    }


def equal(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def begun(experiment, alphabet=ALPHABET):
    """The recogniser, and the ledger's description, as a run of an experiment would begin."""
    start = open_start(experiment)
    facts = []
    layers = start.layers()
    model = build_model(
        experiment,
        alphabet,
        compiled=True,
        begin=lambda r: facts.append(start.copied_into(r, alphabet, layers)),
    )
    return model.recogniser, facts[0]


def test_a_start_copies_all_layers_of_the_best_checkpoint(trained):
    recogniser, fact = begun(tones_experiment(start_from=str(trained)))
    assert fact["layers"] == ["convolution", "lstm_0", "normalisation_0", "normalisation_1",
                              "classifier"]  # fmt: skip
    assert not fact["new_layers"]

    with np.load(trained / "checkpoints" / "best.npz") as saved:
        stored = [saved[name] for name in saved.files]

    for values in weights(recogniser).values():
        for value in values:
            assert any(
                value.shape == s.shape and np.array_equal(value, s) for s in stored
            )


def test_another_alphabet_gets_a_new_output_layer_even_of_the_same_size(trained):
    experiment = tones_experiment(start_from=str(trained), zero_output_layer=True)
    swapped = Alphabet(ALPHABET.characters[::-1], ALPHABET.separator)
    larger = Alphabet(ALPHABET.characters + "äö", ALPHABET.separator)
    for alphabet in (swapped, larger):
        recogniser, fact = begun(experiment, alphabet)
        assert fact["new_layers"] == ["classifier"]
        # As the experiment begins it.
        assert not weights(recogniser)["classifier"][0].any()

    recogniser, fact = begun(experiment)
    assert fact["new_layers"] == []
    assert weights(recogniser)["classifier"][0].any()


def test_a_deeper_model_takes_the_layers_that_fit(trained):
    experiment = tones_experiment(start_from=str(trained))
    deeper = dataclasses.replace(experiment.model, num_lstm_layers=2)
    experiment = dataclasses.replace(experiment, model=deeper)
    _, fact = begun(experiment)
    assert fact["new_layers"] == ["lstm_1", "normalisation_2"]
    text = dry_run(experiment, shard_dir=SHARDS, memory_probe=False)
    assert "from a trained run: convolution, lstm_0, normalisation_0" in text


def test_a_warm_run_learns_faster_and_its_record_says_what_the_start_cost(
    trained, tmp_path
):
    run = load_run(warm(tmp_path / "warm", trained, epochs=1))
    before = load_run(trained)
    fact = run.fact("start_from")
    assert fact["ledger_hash"] == before.ledger_hash
    assert fact["seconds"] == pytest.approx(before.wall_s, abs=0.01)
    first = [load_run(d).timeline.steps.column("loss")[0] for d in (run.path, trained)]
    assert first[0] < 0.7 * first[1]
    assert run.comparability["start_from"] == fact["sha256"][:16]
    assert "start_from" not in before.comparability
    # A start from a start costs both.
    again = open_start(tones_experiment(start_from=str(run.path)))
    assert again.fact["seconds"] == pytest.approx(before.wall_s + run.wall_s, abs=0.01)


def test_the_joules_of_a_start_are_those_of_all_that_led_to_it(trained, tmp_path):
    def metered(run_dir):
        moments = [event["metadata"]["mono_s"] for event in read_events(run_dir)]
        lines = ["time_ms,session,mono_s,counter,joules,range_joules"]
        for at in np.linspace(min(moments) - 1, max(moments) + 1, 50):
            lines.append(f"0,0,{at:.6f},package-0,{100 * at:.6f},")

        (run_dir / "energy.csv").write_text("\n".join(lines) + "\n")
        return 100 * (max(moments) - min(moments))

    first = shutil.copytree(trained, tmp_path / "first")
    expected = metered(first)
    second = warm(tmp_path / "second", first, epochs=1)
    assert load_run(second).fact("start_from")["joules"] == pytest.approx(
        expected, rel=0.05
    )
    expected += metered(second)
    both = open_start(tones_experiment(start_from=str(second))).fact["joules"]
    assert both == pytest.approx(expected, rel=0.05)
    (second / "energy.csv").unlink()
    assert open_start(tones_experiment(start_from=str(second))).fact["joules"] is None


def record_of(report):
    records = tables(report)[0].records
    return dict(zip(records.columns, records.rows[0], strict=True))


def test_a_report_gives_times_with_and_without_the_start_and_keeps_warm_from_cold(
    trained, tmp_path
):
    run_dir = warm(
        tmp_path / "warm", trained, epochs=1, targets=(("cer", 1.0),), target_window=1
    )
    run = load_run(run_dir)
    options = {"targets": ["cer=1.0"], "window": 1}
    report = make_report([analyse_run(run, ask(**options))], ask(**options))
    record = record_of(report)
    seconds = run.fact("start_from")["seconds"]
    assert record["with_start_s"] == pytest.approx(
        record["time_to_accuracy_s"] + seconds
    )
    notes = report.runs[0].notes
    assert any(str(trained) in note and "5 of its 5 layers" in note for note in notes)
    both = [
        analyse_run(load_run(folder), ask(**options)) for folder in (trained, run_dir)
    ]
    report = make_report(both, ask(**options))
    assert "start_from" in report.differences[1]
    assert "weights that it began with" in " ".join(report.notes)
    cold = make_report(both[:1], ask(**options))
    assert "with_start_s" not in record_of(cold)


def schedule_free():
    return keras.optimizers.ScheduleFreeAdamW(
        0.02, warmup_steps=3, name="schedule_free_adamw"
    )


def averaging_adam():
    return keras.optimizers.AdamW(
        0.01, weight_decay=0.1, use_ema=True, ema_momentum=0.6, name="adamw"
    )


MAKERS = {"ema": averaging_adam}
if hasattr(keras.optimizers, "ScheduleFreeAdamW"):
    MAKERS["schedule_free"] = schedule_free


class KillAt(keras.callbacks.Callback):
    """Ends the process as kill -9 does, after a batch of an epoch, both counted from 0."""

    def __init__(self, epoch, batch):
        super().__init__()
        self.at = (epoch, batch)
        self.epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def killable(start, run_dir, maker, *kill_at):
    options = {"epochs": 3, "optimizer": MAKERS[maker], "checkpoint_every_steps": 4}
    experiment = tones_experiment(start_from=str(start), **options)
    callbacks = [KillAt(*map(int, kill_at))] if kill_at else []
    resume = run_dir.exists()
    arguments = {"shard_dir": SHARDS, "memory_probe": False, "callbacks": callbacks}
    train(experiment, run_dir=run_dir, resume=resume, **arguments)
    return run_dir


@pytest.mark.parametrize(
    "maker",
    [pytest.param(name, marks=[pytest.mark.long] * (name != "ema")) for name in MAKERS],
)
def test_a_killed_run_resumes_bit_for_bit_without_its_start(trained, tmp_path, maker):
    whole = killable(trained, tmp_path / "whole", maker)
    killed = tmp_path / "killed"
    places = (("0", "4"), ("2", "2"))[: 1 if maker == "ema" else 2]
    for place in places:
        died = run_module(
            "tests.training.test_warm_start", trained, killed, maker, *place
        )
        assert died.returncode == -signal.SIGKILL, died.stderr
        if trained.exists():
            # A resumed run no longer needs it.
            trained.rename(trained.with_name("moved"))

    try:
        killable(trained, killed, maker)
    finally:
        trained.with_name("moved").rename(trained)

    resumed_from = [
        e["value"]["resumed_from_step"] for e in of(killed, "session_start")
    ]
    assert resumed_from == [None, 4, 12][: 1 + len(places)]
    assert same_weights(whole, killed)
    facts = [load_run(run_dir).comparability for run_dir in (whole, killed)]
    assert facts[0] == facts[1]


def test_a_run_killed_before_its_first_checkpoint_begins_with_the_same_weights(
    trained, tmp_path
):
    run_dir = warm(tmp_path / "run", trained, epochs=1)
    shutil.rmtree(run_dir / "checkpoints")
    lines = (run_dir / "events.jsonl").read_bytes().splitlines(keepends=True)
    steps = [number for number, line in enumerate(lines) if b'"train_step"' in line]
    (run_dir / "events.jsonl").write_bytes(b"".join(lines[: steps[2]]))
    other = shutil.copytree(trained, tmp_path / "other")
    experiment = tones_experiment(start_from=str(trained), epochs=1)
    best = trained / "checkpoints" / "best.npz"
    kept = best.read_bytes()
    newest = sorted((other / "checkpoints").glob("step-*"))[-1]
    with np.load(newest) as saved:
        changed = {name: saved[name] for name in saved.files}

    changed = {n: v * 1.5 if v.dtype == np.float32 else v for n, v in changed.items()}
    best.unlink()
    np.savez(best, **changed)
    arguments = {
        "shard_dir": SHARDS,
        "run_dir": run_dir,
        "memory_probe": False,
        "resume": True,
    }

    with pytest.raises(UsageError, match=r"best.npz has changed.*restore the file"):
        train(experiment, **arguments)

    best.write_bytes(kept)
    train(experiment, **arguments)
    assert len(of(run_dir, "start_from")) == 2
    assert load_run(run_dir).status == "success"


def test_an_export_to_keras_is_a_start_whose_cost_is_unknown(trained, tmp_path):
    export(to="keras", run_dir=trained, out=tmp_path / "export", shard_dir=SHARDS)
    recogniser, fact = begun(tones_experiment(start_from=str(tmp_path / "export")))
    assert (fact["seconds"], fact["joules"], fact["new_layers"]) == (None, None, [])
    of_run = weights(begun(tones_experiment(start_from=str(trained)))[0])
    for name, values in weights(recogniser).items():
        assert equal(values, of_run[name])

    content = (tmp_path / "export" / "model.keras").read_bytes()
    (tmp_path / "export" / "model.keras").write_bytes(content[:-1] + b"x")

    with pytest.raises(
        UsageError, match=r"model.keras must be as it was exported.*Export"
    ):
        open_start(tones_experiment(start_from=str(tmp_path / "export")))


def other_features(trained, folder):
    experiment = tones_experiment(start_from=str(trained))
    features = dataclasses.replace(experiment.features, num_mfcc=5)
    return dataclasses.replace(experiment, features=features)


def other_architecture(trained, folder):
    experiment = tones_experiment(start_from=str(trained))
    return dataclasses.replace(
        experiment, model=GruModelConfig(conv_filters=9, gru_units=5)
    )


def damaged(trained, folder):
    run_dir = shutil.copytree(trained, folder / "damaged")
    best = run_dir / "checkpoints" / "best.npz"
    best.unlink()
    best.write_bytes(b"PK\x03\x04 nothing")
    return tones_experiment(start_from=str(run_dir))


def changed_ledger(trained, folder):
    run_dir = shutil.copytree(trained, folder / "changed")
    lines = (run_dir / "events.jsonl").read_text().splitlines(keepends=True)
    (run_dir / "events.jsonl").write_text("".join(lines[:10] + lines[11:]))
    return tones_experiment(start_from=str(run_dir))


def untrained(trained, folder):
    run_dir = shutil.copytree(trained, folder / "untrained")
    shutil.rmtree(run_dir / "checkpoints")
    return tones_experiment(start_from=str(run_dir))


def not_finite(trained, folder):
    run_dir = shutil.copytree(trained, folder / "nan")
    best = run_dir / "checkpoints" / "best.npz"
    with np.load(best) as saved:
        arrays = {name: saved[name] for name in saved.files}

    name = next(n for n in sorted(arrays) if n.endswith("kernel"))
    arrays[name] = np.full_like(arrays[name], np.nan)
    best.unlink()
    np.savez(best, **arrays)
    return tones_experiment(start_from=str(run_dir))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            other_features,
            "num_mfcc 4, here 5.*same features|same features.*num_mfcc 4, here 5",
        ),
        (other_architecture, r"convolution \(5, 16, 8\).*convolution \(11, 16, 9\)"),
        (damaged, "weights can be read.*damaged.*Name another run"),
        (changed_ledger, r"Line 11 of .*events.jsonl is damaged"),
        (untrained, "no checkpoint that can be read.*Name another run"),
        (not_finite, "must name a run whose weights are finite.*Name another run"),
        (
            lambda t, f: tones_experiment(start_from=str(f / "none")),
            "which is no folder",
        ),
        (lambda t, f: tones_experiment(start_from=str(f)), "which holds neither"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_cannot_be_a_start_is_refused_before_training(
    trained, tmp_path, make, message
):
    experiment = make(trained, tmp_path)
    shards = SHARDS
    if make is other_features:  # shards are checked first
        with pytest.raises(UsageError, match=message):
            open_start(experiment)

        return

    with pytest.raises(UsageError, match=message) as caught:
        train(
            experiment, shard_dir=shards, run_dir=tmp_path / "run", memory_probe=False
        )

    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_names_that_keras_made_up_count_the_layers_of_the_model():
    def model():
        dense = keras.layers.Dense
        convolution = keras.layers.Conv1D
        return keras.Sequential(
            [dense(2), convolution(2, 1), dense(2), dense(2, name="last")]
        )

    for made in (model(), model()):
        made.build((None, 3, 4))
        assert list(named_layers(made)) == ["dense_0", "conv1d_0", "dense_1", "last"]


def test_a_warm_start_is_no_run_of_the_closed_division():
    assert is_closed(paper_recipe())
    warm = dataclasses.replace(paper_recipe().training, start_from="x")
    assert not is_closed(dataclasses.replace(paper_recipe(), training=warm))


if __name__ == "__main__":
    killable(*map(Path, sys.argv[1:3]), *sys.argv[3:])
