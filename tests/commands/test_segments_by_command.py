"""Segments of long recordings from the command line: every kind of list to a trained model."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.data.made_talks import NUM_TALKS, PER_TALK, made_talks, put, write_lists
from tests.tones import RATE_HZ, TONES_GIN, tone
from tfasr.data.manifest import read_index, read_manifest

SPLITS = {"train": "talk", "validation": "other"}


def tfasr(*words: str | Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tfasr", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def prepare(
    corpus: str, folder: Path, shards: Path, *more: str
) -> subprocess.CompletedProcess:
    done = tfasr(
        "prepare",
        "--gin_file",
        TONES_GIN,
        "--corpus",
        corpus,
        "--corpus_dir",
        folder,
        "--shard_dir",
        shards,
        *more,
    )
    assert done.returncode == 0, done.stderr
    return done


def train_and_evaluate(shards: Path, run: Path) -> None:
    arguments = ["--shard_dir", shards, "--run_dir", run, "--no_memory_probe"]
    done = tfasr("train", "--gin_file", TONES_GIN, "--epochs", "1", *arguments)
    assert done.returncode == 0, done.stderr
    done = tfasr(
        "evaluate", "--run_dir", run, "--split", "validation", "--format", "json"
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["utterances"] == read_index(shards / "validation")["utterances"]
    assert 0 <= result["cer"] < 1


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for split, name in SPLITS.items():
        audio = folder / {"train": "train", "validation": "dev"}[split] / "sph"
        write_lists(folder, made_talks(audio, name), split)

    return folder


@pytest.fixture(scope="module")
def content_hashes(corpus, tmp_path_factory) -> dict[str, str]:
    """The hash of each split's shards, as made from the TED-LIUM layout."""
    shards = tmp_path_factory.mktemp("tedlium")
    prepare("tedlium", corpus, shards)
    return {split: read_index(shards / split)["content_hash"] for split in SPLITS}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["tedlium", "kaldi", "json", "lhotse"])
def test_segments_of_talks_are_prepared_trained_and_evaluated(
    corpus, content_hashes, tmp_path, kind
):
    folder = corpus / "kaldi" if kind == "kaldi" else corpus
    prepare(kind, folder, tmp_path / "shards")
    for split in SPLITS:
        index = read_index(tmp_path / "shards" / split)
        assert index["utterances"] == NUM_TALKS * PER_TALK
        assert index["content_hash"] == content_hashes[split]

    train_and_evaluate(tmp_path / "shards", tmp_path / "run")


def write_call(folder: Path) -> None:
    """Writes two calls with a speaker on each channel, and their segments as an STM and
    a tsv.
    """
    folder.mkdir()
    for split, seed in (("train", 1), ("validation", 2)):
        rng = np.random.default_rng(seed)
        channels = []
        lines = []
        rows = []
        for number, letters in enumerate(("abcd", "dcba")):
            pieces = []
            at_s = 0.0
            for _turn in range(8):
                text = "".join(rng.permutation(list(letters)))
                said = np.concatenate([tone(letter, rng) for letter in text])
                end_s = round(at_s + len(said) / RATE_HZ, 3)
                lines.append(f"{split} {'AB'[number]} s{number} {at_s} {end_s} {text}")
                rows.append(
                    f"{split}.wav\t{at_s}\t{end_s}\t{number}\ts{number}\t{text}"
                )
                pieces += [said, np.zeros(int(0.25 * RATE_HZ))]
                at_s = round(end_s + 0.25, 3)

            channels.append(np.concatenate(pieces))

        soundfile.write(folder / f"{split}.wav", np.stack(channels, axis=1), RATE_HZ)
        put(folder / f"{split}.stm", *lines)
        put(folder / f"{split}.tsv", "path\tbegin\tend\tchannel\tspeaker\ttext", *rows)


@pytest.mark.long
def test_calls_of_two_channels_are_prepared_trained_and_evaluated(tmp_path):
    write_call(tmp_path / "calls")
    for kind in ("stm", "tsv"):
        prepare(kind, tmp_path / "calls", tmp_path / kind)
    for split in SPLITS:
        of_stm, of_tsv = (
            sorted(
                (u.text, u.content)
                for u in read_manifest(folder / split, read_index(folder / split))
            )
            for folder in (tmp_path / "stm", tmp_path / "tsv")
        )
        assert len(of_stm) == 16
        assert of_stm == of_tsv

    train_and_evaluate(tmp_path / "stm", tmp_path / "run")


@pytest.mark.long
def test_pipes_of_a_kaldi_folder_are_refused_by_name(corpus, tmp_path):
    audio = corpus / "train" / "sph"
    data = tmp_path / "data" / "train"
    put(
        data / "wav.scp",
        f"plain {audio / 'talk0.sph'}",
        f"piped sph2pipe -f wav -p -c 1 {audio / 'talk1.sph'} |",
        f"unpacked flac -c -d -s {audio / 'talk2.flac'} |",
    )
    put(
        data / "segments",
        *(f"{name}-1 {name} 0.2 1.2" for name in ("plain", "piped", "unpacked")),
    )
    put(data / "text", *(f"{name}-1 abcd" for name in ("plain", "piped", "unpacked")))
    more = ["--split", "train", "--max_bad_fraction", "0.9"]
    done = prepare("kaldi", tmp_path / "data", tmp_path / "shards", *more)
    assert "kept 1 of 3" in done.stdout
    dropped = (tmp_path / "shards" / "train" / "dropped.json").read_text(
        encoding="utf-8"
    )
    assert "sph2pipe" in dropped
    assert "flac -c -d -s" in dropped
