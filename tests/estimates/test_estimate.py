"""``tfasr estimate`` on real trials and runs of a tiny model, and what it refuses."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tests.tones import (
    SHARDS,
    TONES_GIN,
    TRAIN_UTTERANCES,
    tones_experiment,
    write_tone_corpus,
)
from tfasr import cli, load_run, train
from tfasr.data.batches import PipelineConfig
from tfasr.errors import RunError, UsageError
from tfasr.estimates import estimate as module
from tfasr.estimates import machine as machines
from tfasr.estimates import trial as trials
from tfasr.estimates.entries import SHIPPED, read_catalogue
from tfasr.estimates.estimate import Estimate, estimate
from tfasr.estimates.trial import try_out
from tfasr.estimates.workers import step_of_workers
from tfasr.training.dry_run import dry_run
from tfasr.tta.costs import HardwareConfig
from tfasr.tta.host import HostUse

TARGET = "cer=0.99"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two short runs that differ in their seeds."""
    folder = tmp_path_factory.mktemp("runs") / "tones"
    for seed in (1, 2):
        experiment = tones_experiment(epochs=4, seed=seed)
        train(
            experiment,
            shard_dir=SHARDS,
            run_dir=folder / f"seed_{seed}",
            memory_probe=False,
        )

    return folder


@pytest.fixture(scope="module")
def catalogue(runs, tmp_path_factory):
    """The catalogue that a report of these runs writes."""
    folder = tmp_path_factory.mktemp("catalogue")
    words = ["tfasr", "report", str(runs), "--catalogue", str(folder)]
    assert cli.run(cli.parse(words)) == 0

    return folder


@pytest.fixture(scope="module")
def trial():
    """One real trial; tests that are about something else use it again."""
    return try_out(tones_experiment(), SHARDS, most_s=15)


@pytest.fixture
def ask(monkeypatch, trial, catalogue):
    """Asks for an estimate, with a trial that was recorded once."""
    monkeypatch.setattr(module, "try_out", lambda *args, **options: trial)

    def asked(experiment=None, **options) -> Estimate:
        options = {
            "shard_dir": SHARDS,
            "target": TARGET,
            "catalogue": [catalogue],
            **options,
        }
        return estimate(experiment or tones_experiment(), **options)

    return asked


def test_a_trial_measures_every_part(trial):
    assert trial.steps >= 2
    assert trial.evaluations >= 2
    assert trial.per_utterance["train"] > 0
    assert trial.per_evaluation["eval_forward"] > 0
    assert trial.per_checkpoint["checkpoint"] > 0
    assert 0 < trial.start_s["mlperf"] < trial.start_s["paper"]


def test_the_trials_parts_add_up_to_a_real_runs_time(trial, runs):
    run = load_run(runs / "seed_2")
    epochs = len(run.accuracy_curve("cer"))
    seen = float(epochs * TRAIN_UTTERANCES)
    policy = module.PAPER

    parts_s = trial.seconds(policy, seen, epochs, epochs)

    # Other programs may slow either down, but parts left out or counted twice would
    # show.
    assert run.accuracy_curve("cer")[-1].elapsed_s / 4 < parts_s
    assert parts_s < 4 * run.accuracy_curve("cer")[-1].elapsed_s


def test_the_answer_has_five_lines_and_its_interval_has_the_runs(ask, runs):
    answer = ask(hardware=HardwareConfig(price_usd_per_hour=3600.0), recipe="tones")
    lines = answer.lines()

    assert 4 <= len(lines) <= 6
    assert lines[0].startswith("CER 99 % in ")
    assert "(80 %)" in lines[0]
    assert "rests on: 2 finished runs" in lines[2]
    assert answer.cost.usd == pytest.approx(answer.seconds["paper"].middle, rel=1e-6)

    met = [
        load_run(p).time_to_accuracy(cer=0.99, policy="utterances")
        for p in runs.iterdir()
    ]

    assert answer.utterances.low <= met[0].seconds <= answer.utterances.high
    assert answer.seconds["mlperf"].middle < answer.seconds["paper"].middle
    assert answer.plot().chart.name == "estimate"

    json.dumps(answer.to_json())


