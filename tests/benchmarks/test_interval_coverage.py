"""The simulations behind docs/statistics.md: that they run, and can be believed."""

import json
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
    """The results and the page of a quick run."""
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


def test_intervals_cover_and_equal_groups_get_few_verdicts(found):
    rows = found[0]["shapes"]

    assert {row["test"] for row in rows} == {"groups", "pairs"}
    assert len({row["shape"] for row in rows}) == 3
    for row in rows:
        # 400 draws: 95 % is known up to some 3.
        assert row["coverage"] > 91
        assert row["false"] < 9

    # Finer grids make narrower intervals.
    assert max(
        r["width"] for r in rows if r["evaluations"] == 160 and not r["slow"]
    ) < min(r["width"] for r in rows if r["evaluations"] == 10)


def test_slow_runs_of_one_group_leave_the_ratio_covered(found):
    of_groups = [row for row in found[0]["kinds"] if row["test"] == "groups"]

    assert min(row["coverage"] for row in of_groups) > 91
    assert min(row["coverage"] for row in found[0]["median"]) > 91


def test_a_median_of_three_forgives_noise(found):
    for row in found[0]["noise"]:
        if row["window"] == 3:
            assert min(row["coverage_1"], row["coverage_3"]) > 86
            assert abs(row["early"]) < 0.2


def test_a_longer_window_keeps_more_looks_from_meeting_a_target_early(found):
    of_eight = {r["window"]: r for r in found[0]["often"] if r["per_epoch"] == 8}

    assert of_eight[3]["rule_late"] < 0 < 1 < of_eight[25]["rule_late"] < 2
    assert of_eight[3]["middle_late"] < -0.2 < abs(of_eight[25]["middle_late"]) < 0.1


def test_the_whole_report_has_few_false_verdicts(found):
    for row in found[0]["familywise"]:
        assert row["any_false_holm"] < 9
        assert row["any_false_unadjusted"] > 15


def test_giving_up_wins_nothing(found):
    rows = found[0]["stopping"]
    ran_on = {(r["quick"], r["n"]): r for r in rows if r["stop"] == "never"}

    for row in rows:
        for who in ("challenger_stopped", "reigning_stopped", "both_stopped"):
            # Each row draws studies of its own.
            assert row[who] <= ran_on[row["quick"], row["n"]][who] + 9


def test_the_tables_have_every_row(found):
    text = found[1]
    assert text.count("### ") == text.count("Monte Carlo error") == 9

    rows = sum(
        len(of_part) for of_part in found[0].values() if isinstance(of_part, list)
    )
    assert text.count("\n|") == rows + 2 * 9


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

    if noise:
        noises = noise * rng.standard_normal((*times.shape, last))
    else:
        noises = np.zeros((40, 2, last))

    for run in np.ndindex(times.shape):
        errors = crossings[run] - np.arange(1, last + 1) + noises[run]
        points = [
            AccuracyPoint(n, n * paces[run], 0.5 + error / 1000)
            for n, error in enumerate(errors, start=1)
        ]
        found = bracket(points, 0.5, window=window)
        ends = (found.last_miss_s, found.first_hit_s, found.rule_s)

        assert ends == pytest.approx((low[run], high[run], high[run] + late[run]))
