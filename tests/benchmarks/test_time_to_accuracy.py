"""The benchmark of the whole job beside the PyTorch twin, with a model that learns in seconds."""

import importlib.util
import json
import subprocess
import sys

import pytest

from tfasr.ledger.events import read_events
from tfasr.tta.run import load_run

# Not imported here: PyTorch reads the number of its threads when it is loaded, see
# conftest.py.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="needs PyTorch: see benchmarks/training_step.py",
)

BINDINGS = (
    "AcousticModelConfig.conv_filters = 16",
    "AcousticModelConfig.lstm_units = 16",
    "PipelineConfig.global_batch_size = 16",
    "PipelineConfig.num_buckets = 1",  # fewer sizes of batches to compile for
)


def run_benchmark(monkeypatch, capsys, *arguments: str) -> dict:
    import time_to_accuracy

    command = [
        "time_to_accuracy.py",
        "--gin_file",
        "demo.gin",
        "--format",
        "json",
        *arguments,
    ]
    for binding in BINDINGS:
        command += ["--gin_binding", binding]

    monkeypatch.setattr(sys, "argv", command)
    time_to_accuracy.main()

    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_both_train_on_the_same_batches_and_finished_runs_are_kept(
    shard_dir, tmp_path, monkeypatch, capsys
):
    runs = tmp_path / "runs"
    # One epoch meets no median of three: the table has to say so.
    options = ["--shard_dir", str(shard_dir), "--run_dir", str(runs)]
    options += ["--seeds", "1", "--epochs", "1", "--target", "cer=0.9"]
    options += ["--baseline_gin_file", "demo.gin"]

    for binding in (
        *BINDINGS,
        "TrainingConfig.epochs = 1",
        "AcousticModelConfig.dropout = 0.3",
    ):
        options += ["--baseline_gin_binding", binding]

    left = runs / "torch" / "seed-1"
    left.mkdir(parents=True)
    (left / "events.jsonl").write_text("")
    result = run_benchmark(monkeypatch, capsys, *options)

    assert (runs / "unfinished" / "0-torch-seed-1").is_dir()

    ours, theirs = (load_run(runs / system / "seed-1") for system in ("tfasr", "torch"))

    assert steps(ours) == steps(theirs)
    for fact in (
        "comparability",
        "parameters",
        "targets",
        "opt_base_learning_rate",
        "opt_name",
    ):
        assert ours.fact(fact) == theirs.fact(fact)

    assert load_run(runs / "baseline" / "seed-1").fact("opt_name") == ours.fact(
        "opt_name"
    )

    systems, by_run, ratios = result["tables"]

    assert [row["reached"] for row in systems["rows"]] == ["0 of 1"] * 3
    assert [row["system"] for row in ratios["rows"]] == ["torch", "baseline"]
    assert all(row["ratio"] is None for row in ratios["rows"])
    assert all(row["minutes"] is None for row in by_run["rows"])

    for row in by_run["rows"]:
        shares = (
            "startup",
            "train",
            "input_wait",
            "evaluation",
            "checkpoint",
            "overhead",
        )

        assert sum(row[f"{name}_pct"] for name in shares) == pytest.approx(100, abs=0.1)
        assert 0 < row["ledger_pct"] < 100

    assert (
        run_benchmark(monkeypatch, capsys, *options)["tables"][1]["rows"][0]["seed"]
        == 1
    )
    assert len(read_events(runs / "torch" / "seed-1")) == len(theirs.events)
    with pytest.raises(SystemExit, match="same settings"):
        run_benchmark(monkeypatch, capsys, *options, "--epochs", "2")


def steps(run) -> list[tuple]:
    values = [event["value"] for event in run.events if event["key"] == "train_step"]
    return [
        (v["utterances"], v["audio_s"], v["frames"], v["padded_frames"]) for v in values
    ]


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_the_twin_learns_and_stops_when_its_targets_are_met(
    shard_dir, tmp_path, precision
):
    from twin.tta_tables import tta_tables
    from twin.worker import environment

    bindings = [
        *BINDINGS,
        "AcousticModelConfig.num_lstm_layers = 1",
        "AcousticModelConfig.dropout = 0.0",
        "TrainingConfig.epochs = 6",
        "TrainingConfig.targets = [('cer', 1.0)]",
        "TrainingConfig.stop_at_targets = True",
        "TrainingConfig.second_decoder = ''",
        f"TrainingConfig.precision = {precision!r}",
    ]
    runs = {name: {1: tmp_path / name / "seed-1"} for name in ("first", "second")}

    def train_twin(run_dir):
        code = f"""
import json, sys
from twin.torch_training import train_twin
folders = {{"shard_dir": {str(shard_dir)!r}, "run_dir": {str(run_dir)!r}}}
history = train_twin("demo.gin", {bindings!r}, **folders)
print(json.dumps(history))
assert "tensorflow" not in sys.modules
"""
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment(),
            stdout=subprocess.PIPE,
            check=True,
        )
        return json.loads(done.stdout.splitlines()[-1])

    history = train_twin(runs["first"][1])

    assert len(history) == 3
    assert history[-1]["loss"] < history[0]["loss"]

    again = train_twin(runs["second"][1])

    assert [epoch["cer"] for epoch in again] == [epoch["cer"] for epoch in history]
    assert load_run(runs["first"][1]).status == "success"

    systems, _, ratios, factors = tta_tables(runs, ("cer", 1.0))
    assert [row["reached"] for row in systems["rows"]] == ["1 of 1", "1 of 1"]

    together = factors["rows"][-1]["times"]
    minutes = [row["minutes"] for row in systems["rows"]]

    assert together == pytest.approx(minutes[1] / minutes[0])
    assert ratios["rows"][0]["ratio"] == pytest.approx(together)
    assert ratios["rows"][0]["low"] is None  # one run each gives no interval
    assert ratios["rows"][0]["of_medians"] == pytest.approx(minutes[1] / minutes[0])
