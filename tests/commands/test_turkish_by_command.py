"""Turkish's four letters i from a corpus of speech to transcripts, through the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tfasr.data.manifest import read_index, read_manifest

pytestmark = pytest.mark.long

CAPITALS = "İI"
UTTERANCES = {"train": 800, "test": 100}


def tfasr(*words: str | Path) -> str:
    command = [sys.executable, "-m", "tfasr", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with Turkish speech by espeak-ng, its shards and a short training."""
    pytest.importorskip(
        "espeakng_loader", reason="needs the demo extra: pip install 'tfasr[demo]'"
    )
    folder = tmp_path_factory.mktemp("turkish")
    recipe = [
        "--gin_file",
        "fast/demo.gin",
        "--gin_binding",
        "AlphabetConfig.source = 'auto'",
    ]

    tfasr(
        "prepare",
        *recipe,
        *("--corpus", "synthetic", "--language", "tr"),
        *("--corpus_dir", folder / "corpus", "--shard_dir", folder / "shards"),
    )
    tfasr(
        "train",
        *recipe[:2],
        *("--shard_dir", folder / "shards", "--run_dir", folder / "run"),
        *("--epochs", "4", "--no_memory_probe"),
    )
    return folder


def test_prepared_transcripts_have_the_small_letters_of_turkish(trained):
    spoken = (trained / "corpus" / "train.tsv").read_text(encoding="utf-8")
    # Or the test would show nothing.
    assert all(capital in spoken for capital in CAPITALS)

    shards = trained / "shards" / "train"
    texts = [utterance.text for utterance in read_manifest(shards, read_index(shards))]

    assert len(texts) == UTTERANCES["train"]
    letters = set("".join(texts))
    assert {"ı", "i"} <= letters
    assert not letters & {"I", "İ", "\N{COMBINING DOT ABOVE}"}
    assert any("işıl" not in text and "ışıl" in text for text in texts)
    assert any(text.startswith("izmir yolunda ılık") for text in texts)


def test_a_recogniser_learns_both_letters_and_writes_them(trained):
    hypotheses = trained / "hypotheses.jsonl"
    score = json.loads(
        tfasr(
            "evaluate",
            *("--run_dir", trained / "run", "--split", "test"),
            *("--format", "json", "--hypotheses", hypotheses),
        )
    )
    rows = [
        json.loads(line) for line in hypotheses.read_text(encoding="utf-8").splitlines()
    ]

    assert score["utterances"] == len(rows) == UTTERANCES["test"]
    assert score["cer"] < 0.1
    for word in ("ışığı", "iki", "ılık"):
        said = [row for row in rows if word in row["reference"].split()]
        heard = [row for row in said if word in row["hypothesis"].split()]
        assert len(heard) > 0.7 * len(said) > 0, word


def test_recordings_become_texts_with_both_letters(trained):
    corpus = trained / "corpus"
    rows = (corpus / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]
    recordings = [
        corpus / row.split("\t")[0] for row in rows if "Işığı" in row or "ışığı" in row
    ]

    said = tfasr("transcribe", "--run_dir", trained / "run", *recordings[:10])

    assert said.count("ışığı") > 7
    assert "işiği" not in said
