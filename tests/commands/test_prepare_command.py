import argparse
import itertools
import json
import logging
import signal
import time
from pathlib import Path

import pytest
import soundfile

from tests.data.made_corpus import contents, make_utterances, noise, write_tsv
from tests.warm import start_tfasr
from tfasr import cli
from tfasr.commands.prepare import add_arguments
from tfasr.corpora import corpus as registry
from tfasr.corpora.corpus import Corpus
from tfasr.data.features import FeatureConfig
from tfasr.data.prepare_corpus import prepare
from tfasr.data.shards import ShardConfig, open_split
from tfasr.errors import RunError, UsageError
from tfasr.models.recurrent import AcousticModelConfig

ROOT = Path(__file__).parents[2]
AN4 = ROOT.parent / "shared" / "data" / "an4"


def mtimes(folder):
    return {p.name: p.stat().st_mtime_ns for p in folder.glob("*.tfrecord")}


def test_killed_in_the_middle_it_keeps_finished_shards_and_ends_with_the_same_bytes(
    tmp_path,
):
    utterances = make_utterances(tmp_path / "audio", 150, text="a b")
    write_tsv(tmp_path / "audio", utterances)
    shards = ShardConfig(utterances_per_shard=1)
    process = start_tfasr(
        "prepare",
        *(
            "--corpus",
            "tsv",
            "--corpus_dir",
            tmp_path / "audio",
            "--shard_dir",
            tmp_path / "killed",
        ),
        *("--split", "train", "--num_workers", 1),
        *("--gin_binding", "ShardConfig.utterances_per_shard = 1"),
    )
    folder = tmp_path / "killed" / "train"
    try:
        deadline = time.monotonic() + 120
        while len(list(folder.glob("train-*.json"))) < 3:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()

    assert process.returncode == -signal.SIGKILL
    finished = {p.stem for p in folder.glob("train-*.json")}
    kept = {
        name: t for name, t in mtimes(folder).items() if Path(name).stem in finished
    }
    assert 3 <= len(kept) < 150
    assert not (folder / "index.json").exists()

    with pytest.raises(UsageError, match="resumes"):
        open_split(tmp_path / "killed", "train")

    for name in ("killed", "whole"):
        prepare(
            corpus="tsv",
            corpus_dir=tmp_path / "audio",
            shard_dir=tmp_path / name,
            split="train",
            shards=shards,
        )

    after = mtimes(folder)
    assert {name: after[name] for name in kept} == kept
    assert len(after) == 150
    assert contents(folder) == contents(tmp_path / "whole" / "train")


def test_the_command_line_says_what_was_made_and_exits_with_0_1_and_2(
    tmp_path, capsys, monkeypatch
):
    # The command line sets logging up for a process of its own.
    monkeypatch.setattr(logging, "basicConfig", lambda **options: None)
    write_tsv(tmp_path / "good", make_utterances(tmp_path / "good", 9, text="a b"))
    write_tsv(tmp_path / "bad", make_utterances(tmp_path / "bad", 1, text="7"))

    for corpus, code, told in (
        ("good", 0, "train: 9 utterances, 0.00 h, in 1 shard; kept 9 of 9, 100.0%"),
        ("bad", 1, "characters outside the alphabet (['7']"),
        ("nowhere", 2, "nowhere"),
    ):
        flags = {
            "--corpus": "tsv",
            "--corpus_dir": str(tmp_path / corpus),
            "--shard_dir": str(tmp_path / "shards"),
            "--split": "train",
        }
        arguments = cli.parse(["tfasr", "prepare", *itertools.chain(*flags.items())])
        assert cli.run(arguments) == code
        out, errors = capsys.readouterr()
        assert told in (errors if code else out)
        assert not (code and out), "errors are no results"


