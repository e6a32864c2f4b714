"""When a run will meet a target: intervals, and honest ignorance."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.tta.forecast import (
    COEFFICIENTS,
    FEWEST_EVALUATIONS,
    course,
    evaluations_left,
    forecast,
    pace_s,
)
from tfasr.tta.policies import AccuracyPoint


def curve(values, pace_s=60.0, start_s=0.0):
    return [AccuracyPoint(n, start_s + n * pace_s, v) for n, v in enumerate(values, start=1)]


POWER = [0.9 * n**-0.6 for n in range(1, 61)]


def test_a_falling_curve_has_an_interval_in_order_that_narrows_on_the_way():
    # It meets 15 % at its 20th evaluation.
    widths = []
    for seen in (8, 12, 16, 19):
        found = forecast(curve(POWER[:seen]), 0.15, metric="wer", window=1)
        assert found.known
        assert found.met_s is None
        assert 60 * seen < found.not_before_s <= found.low_s <= found.middle_s <= found.high_s
        assert found.low_s % 60 == 0  # rules are met at evaluations
        widths.append(found.high_s - found.low_s)
    assert widths[-1] < widths[0]
    assert found.low_s <= 20 * 60 <= found.high_s


def test_a_target_that_was_met_says_when():
    found = forecast(curve(POWER), 0.15, window=1)
    assert found.met_s == 20 * 60
    assert not found.known
    # The median of three comes an evaluation later.
    assert forecast(curve(POWER), 0.15, window=3).met_s == 21 * 60


@pytest.mark.parametrize(
    ("values", "target", "reason"),
    [
        ([], 0.1, "no evaluation yet"),
        ([0.5], 0.1, "1 of the 4 evaluations that a forecast needs"),
        ([0.5, 0.4, 0.3], 0.1, "3 of the 4 evaluations that a forecast needs"),
        ([0.3, 0.4, 0.5, 0.6, 0.7, 0.8], 0.29, "does not fall"),
        ([0.4] * 12, 0.2, "does not fall"),
        (POWER[:20], 0.01, "the target is 14.9 times below the last value"),
        (POWER[:20], 0.03, "the target is 5.0 times below the last value"),
        (POWER[:20], 0.0, "sure to come down to 0"),
        ([*POWER[:10], math.nan], 0.1, "the last evaluation is no number"),
    ],
)
def test_what_is_not_known_says_why(values, target, reason):
    found = forecast(curve(values), target, window=1)
    assert not found.known
    assert found.met_s is None
    assert reason in found.reason


def test_clocks_that_jumped():
    points = curve(POWER[:12])
    stood = [AccuracyPoint(p.epoch, 5.0, p.value) for p in points]
    assert "stood still or ran backwards" in forecast(stood, 0.15, window=1).reason
    back = [AccuracyPoint(p.epoch, -p.elapsed_s, p.value) for p in points]
    assert "stood still or ran backwards" in forecast(back, 0.15, window=1).reason
    # One pause of a day is not the pace.
    late = [*points[:8], *curve(POWER[8:12], start_s=86400 + 480)]
    assert pace_s(late) == 60
    assert forecast(late, 0.15, window=1).high_s < late[-1].elapsed_s + 3600


def test_the_next_evaluation_may_come_as_soon_as_the_soonest_of_late():
    points = curve(POWER[:12])
    sooner = [*points[:11], AccuracyPoint(12, points[10].elapsed_s + 45.0, points[11].value)]
    even, uneven = (forecast(one, 0.15, window=1) for one in (points, sooner))
    evaluations = (even.low_s - points[-1].elapsed_s) / 60
    assert uneven.low_s - sooner[-1].elapsed_s == pytest.approx(45 * evaluations)
    assert uneven.high_s - sooner[-1].elapsed_s == even.high_s - points[-1].elapsed_s


def test_diverged_evaluations_between_good_ones_do_not_break_it():
    values = list(POWER[:14])
    values[3], values[7] = math.nan, math.inf
    assert forecast(curve(values), 0.15, window=1).known


def test_a_rule_of_three_needs_more_and_answers_later():
    needed = FEWEST_EVALUATIONS + 2
    assert course(curve(POWER[: needed - 1]), 0.15, 3)[0] is None
    assert course(curve(POWER[:needed]), 0.3, 3)[0] is not None
    alone = forecast(curve(POWER[:12]), 0.15, window=1)
    of_three = forecast(curve(POWER[:12]), 0.15, window=3)
    assert of_three.known
    assert of_three.low_s >= alone.low_s


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(0, 20) | st.just(math.nan), max_size=25),
    target=st.floats(0, 1),
    window=st.integers(1, 3),
    pace=st.floats(1e-3, 1e5),
)
def test_any_curve_gets_an_ordered_interval_or_a_reason(values, target, window, pace):
    found = forecast(curve(values, pace), target, window=window)
    if found.known:
        ends = [found.not_before_s, found.low_s, found.middle_s, found.high_s]
        assert all(map(math.isfinite, ends))
        assert ends == sorted(ends)
        assert found.low_s > len(values) * pace
    else:
        assert found.reason or found.met_s is not None


def test_what_the_clock_counts_in_does_not_matter():
    slow, quick = (forecast(curve(POWER[:12], pace), 0.15, window=1) for pace in (60.0, 1.0))
    assert slow.high_s == pytest.approx(60 * quick.high_s)
    assert np.isclose(slow.not_before_s, 60 * quick.not_before_s)


def test_an_accuracy_is_forecast_by_what_it_leaves():
    errors = forecast(curve(POWER[:12]), 0.15, metric="wer", window=1)
    found = forecast(curve([1 - v for v in POWER[:12]]), 0.85, metric="accuracy", window=1)
    assert found.target == 0.85
    assert found.high_s == pytest.approx(errors.high_s)
    met = forecast(curve([1 - v for v in POWER]), 0.85, metric="accuracy", window=1)
    assert met.met_s == 20 * 60


def course_by_polyfit(values, target):
    """The feature as the docstrings of `course` say it, fitted by NumPy's weighted lines."""
    number, logs = np.arange(1, len(values) + 1), np.log(values)
    falls, ends = [], [logs[-1]]
    for share in (0.12, 0.35):
        weight = np.exp((number - len(values)) / max(share * len(values), 1.2))
        slope, at_zero = np.polyfit(number, logs, 1, w=np.sqrt(weight))
        falls.append(max(-slope * len(values), 0.02))
        ends.append(at_zero + slope * len(values))
    return math.log(max(min(ends) - math.log(target), 0.01) / math.sqrt(math.prod(falls)))


