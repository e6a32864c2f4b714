"""The winner by target: ``tfasr report RUNS... --profile``."""

import json

import numpy as np
import pytest

from tests.reports.conftest import COMPARABLE, ledger_of
from tfasr.errors import UsageError
from tfasr.reports.groups import load_report
from tfasr.reports.numbers import ask
from tfasr.reports.winners import FINE_TARGETS, common_range, group_profiles, target_profile
from tfasr.reports.write import report
from tfasr.tta.policies import AccuracyPoint, bracket, brackets_at


def curve(values, pace=1.0):
    return [AccuracyPoint(n, n * pace, v) for n, v in enumerate(values, start=1)]


# One falls at once and levels off at 0.12, the other falls slowly and on: they cross near that.
QUICK = 0.12 + 0.8 * 0.6 ** np.arange(40)
STEADY = 0.9 * 0.93 ** np.arange(40)


def runs_of(values, paces):
    return [curve(values, pace) for pace in paces]


def write_runs(folder, values, paces, **options):
    for number, pace in enumerate(paces):
        ledger = ledger_of(list(values), train_s=pace, targets=[("cer", 0.2)], **options)
        ledger.write(folder / f"seed{number}")
    return folder


def test_many_brackets_are_those_of_single_targets():
    rng = np.random.default_rng(1)
    own = curve([*rng.uniform(0.1, 1.0, 20), np.nan, 0.05])
    targets = rng.uniform(0, 1.1, 50)
    for window in (1, 3):
        one_by_one = [bracket(own, target, window=window) for target in targets]
        assert brackets_at(own, targets, window=window) == one_by_one
    assert brackets_at([], [0.5], window=3)[0].censored


def test_the_winner_flips_where_the_curves_cross():
    paces = (1.0, 1.01, 1.02, 1.03, 1.04, 1.05)
    found = target_profile(runs_of(STEADY, paces), runs_of(QUICK, paces), window=1)
    assert found.targets.size == FINE_TARGETS
    assert (np.diff(found.targets) < 0).all()
    assert found.verdicts[1].sooner == "second"
    assert found.verdicts[-1].sooner == "first"
    (crossing,) = found.crossings
    assert found.ratio[-1] > 1
    assert crossing == pytest.approx(0.121, abs=0.002)
    assert (found.low < found.ratio).all()
    assert (found.together_low <= found.low[::24]).all()
    assert (found.together_high > found.high[::24]).all()


def test_the_range_is_what_all_missed_once_and_then_reached():
    first, second = curve([0.9, 0.5, 0.3]), curve([0.8, 0.4, 0.2])
    low, high = common_range([first, second], 1)
    assert (low, high) == (0.3, pytest.approx(0.8))
    assert high < 0.8
    assert common_range([curve([1.9, 0.5, 0.3]), curve([1.8, 0.2])], 1) == (0.3, 1.0)
    assert common_range([first, curve([0.2, 0.1])], 1) is None
    assert common_range([first, curve([0.5])], 1) is None
    # A run that rises reached what it began with and nothing after.
    assert common_range([curve([0.5, 0.7, 0.9]), second], 1) is None
    assert target_profile([first], [curve([0.2])], window=1) is None
    assert common_range([curve([0.9, 0.3]), curve([0.8, 0.2])], 1) == (0.3, pytest.approx(0.8))
    # Too few evaluations for a median, and no run at all.
    assert common_range([first, curve([0.5])], 3) is None
    assert common_range([], 1) is None


def test_a_run_of_half_the_pace_takes_twice_as_long_at_every_target():
    found = target_profile([curve(STEADY)], [curve(STEADY, 2.0)], window=1)
    np.testing.assert_allclose(found.ratio, 2)
    assert found.crossings == []
    middle = bracket(curve(STEADY), found.targets[-1], window=1)
    expected = np.sqrt(middle.last_miss_s * middle.first_hit_s)
    assert found.first_s[-1] == pytest.approx(expected)


def test_the_line_passes_one_where_it_is_said_to_cross():
    paces = (1.0, 1.01, 1.02)
    for groups, after in (((STEADY, QUICK), "first"), ((QUICK, STEADY), "second")):
        found = target_profile(*(runs_of(values, paces) for values in groups), window=1)
        (crossing,) = found.crossings
        assert (found.ratio[-1] > 1) == (after == "first")
        rising = np.log(found.targets)[::-1]
        at_it = np.interp(np.log(crossing), rising, np.log(found.ratio)[::-1])
        assert at_it == pytest.approx(0, abs=1e-9)


