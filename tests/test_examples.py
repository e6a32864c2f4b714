"""The worked examples, each through the real command line, on a corpus of a dozen tones."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.studies.forging import events_of, written
from tests.warm import run_tfasr

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
# Two words of two tones each; enough for a loss that falls.
WORDS = {"aa": (400, 700), "bb": (1200, 500)}


def tfasr(*arguments, folder: Path, code: int = 0) -> subprocess.CompletedProcess:
    done = run_tfasr(*arguments, folder=folder)
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
            sound = np.concatenate(
                [0.3 * np.sin(2 * np.pi * hertz * times) for hertz in tones]
            )
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
    # packing.gin counts, though it is not the last
    assert done.stdout.count("in 3 shards") == 2
    return folder


@pytest.fixture(scope="module")
def trained(prepared) -> Path:
    """The same folder with a run of the own model, by an import line in gin, and own
    optimizer.
    """
    done = tfasr(
        *("train", *example("own_optimizer"), "--gin_file", "own.gin"),
        *("--shard_dir", "shards", "--run_dir", "run"),
        *("--gin_binding", "TrainingConfig.optimizer = @Signum"),
        *("--gin_binding", "Signum.learning_rate = @Halving()"),
        *("--gin_binding", "Halving.steps = 2"),
        folder=prepared,
    )
    assert "Adam.beta_1 (" in done.stderr
    # The probe's process knows the plug-ins.
    assert "could not be measured" not in done.stderr
    return prepared


def test_the_examples_are_short():
    files = sorted(EXAMPLES.glob("*.py"))
    names = (
        "corpus",
        "figure",
        "loss",
        "metric",
        "model",
        "optimizer",
        "policy",
        "workload",
    )
    assert [path.stem for path in files] == [f"own_{name}" for name in names]
    for path in files:
        assert len(path.read_text().splitlines()) <= 60


def test_own_model_and_optimizer_train_and_are_noted(trained):
    events = [
        json.loads(line)
        for line in (trained / "run/events.jsonl").read_text().splitlines()
    ]
    assert [e["value"] for e in events if e["key"] == "opt_name"] == ["signum"]
    losses = [e["value"] for e in events if e["key"] == "train_step"]
    assert len(losses) == 3
    noted = json.loads((trained / "run/plugins.json").read_text())
    assert [(Path(p["file"]).name, p["registers"]) for p in noted["plugins"]] == [
        ("own_optimizer.py", {"optimizer": ["Signum", "Halving"]}),
        ("own_model.py", {"model": ["conv_gru"]}),
    ]


def test_evaluate_and_resume_say_which_import_is_missing(trained):
    evaluate = ("evaluate", "--run_dir", "run", "--split", "validation")
    done = tfasr(*evaluate, folder=trained, code=2)
    assert (
        "trained with the plug-in own_model (it registers model conv_gru)"
        in done.stderr
    )
    assert "--import own_model" in done.stderr
    done = tfasr(*evaluate, "--import", "own_model", folder=trained)
    assert "own_optimizer.py" in done.stderr  # said, and not needed
    assert "CER" in done.stdout
    resume = (
        "train",
        "--gin_file",
        "own.gin",
        "--shard_dir",
        "shards",
        "--run_dir",
        "run",
    )
    done = tfasr(*resume, "--resume", folder=trained, code=2)
    assert "own_optimizer.py" in done.stderr


def test_own_policy_and_own_figure_are_in_the_report(trained):
    pytest.importorskip("tfasr.reports.figures.registry")
    tfasr(
        *(
            "report",
            "run",
            *example("own_policy"),
            *example("own_figure"),
            "--out",
            "report",
        ),
        *("--policy", "pure_training"),
        folder=trained,
    )
    assert (trained / "report/epoch_time.png").stat().st_size > 1000
    assert (trained / "report/epoch_time.svg").is_file()
    groups = (trained / "report/groups.json").read_text()
    assert "pure_training" in groups
    assert (
        "How long an epoch takes in each run"
        in (trained / "report/report.html").read_text()
    )


def test_own_workload_runs_in_a_process_of_its_own(tmp_path):
    (tmp_path / "sorting.gin").write_text(
        "BenchConfig.workload = 'sorting'\nSortingConfig.count = 1000\n"
    )
    bench = (
        "bench",
        *example("own_workload"),
        "--gin_file",
        "sorting.gin",
        "--format",
        "json",
    )
    found = json.loads(tfasr(*bench, folder=tmp_path).stdout)
    assert found["workload"] == "sorting"
    assert found["results"]["count"] == 1000
    assert found["results"]["median_s"] > 0


TONES = ROOT / "tests" / "data_tones"
TER = ("--import", "own_metric.py")


@pytest.fixture(scope="module")
def scored_by_tokens(tmp_path_factory) -> Path:
    """A folder with a run that evaluates a token error rate and minimises a smoothed loss."""
    folder = tmp_path_factory.mktemp("tokens")
    for name in ("own_metric", "own_loss"):  # files of a user, who has no examples/
        (folder / f"{name}.py").write_text((EXAMPLES / f"{name}.py").read_text())
    train = (
        "train",
        *TER,
        "--import",
        "own_loss.py",
        "--gin_file",
        TONES / "tones.gin",
    )
    done = tfasr(
        *(*train, "--shard_dir", TONES / "shards", "--run_dir", "run", "--epochs", "2"),
        *("--gin_binding", "TrainingConfig.targets = [('ter', 0.99), ('cer', 0.01)]"),
        *("--gin_binding", "TrainingConfig.loss = 'smoothed_ctc'"),
        folder=folder,
    )
    assert "target met: TER 99 %" in done.stderr
    assert ", TER " in done.stderr  # next to CER and WER, after each epoch
    return folder


def evaluations(run: Path) -> list[dict]:
    events = [
        json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()
    ]
    return [event["value"] for event in events if event["key"] == "tracked_stats"]


def test_own_metric_is_reported_with_a_target_by_readers_without_the_file(
    scored_by_tokens,
):
    report = ("report", "run", "--target", "ter=0.99", "--target", "ter=0.0001")
    done = tfasr(*report, "--format", "json", folder=scored_by_tokens)
    assert "ter" in done.stdout
    text = tfasr(*report, "--out", "report", folder=scored_by_tokens).stdout
    assert "TER 99 %" in text
    assert "TER 99 %" in (scored_by_tokens / "report/report.html").read_text()
    tfasr(
        "evaluate", "--run_dir", "run", "--split", "validation", folder=scored_by_tokens
    )


def test_evaluate_computes_the_metric_that_training_recorded(scored_by_tokens):
    evaluate = ("evaluate", *TER, "--run_dir", "run", "--split", "validation")
    found = json.loads(
        tfasr(*evaluate, "--format", "json", folder=scored_by_tokens).stdout
    )
    assert found["ter"] in [
        stats["ter"] for stats in evaluations(scored_by_tokens / "run")
    ]
    assert "TER" in tfasr(*evaluate, folder=scored_by_tokens).stdout
    both = tfasr(*evaluate, "--split", "train", folder=scored_by_tokens).stdout
    assert both.count("TER %") == 2


def test_verify_computes_the_metric_again_and_finds_a_forged_one(
    scored_by_tokens, tmp_path
):
    assert "FAILED" not in tfasr("verify", *TER, "run", folder=scored_by_tokens).stdout
    # Without the file it can't be computed, so it must not pass as checked.
    done = tfasr("verify", "run", folder=scored_by_tokens, code=1)
    assert "metrics that can't be counted: ['ter']" in done.stdout
    assert "--import" in done.stdout
    forged = tmp_path / "run"
    shutil.copytree(scored_by_tokens / "run", forged)
    events = events_of(forged / "events.jsonl")
    next(e for e in events if e["key"] == "tracked_stats")["value"]["ter"] = 0.5
    (forged / "events.jsonl").write_bytes(written(events))
    done = tfasr("verify", *TER, forged, folder=scored_by_tokens, code=1)
    assert "other values of ter than the ledger" in done.stdout


def test_a_finished_run_resumes_with_its_metric_in_the_history(scored_by_tokens):
    imports = (*TER, "--import", "own_loss.py")
    train = (
        "train",
        *imports,
        "--gin_file",
        TONES / "tones.gin",
        "--resume",
        "--epochs",
        "3",
    )
    longer = (*train, "--shard_dir", TONES / "shards", "--run_dir", "longer")
    shutil.copytree(scored_by_tokens / "run", scored_by_tokens / "longer")
    done = tfasr(
        *(*longer, "--gin_binding", "TrainingConfig.loss = 'smoothed_ctc'"),
        *("--gin_binding", "TrainingConfig.targets = [('ter', 0.99), ('cer', 0.01)]"),
        folder=scored_by_tokens,
    )
    assert "epoch 3: validation loss" in done.stderr
    stats = evaluations(scored_by_tokens / "longer")
    assert len(stats) == 3
    assert all(each["ter"] >= 0 for each in stats)


def test_own_loss_is_minimised_and_evaluations_report_the_ctc_loss(scored_by_tokens):
    saved = json.loads((scored_by_tokens / "run/experiment.json").read_text())
    assert saved["training"]["loss"] == "smoothed_ctc"
    shards = ("--shard_dir", TONES / "shards", "--epochs", "2")
    plain = ("train", "--gin_file", TONES / "tones.gin", *shards, "--run_dir", "plain")
    tfasr(*plain, folder=scored_by_tokens)
    losses = []
    for run in ("run", "plain"):
        lines = (scored_by_tokens / run / "events.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        steps = [e["value"]["loss"] for e in events if e["key"] == "train_step"]
        losses.append((steps[0], evaluations(scored_by_tokens / run)[-1]["loss"]))

    (smoothed, _), (exact, _) = losses
    assert smoothed != pytest.approx(exact, rel=1e-3)  # same seed, another loss


@pytest.mark.parametrize(
    ("source", "binding", "message"),
    [
        (
            "",
            "TrainingConfig.targets = [('ter', 0.1)]",
            "must be one of cer, cer_reference",
        ),
        ("", "TrainingConfig.loss = 'smoothed_ctc'", "There is no loss 'smoothed_ctc'"),
        (
            "from tfasr.tta.metrics import METRICS, Metric\n"
            "METRICS.register('ter', Metric(compute=lambda a, b: float('nan')))\n",
            "TrainingConfig.targets = [('ter', 3.0)]",
            "The metric 'ter' (",
        ),
        (
            "from tfasr.training.ctc import LOSSES\n"
            "LOSSES.register('bad', lambda *arguments: arguments[0])\n",
            "TrainingConfig.loss = 'bad'",
            "must return a float32 tensor with a loss per utterance",
        ),
    ],
)
def test_what_is_wrong_with_an_own_metric_or_loss_is_one_sentence(
    tmp_path, source, binding, message
):
    (tmp_path / "own.py").write_text(source)
    words = ["--gin_file", TONES / "tones.gin", "--shard_dir", TONES / "shards"]
    words += ["--run_dir", "run", "--epochs", "1", "--gin_binding", binding]
    done = run_tfasr("train", "--import", "own.py", *words, folder=tmp_path)
    assert done.returncode in (1, 2)
    assert message in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
