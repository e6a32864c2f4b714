"""The benchmark of training steps, at a size where they take no time."""

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

from tests.benchmarks.conftest import BENCHMARKS

HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.mark.slow
def test_the_benchmark_compares_systems_that_it_found_to_agree(tmp_path):
    peer = "torch" if HAS_TORCH else "stock_keras"
    command = [sys.executable, str(BENCHMARKS / "training_step.py"), "--size", "8x2x60"]
    command += ["--systems", "tfasr", peer, "--precision", "float32", "--rounds", "2"]
    command += ["--turn_s", "0", "--format", "json", "--out", str(tmp_path)]
    command += ["--instruction_set", "portable"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (table,) = found["tables"]
    ours, theirs = table["rows"]
    assert (ours["system"], theirs["system"]) == ("tfasr", peer)
    pairs = zip(theirs["rounds_ms"], ours["rounds_ms"], strict=True)
    ratio = np.median([their / our for their, our in pairs])
    assert ours[f"ratio_to_{peer}"] == pytest.approx(ratio)
    assert ours["audio_s_per_s"] > 0
    assert ours["peak_memory_bytes"] > 0
    assert "torch" not in theirs or found["machine"]["packages"]["torch"]
    assert any("agree to" in note for note in found["notes"])
    assert "tfasr's compiled layers took portable." in found["notes"]
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == [f"{found['date']}-training_step{end}" for end in (".json", ".md")]


def test_ratios_pair_the_rounds_and_take_the_best_of_pytorch():
    from training_step import ratios

    def turns(*times_s):
        return [{"step_s": seconds} for seconds in times_s]

    found = ratios(
        "bfloat16",
        {
            ("tfasr", "float32"): turns(2.0, 2.0, 4.0),
            ("tfasr", "bfloat16"): turns(1.0, 1.0, 2.0),
            ("torch", "float32"): turns(1.5, 1.5, 3.0),
            ("torch", "bfloat16"): turns(3.0, 3.0, 9.0),
            ("torch", "bfloat16_weights"): turns(1.2, 1.2, 2.4),
        },
    )
    assert found == {
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
    frames, lengths = batch["feature_lengths"], batch["label_lengths"]
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


def test_results_show_what_is_missing_and_escape_what_would_break_a_table(tmp_path):
    from twin.results import result, to_markdown, to_text, write

    columns = [("name", "name"), ("value", "a value")]
    rows = [{"name": "a|b", "value": 0.01234}, {"name": "c", "value": None, "more": 1}]
    found = result("made_up", [{"title": "T", "columns": columns, "rows": rows}], ["a note"], {})
    assert "host" not in found["machine"]
    markdown = to_markdown(found)
    assert "| a\\|b | 0.0123 |" in markdown
    assert "| c | n/a |" in markdown
    assert "- a note" in markdown
    assert to_text(found).splitlines()[:4] == [
        "T",
        "name  a value",
        "a|b    0.0123",
        "c         n/a",
    ]
    json_path, markdown_path = write(found, tmp_path / "new" / "made.json")
    assert json.loads(json_path.read_text()) == json.loads(json.dumps(found))
    assert markdown_path.read_text() == markdown
