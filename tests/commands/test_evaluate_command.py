"""`tfasr evaluate` of several runs and splits: one table, in every format, and files."""

import csv
import json
import shutil

import pytest

from tests.tones import OLD, SHARDS
from tfasr.cli import parse, run


def evaluate(*words: object) -> int:
    return run(parse(["tfasr", "evaluate", "--shard_dir", str(SHARDS), *map(str, words)]))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two copies of a run, which would score alike."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("first", "second"):
        shutil.copytree(OLD / "run", folder / name)
    return [folder / "first", folder / "second"]


def test_runs_are_rows_and_splits_are_columns(runs, tmp_path, capsys):
    words = ["--run_dir", runs[0], "--run_dir", runs[1], "--split", "train"]
    words += ["--split", "validation", "--decoder", "word_beam", "--beam_width", 4]
    assert evaluate(*words, "--out", tmp_path / "out", "--format", "latex") == 0
    table = capsys.readouterr().out
    assert r"\shortstack{train\\WER \%}" in table
    rows = json.loads((tmp_path / "out" / "scores.json").read_text())["rows"]
    assert [(row["run"], row["split"]) for row in rows] == [
        ("first", "train"), ("first", "validation"), ("second", "train"), ("second", "validation"),
    ]  # fmt: skip
    assert {(row["decoder"], row["beam_width"]) for row in rows} == {("word_beam", 4)}
    assert rows[0]["wer"] == rows[2]["wer"] != rows[1]["wer"]
    records = list(csv.DictReader((tmp_path / "out" / "scores.csv").read_text().splitlines()))
    assert [float(one["wer"]) for one in records] == [row["wer"] for row in rows]
    assert f"{100 * rows[0]['wer']:.2f}" in (tmp_path / "out" / "scores.md").read_text()


def test_one_run_and_split_say_all_there_is(runs, tmp_path, capsys):
    words = ["--run_dir", runs[0], "--run_dir", runs[0], "--split", "validation"]
    assert evaluate(*words, "--format", "json", "--out", tmp_path) == 0
    scores = json.loads(capsys.readouterr().out)
    (row,) = json.loads((tmp_path / "scores.json").read_text())["rows"]
    # The run's own decoder, which is greedy and has no beam.
    assert (row["decoder"], row["beam_width"]) == ("greedy", None)
    assert scores["wer_interval"] == row["wer_interval"]


def test_hypotheses_are_those_of_one_run_and_split(runs, tmp_path, capsys):
    words = ["--run_dir", runs[0], "--split", "train", "--split", "validation"]
    assert evaluate(*words, "--hypotheses", tmp_path / "texts.jsonl") == 2
    assert "1 runs, 2 splits" in capsys.readouterr().err


def test_a_language_model_of_the_training_transcripts_scores_words_too(runs, tmp_path, capsys):
    pytest.importorskip("kenlm", reason="kenlm, an optional extra, is not installed")
    arpa = tmp_path / "train.arpa"
    assert run(parse(["tfasr", "ngram", "--shard_dir", str(SHARDS), "--out", str(arpa)])) == 0
    words = ["--run_dir", runs[0], "--split", "validation", "--decoder", "word_beam"]
    words += ["--beam_width", 64]
    assert evaluate(*words, "--format", "json", "--out", tmp_path / "none") == 0
    words += ["--language_model", arpa, "--out", tmp_path / "with"]
    # Every word costs so much that nothing has two.
    assert evaluate(*words, "--word_bonus", -100) == 0
    found = {n: json.loads((tmp_path / n / "scores.json").read_text()) for n in ("none", "with")}
    without, rows = found["none"]["rows"][0], found["with"]["rows"][0]
    assert without["insertions"] > rows["insertions"] == 0
    told = (rows["language_model"], rows["lm_weight"], rows["word_bonus"])
    assert told == (str(arpa), 1.0, -100)  # a default is told too
    assert "language model train.arpa" in (tmp_path / "with" / "scores.md").read_text()


def test_a_language_model_is_refused_where_it_would_do_nothing(runs, tmp_path, capsys):
    words = ["--run_dir", runs[0], "--split", "validation"]
    assert evaluate(*words, "--lm_weight", 0.5) == 2
    assert "Received: no --language_model" in capsys.readouterr().err
    assert evaluate(*words, "--language_model", tmp_path / "none.arpa") == 2
    assert "none.arpa" in capsys.readouterr().err
    arpa = tmp_path / "train.arpa"
    assert run(parse(["tfasr", "ngram", "--shard_dir", str(SHARDS), "--out", str(arpa)])) == 0
    assert "n-grams of 1 to 3 words" in capsys.readouterr().out
    assert evaluate(*words, "--language_model", arpa) == 2  # the run's decoder is greedy
    message = capsys.readouterr().err
    assert "needs the decoder word_beam" in message or "kenlm package" in message


@pytest.mark.parametrize("wrong", ["--order=0", "--order=7", "--out=.", "--split=none"])
def test_an_n_gram_that_cannot_be_made_is_refused(wrong, tmp_path, capsys):
    words = ["ngram", "--shard_dir", str(SHARDS), "--out", str(tmp_path / "a.arpa"), wrong]
    assert run(parse(["tfasr", *words])) == 2
    assert "must" in capsys.readouterr().err
    assert not (tmp_path / "a.arpa").exists()