def test_a_target_that_no_run_reached_is_not_known_and_an_hour_is_told(ask):
    answer = ask(target="cer=0.00001", hardware=HardwareConfig(price_usd_per_hour=2.0))

    assert (
        "not known (no run of tones reached this target; the best CER is"
        in answer.lines()[0]
    )
    assert "an hour trains" in answer.lines()[1]
    assert "an hour costs 2 USD" in str(answer)
    with pytest.raises(UsageError, match="no time to draw"):
        answer.plot()


def test_a_changed_recipe_is_named_and_its_entry_not_used(ask):
    answer = ask(tones_experiment(zero_output_layer=True))

    assert answer.utterances is None
    assert "the nearest is tones, which differs in" in answer.unknown
    assert "zero_output_layer" in answer.unknown


@pytest.mark.parametrize(
    "free", [{"seed": 9}, {"epochs": 7}, {"checkpoint_every_steps": 3}]
)
def test_settings_that_decide_nothing_keep_the_entry(ask, free):
    assert not ask(tones_experiment(**free)).unknown


def of_batch(size):
    """The experiment of the runs, with batches of another size."""
    experiment = tones_experiment()
    pipeline = dataclasses.replace(experiment.pipeline, global_batch_size=size)
    return dataclasses.replace(experiment, pipeline=pipeline)


def test_another_batch_is_not_taken_for_the_same_recipe(ask):
    answer = ask(of_batch(8))

    assert "global_batch_size" in answer.unknown


@pytest.fixture
def larger_batches(catalogue, tmp_path):
    """A catalogue of the same runs as if trained with batches of 16."""
    (path,) = catalogue.glob("*.json")
    content = json.loads(path.read_text())
    content["batch"] = content["experiment"]["pipeline"]["global_batch_size"] = 16

    for run in content["runs"]:
        run["curve"] = [[4 * row[0], *row[1:]] for row in run["curve"]]

    (tmp_path / "larger.json").write_text(json.dumps(content))
    return tmp_path


def test_a_batch_between_two_that_were_trained_is_interpolated(
    ask, catalogue, larger_batches
):
    answer = ask(of_batch(8), catalogue=[catalogue, larger_batches])

    expected = {4: 2.0, 16: 0.5}[answer.match.entry.batch]
    assert answer.match.factor == pytest.approx(expected)
    assert "interpolated between the batches 4, 16" in str(answer)


def test_a_batch_beyond_those_that_were_trained_is_unknown(ask, larger_batches):
    assert ask(of_batch(24), catalogue=[larger_batches]).unknown


def test_other_recordings_of_the_same_number_are_another_corpus(
    ask, tmp_path, catalogue
):
    content = json.loads(next(catalogue.glob("*.json")).read_text())
    content["training_audio"] = "0" * 16
    (tmp_path / "other.json").write_text(json.dumps(content))

    answer = ask(catalogue=[tmp_path], recipe="tones")

    assert "other recordings" in answer.unknown


def test_a_busy_machine_is_named_and_widens_the_interval(ask, trial, monkeypatch):
    def with_host(competed_s):
        host = HostUse(10, 0, 10, 0.0, 0.0, competed_s, 0, None, None, None, None)
        tried = dataclasses.replace(trial, host=host)
        monkeypatch.setattr(module, "try_out", lambda *args, **options: tried)

        return ask()

    quiet = with_host(0.0)
    busy = with_host(10.0)

    assert not any(line.startswith("busy") for line in quiet.lines())
    assert "busy: steps got 50%" in str(busy)
    assert "other programs" in str(busy)
    assert busy.seconds["paper"].low < quiet.seconds["paper"].low


def test_workers_are_estimated_with_their_link(ask):
    answer = ask(workers=[2, 4], link_gbit_s=10.0)

    assert list(answer.workers) == [2, 4]
    assert "2 workers: CER 99 % in" in str(answer)
    with pytest.raises(UsageError, match="--link_gbit_s"):
        ask(workers=[2])
    with pytest.raises(UsageError, match="at least 2"):
        ask(workers=[1], link_gbit_s=1.0)


