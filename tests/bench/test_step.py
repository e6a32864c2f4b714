"""The cost of a training step, of small models."""

import json
import subprocess
import sys

import pytest

from tfasr.bench.modules import matmul_ceiling
from tfasr.bench.perform import run_workload
from tfasr.bench.step import StepConfig, StepTiming, measure_step, step_table
from tfasr.bench.workload import Context
from tfasr.cli import parse
from tfasr.errors import UsageError
from tfasr.models.recurrent import AcousticModelConfig
from tfasr.training.experiment import Experiment, TrainingConfig

MODEL = AcousticModelConfig(conv_filters=16, num_lstm_layers=0)


def timing(**changes) -> StepTiming:
    values = {
        "precision": "float32",
        "batch": 4,
        "frames": 100,
        "labels": 10,
        "length_spread": 0.0,
        "accumulation_steps": 1,
        "lstm_kernels": ["fused CPU"],
        "parameters": 7,
        "rounds": 3,
        "forward_s": 0.1,
        "forward_backward_s": 0.3,
        "step_s": 0.4,
        "audio_s": 4.0,
        "flops": 8_000_000,
        "ceiling_flops_per_s": 40e6,
        "first_step_s": 1.4,
        "warm_up_calls": 2,
        "warm_up_s": 2.0,
        "traces": 1,
        "peak_memory_bytes": 3 * 2**20,
        "memory_before_bytes": 2**20,
        "peak_memory_of": "process",
    }
    return StepTiming(**{**values, **changes})


def test_the_derived_figures():
    row = timing().to_json()
    derived = {
        "backward_s": 0.2,
        "update_s": 0.1,
        "compile_s": 1.0,
        "audio_s_per_s": 10,
        "utterances_per_s": 10,
        "flops_per_s": 20e6,
        "model_flops_utilisation": 0.5,
    }
    assert {name: row[name] for name in derived} == pytest.approx(derived)
    assert row["batch"] == 4
    unknown = timing(flops=None).to_json()
    assert (unknown["flops_per_s"], unknown["model_flops_utilisation"]) == (None, None)


def test_the_table_says_what_could_not_be_told():
    timings = [timing(), timing(peak_memory_bytes=None, accumulation_steps=2)]
    rows = step_table([measured.to_json() for measured in timings]).rows
    assert "3" in rows[0]
    assert "n/a" in rows[1]
    assert rows[1][0] == "4 x 100 in 2"


def test_a_step_in_parts_is_measured_in_this_process():
    experiment = Experiment(
        model=MODEL, training=TrainingConfig(gradient_accumulation_steps=2)
    )
    config = StepConfig(rounds=2, length_spread=0.5)
    measured = measure_step(experiment, config, 4, 60, "float32", ceiling_s=0.01)
    assert (measured.batch, measured.frames, measured.labels) == (4, 60, 8)
    assert measured.audio_s == pytest.approx((60 + 50 + 40 + 30) * 0.01)
    assert measured.flops == 4 * MODEL.flops(93, 30, 60, training=True)
    assert (measured.precision, measured.accumulation_steps) == ("float32", 2)
    assert (measured.traces, measured.warm_up_calls, measured.rounds) == (1, 2, 2)
    assert measured.first_step_s > measured.step_s > 0
    assert measured.peak_memory_bytes >= measured.memory_before_bytes > 2**20


def test_a_ceiling_is_the_operations_of_a_product_per_second():
    assert matmul_ceiling("mixed_bfloat16", seconds=0.01, size=64) > 1e6


@pytest.mark.parametrize(
    "sizes", [{"batches": (0,)}, {"rounds": 0}, {"length_spread": 1.0}, {"labels": 59}]
)
def test_sizes_that_make_no_batch_are_refused(sizes):
    with pytest.raises(ValueError, match="Received"):
        measure_step(Experiment(model=MODEL), StepConfig(**sizes), 16, 60, "float32")


@pytest.mark.long
def test_the_command_answers_with_json_and_a_folder(tmp_path):
    (tmp_path / "mine.gin").write_text(
        "AcousticModelConfig.conv_filters = 16\nAcousticModelConfig.num_lstm_layers = 1\n"
    )
    command = [sys.executable, "-m", "tfasr.cli", "bench", "step", "--rounds", "1"]
    command += [
        "--gin_file",
        str(tmp_path / "mine.gin"),
        "--batch",
        "2",
        "--frames",
        "60",
    ]
    command += [
        "--gin_binding",
        "AcousticModelConfig.lstm_units = 8",
        "--precision",
        "float32",
    ]
    command += ["--format", "json", "--out", str(tmp_path / "out")]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    answer = json.loads(finished.stdout)
    (row,) = answer["rows"]
    assert answer["system"]["cores"] > 0
    assert (row["batch"], row["frames"], row["traces"]) == (2, 60, 1)
    assert row["lstm_kernels"] == ["fused CPU"]
    parts = row["forward_s"] + row["backward_s"] + row["update_s"]
    assert parts == pytest.approx(row["step_s"])
    assert (tmp_path / "out" / "results.json").read_text() == finished.stdout
    assert "| 2 x 60 | float32 |" in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch", "0"], "--batch"),
        (["--batch", "many"], "--batch"),
        (["--precision", "int8"], "int8"),
        (["--rounds", "0"], "--rounds"),
        (["--length_spread", "1.0"], "--length_spread"),
        (["--gin_file", "nowhere.gin", "--precision", "float32"], "nowhere"),
    ],
)
def test_wrong_use_is_named(options, message):
    arguments = parse(["tfasr", "bench", "step", *options])
    with pytest.raises(UsageError, match=message):
        arguments.run(arguments)


def test_a_format_that_there_is_not_is_named():
    with pytest.raises(UsageError, match="parchment"):
        run_workload("step", [StepConfig()], Context(), output_format="parchment")
