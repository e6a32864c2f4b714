"""What works where TensorFlow is not installed, in a process that cannot import it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[1] / "docs" / "light_install.md"

# Everything a full install has beside the documented packages is absent here.
LIGHT = """
import contextlib, io, json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "keras", "soundfile", "soxr", "h5py", "torch"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import numpy as np
import tfasr
from tfasr import cli
from tfasr.decoding.choice import DECODERS, DecoderConfig, make_decoder

found = {"there": [], "lacking": {}}
for name in tfasr.__all__:
    try:
        getattr(tfasr, name)
        found["there"].append(name)
    except ImportError as error:
        found["lacking"][name] = str(error)
try:
    tfasr.compute_features(np.zeros(1600, np.float32), tfasr.FeatureConfig())
except ImportError as error:
    found["lacking"]["compute_features"] = str(error)

with tfasr.Recorder("run", targets=["cer=0.5"], target_window=1) as run:
    run.epoch()
    with run.step(utterances=1):
        pass
    with run.evaluation() as e:
        e.score(["one two"], ["one too"])

def command(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.run(cli.parse(["tfasr", *words]))
    return [status, out.getvalue(), err.getvalue()]

found["report"] = command("report", "run", "--out", "out")
found["doctor"] = command("doctor")
found["train"] = command("train", "--shard_dir", "shards", "--run_dir", "new")
found["evaluate"] = command("evaluate", "--run_dir", "run", "--split", "test")
found["wer"] = tfasr.count_errors(["one two"], ["one too"]).wer

alphabet = tfasr.Alphabet()
log_probs = np.full((1, 2, alphabet.num_classes), -9.0, np.float32)
log_probs[0, 0, alphabet.encode("a")[0]] = log_probs[0, 1, alphabet.blank_id] = -0.1
for name in DECODERS:
    try:
        decoder = make_decoder(DecoderConfig(name=name), alphabet, ["a", "b"])
        (hypothesis,) = decoder.decode(log_probs, np.array([2]))
        found[name] = hypothesis.text
    except ImportError as error:
        found[name] = str(error)
json.dump(found, open("found.json", "w"))
"""


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """What a process without TensorFlow could do."""
    folder = tmp_path_factory.mktemp("light")
    done = subprocess.run(
        [sys.executable, "-c", LIGHT], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads((folder / "found.json").read_text())


def test_what_is_promised_is_there(light):
    _, found = light
    promised = {
        *("Alphabet", "Comparison", "DecoderConfig", "ErrorCounts", "Hypothesis", "Ledger"),
        *("Metric", "Recorder", "Run", "RunError", "UsageError", "WordBeamSearch", "compare"),
        *("count_errors", "load_plugin", "load_run", "read_events", "report"),
    }
    assert promised <= set(found["there"])


def test_what_is_not_names_the_package_and_the_remedy(light):
    _, found = light
    assert {"train", "evaluate", "AcousticModel", "compute_features"} <= set(found["lacking"])
    for name, said in found["lacking"].items():
        assert said.startswith(f"tfasr.{name} needs ")
        assert "pip install tfasr" in said
    for command in ("train", "evaluate"):
        status, out, err = found[command]
        assert (status, out) == (2, "")
        assert f"tfasr {command}: the command needs tensorflow, which is not installed" in err
    assert "The decoder 'beam' needs tensorflow" in found["beam"]


def test_recorder_report_doctor_scoring_and_decoding_work(light):
    folder, found = light
    assert found["report"][0] == 0
    assert "CER 50 %" in found["report"][1]
    assert (folder / "out" / "report.html").stat().st_size > 10_000
    assert (folder / "out" / "cer.png").is_file()
    assert found["doctor"][0] == 0
    assert found["wer"] == 0.5
    assert (found["greedy"], found["word_beam"]) == ("a", "a")


def test_the_documented_list_is_what_setup_cfg_asks_for_less_what_needs_tensorflow():
    """Nobody adds a dependency and forgets those who install by hand."""
    import configparser
    import re

    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[1] / "setup.cfg")
    required = {
        re.split("[<>=]", line)[0] for line in config["options"]["install_requires"].split()
    }
    (documented,) = re.findall(r"^pip install (numpy .*)$", DOCUMENT.read_text(), re.MULTILINE)
    assert required - set(documented.split()) == {"tensorflow", "keras", "soundfile", "soxr"}
    assert set(documented.split()) <= required
