"""A dictionary of another source than the training transcripts (`--lexicon`)."""

import dataclasses
import json

import keras
import pytest

from tests.tones import SHARDS, tones_experiment
from tfasr import cli
from tfasr.decoding.choice import DecoderConfig, load_lexicon
from tfasr.errors import UsageError
from tfasr.reports.groups import load_report
from tfasr.reports.numbers import ask
from tfasr.training.dry_run import dry_run
from tfasr.training.train import train
from tfasr.tta.run import load_run

WORDS = ["a", "abcd", "bad", "cab", "dad"]


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("DAD\nabcd\n\ncab\na\nBAD\ncab\n")
    return path


def experiment(epochs=1, decoder="word_beam"):
    base = tones_experiment(epochs=epochs)
    return dataclasses.replace(base, decoder=DecoderConfig(name=decoder, beam_width=4))


class FailsAfterTheFirstEpoch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise RuntimeError("the power is gone")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run with the words of its transcripts."""
    run_dir = tmp_path_factory.mktemp("runs") / "own"
    train(experiment(), shard_dir=SHARDS, run_dir=run_dir, memory_probe=False)
    return run_dir


def words_in(path):
    lines = path.read_text().splitlines()
    return {word for line in lines for word in json.loads(line)["hypothesis"].split()}


def test_a_run_keeps_a_files_words_and_is_not_ranked_among_those_with_its_transcripts(
    own, tmp_path, vocabulary
):
    where = {"shard_dir": SHARDS, "memory_probe": False}
    run_dir = tmp_path / "other"
    two = experiment(epochs=2)
    with pytest.raises(RuntimeError):
        train(
            two,
            **where,
            run_dir=run_dir,
            lexicon=vocabulary,
            callbacks=[FailsAfterTheFirstEpoch()],
        )

    assert load_lexicon(run_dir) == WORDS
    longer = tmp_path / "longer.txt"
    longer.write_text("abba\n")
    with pytest.raises(UsageError, match=r"longer\.txt has other words"):
        train(two, **where, run_dir=run_dir, lexicon=longer, resume=True)
    vocabulary.unlink()  # the run has its words
    train(two, **where, run_dir=run_dir, resume=True)
    assert load_lexicon(run_dir) == WORDS
    assert words_in(next((run_dir / "hypotheses").iterdir())) <= set(WORDS)
    runs = [load_run(path) for path in (own, run_dir)]
    assert [run.fact("dictionary_words") for run in runs] == [None, len(WORDS)]
    assert runs[0].comparability["lexicon"] != runs[1].comparability["lexicon"]
    report = load_report([own, run_dir], ask())
    assert [report.refused(index) for index in (0, 1)] == [False, True]


@pytest.mark.parametrize(
    ("content", "decoder", "message"),
    [
        ("bad dad\n", "word_beam", "Line 1.*'bad dad'"),
        ("dad\ngröße\n", "word_beam", "Line 2.*'größe'"),
        ("\n", "word_beam", "empty"),
        ("dad\n", "greedy", "greedy"),
    ],
)
def test_what_is_no_dictionary_is_refused_before_anything_is_written(
    tmp_path, content, decoder, message
):
    path = tmp_path / "words.txt"
    path.write_text(content)
    given = {"shard_dir": SHARDS, "lexicon": path, "memory_probe": False}
    with pytest.raises(UsageError, match=message):
        train(experiment(decoder=decoder), **given, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match=message):
        dry_run(experiment(decoder=decoder), **given)


def test_an_evaluation_takes_it_in_place_of_the_runs(own, tmp_path, vocabulary):
    def evaluated(*words):
        given = (
            "--run_dir",
            own,
            "--shard_dir",
            SHARDS,
            "--split",
            "validation",
            *words,
        )
        return cli.run(cli.parse(["tfasr", "evaluate", *map(str, given)]))

    words = ("--lexicon", vocabulary, "--hypotheses", tmp_path / "texts.jsonl")
    assert evaluated(*words, "--out", tmp_path) == 0
    assert words_in(tmp_path / "texts.jsonl") <= set(WORDS)
    (row,) = json.loads((tmp_path / "scores.json").read_text())["rows"]
    assert row["lexicon"] == str(vocabulary)
    assert "dictionary vocab.txt" in (tmp_path / "scores.md").read_text()
    assert evaluated("--lexicon", vocabulary, "--decoder", "greedy") == 2
    assert evaluated("--lexicon", tmp_path / "none.txt") == 2


def test_train_takes_it_from_the_command_line(tmp_path, capsys):
    words = [
        "--shard_dir",
        SHARDS,
        "--run_dir",
        tmp_path / "run",
        "--lexicon",
        tmp_path / "none",
    ]
    for name, value in (("num_mel_bins", 12), ("num_mfcc", 4)):
        words += ["--gin_binding", f"FeatureConfig.{name} = {value}"]
    words += ["--gin_binding", "DecoderConfig.name = 'word_beam'"]
    assert cli.run(cli.parse(["tfasr", "train", *map(str, words)])) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