def test_a_ring_of_workers_sends_all_gradients_twice():
    # 2 workers send half of the gradients twice: 1e9 bytes at 0.85 of 8 Gbit/s.
    assert step_of_workers(2, 1.0, 0.0, 1e9, 8.0) == pytest.approx(
        0.5 + 1e9 / 0.85e9, rel=1e-3
    )
    assert step_of_workers(4, 1.0, 0.4, 0.0, 8.0) == pytest.approx(0.4 + 0.15, rel=1e-2)


def machine_file(path, **changes):
    """Writes the file of a machine twice as fast as this one."""
    step_s = {"float32": {"narrow": 0.01, "middle": 0.1, "wide": 0.3}}
    here = machines.Machine("that machine", step_s, "float32", 5.0, 0.01)
    content = {"system_name": "fast one", machines.KEY: {**here.to_json(), **changes}}
    path.write_text(json.dumps(content))

    return path


def test_a_machine_of_half_the_times_takes_half_a_step(tmp_path):
    slower = {"float32": {"narrow": 0.02, "middle": 0.2, "wide": 0.6}}
    path = machine_file(tmp_path / "fast.json")
    there = machines.read_machine(path)

    here = dataclasses.replace(there, step_s=slower)

    assert there.step_ratio(here, 0.05, "float32") == pytest.approx(0.5)


def test_an_answer_for_another_machine_is_scaled_and_less_certain(
    ask, tmp_path, monkeypatch
):
    slower = {"float32": {"narrow": 0.02, "middle": 0.2, "wide": 0.6}}
    path = machine_file(tmp_path / "fast.json")
    there = machines.read_machine(path)

    here = dataclasses.replace(there, step_s=slower)

    monkeypatch.setattr(module, "measure", lambda **options: here)
    answer = ask(machine=path)
    usual = ask()

    assert "steps 0.5 times as long as here" in str(answer)
    assert "on fast one" in answer.lines()[0]

    ratio = answer.trial.per_utterance["train"] / usual.trial.per_utterance["train"]
    assert ratio == pytest.approx(0.5)

    spread = answer.seconds["paper"].high / answer.seconds["paper"].low
    assert spread > usual.seconds["paper"].high / usual.seconds["paper"].low


def test_a_recipe_in_bfloat16_is_scaled_by_probes_in_bfloat16():
    """A machine may be fast in float32 alone."""
    probes = {"narrow": 0.01, "middle": 0.1, "wide": 0.3}
    half = {probe: seconds / 2 for probe, seconds in probes.items()}

    here = machines.Machine(
        "here", {"float32": probes, "mixed_bfloat16": half}, "mixed_bfloat16", 5.0, 0.01
    )
    there = machines.Machine("there", {"float32": half}, "float32", 5.0, 0.01)

    assert there.step_ratio(here, 0.05, "float32") == pytest.approx(0.5)
    assert there.step_ratio(here, 0.05, "mixed_bfloat16") == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"format": 99}, "another version of tfasr: its format is 99"),
        ({"start_s": None}, "isn't a machine's file"),
        ({"start_s": -1.0}, "above 0"),
        ({"step_s": {}}, "lacks the steps"),
        ({"surprise": 1}, "isn't a machine's file"),
    ],
)
def test_a_wrong_machine_file_is_refused_with_the_remedy(tmp_path, changes, named):
    path = machine_file(tmp_path / "machine.json", **changes)

    with pytest.raises(UsageError, match=named) as caught:
        machines.read_machine(path)
    assert "tfasr doctor --measure" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"system_name": "x"}', "\x00"])
def test_what_is_no_machine_file_is_refused(tmp_path, text):
    path = tmp_path / "machine.json"
    path.write_text(text)

    with pytest.raises(UsageError, match="tfasr doctor --measure"):
        machines.read_machine(path)
    with pytest.raises(UsageError, match="must be a file"):
        machines.read_machine(tmp_path / "missing.json")


def test_an_estimate_needs_data_or_a_manifest_and_not_both(ask):
    with pytest.raises(UsageError, match="Received: neither"):
        ask(shard_dir=None)
    with pytest.raises(UsageError, match="Received: both"):
        ask(manifest="list.tsv")


