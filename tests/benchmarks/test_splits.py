"""AN4's untouched split is the one that was fixed, and shares no speaker with training."""

import csv
import hashlib
import json
import sys

import numpy as np
import pytest
from scipy import stats

from tests.benchmarks.conftest import BENCHMARKS

ROOT = BENCHMARKS.parent
AN4 = ROOT.parent / "shared" / "data" / "an4" / "splits" / "train.tsv"
sys.path.insert(0, str(BENCHMARKS / "splits"))
import an4  # noqa: E402


def test_the_lists_are_the_ones_that_were_fixed():
    text = "\n".join(an4.committed_ids("untouched")) + "\n"
    assert (
        hashlib.sha256(text.encode()).hexdigest()
        == "67c7d5ca95529358ec4f8e0d8fadf519551307798ec876cee675c6807a0c5433"
    )


def test_the_lists_share_no_utterance():
    train = set(an4.committed_ids("train"))
    untouched = set(an4.committed_ids("untouched"))

    assert (len(train), len(untouched), len(train & untouched)) == (746, 99, 0)


@pytest.mark.skipif(not AN4.is_file(), reason="needs AN4 in ../shared/data")
def test_the_script_draws_the_same_speakers(tmp_path):
    an4.main(["--manifest", str(AN4), "--out", str(tmp_path)])
    speakers = {}
    for name in ("train", "untouched"):
        with (tmp_path / f"{name}.tsv").open(newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))

        speakers[name] = {row["speaker"] for row in rows}

    assert (len(speakers["train"]), len(speakers["untouched"])) == (58, 8)
    assert not speakers["train"] & speakers["untouched"]


KEPT = json.loads(
    (BENCHMARKS / "results" / "2026-11-24-an4_untouched.json").read_text()
)
BY_RUN, MEANS, EPOCHS = (table["rows"] for table in KEPT["tables"])


def test_the_kept_means_are_those_of_the_kept_runs():
    for row in MEANS:
        values = [run[f"{row['split']}_{row['decoder']}"] for run in BY_RUN]
        half_width = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)

        assert row["seeds"] == len(values)
        assert (row["mean"], row["half_width"]) == pytest.approx(
            (np.mean(values), half_width)
        )


def test_the_page_quotes_the_kept_results():
    page = (ROOT / "benchmarks" / "results" / "2026-11-24-recipes.md").read_text()
    columns = [f"{row['split']}_{row['decoder']}" for row in MEANS]
    for run in BY_RUN:
        rates = " | ".join(f"{run[column]:.1f} %" for column in columns)

        assert f"| {run['run'].removeprefix('seed-')} | {rates} |" in page

    for row in MEANS:
        assert f"{row['mean']:.1f} +- {row['half_width']:.1f} %" in page

    for split in ("validation", "untouched"):
        epochs = ", ".join(str(row[split] or "never") for row in EPOCHS)

        assert f"| {epochs} |" in page
