import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reports.conftest import ledger_of
from tests.tones import SHARDS, tones_experiment
from tfasr.cli import parse, run
from tfasr.commands import demo as module
from tfasr.commands import doctor as doctor_command
from tfasr.commands.demo import demo
from tfasr.errors import RunError, UsageError
from tfasr.telemetry.host import TakenNow
from tfasr.training.memory import BufferNeed
from tfasr.training.train import train
from tfasr.tta.costs import load_hardware

# What `tfasr demo` asks of the other commands; the commands themselves are tested
# elsewhere.


@pytest.fixture
def asked(monkeypatch):
    """Collects the commands instead of running them; training makes the run's folder."""
    commands = []

    def run_command(words, log, title, run_dir):
        words = list(words)
        commands.append(words)
        if words[0] == "train":
            Path(words[words.index("--run_dir") + 1]).mkdir(parents=True)
        log.write_text("the step's own message\n")
        return 1 if "fail" in str(words) else 0

    monkeypatch.setattr(module, "_run", run_command)
    monkeypatch.setattr(module, "_decided", lambda race: False)
    monkeypatch.setattr(
        "tfasr.studies.quiet.taken_now", lambda seconds: TakenNow(0.0, 0.02, None)
    )
    monkeypatch.setattr(
        "tfasr.corpora.synthetic.make_synthetic_corpus", lambda folder: None
    )
    # The runs are empty folders, and the machine that makes them may be busy.
    monkeypatch.setattr("tfasr.studies.quiet.taken_of", lambda run_dir: 0.0)
    monkeypatch.setattr("tfasr.studies.quiet.Patience.wait", lambda patience: None)
    return commands


def of(commands, name):
    return [words for words in commands if words[0] == name]


def trained(commands, folder):
    """Returns the path below the folder of runs, the gin file and the seed of each run."""
    return [
        (
            str(Path(words[words.index("--run_dir") + 1]).relative_to(folder / "runs")),
            words[words.index("--gin_file") + 1],
            *(int(word.rpartition("= ")[2]) for word in words if " = " in word),
        )
        for words in of(commands, "train")
    ]


def test_one_run_of_each_recipe(asked, tmp_path):
    assert demo(demo_dir=tmp_path, seeds=1) == tmp_path / "report" / "report.html"
    recipes = [("papers_recipe", "paper_demo.gin"), ("fast_recipe", "fast/demo.gin")]
    assert [run[:2] for run in trained(asked, tmp_path)] == recipes
    runs = [str(tmp_path / "runs" / name) for name in ("papers_recipe", "fast_recipe")]
    assert of(asked, "report") == [["report", *runs, "--out", str(tmp_path / "report")]]
    # Once more: the runs are kept, and new ones stand next to them.
    demo(demo_dir=tmp_path, seeds=1)
    assert [name for name, *_ in trained(asked, tmp_path)[2:]] == [
        "papers_recipe-2",
        "fast_recipe-2",
    ]


def test_seeds_make_groups_whose_runs_take_turns(asked, tmp_path):
    demo(demo_dir=tmp_path, seed=4, seeds=3)
    assert [run[:2] for run in trained(asked, tmp_path)] == [
        (f"{name}/seed_{seed}", gin_file)
        for seed, turn in ((4, 1), (5, -1), (6, 1))
        for name, gin_file in (
            ("papers_recipe", "paper_demo.gin"),
            ("fast_recipe", "fast/demo.gin"),
        )[::turn]
    ]
    assert len(of(asked, "evaluate")) == 2
    groups = [
        str(tmp_path / "runs" / name) for name in ("papers_recipe", "fast_recipe")
    ]
    assert of(asked, "report")[0][1:3] == groups


def test_it_ends_with_the_answer_and_the_newest_run(monkeypatch, tmp_path, capsys):
    cers = {
        "papers_recipe": [0.5, 0.4, 0.3, 0.2, 0.2, 0.1, 0.1, 0.1],
        "fast_recipe": [0.5, 0.1, 0.1],
    }
    for name, curve in cers.items():
        ledger_of([1.0]).write(tmp_path / "runs" / name)  # of an earlier demo
        for seed in range(1, 6):
            ledger = ledger_of(curve, train_s=1 + seed / 100)
            ledger.write(tmp_path / "runs" / f"{name}-2" / f"seed_{seed}")

    (tmp_path / "corpus" / "test").mkdir(parents=True)
    (tmp_path / "corpus" / "test" / "0.wav").touch()
    monkeypatch.setattr(
        module, "demo", lambda **arguments: tmp_path / "report" / "report.html"
    )
    monkeypatch.setattr(module, "own_command", lambda: ".venv/bin/tfasr")
    module.run(argparse.Namespace(demo_dir=str(tmp_path), seed=1, seeds=5))
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"To CER 10 %, fast_recipe-2 needs 8\.\d+ s, papers_recipe-2 16\.\d+ s: "
        r"2\.0 times sooner, decided by 5 runs each\.",
        printed,
    )
    assert "p = " not in printed
    assert "report.html in a browser. Use the trained model: .venv/bin/tfasr" in printed
    assert printed.endswith(
        f"0.wav --run_dir {tmp_path / 'runs' / 'fast_recipe-2' / 'seed_5'}"
    )