def test_before_preparing_a_manifest_gives_the_lengths(tmp_path, monkeypatch, trial):
    tried = {}

    def remember(experiment, folder, **options):
        tried.update({p.name: True for p in folder.iterdir()})
        return trial

    monkeypatch.setattr(module, "try_out", remember)
    corpus = write_tone_corpus(tmp_path / "tones", train=30)
    shutil.rmtree(corpus / "audio")  # only the list is there yet

    answer = estimate(tones_experiment(), target=TARGET, manifest=corpus / "train.tsv")

    assert answer.train_utterances == 30
    assert {"train", "validation"} <= tried.keys()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "path\ttext\na.wav\thello\n",
        '{"text": "a"}\n',
        '{"duration": -1, "text": "a"}\n',
        "{\n",
    ],
)
def test_a_manifest_without_lengths_is_refused_by_its_line(tmp_path, text, trial):
    path = tmp_path / "list"
    path.write_text(text)

    with pytest.raises(UsageError, match="duration and text, or tab-separated"):
        estimate(tones_experiment(), target=TARGET, manifest=path)


def test_a_recipe_without_a_target_asks_for_one(ask):
    with pytest.raises(UsageError, match="--target cer=0.15"):
        ask(target=None)


def test_a_batch_that_does_not_fit_is_refused_as_by_training(monkeypatch):
    monkeypatch.setattr("tfasr.training.memory.available_bytes", lambda: 2**20)
    monkeypatch.setattr("tfasr.training.memory.psutil.Process.memory_info", no_memory)

    with pytest.raises(RunError, match="memory|GiB|MiB"):
        estimate(tones_experiment(), target=TARGET, shard_dir=SHARDS)


def no_memory(self):
    """A process that takes no memory."""
    return type("Memory", (), {"rss": 0})()


def test_a_gpu_without_cudnn_is_explained(monkeypatch):
    def fail(*args, **options):
        raise tf.errors.UnimplementedError(None, None, "DNN library is not found.")

    monkeypatch.setattr(trials, "train", fail)

    with pytest.raises(RunError, match="cuDNN.*tensorflow\\[and-cuda\\]"):
        try_out(tones_experiment(), SHARDS)


def test_a_process_that_was_stopped_gives_no_estimate(monkeypatch):
    stopped = HostUse(100, 0, 1, 0, 0, 0, 480.0, None, None, None, None)
    monkeypatch.setattr(trials, "host_use", lambda *args: stopped)

    with pytest.raises(RunError, match="stood still for 480 s"):
        try_out(tones_experiment(), SHARDS, most_s=1)


def test_a_price_without_its_currency_is_refused(tmp_path, capsys):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps({"system_name": "x", "price_per_hour": 2}))
    words = ["estimate", "--shard_dir", SHARDS, "--target", TARGET, "--hardware", path]

    assert cli.run(cli.parse(["tfasr", *map(str, words)])) == 2
    assert "must name its currency" in capsys.readouterr().err


def test_a_flag_for_dollars_takes_no_other_currency(capsys):
    words = ["estimate", "--shard_dir", SHARDS, "--price_usd_per_hour", "2 EUR"]

    with pytest.raises(SystemExit):
        cli.parse(["tfasr", *map(str, words)])
    assert "tfasr converts no currency" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"tfasr_catalogue": 9}',
        '{"tfasr_catalogue": 1}',
        '{"tfasr_catalogue": 1, "x": 2}',
    ],
)
def test_a_broken_catalogue_is_named(tmp_path, text):
    (tmp_path / "mine.json").write_text(text)

    with pytest.raises(UsageError, match="mine.json isn't a catalogue file"):
        read_catalogue([tmp_path])


@pytest.mark.parametrize("value", ["Infinity", '"many"', "true", "-1"])
def test_a_catalogues_numbers_are_checked(tmp_path, catalogue, value):
    content = json.loads(next(catalogue.glob("*.json")).read_text())
    content["runs"][0]["reached"] = {"cer=0.5": json.loads(value)}

    (tmp_path / "mine.json").write_text(json.dumps(content))

    with pytest.raises(UsageError, match="must be"):
        read_catalogue([tmp_path])