def break_in_every_way(folder):
    """Returns what is listed for one utterance of every kind of fault; seven are good."""
    good = make_utterances(folder, 7, text="a b")
    cut = folder / "cut.flac"
    soundfile.write(cut, noise(2.0), 16000)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    (folder / "noise.flac").write_bytes(b"\x00\x01" * 500)
    soundfile.write(folder / "short.flac", noise(0.1), 16000)
    soundfile.write(folder / "fast.flac", noise(0.3), 16000)
    lines = {
        "cut.flac": "yes",
        "noise.flac": "yes",
        "gone.flac": "yes",
        "u000.flac": "yes",  # listed twice
        "short.flac": "a",
        "fast.flac": "far too many words for so little audio",
        "./u001.wav": "no such file either",
    }

    for number, text in ((2, "naïve"), (3, "")):
        lines[f"again/u{number}.flac"] = text
        (folder / "again").mkdir(exist_ok=True)
        (folder / "again" / f"u{number}.flac").write_bytes(
            good[number].audio_path.read_bytes()
        )

    listed = write_tsv(folder, good)
    with listed.open("a", encoding="utf-8") as file:
        for path, text in lines.items():
            file.write(f"{path}\ts\t1.0\t{text}\n")


def test_every_kind_of_bad_utterance_is_counted_and_listed_with_its_reason(tmp_path):
    break_in_every_way(tmp_path / "audio")
    arguments = {
        "corpus": "tsv",
        "corpus_dir": tmp_path / "audio",
        "shard_dir": tmp_path / "shards",
        "split": "train",
        "shards": ShardConfig(utterances_per_shard=3),
    }
    with pytest.raises(RunError, match="At most 1.00% of the utterances may be bad"):
        prepare(**arguments)

    folder = tmp_path / "shards" / "train"
    dropped = json.loads((folder / "dropped.json").read_text(encoding="utf-8"))
    found = {(u["id"], u["reason"]) for u in dropped["utterances"]}
    assert found == {
        ("cut", "unreadable audio"),
        ("noise", "unreadable audio"),
        ("gone", "transcript without audio"),
        ("u000", "duplicate id"),
        ("u001", "duplicate id"),
        ("short", "too short for the model's convolution"),
        ("fast", "no CTC path"),
        ("again/u2", "characters outside the alphabet"),
        ("again/u3", "empty transcript"),
    }
    assert all(u["detail"] for u in dropped["utterances"])
    before = mtimes(folder)
    index = prepare(**arguments, max_bad_fraction=0.6)["train"]
    assert mtimes(folder) == before
    assert (index["utterances"], index["bad"]) == (7, 9)


def test_librispeech_audio_without_transcript_and_the_other_way_round(tmp_path):
    chapter = tmp_path / "LibriSpeech" / "dev-clean" / "84" / "121123"
    chapter.mkdir(parents=True)
    for number in (0, 1, 2):
        soundfile.write(
            chapter / f"84-121123-{number:04d}.flac", noise(1.0, number), 16000
        )

    lines = [
        "84-121123-0000 GO ON\n",
        "84-121123-0001 HALLO\n",
        "84-121123-0007 NOT THERE\n",
    ]
    (chapter / "84-121123.trans.txt").write_text("".join(lines))
    index = prepare(
        corpus="librispeech",
        corpus_dir=tmp_path / "LibriSpeech",
        shard_dir=tmp_path / "shards",
        split="validation",
        subsets=["dev-clean"],
        max_bad_fraction=0.5,
    )["validation"]
    assert (index["utterances"], index["bad"]) == (2, 2)
    dropped = json.loads(
        (tmp_path / "shards" / "validation" / "dropped.json").read_text()
    )
    assert {(u["id"], u["reason"]) for u in dropped["utterances"]} == {
        ("84-121123-0002", "audio without transcript"),
        ("84-121123-0007", "transcript without audio"),
    }


