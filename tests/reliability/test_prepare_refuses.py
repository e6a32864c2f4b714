"""What ``tfasr prepare`` refuses, and that it deletes nothing of a user's."""

import json

import numpy as np
import pytest
import soundfile

from tests.data.made_corpus import make_utterances, write_tsv
from tests.reliability.conftest import snapshot
from tfasr.kit.files import locked


def prepare(corpus, shard_dir, *more):
    return (
        *("prepare", "--corpus", "tsv", "--corpus_dir", corpus, "--shard_dir", shard_dir),
        *("--split", "train", *more),
    )


@pytest.mark.parametrize("plan", [None, "my own plan\n", '{"key": 1}', "[]"])
def test_a_folder_with_files_of_a_users_is_refused_and_left_as_it_is(refused, corpus, plan):
    folder = corpus / "train"
    folder.mkdir()
    (folder / "mydata.tfrecord").write_text("dear to me")
    (folder / "train-annotations.json").write_text("{}")
    if plan is not None:
        (folder / "plan.json").write_text(plan)
    refused(*prepare(corpus, corpus), keeps=corpus, names=(str(folder), "mydata.tfrecord"))


def test_only_the_plans_own_files_are_removed_and_a_foreign_shards_name_is_not_taken(
    tfasr, refused, corpus, tmp_path
):
    shard_dir = tmp_path / "shards"
    folder = shard_dir / "train"
    assert tfasr(*prepare(corpus, shard_dir)).status == 0
    (folder / "notes.txt").write_text("mine")
    (folder / "train-annotations.json").write_text("mine")
    smaller = ("--gin_binding", "ShardConfig.utterances_per_shard = 2")
    assert tfasr(*prepare(corpus, shard_dir, *smaller)).status == 0
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "train-annotations.json").read_text() == "mine"
    assert len(list(folder.glob("*.tfrecord"))) == 2
    (folder / "train-00003.tfrecord").write_text("mine")
    smallest = ("--gin_binding", "ShardConfig.utterances_per_shard = 1")
    refused(*prepare(corpus, shard_dir, *smallest), keeps=shard_dir, names=("train-00003.tfre",))


def test_a_plan_of_an_older_tfasr_is_taken_up(tfasr, corpus, tmp_path):
    shard_dir = tmp_path / "shards"
    folder = shard_dir / "train"
    assert tfasr(*prepare(corpus, shard_dir)).status == 0
    whole = snapshot(folder)
    (folder / "plan.json").write_text("0" * 64)
    (folder / "train-00007.tfrecord").write_text("of the older plan")
    assert tfasr(*prepare(corpus, shard_dir)).status == 0
    assert snapshot(folder) == whole


def test_the_second_of_two_prepares_gets_one_line(refused, corpus, tmp_path):
    folder = tmp_path / "shards" / "train"
    folder.mkdir(parents=True)
    with locked(folder / "prepare.lock", "held"):
        refused(
            *prepare(corpus, tmp_path / "shards"),
            keeps=folder,
            names=("Only one process may prepare", str(folder)),
        )


def test_a_shard_folder_that_is_a_file_is_named(refused, corpus, tmp_path):
    (tmp_path / "file").write_text("mine")
    refused(*prepare(corpus, tmp_path / "file"), keeps=tmp_path, names=(str(tmp_path / "file"),))
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "train").write_text("mine")
    refused(*prepare(corpus, tmp_path / "shards"), keeps=tmp_path, names=("train is a file",))


def test_audio_whose_features_are_no_numbers_is_bad(refused, corpus, tmp_path):
    loud = (1e30 * np.random.default_rng(0).uniform(-1, 1, 16000)).astype("float32")
    soundfile.write(corpus / "loud.wav", loud, 16000, subtype="FLOAT")
    with (corpus / "train.tsv").open("a") as lines:
        lines.write("loud.wav\ts\t1.0\ta\n")
    refused(
        *prepare(corpus, tmp_path / "shards"),
        keeps=corpus,
        status=1,
        names=("features that are not finite numbers", "loud.wav", "e+29"),
    )
    assert not (tmp_path / "shards" / "train" / "index.json").exists()


def test_a_json_array_is_told_from_json_lines(refused, corpus, tmp_path):
    listed = corpus / "train.json"
    listed.write_text(json.dumps([{"audio_filepath": "u000.flac", "text": "a"}], indent=1))
    words = ("prepare", "--corpus", "json", "--corpus_dir", corpus, "--shard_dir", tmp_path / "s")
    refused(*words, keeps=corpus, names=(str(listed), "one JSON array"))


def test_links_in_a_circle_are_walked_once(tfasr, tmp_path):
    chapter = tmp_path / "LibriSpeech" / "train-clean" / "84" / "1"
    chapter.mkdir(parents=True)
    (utterance,) = make_utterances(chapter, 1)
    utterance.audio_path.rename(chapter / "84-1-0.flac")
    (chapter / "84-1.trans.txt").write_text("84-1-0 A\n")
    for name in ("loop", "again"):
        (chapter.parent / name).symlink_to(tmp_path / "LibriSpeech", target_is_directory=True)
    words = ("--corpus_dir", tmp_path / "LibriSpeech", "--shard_dir", tmp_path / "shards")
    ended = tfasr("prepare", "--corpus", "librispeech", *words, "--split", "train")
    assert ended.status == 0, ended.err
    assert "train: 1 utterances" in ended.out


def test_validation_utterances_that_are_trained_on_are_told(tfasr, corpus, tmp_path):
    write_tsv(corpus, make_utterances(corpus, 4, text="a b"), "validation.tsv")
    words = ("prepare", "--corpus", "tsv", "--corpus_dir", corpus, "--shard_dir", tmp_path / "s")
    ended = tfasr(*words)
    assert ended.status == 0, ended.err
    assert "validation: 4 of 4 utterances are trained on too" in ended.err
    assert "3 of 3 speakers are heard in training too" in ended.err