def test_wrong_use_and_failure(asked, tmp_path, capsys):
    with pytest.raises(UsageError, match="at least 1. Received: 0"):
        demo(demo_dir=tmp_path, seeds=0)
    assert asked == []
    with pytest.raises(RunError, match="tfasr prepare ended with exit code 1"):
        demo(demo_dir=tmp_path / "fail")
    # The end of the step's messages is above the error.
    assert "the step's own message" in capsys.readouterr().out


@pytest.fixture
def doctor(tmp_path):
    """Runs `tfasr doctor` where importing TensorFlow fails."""
    (tmp_path / "broken" / "tensorflow").mkdir(parents=True)
    (tmp_path / "broken" / "tensorflow" / "__init__.py").write_text(
        "raise RuntimeError('this TensorFlow is broken')\n"
    )

    def run(*arguments):
        paths = [
            str(tmp_path / "broken"),
            str(Path.cwd()),
            os.environ.get("PYTHONPATH", ""),
        ]
        return subprocess.run(
            [sys.executable, "-m", "tfasr.cli", "doctor", *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_it_answers_without_tensorflow(doctor):
    finished = doctor()
    assert finished.returncode == 0, finished.stderr
    for name in (
        "processor",
        "memory",
        "limits",
        "energy, processors",
        "Python",
        "tensorflow",
    ):
        assert any(line.startswith(name) for line in finished.stdout.splitlines()), name
    assert "broken" not in finished.stdout


def test_a_tensorflow_that_does_not_load_is_told_when_asked(doctor):
    finished = doctor("--tensorflow")
    assert finished.returncode == 0, finished.stderr
    assert (
        "TensorFlow does not load: RuntimeError: this TensorFlow is broken"
        in finished.stdout
    )


def test_the_papers_machines_stand_below_this_one(doctor):
    finished = doctor("--beside", "paper", "--format", "csv")
    assert finished.returncode == 0, finished.stderr
    lines = finished.stdout.splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith("machine,"))
    this, *systems = csv.DictReader(lines[begin:])
    assert int(this["threads"]) >= 1
    assert float(this["memory_gb"]) > 0
    # Section 4.2 and Figure 5.
    names = ("machine", "sockets", "cores", "threads", "memory_gb", "gpus")
    assert [[row[name] for name in names] for row in systems[:3]] == [
        ["Sys1$", "1", "4", "8", "16", "4 x RTX 2070, 8 GB each"],
        ["Sys2$", "2", "12", "24", "128", "4 x GTX 1080 Ti, 11 GB each"],
        ["Sys10$", "2", "24", "48", "192", "2 x Tesla V100, 32 GB each"],
    ]
    assert "PCIe 2.0 x1" in systems[0]["links"]
    assert "InfiniBand" in systems[2]["storage"]
    assert "Sys10$" in doctor("--beside", "paper").stdout


def test_its_json_is_a_machine_for_the_report(doctor, tmp_path):
    finished = doctor("--format", "json", "--out", str(tmp_path / "desk.json"))
    assert finished.returncode == 0, finished.stderr
    said = json.loads(finished.stdout)
    assert said == json.loads((tmp_path / "desk.json").read_text())
    assert said["processor"]["threads"]
    machine = load_hardware(tmp_path / "desk.json")
    assert (machine.name, machine.num_hosts, machine.hourly_usd) == ("desk", 1, None)


def test_a_folder_that_is_not_there_fails_with_a_remedy(doctor, tmp_path):
    finished = doctor("--out", str(tmp_path / "nowhere" / "system.json"))
    assert finished.returncode == 1
    assert "Choose another --out" in finished.stderr
    with pytest.raises(UsageError, match="Presets"):
        load_hardware(tmp_path / "nowhere" / "system.json")


def test_it_says_whether_a_presets_buffer_fits(monkeypatch, capsys):
    asked = []

    def call(function, *arguments, **options):
        asked.append((function.__name__, *arguments))
        return BufferNeed(100, 300, 1670, 93)

    monkeypatch.setattr(doctor_command, "call", call)
    arguments = argparse.Namespace(
        tensorflow=False, out=None, measure=False, format="table",
        gin_file=["paper_sys10.gin"], gin_binding=[], beside=None,
    )  # fmt: skip
    monkeypatch.setattr(doctor_command, "available_bytes", lambda: 64 * 2**30)
    assert doctor_command.run(arguments) == 0
    (line,) = [
        text
        for text in capsys.readouterr().out.splitlines()
        if text.startswith("buffer")
    ]
    assert "100 batches held ready" in line
    assert "17.70 GiB" in line
    assert "64.00 GiB are available" in line
    monkeypatch.setattr(doctor_command, "available_bytes", lambda: 8 * 2**30)
    with pytest.raises(
        RunError, match=r"must fit into 8.00 GiB.*PipelineConfig.prefetch = 34"
    ):
        doctor_command.run(arguments)
    assert "17.70 GiB" in capsys.readouterr().out
    assert asked == 2 * [("buffer_of_preset", ["paper_sys10.gin"], [])]


# `tfasr evaluate` of several runs and splits: one table, in every format, and files.


def evaluate(*words: object) -> int:
    return run(
        parse(["tfasr", "evaluate", "--shard_dir", str(SHARDS), *map(str, words)])
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two copies of a run, which score alike; the shards that it was trained on are gone."""
    folder = tmp_path_factory.mktemp("runs")
    shards = shutil.copytree(SHARDS, folder / "shards")
    train(tones_experiment(epochs=4), shard_dir=shards, run_dir=folder / "first")
    shutil.rmtree(shards)
    shutil.copytree(folder / "first", folder / "second")
    return [folder / "first", folder / "second"]


def test_runs_are_rows_and_splits_are_columns(runs, tmp_path, capsys):
    words = ["--run_dir", runs[0], "--run_dir", runs[1], "--split", "train"]
    words += ["--split", "validation", "--decoder", "word_beam", "--beam_width", 4]
    assert evaluate(*words, "--out", tmp_path / "out", "--format", "latex") == 0
    table = capsys.readouterr().out
    assert r"\shortstack{train\\WER \%}" in table
    rows = json.loads((tmp_path / "out" / "scores.json").read_text())["rows"]
    assert [(row["run"], row["split"]) for row in rows] == [
        ("first", "train"), ("first", "validation"), ("second", "train"), ("second", "validation"),
    ]  # fmt: skip
    assert {(row["decoder"], row["beam_width"]) for row in rows} == {("word_beam", 4)}
    assert rows[0]["wer"] == rows[2]["wer"] != rows[1]["wer"]
    records = list(
        csv.DictReader((tmp_path / "out" / "scores.csv").read_text().splitlines())
    )
    assert [float(one["wer"]) for one in records] == [row["wer"] for row in rows]
    assert f"{100 * rows[0]['wer']:.2f}" in (tmp_path / "out" / "scores.md").read_text()


def test_one_run_and_split_say_all_there_is(runs, tmp_path, capsys):
    words = ["--run_dir", runs[0], "--run_dir", runs[0], "--split", "validation"]
    assert evaluate(*words, "--format", "json", "--out", tmp_path) == 0
    scores = json.loads(capsys.readouterr().out)
    (row,) = json.loads((tmp_path / "scores.json").read_text())["rows"]
    # The run's own decoder, which is greedy and has no beam.
    assert (row["decoder"], row["beam_width"]) == ("greedy", None)
    assert scores["wer_interval"] == row["wer_interval"]


def test_hypotheses_are_those_of_one_run_and_split(runs, tmp_path, capsys):
    words = ["--run_dir", runs[0], "--split", "train", "--split", "validation"]
    assert evaluate(*words, "--hypotheses", tmp_path / "texts.jsonl") == 2
    assert "1 runs, 2 splits" in capsys.readouterr().err


def test_a_language_model_of_the_training_transcripts_scores_words_too(
    runs, tmp_path, capsys
):
    pytest.importorskip("kenlm", reason="kenlm, an optional extra, is not installed")
    arpa = tmp_path / "train.arpa"
    assert (
        run(parse(["tfasr", "ngram", "--shard_dir", str(SHARDS), "--out", str(arpa)]))
        == 0
    )
    words = ["--run_dir", runs[0], "--split", "validation", "--beam_width", 64]
    plain = ["--decoder", "word_beam", "--format", "json", "--out", tmp_path / "none"]
    assert evaluate(*words, *plain) == 0
    # The run's decoder is greedy, which a language model replaces.
    words += ["--language_model", arpa, "--out", tmp_path / "with"]
    # Every word costs so much that nothing has two.
    assert evaluate(*words, "--word_bonus", -100) == 0
    found = {
        n: json.loads((tmp_path / n / "scores.json").read_text())
        for n in ("none", "with")
    }
    without = found["none"]["rows"][0]
    rows = found["with"]["rows"][0]
    assert without["insertions"] > rows["insertions"] == 0
    told = (rows["language_model"], rows["lm_weight"], rows["word_bonus"])
    assert told == (str(arpa), 1.0, -100)  # a default is told too
    assert "language model train.arpa" in (tmp_path / "with" / "scores.md").read_text()


def test_probabilities_are_divided_by_priors_where_asked(
    runs, tmp_path, capsys, monkeypatch
):
    words = ["--run_dir", runs[0], "--split", "validation", "--decoder", "word_beam"]
    rows = {}
    only_validation = tmp_path / "elsewhere"
    shutil.copytree(SHARDS / "validation", only_validation / "validation")
    without_training = ["--prior_weight", 0.5, "--shard_dir", only_validation]
    # Nor does the run's own folder exist.
    assert evaluate(*words, *without_training) == 2
    assert "must hold the prepared split 'train'" in capsys.readouterr().err
    monkeypatch.setattr(
        "tfasr.training.trained.recorded_shard_dir", lambda run_dir: SHARDS
    )
    for name, more in {
        "without": [],
        "with": ["--prior_weight", 0.5],
        "elsewhere": without_training,
    }.items():
        out = ["--format", "json", "--out", tmp_path / name]
        texts = ["--hypotheses", tmp_path / f"{name}.jsonl"]
        assert evaluate(*words, *more, *out, *texts) == 0
        rows[name] = json.loads((tmp_path / name / "scores.json").read_text())["rows"][
            0
        ]

    # The model's, before the division.
    assert rows["with"]["loss"] == rows["without"]["loss"]
    assert (tmp_path / "with.jsonl").read_text() != (
        tmp_path / "without.jsonl"
    ).read_text()
    assert (tmp_path / "with.jsonl").read_text() == (
        tmp_path / "elsewhere.jsonl"
    ).read_text()
    assert rows["with"]["prior_weight"] == 0.5 and "prior_weight" not in rows["without"]
    assert "priors to the power 0.5" in (tmp_path / "with" / "scores.md").read_text()
    assert evaluate(*words, "--prior_weight", 1.5) == 2
    assert "must lie in 0..1. Received: 1.5" in capsys.readouterr().err


def test_a_run_without_an_intermediate_loss_has_no_middle_layer_to_rescore_with(
    runs, capsys
):
    words = ["--run_dir", runs[0], "--split", "validation", "--decoder", "word_beam"]
    assert evaluate(*words, "--middle_weight", 1) == 2
    assert (
        f"and {runs[0]}, trained with a weight of 0. Leave --middle_weight out."
        in capsys.readouterr().err
    )


def test_a_language_model_is_refused_where_it_would_do_nothing(runs, tmp_path, capsys):
    words = ["--run_dir", runs[0], "--split", "validation"]
    assert evaluate(*words, "--lm_weight", 0.5) == 2
    assert "Received: no --language_model" in capsys.readouterr().err
    assert evaluate(*words, "--language_model", tmp_path / "none.arpa") == 2
    assert "none.arpa" in capsys.readouterr().err
    arpa = tmp_path / "train.arpa"
    assert (
        run(parse(["tfasr", "ngram", "--shard_dir", str(SHARDS), "--out", str(arpa)]))
        == 0
    )
    assert "n-grams of 1 to 3 words" in capsys.readouterr().out
    assert evaluate(*words, "--language_model", arpa, "--decoder", "greedy") == 2
    message = capsys.readouterr().err
    assert "needs the decoder word_beam" in message or "kenlm package" in message


@pytest.mark.parametrize("wrong", ["--order=0", "--order=7", "--out=.", "--split=none"])
def test_an_n_gram_that_cannot_be_made_is_refused(wrong, tmp_path, capsys):
    words = [
        "ngram",
        "--shard_dir",
        str(SHARDS),
        "--out",
        str(tmp_path / "a.arpa"),
        wrong,
    ]
    assert run(parse(["tfasr", *words])) == 2
    assert "must" in capsys.readouterr().err
    assert not (tmp_path / "a.arpa").exists()
