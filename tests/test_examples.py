"""The worked examples, each through the real command line, on a corpus of a dozen tones."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
# Two words of two tones each; enough for a loss that falls.
WORDS = {"aa": (400, 700), "bb": (1200, 500)}


def tfasr(*arguments, folder: Path, code: int = 0) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tfasr.cli", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def example(name: str) -> tuple[str, Path]:
    return "--import", EXAMPLES / f"{name}.py"


def write_corpus(folder: Path, count: int) -> None:
    """Writes recordings of 0.6 to 0.8 s for examples/own_corpus.py."""
    for split in ("train", "validation"):
        (folder / split).mkdir(parents=True)
        for number in range(count):
            words = [list(WORDS)[(number >> bit) % 2] for bit in range(2)]
            tones = [hertz for word in words for hertz in WORDS[word]]
            times = np.arange(2400 + 160 * (number % 4)) / 16000
            sound = np.concatenate([0.3 * np.sin(2 * np.pi * hertz * times) for hertz in tones])
            path = folder / split / f"speaker{number % 3}-{split}{number}"
            soundfile.write(path.with_suffix(".wav"), sound, 16000)
            path.with_suffix(".txt").write_text(" ".join(words) + "\n")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """A folder with shards of the own corpus, prepared for the own model."""
    folder = tmp_path_factory.mktemp("examples")
    write_corpus(folder / "corpus", 12)
    (folder / "own.gin").write_text(
        "import own_model\n"
        "ModelConfig.name = 'conv_gru'\n"
        "ConvGruConfig.units = 16\n"
        "ConvGruConfig.num_layers = 1\n"
        "PipelineConfig.global_batch_size = 4\n"
        "PipelineConfig.num_readers = 1\n"
        "PipelineConfig.num_buckets = 1\n"
        "TrainingConfig.epochs = 1\n"
        "TrainingConfig.sentences_every_steps = 0\n"
        "TrainingConfig.targets = [('cer', 0.99)]\n"
        "TrainingConfig.optimizer = @Adam\n"
        "Adam.beta_1 = 0.8\n"
    )
    (folder / "packing.gin").write_text("ShardConfig.utterances_per_shard = 4\n")
    (folder / "own_model.py").write_text((EXAMPLES / "own_model.py").read_text())
    done = tfasr(
        *("prepare", *example("own_corpus"), "--corpus", "sound_and_text"),
        *("--corpus_dir", "corpus", "--shard_dir", "shards"),
        *("--gin_file", "packing.gin", "--gin_file", "own.gin"),
        folder=folder,
    )
    assert "train: 12 utterances" in done.stdout
    assert "validation: 12 utterances" in done.stdout
    assert done.stdout.count("in 3 shards") == 2  # packing.gin counts, though it is not the last
    return folder


@pytest.fixture(scope="module")
def trained(prepared) -> Path:
    """The same folder with a run of the own model, by an import line in gin, and own optimizer."""
    done = tfasr(
        *("train", *example("own_optimizer"), "--gin_file", "own.gin"),
        *("--shard_dir", "shards", "--run_dir", "run"),
        *("--gin_binding", "TrainingConfig.optimizer = @Signum"),
        *("--gin_binding", "Signum.learning_rate = @Halving()"),
        *("--gin_binding", "Halving.steps = 2"),
        folder=prepared,
    )
    assert "Adam.beta_1 (" in done.stderr
    assert "could not be measured" not in done.stderr  # the probe's process knows the plug-ins
    return prepared


def test_the_examples_are_short():
    files = sorted(EXAMPLES.glob("*.py"))
    names = ("corpus", "figure", "model", "optimizer", "policy", "workload")
    assert [path.stem for path in files] == [f"own_{name}" for name in names]
    for path in files:
        assert len(path.read_text().splitlines()) < 60


def test_own_model_and_optimizer_train_and_are_noted(trained):
    events = [json.loads(line) for line in (trained / "run/events.jsonl").read_text().splitlines()]
    assert [e["value"] for e in events if e["key"] == "opt_name"] == ["signum"]
    losses = [e["value"] for e in events if e["key"] == "train_step"]
    assert len(losses) == 3
    (noted,) = (json.loads((trained / "run/plugins.json").read_text()),)
    assert [(Path(p["file"]).name, p["registers"]) for p in noted["plugins"]] == [
        ("own_optimizer.py", {"optimizer": ["Signum", "Halving"]}),
        ("own_model.py", {"model": ["conv_gru"]}),
    ]


def test_evaluate_and_resume_say_which_import_is_missing(trained):
    evaluate = ("evaluate", "--run_dir", "run", "--split", "validation")
    done = tfasr(*evaluate, folder=trained, code=2)
    assert "trained with the plug-in own_model (it registers model conv_gru)" in done.stderr
    assert "--import own_model" in done.stderr
    done = tfasr(*evaluate, "--import", "own_model", folder=trained)
    assert "own_optimizer.py" in done.stderr  # said, and not needed
    assert "CER" in done.stdout
    resume = ("train", "--gin_file", "own.gin", "--shard_dir", "shards", "--run_dir", "run")
    done = tfasr(*resume, "--resume", folder=trained, code=2)
    assert "own_optimizer.py" in done.stderr


def test_own_policy_and_own_figure_are_in_the_report(trained):
    pytest.importorskip("tfasr.reports.figures.registry")
    tfasr(
        *("report", "run", *example("own_policy"), *example("own_figure"), "--out", "report"),
        *("--policy", "pure_training"),
        folder=trained,
    )
    assert (trained / "report/epoch_time.png").stat().st_size > 1000
    assert (trained / "report/epoch_time.svg").is_file()
    groups = (trained / "report/groups.json").read_text()
    assert "pure_training" in groups
    assert "How long an epoch takes in each run" in (trained / "report/report.html").read_text()


def test_own_workload_runs_in_a_process_of_its_own(tmp_path):
    (tmp_path / "sorting.gin").write_text(
        "BenchConfig.workload = 'sorting'\nSortingConfig.count = 1000\n"
    )
    bench = ("bench", *example("own_workload"), "--gin_file", "sorting.gin", "--format", "json")
    found = json.loads(tfasr(*bench, folder=tmp_path).stdout)
    assert found["workload"] == "sorting"
    assert found["results"]["count"] == 1000
    assert found["results"]["median_s"] > 0
