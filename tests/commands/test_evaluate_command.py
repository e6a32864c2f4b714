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