def test_all_splits_that_have_a_list_are_prepared(tmp_path):
    utterances = make_utterances(tmp_path / "audio", 4, text="a b")
    for name, part in (
        ("train.tsv", utterances[:3]),
        ("validation.tsv", utterances[3:]),
    ):
        write_tsv(tmp_path / "audio", part, name)

    indexes = prepare(
        corpus="tsv",
        corpus_dir=tmp_path / "audio",
        shard_dir=tmp_path / "shards",
        progress=True,
    )
    assert {name: index["utterances"] for name, index in indexes.items()} == {
        "train": 3,
        "validation": 1,
    }


def test_the_models_convolution_decides_what_is_too_short(tmp_path):
    write_tsv(tmp_path / "audio", make_utterances(tmp_path / "audio", 3, text="a b"))
    arguments = {
        "corpus": "tsv",
        "corpus_dir": tmp_path / "audio",
        "shard_dir": tmp_path / "s",
    }
    prepare(**arguments, features=FeatureConfig(num_mfcc=0))

    with pytest.raises(RunError, match="too short for the model's convolution"):
        prepare(**arguments, model=AcousticModelConfig(conv_kernel=500))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"corpus_dir": "nowhere"}, "nowhere"),
        ({"corpus": "timit"}, "timit"),
        ({"split": "dev"}, "dev.tsv"),
        ({"split": "../dev"}, "--split must be.*letters, digits"),
        ({"split": "te*", "corpus": "librispeech"}, "--split must be.*letters, digits"),
        ({"split": "", "manifest": "train.tsv"}, "--split"),
        ({"split": None, "manifest": "train.tsv"}, "Add --split"),
        ({"manifest": "none.tsv"}, "--manifest must be a file"),
        ({"max_bad_fraction": 1.5}, "max_bad_fraction must lie in 0..1"),
        ({"max_bad_fraction": float("nan")}, "max_bad_fraction must lie in 0..1"),
        ({"num_workers": 0}, "num_workers must be at least 1"),
        ({"num_workers": -2}, "num_workers must be at least 1"),
        ({"audio_reader": "sox"}, "audio reader"),
        ({"corpus": "librispeech", "manifest": None}, "dev-clean"),
        ({"corpus": "json", "split": None}, "must hold a list named after a split"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, wrong, told
):
    write_tsv(tmp_path / "audio", make_utterances(tmp_path / "audio", 1))
    monkeypatch.chdir(tmp_path)
    arguments = {"corpus": "tsv", "corpus_dir": "audio", "split": "train", **wrong}
    with pytest.raises(UsageError, match=told):
        prepare(**arguments, shard_dir=tmp_path / "shards")

    assert not (tmp_path / "shards").exists()


def test_the_flag_names_the_corpora_that_there_are():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    help_text = "".join(parser.format_help().split())
    assert (
        "{librispeech,speech_commands,json,tsv,synthetic,common_voice,fleurs,mls,dataset,lhotse,"
        "kaldi,stm,tedlium}"
    ) in help_text


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        (print, "must be a tfasr.corpora.corpus.Corpus"),
        (Corpus(print), "splits.*list_suffix"),
    ],
)
def test_what_is_no_corpus_is_refused_where_it_is_registered(corpus, message):
    with pytest.raises(UsageError, match=rf"test_prepare_command\.py:\d+: .*{message}"):
        registry.CORPORA.register("mine", corpus)


def test_real_recordings(tmp_path):
    if not AN4.is_dir():
        pytest.skip(f"needs the recordings in {AN4}")

    listed = (
        (AN4 / "splits" / "dev.tsv")
        .read_text(encoding="utf-8")
        .splitlines(keepends=True)
    )
    (tmp_path / "few.tsv").write_text("".join(listed[:11]), encoding="utf-8")
    index = prepare(
        corpus="tsv",
        corpus_dir=AN4,
        manifest=tmp_path / "few.tsv",
        split="validation",
        shard_dir=tmp_path / "shards",
    )["validation"]
    assert (index["utterances"], index["bad"]) == (10, 0)
    seconds = sum(float(line.split("\t")[2]) for line in listed[1:11])
    assert index["duration_s"] == pytest.approx(seconds, abs=0.1)
