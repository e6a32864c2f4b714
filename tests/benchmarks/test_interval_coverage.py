"""The simulations behind docs/statistics.md: that they run, and can be believed."""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.conftest import BENCHMARKS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    path = tmp_path_factory.mktemp("coverage") / "found.json"
    command = [
        sys.executable,
        BENCHMARKS / "interval_coverage.py",
        "--quick",
        "--seed",
        "3",
        "--out",
        path,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return json.loads(path.read_text()), done.stdout


def test_intervals_cover_where_first_hits_do_not(found):
    rows = {(row["grid"], row["n"], row["cv"], row["epochs"]): row for row in found[0]["ratio"]}
    for row in rows.values():
        # 400 draws: 95 % is known up to some 3.
        assert min(row["coverage"].values()) > 91
        assert row["false_faster"] < 8
    dominated = rows[1.0, 5, 0.02, 5]
    assert min(dominated["coverage_first_hits"].values()) < 60
    assert rows[2.0, 5, 0.02, 5]["false_faster_first_hits"] > 25
    # The brackets do not matter: the interval is Welch's, and not wider.
    assert np.mean(list(rows[1.0, 5, 0.2, 20]["coverage"].values())) < 97.5


def test_the_whole_report_and_early_stops_have_few_false_verdicts(found):
    for row in found[0]["familywise"]:
        assert row["any_false_holm"] < 8
        assert row["any_false_unadjusted"] > 15
    for row in found[0]["censoring"]:
        assert row["false_gehan"] < 9
    assert max(row["false_never_last"] for row in found[0]["censoring"]) > 60


def test_the_table_has_every_row(found):
    text = found[1]
    assert text.count("### ") == 5
    assert len(re.findall(r"^\| \d", text, re.MULTILINE)) == 8 + 4 + 4 + 6 + 1


def test_exchanges_are_counted_as_by_hand():
    from interval_coverage import exchanges

    scores = np.array([[1.0, 2, 3, 4], [4, 1, 3, 2]])
    centre = 2.5
    for row, p in zip(scores, exchanges(scores, 2), strict=True):
        far = [abs(sum(pair) - 2 * centre) for pair in itertools.combinations(row, 2)]
        assert p == pytest.approx(np.mean(np.array(far) >= far[0]))
