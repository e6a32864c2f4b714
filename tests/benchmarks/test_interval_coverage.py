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
from tfasr.tta.policies import AccuracyPoint, bracket

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


def test_intervals_cover_where_brackets_at_the_rules_end_do_not(found):
    rows = found[0]["intervals"]
    assert {row["window"] for row in rows} == {1, 3, 5}
    assert len({row["distribution"] for row in rows}) == 4
    for row in rows:
        # 250 draws, the worse of two true ratios: 95 % is known up to some 6.
        assert row["coverage"] > 88
        assert row.get("false_faster", 0) < 11
    by_median = [row for row in rows if row["window"] == 3 and row["cv"] == 0.003]
    assert max(row["at_rules_end"] for row in by_median if row["kind"] == "median") < 80
    unequal = [row["at_rules_end"] for row in by_median if row.get("grid") == 3]
    assert min(unequal) < 75


def test_a_median_of_three_forgives_noise(found):
    for row in found[0]["noise"]:
        if row["window"] == 3:
            assert min(row["median"], row["ratio_1"], row["ratio_3"]) > 86
            assert abs(row["early"]) < 0.2


def test_the_whole_report_and_early_stops_have_few_false_verdicts(found):
    for row in found[0]["familywise"]:
        assert row["any_false_holm"] < 9
        assert row["any_false_unadjusted"] > 15
    for row in found[0]["censoring"]:
        assert row["false_gehan"] < 9
    assert max(row["false_never_last"] for row in found[0]["censoring"]) > 60


def test_the_tables_have_every_row(found):
    text = found[1]
    assert text.count("### ") == 9
    assert text.count("Monte Carlo error") == 9
    distributions, variations = 4, 3
    assert len(re.findall(r"^\| (log-normal|gamma|t3|one in)", text, re.MULTILINE)) == (
        distributions * variations * (1 + 2)
    )
    assert len(re.findall(r"^\| 2 % ", text, re.MULTILINE)) == 3  # windows


@pytest.mark.parametrize("window", [1, 3, 5])
@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_what_is_simulated_is_the_rule(window, noise):
    """The brackets are those that `tfasr report` makes of the same curves."""
    from interval_coverage import read

    rng = np.random.default_rng(window)
    times = rng.uniform(0.3, 14, (40, 2))
    (low, high), late = read(times, 1.0, window, np.random.default_rng(9), noise)
    rng = np.random.default_rng(9)
    paces = 1 + 0.003 * rng.standard_normal(times.shape)
    crossings = times / paces
    last = int(crossings.max() + 8 * noise) + window + 1
    noises = noise * rng.standard_normal((*times.shape, last)) if noise else np.zeros((40, 2, last))
    for run in np.ndindex(times.shape):
        errors = crossings[run] - np.arange(1, last + 1) + noises[run]
        points = [
            AccuracyPoint(n, n * paces[run], 0.5 + error / 1000)
            for n, error in enumerate(errors, start=1)
        ]
        found = bracket(points, 0.5, window=window)
        ends = (found.last_miss_s, found.first_hit_s, found.rule_s)
        assert ends == pytest.approx((low[run], high[run], high[run] + late[run]))


def test_exchanges_are_counted_as_by_hand():
    from interval_coverage import exchanges

    scores = np.array([[1.0, 2, 3, 4], [4, 1, 3, 2]])
    centre = 2.5
    for row, p in zip(scores, exchanges(scores, 2), strict=True):
        far = [abs(sum(pair) - 2 * centre) for pair in itertools.combinations(row, 2)]
        assert p == pytest.approx(np.mean(np.array(far) >= far[0]))
