"""The benchmark of training steps, at a size where they take no time."""

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

from tests.benchmarks.conftest import BENCHMARKS
from tfasr.data.batches import BatchSource, PipelineConfig
from tfasr.data.features import FeatureConfig
from tfasr.data.shards import open_split
from tfasr.layers import fused_call
from tfasr.models.recurrent import AcousticModelConfig

# How steps that processes timed are put together; the processes themselves are the
# benchmark's.


def row(step_s, ready_s, processor_s=0.0):
    return {"step_s": step_s, "ready_s": ready_s, "processor_s": processor_s}


def test_a_step_is_as_long_as_its_longest_process():
    from cluster_steps import Taken

    taken = Taken(
        {
            "one": [[row(1, 1), row(2, 2), row(4, 4)]],
            "workers": [
                [row(1.5, 1.0, 0.5), row(3.0, 2.0, 0.5), row(5.0, 3.0, 0.8)],
                [row(1.25, 1.0, 0.25), row(3.0, 2.5, 0.25), row(8.0, 7.0, 0.25)],
            ],
        }
    )

    assert taken.steps_s("workers") == [1.5, 3.0, 8.0]
    # Of the same batches: 1.5, 1.5 and 2 times as long.
    assert taken.ratio("workers", "one") == 1.5
    assert taken.exchange_s("workers") == 0.5
    assert taken.exchange_s("one") == 0
    assert taken.processor_s("workers") == pytest.approx(0.6 + 0.25)


# The benchmark of the recorder says what it measured; how fast that is, is measured
# elsewhere.


def test_it_tells_the_difference_and_its_share_of_a_step(tmp_path, monkeypatch, capsys):
    import recorder

    flags = [
        "--rounds",
        "3",
        "--steps",
        "2",
        "--empty_steps",
        "20",
        "--out",
        str(tmp_path),
    ]
    monkeypatch.setattr(sys, "argv", ["recorder.py", *flags, "--format", "json"])
    recorder.main()

    (table,) = json.loads(capsys.readouterr().out)["tables"]

    assert [row["step_ms"] for row in table["rows"]] == [0.0, 50.0]
    for row in table["rows"]:
        assert row["recorded_us"] > 0
        assert row["share_pct"] == pytest.approx(row["recorder_us"] / 500)

    (markdown,) = tmp_path.glob("*-recorder.md")
    assert "of a step of 50 ms, %" in markdown.read_text()


# What the rounding of a gradient is said to be, on made errors and on a small model.


def test_an_error_that_all_batches_share_is_systematic():
    from rounding import compared

    generator = np.random.default_rng(1)
    exact = generator.normal(3.0, 1.0, (400, 50))

    outcome = compared(exact, 1.02 * exact)

    assert outcome["along_gradient"] == pytest.approx(0.02)
    assert outcome["systematic"] == pytest.approx(0.02)
    # Batches of a mean of 3 and a deviation of 1 in each weight.
    assert outcome["error"] == pytest.approx(0.02 * np.sqrt(1 + 1 / 9), rel=0.02)
    assert outcome["systematic_by_chance"] < 0.01


def test_an_error_that_batches_do_not_share_is_chance():
    from rounding import compared

    generator = np.random.default_rng(2)
    exact = generator.normal(3.0, 1.0, (400, 50))

    outcome = compared(exact, exact + generator.normal(0.0, 0.5, exact.shape))

    assert outcome["systematic"] == pytest.approx(
        outcome["systematic_by_chance"], rel=0.3
    )
    assert abs(outcome["along_gradient"]) < 0.01
    assert outcome["error"] == pytest.approx(0.5 / 3, rel=0.05)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_layers_that_are_set_to_a_precision_compute_as_those_made_in_it(
    shard_dir, bidirectional, monkeypatch
):
    from rounding import gradients, set_precision

    # On processors with AMX, models keep their convolutions in float32.
    monkeypatch.setattr(fused_call, "_has_tiles", lambda: False)
    split = open_split(shard_dir, "train")
    source = BatchSource(
        split, FeatureConfig(), PipelineConfig(padding="bucketed", global_batch_size=4)
    )
    batches = list(source.training(seed=1, epoch=1).take(2))
    config = AcousticModelConfig(
        conv_filters=8,
        lstm_units=8,
        num_lstm_layers=2,
        dropout=0.0,
        bidirectional=bidirectional,
    )
    models = {}

    for precision in ("float32", "mixed_bfloat16"):
        models[precision] = config.make(93, 40, seed=3, dtype=precision)
        models[precision].build((None, None, 93))

    exact = gradients(models["float32"], batches)
    layers = models["float32"].layers[:-1]
    set_precision(layers, "mixed_bfloat16")

    rounded = gradients(models["float32"], batches)

    # Equal to the last bit: the same operations, called one by one on the same batches.
    np.testing.assert_array_equal(rounded, gradients(models["mixed_bfloat16"], batches))
    assert 1e-4 < np.linalg.norm(rounded - exact) / np.linalg.norm(exact) < 0.1

    set_precision(layers, "float32")
    np.testing.assert_array_equal(gradients(models["float32"], batches), exact)


HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.mark.long
def test_the_benchmark_compares_systems_that_it_found_to_agree(tmp_path):
    peer = "torch" if HAS_TORCH else "stock_keras"
    command = [sys.executable, str(BENCHMARKS / "training_step.py"), "--size", "8x2x60"]
    command += ["--systems", "tfasr", peer, "--precision", "float32", "--rounds", "2"]
    command += ["--turn_s", "0", "--format", "json", "--out", str(tmp_path)]
    command += ["--instruction_set", "portable"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr

    outcome = json.loads(done.stdout)
    (table,) = outcome["tables"]
    ours, theirs = table["rows"]

    assert (ours["system"], theirs["system"]) == ("tfasr", peer)

    pairs = zip(theirs["rounds_ms"], ours["rounds_ms"], strict=True)
    ratio = np.median([their / our for their, our in pairs])

    assert ours[f"ratio_to_{peer}"] == pytest.approx(ratio)
    assert ours["audio_s_per_s"] > 0
    assert ours["peak_memory_bytes"] > 0
    assert "torch" not in theirs or outcome["machine"]["packages"]["torch"]
    assert any("agree to" in note for note in outcome["notes"])
    assert "tfasr's compiled layers used portable." in outcome["notes"]

    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == [
        f"{outcome['date']}-training_step{end}" for end in (".json", ".md")
    ]


def test_ratios_pair_the_rounds_and_take_the_best_of_pytorch():
    from training_step import ratios

    def turns(*times_s):
        return [{"step_s": seconds} for seconds in times_s]

    outcome = ratios(
        "bfloat16",
        {
            ("tfasr", "float32"): turns(2.0, 2.0, 4.0),
            ("tfasr", "bfloat16"): turns(1.0, 1.0, 2.0),
            ("torch", "float32"): turns(1.5, 1.5, 3.0),
            ("torch", "bfloat16"): turns(3.0, 3.0, 9.0),
            ("torch", "bfloat16_weights"): turns(1.2, 1.2, 2.4),
        },
    )
    assert outcome == {
        "ratio_to_torch": 3.0,
        "ratio_to_own_float32": 2.0,
        "ratio_to_torch_best": pytest.approx(1.2),
    }


def test_peers_that_are_not_installed_are_left_out_and_said_so(monkeypatch):
    import training_step

    monkeypatch.setattr(training_step.importlib.util, "find_spec", lambda name: None)
    systems, notes = training_step.installed(["tfasr", "torch"])

    assert systems == ["tfasr"]
    assert notes == ["PyTorch is not installed and left out."]


@pytest.mark.parametrize("name", ["paper", "an4", "8x3x60", "128x8"])
def test_made_batches_have_a_ctc_path_and_are_padded_with_nothing(name):
    from twin.sizes import made_batch, parse_size

    size = parse_size(name)
    batch = made_batch(size)
    frames = batch["feature_lengths"]
    lengths = batch["label_lengths"]

    assert batch["features"].shape == (size.batch, size.frames, 93)
    assert frames.max() == size.frames

    for row, labels in enumerate(batch["labels"]):
        spoken = labels[: lengths[row]]

        assert ((spoken >= 0) & (spoken < 29)).all()
        assert (spoken[1:] != spoken[:-1]).all()
        assert len(spoken) <= (frames[row] - 11) // 2 + 1
        assert not labels[lengths[row] :].any()
        assert not batch["features"][row, frames[row] :].any()

    assert size.audio_s == pytest.approx(frames.sum() / 100, rel=1e-5)


def test_unknown_sizes_are_named():
    from twin.sizes import parse_size

    with pytest.raises(ValueError, match="'huge'"):
        parse_size("huge")


def test_the_size_an4_is_the_preset():
    from twin.sizes import parse_size

    from tfasr.training.from_gin import load_config

    assert parse_size("an4").model_config() == load_config("an4.gin").experiment.model
    assert parse_size("paper").model_config() == load_config().experiment.model


@pytest.fixture
def made_up_result():
    """A benchmark's result of two rows, of which one lacks its value."""
    from twin.results import result

    columns = [("name", "name"), ("value", "a value")]
    rows = [{"name": "a|b", "value": 0.01234}, {"name": "c", "value": None, "more": 1}]
    table = {"title": "T", "columns": columns, "rows": rows}
    return result("made_up", [table], ["a note"], {})


def test_results_name_no_host(made_up_result):
    assert "host" not in made_up_result["machine"]


def test_results_in_markdown_escape_what_would_break_a_table(made_up_result):
    from twin.results import to_markdown

    markdown = to_markdown(made_up_result)

    assert "| a\\|b | 0.0123 |" in markdown
    assert "| c | n/a |" in markdown
    assert "- a note" in markdown


def test_results_in_text_are_aligned(made_up_result):
    from twin.results import to_text

    assert to_text(made_up_result).splitlines()[:4] == [
        "T",
        "name  a value",
        "a|b    0.0123",
        "c         n/a",
    ]


def test_results_are_written_as_json_and_markdown(made_up_result, tmp_path):
    from twin.results import to_markdown, write

    markdown = to_markdown(made_up_result)

    json_path, markdown_path = write(made_up_result, tmp_path / "new" / "made.json")

    assert json.loads(json_path.read_text()) == json.loads(json.dumps(made_up_result))
    assert markdown_path.read_text() == markdown
