"""No command speaks to the network unasked: every address is noted by a library loaded first."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.bench.conftest import spoken as scores_of
from tests.recognising.conftest import exported_tones
from tests.recognising.spoken_tones import RUN, sentence, spoken, write_wav
from tests.serving.conftest import started
from tests.tones import write_tone_corpus

__all__ = ["exported_tones"]

pytest.importorskip(
    "aiohttp", reason="needs the serve extra: pip install 'tfasr[serve]'"
)
TINY = Path(__file__).parents[1] / "training" / "tiny.gin"
OWN = {"127.0.0.1", "localhost", "::1"}
# ONNX Runtime's telemetry asks for its server nine seconds after a session begins
SERVED_S = 11.0
CONNECT = "import socket; socket.socket().connect_ex(('127.0.0.1', 9))"
# All in one process, since TensorFlow takes long to start; --help where the command
# only starts others that stand here too, in processes of their own.
TRAINED = ["--shard_dir", "shards", "--run_dir", "run"]
CONFIGURED = ["--gin_file", str(TINY), "--gin_binding", "TrainingConfig.epochs = 1"]
COMMANDS = [
    ["prepare", "--corpus", "tsv", "--corpus_dir", "corpus", "--shard_dir", "shards"],
    ["train", *CONFIGURED, *TRAINED, "--no_memory_probe"],
    ["evaluate", *TRAINED, "--split", "validation"],
    ["ngram", "--shard_dir", "shards", "--out", "words.arpa"],
    ["export", "--to", "onnx", *TRAINED, "--out", "exported"],
    ["transcribe", "a.wav", "--run_dir", "exported"],
    ["transcribe", "a.wav", "--run_dir", str(RUN), "--stream"],
    ["watch", "run", "--once"],
    ["report", "run", "--out", "report"],
    ["report", "--history", "run"],
    ["bench", "decoder", "--log_probs", "scores.npz", "--beam_widths", "2"],
    ["doctor"],
    ["study", "--gin_file", "study/demo.gin", "--dry_run"],
    ["launch", "-n", "1", "--", "train", "--help"],
    ["demo", "--help"],
]
DRIVER = """
import json, sys, tfasr
from tfasr import cli

for words in json.load(sys.stdin):
    try:
        status = cli.run(cli.parse(["tfasr", *words]))
    except SystemExit as error:
        status = error.code
    print(words[0], status, flush=True)
"""


@pytest.fixture(scope="module")
def noting(tmp_path_factory):
    """The environment in which processes note addresses, and where; skips if they don't."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler, for the library that notes addresses")
    folder = tmp_path_factory.mktemp("silence")
    library = folder / "silence.so"
    source = Path(__file__).with_name("silence.c")
    command = [compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this C compiler can't compile the library that notes addresses")
    (folder / "tmp").mkdir()
    noted = folder / "noted"
    environment = {"LD_PRELOAD": str(library), "NETWORK_LOG": str(noted)}
    environment |= {"TMPDIR": str(folder / "tmp"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run(
        [sys.executable, "-c", CONNECT], env=os.environ | environment, check=True
    )
    if not noted.exists() or noted.read_text() != "127.0.0.1\n":
        pytest.skip("this system loads no library in front of others (LD_PRELOAD)")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
        yield noted


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    write_tone_corpus(folder / "corpus", train=8, validation=4, test=1)
    rng = np.random.default_rng(1)
    write_wav(folder / "a.wav", spoken(sentence(rng, 2)))
    scores_of(["ab ba", "cab"], ("ab", "ba", "cab")).save(folder / "scores.npz")
    return folder


def test_no_command_speaks_to_the_network_unasked(noting, work, exported_tones):
    with started(exported_tones, work) as server:
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", DRIVER], input=json.dumps(COMMANDS),
            cwd=work, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        expected = [f"{words[0]} 0" for words in COMMANDS]
        assert [
            line for line in done.stdout.splitlines() if line in expected
        ] == expected
        time.sleep(max(begun + SERVED_S - time.monotonic(), 0))
        assert server.process.poll() is None

    assert set(noting.read_text().splitlines()) <= OWN
    # Where ONNX Runtime's telemetry is on, it leaves the number of its session.
    assert not list((noting.parent / "tmp").glob(".ses"))