@pytest.mark.parametrize(
    "values",
    [
        POWER[:5],  # so few that both slopes remember the least that they may
        POWER[:20],
        [*POWER[:14], *[POWER[13]] * 4],  # it stands still lately
        [*POWER[:14], *(POWER[13] * 0.9985**n for n in range(1, 5))],  # nearly
        [value * (1.1 if n % 3 else 0.95) for n, value in enumerate(POWER[:17])],
    ],
)
def test_a_curve_is_carried_on_by_two_weighted_lines(values):
    features, reason = course(curve(values), 0.9 * min(values), 1)
    assert reason == ""
    assert features[0] == 1
    assert features[1] == pytest.approx(course_by_polyfit(values, 0.9 * min(values)))


@pytest.mark.parametrize(
    ("rule", "far", "left"),
    [
        ("single", 3.4, {"low": 733, "middle": 1418, "high": 1735, "not_before": 721}),
        ("single", 5, {"low": 1716, "middle": 3022, "high": 3283, "not_before": 1716}),
        ("median", 2.1, {"low": 226, "middle": 422, "high": 578, "not_before": 204}),
        ("median", 5, {"low": 908, "middle": 1490, "high": 1617, "not_before": 908}),
    ],
)
def test_what_was_backtested_is_what_is_shipped(rule, far, left):
    # A course that would take e ** far times as long as it has gone, of 100 evaluations.
    found = evaluations_left(np.array([1.0, far]), 100, COEFFICIENTS[rule])
    assert {name: round(value) for name, value in found.items()} == left


def test_the_pace_is_of_the_last_five_gaps():
    ends_s = np.cumsum([500.0, 10, 10, 10, 60, 60])
    points = [AccuracyPoint(n, end_s, 0.5) for n, end_s in enumerate(ends_s, start=1)]
    assert pace_s(points) == 10