def test_more_groups_share_the_error_of_what_holds_together():
    paces = 1 + 0.03 * np.arange(8)
    groups = runs_of(STEADY, paces), runs_of(STEADY, 1.3 * paces)
    alone, one, two = (
        target_profile(*groups, window=1, **shares) for shares in ({}, {"shares": 1}, {"shares": 2})
    )
    np.testing.assert_array_equal(alone.together_low, one.together_low)
    assert (two.together_low < one.together_low).all()
    assert (two.together_high > one.together_high).all()


def test_intervals_that_hold_together_do():
    rng = np.random.default_rng(5)
    misses, alone = 0, 0
    for _ in range(100):
        groups = [
            [curve(QUICK, pace) for pace in np.exp(0.5 * rng.standard_normal(6))] for _ in "ab"
        ]
        found = target_profile(*groups, window=1)
        misses += bool(((found.together_low > 1) | (found.together_high < 1)).any())
        alone += bool(((found.low > 1) | (found.high < 1)).any())
    assert misses <= 0.05 * 100 + 3
    assert alone > misses


def test_the_command_says_who_wins_where_and_draws_it(tmp_path):
    pytest.importorskip("vl_convert")
    paces = (1.0, 1.01, 1.02, 1.03, 1.04, 1.05)
    first = write_runs(tmp_path / "steady", STEADY, paces)
    second = write_runs(tmp_path / "quick", QUICK, paces)
    text = report([first, second], profile=True, policy="mlperf", out=tmp_path / "out")
    assert "Winner by target: CER, times of steady = 1" in text
    assert "the winner flips with the target, beyond chance" in " ".join(text.split())
    assert (tmp_path / "out" / "profile_cer.png").stat().st_size > 10_000
    rows = (tmp_path / "out" / "profile_cer.csv").read_text().splitlines()
    assert len(rows) == 1 + 5
    assert "together_95_low" in rows[0]
    assert "profile_cer" in (tmp_path / "out" / "report.html").read_text()
    json.loads(report([first, second], profile=True, output_format="json"))


def test_single_runs_have_no_interval_and_unlike_ones_no_profile(tmp_path):
    first = ledger_of(list(STEADY[:30])).write(tmp_path / "a")
    second = ledger_of(list(QUICK[:30])).write(tmp_path / "b")
    said = " ".join(report([first, second], profile=True, policy="mlperf").split())
    assert "n = 1 and 1: no interval; seeds alone make such a time vary by 3 to 20 %" in said
    assert "whether the winner flips is undecided" in said
    unlike = ledger_of(list(QUICK), comparability=COMPARABLE | {"beam_width": 9})
    refused = report([first, unlike.write(tmp_path / "c")], profile=True)
    assert "c is not compared with a: they are not comparable" in " ".join(refused.split())
    once = ledger_of([0.5]).write(tmp_path / "once")
    asked = ask(profile=True)
    (of_once,) = group_profiles(load_report([first, once], asked))
    assert "share no range of CER" in of_once.reason
    with pytest.raises(UsageError, match="at least two groups"):
        report([first], profile=True)


def test_five_hundred_runs():
    rng = np.random.default_rng(2)
    groups = [
        [curve(values, pace) for pace in np.exp(0.1 * rng.standard_normal(250))]
        for values in (STEADY, QUICK)
    ]
    found = target_profile(*groups, window=3)
    assert {one.sooner for one in found.verdicts} == {"first", "second"}
    # The evaluations around the easiest targets lie far apart: there is one between 1 and 2 s.
    assert (found.high / found.low)[-1] < 1.2


def test_an_accuracy_is_better_higher():
    errors = target_profile([curve(STEADY)], [curve(QUICK)], window=1)
    found = target_profile([curve(1 - STEADY)], [curve(1 - QUICK)], window=1, metric="accuracy")
    assert (np.diff(found.targets) > 0).all()
    assert found.targets[-1] == pytest.approx(1 - errors.targets[-1])
    assert found.ratio[-1] == pytest.approx(errors.ratio[-1])
    assert len(found.crossings) == 1 and found.ratio[-1] > 1


# Over which targets two groups can be compared; see tests/reports/test_winners.py for the rest.


def curve_of(*values):
    return [AccuracyPoint(n, 60.0 * n, value) for n, value in enumerate(values, start=1)]


def test_runs_without_a_single_error_have_no_range_of_ratios():
    assert common_range([curve_of(0.5, 0.2, 0.1)] * 2, 1) is not None
    assert common_range([curve_of(0.5, 0.2, 0.0)] * 2, 1) is None
