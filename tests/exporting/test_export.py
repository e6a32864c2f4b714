"""`tfasr export`, and what runs from its folder, without TensorFlow."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tfasr
from tests.recognising.spoken_tones import RUN, sentence, spoken
from tfasr.cli import parse, run
from tfasr.errors import UsageError
from tfasr.recognising.spec import SUMS_FILE, check_sums

pytest.importorskip(
    "onnx", reason="needs the export extra: pip install 'tfasr[export]'"
)
pytest.importorskip("onnxruntime")

# What a user of an exported folder does. TensorFlow and Keras must not even be looked
# for, nor what takes long to load and is of no use for a recording of seconds.
WITHOUT_TENSORFLOW = """
import sys

UNWANTED = ("tensorflow", "keras", "scipy", "pandas", "matplotlib", "rich")

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in UNWANTED:
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, Absent())
from tfasr import cli
for words in ([], ["--stream"], ["--decoder", "word_beam", "--beam_width", "8"]):
    command = ["tfasr", "transcribe", "said.wav", "--run_dir", "exported", *words]
    assert cli.run(cli.parse(command)) == 0
"""


def export(work: Path, *words: object) -> int:
    given = ["--to", "onnx", "--run_dir", RUN, "--shard_dir", work / "shards", *words]
    return run(parse(["tfasr", "export", *map(str, given)]))


@pytest.fixture(scope="module")
def exported(work) -> Path:
    assert export(work, "--out", work / "exported", "--data_licence", "CC0") == 0
    return work / "exported"


def test_an_export_is_whole_and_says_what_it_is(exported):
    names = {path.name for path in exported.iterdir()}
    assert names == {
        *(
            "model.onnx",
            "features.onnx",
            "recogniser.json",
            "alphabet.json",
            "lexicon.txt",
        ),
        *("README.md", SUMS_FILE),
    }
    check_sums(exported)
    card = (exported / "README.md").read_text()
    assert "| licence of the data | CC0 |" in card
    assert "| WER on validation, greedy | " in card
    assert "It can stream." in card
    # The ledger of this run is not kept with it.
    assert "| energy of the training | not recorded |" in card


def test_it_hears_what_the_run_hears(exported, recogniser):
    other = tfasr.load_recogniser(exported)
    rng = np.random.default_rng(12)
    for seed in range(4):
        samples = spoken(sentence(rng, 4), seed=seed)
        expected = recogniser.transcribe(samples)
        found = other.transcribe(samples)
        assert found.text == expected.text
        assert [w.start_s for w in found.words] == [w.start_s for w in expected.words]
        chunks = np.split(samples, sorted(rng.integers(0, len(samples), 6)))
        assert list(other.stream(chunks))[-1].text == expected.text


def test_it_runs_without_tensorflow(work, exported):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_TENSORFLOW],
        cwd=work, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "abc dad"
    assert json.loads(lines[-2])["text"] == "abc dad"


def test_int8_is_smaller_and_its_cost_is_told(work, capsys):
    assert export(work, "--out", work / "int8", "--int8") == 0
    said = capsys.readouterr().out
    assert "int8 against float32: WER " in said
    assert (work / "int8" / "model.onnx").stat().st_size > 0
    transcript = tfasr.load_recogniser(work / "int8").transcribe(work / "said.wav")
    assert transcript.text[:2] == "ab"


@pytest.mark.parametrize("name", ["model.onnx", "recogniser.json", "lexicon.txt"])
def test_a_changed_or_missing_file_is_refused(exported, tmp_path, name):
    folder = tmp_path / "copy"
    shutil.copytree(exported, folder)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UsageError, match=f"{name} has changed"):
        tfasr.load_recogniser(folder)
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(UsageError, match=f"{name} has changed"):
        tfasr.load_recogniser(folder)
    if name != "recogniser.json":  # without it the folder is no export at all
        (folder / name).unlink()
        with pytest.raises(UsageError, match=f"must hold {name}"):
            tfasr.load_recogniser(folder)
        (folder / SUMS_FILE).unlink()
        with pytest.raises(UsageError, match="not complete"):
            tfasr.load_recogniser(folder)


def test_what_cannot_be_exported_is_told_before_any_work(
    work, exported, tmp_path, capsys
):
    assert export(work, "--out", exported) == 2
    assert "must be a new or empty folder" in capsys.readouterr().err
    assert export(work, "--out", tmp_path / "new", "--split", "test") == 2
    assert not (tmp_path / "new").exists()
