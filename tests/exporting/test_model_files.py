"""`tfasr export` to Keras, TensorFlow and LiteRT: files that are loaded back and used."""

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

import tfasr
from tests.recognising.spoken_tones import RUN, spoken
from tfasr.cli import parse, run
from tfasr.exporting.export import KINDS
from tfasr.recognising.spec import FORMATS, ONNX, check_sums

# TensorFlow 2.21 under numpy 2.4, wherever Keras turns a variable into an array.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)

SAMPLES = spoken("abc dad")
# What a server does that has TensorFlow and nothing of this package.
TENSORFLOW_ALONE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tfasr":
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, Absent())
import numpy as np
import tensorflow as tf

model = tf.saved_model.load(sys.argv[1])
given = np.load(sys.argv[2])
found = model.signatures["serving_default"](
    features=tf.constant(given["features"]), lengths=tf.constant(given["lengths"])
)
expected = given["log_probs"]
for row, other, frames in zip(found["log_probs"].numpy(), expected, found["output_lengths"]):
    np.testing.assert_allclose(row[:frames], other[:frames], atol=1e-4)
assert (found["output_lengths"].numpy() == given["output_lengths"]).all()
"""


# Likewise of a phone or a small board that has LiteRT alone.
LITERT_ALONE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "keras", "onnxruntime"):
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, Absent())
from tfasr import cli
assert cli.run(cli.parse(["tfasr", "transcribe", sys.argv[1], "--run_dir", sys.argv[2]])) == 0
"""


def exported(work, to: str, *words: str):
    out = work / f"{to}{''.join(words)}"
    given = [
        "--to",
        to,
        "--run_dir",
        RUN,
        "--shard_dir",
        work / "shards",
        "--out",
        out,
        *words,
    ]
    assert run(parse(["tfasr", "export", *map(str, given)])) == 0
    return out


def check_use(folder, recogniser):
    """An exported recogniser says what the run's says, of a recording and of a stream."""
    other = tfasr.load_recogniser(folder)
    expected = recogniser.transcribe(SAMPLES)
    found = other.transcribe(SAMPLES)
    assert (found.text, [w.start_s for w in found.words]) == (
        "abc dad",
        [w.start_s for w in expected.words],
    )
    assert (
        list(other.stream(np.split(SAMPLES, [700, 5000, 14001])))[-1].text == "abc dad"
    )
    return other


def test_every_format_can_be_written():
    assert KINDS.keys() == FORMATS.keys()


# tests/exporting/test_onnx.py has the files of ONNX.
@pytest.mark.parametrize("to", [name for name in FORMATS if name != ONNX])
def test_an_export_is_whole_loads_back_and_is_used(
    to, work, recogniser, tmp_path, capsys
):
    folder = exported(work, to)
    assert "6 of 6 utterances" in capsys.readouterr().out
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *(FORMATS[to].file, "recogniser.json", "alphabet.json", "lexicon.txt"),
        *("README.md", "SHA256SUMS"),
    }
    check_sums(folder)
    assert f"`{FORMATS[to].file}`. It can stream." in (folder / "README.md").read_text()
    check_use(folder, recogniser)
    if to == "saved_model":
        check_without_tfasr(folder, recogniser, tmp_path)
    if to == "litert" and importlib.util.find_spec("ai_edge_litert") is not None:
        check_without_tensorflow(folder, work)
    changed = max(
        (one for one in folder.rglob("*") if one.is_file()),
        key=lambda p: p.stat().st_size,
    )
    changed.write_bytes(changed.read_bytes()[:-1])
    with pytest.raises(tfasr.UsageError, match=f"{changed.name} has changed"):
        tfasr.load_recogniser(folder)


def check_without_tfasr(folder, recogniser, tmp_path):
    rng = np.random.default_rng(1)
    features = rng.normal(size=(2, 60, recogniser.spec.features.num_features)).astype(
        np.float32
    )
    lengths = np.array([60, 31], np.int32)
    features[1, 31:] = 0
    np.savez(
        tmp_path / "given.npz",
        features=features,
        lengths=lengths,
        log_probs=recogniser.acoustics.log_probs(features, lengths),
        output_lengths=[recogniser.spec.output_frames(int(n)) for n in lengths],
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", TENSORFLOW_ALONE, folder / "saved_model", "given.npz"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def check_without_tensorflow(folder, work):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LITERT_ALONE, work / "said.wav", folder],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "abc dad\n"), done.stderr


def test_int8_in_litert_is_smaller_and_its_cost_is_told(work, recogniser, capsys):
    folder = exported(work, "litert", "--int8")
    said = capsys.readouterr().out
    assert "int8 against float32: WER " in said
    assert "float32 is " in said
    assert "times real time on one core" in said
    check_use(folder, recogniser)


def test_what_cannot_be_exported_is_refused(work, tmp_path, capsys):
    words = ["--to", "keras", "--int8", "--run_dir", RUN, "--out", tmp_path / "new"]
    assert run(parse(["tfasr", "export", *map(str, words)])) == 2
    assert "only for onnx" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