def test_a_folder_without_runs_makes_no_catalogue(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    words = ["report", tmp_path / "empty", "--catalogue", tmp_path / "out"]

    assert cli.run(cli.parse(["tfasr", *map(str, words)])) == 2
    assert "needs finished runs" in capsys.readouterr().err


def test_every_shipped_entry_says_where_its_figures_come_from():
    entries = read_catalogue()

    assert len(entries) == len(list(SHIPPED.glob("*.json")))
    assert {"an4.gin", "fast/an4.gin", "paper_demo.gin"} <= {
        entry.recipe for entry in entries
    }
    for entry in entries:
        assert entry.source
        assert entry.runs


@pytest.mark.parametrize("entry", read_catalogue(), ids=lambda entry: entry.recipe)
def test_shipped_entries_are_those_of_the_presets_of_today(entry):
    from tfasr import load_config
    from tfasr.estimates.recipes import find_entry

    race = ["train/demo_race.gin"] if entry.recipe == "fast/demo.gin" else []
    experiment = load_config([entry.recipe, *race]).experiment

    result = find_entry(
        read_catalogue(),
        experiment,
        entry.recipe,
        entry.train_utterances,
        entry.training_audio,
        ("cer", 0.1),
    )

    assert result.entry is not None, result.reason


def test_the_help_fits_a_screen(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")

    with pytest.raises(SystemExit):
        cli.parse(["tfasr", "estimate", "--help"])
    assert len(capsys.readouterr().out.splitlines()) <= 30


def test_a_dry_run_checks_and_points_to_the_estimate():
    text = dry_run(tones_experiment(), shard_dir=SHARDS, memory_probe=False)

    assert "tfasr estimate" in text
    assert "epochs" not in text


def test_the_command_prints_its_answer_alone(catalogue, capsys, monkeypatch, trial):
    monkeypatch.setattr(module, "try_out", lambda *args, **options: trial)
    preset = SHARDS.parent / "tones.gin"
    words = [
        "estimate",
        "--gin_file",
        preset,
        "--shard_dir",
        SHARDS,
        "--target",
        TARGET,
    ]

    assert cli.run(cli.parse(["tfasr", *map(str, words), "--format", "json"])) == 0
    assert json.loads(capsys.readouterr().out)["metric"] == "cer"


def test_a_recipe_with_a_plug_in_is_tried_and_not_taken_for_a_known_one(catalogue):
    """The loss of an example decides the result, so the catalogue's runs say nothing
    about it.
    """
    command = [sys.executable, "-m", "tfasr", "estimate"]
    command += ["--import", "examples/own_loss.py", "--gin_file", str(TONES_GIN)]
    command += ["--gin_binding", "TrainingConfig.loss = 'smoothed_ctc'"]
    command += ["--shard_dir", str(SHARDS), "--target", TARGET]
    command += ["--catalogue", str(catalogue)]

    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr

    first, second, *_ = done.stdout.splitlines()

    assert "not known" in first
    assert "training.loss" in first
    assert second.startswith("an hour trains ")
    # TensorFlow's talk about devices stays away with plug-ins
    assert "cuInit" not in done.stderr


def test_a_padding_that_is_fixed_needs_no_spread_of_lengths(trial):
    assert 0 <= trial.step_fixed_s <= trial.step_s
    assert PipelineConfig().padding == "fixed"


def test_a_measured_machine_is_read_back_from_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(machines, "PROBE_S", 0.01)
    monkeypatch.setattr(machines, "_PIECE_S", 0.01)
    monkeypatch.setattr(machines, "PROBES", {"narrow": machines.PROBES["narrow"]})

    measured = machines.measure()

    assert measured.bytes_per_s["copy"] > 0
    assert measured.flac_audio_s_per_s > 0

    path = tmp_path / "machine.json"
    content = {"system_name": "mine", machines.KEY: measured.to_json()}
    path.write_text(json.dumps(content))

    there = machines.read_machine(path)

    assert there == dataclasses.replace(measured, name="mine")
    assert there.step_ratio(measured, 0.02, "float32") == pytest.approx(1.0)
    assert all(isinstance(text, str) for row in measured.rows() for text in row)
