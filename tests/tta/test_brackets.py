import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.tta.policies import AccuracyPoint, bracket, first_sustained


def curve(*values, every_s=10.0):
    return [AccuracyPoint(n, n * every_s, value) for n, value in enumerate(values, start=1)]


def test_a_crossing_lies_between_the_last_miss_and_the_first_hit():
    found = bracket(curve(0.5, 0.3, 0.1), 0.15, window=1)
    assert (found.last_miss_s, found.first_hit_s, found.censored) == (20.0, 30.0, False)
    assert found.interpolated_s == pytest.approx(27.5)


def test_the_median_is_what_crosses():
    found = bracket(curve(0.5, 0.3, 0.1, 0.1), 0.2, window=3)
    assert (found.last_miss_s, found.first_hit_s) == (30.0, 40.0)
    assert found.interpolated_s == pytest.approx(35.0)


def test_a_first_evaluation_that_hits_has_no_point_to_interpolate_from():
    assert bracket(curve(0.1), 0.2, window=1).interpolated_s is None
    assert bracket(curve(0.1), 0.2, window=1).last_miss_s == 0.0
    found = bracket(curve(0.1, 0.1, 0.1), 0.2, window=3)
    assert (found.last_miss_s, found.first_hit_s, found.interpolated_s) == (20.0, 30.0, None)


def test_never_is_censored_at_the_last_evaluation():
    found = bracket(curve(0.5, 0.4), 0.2, window=1)
    assert (found.last_miss_s, found.first_hit_s, found.censored) == (20.0, None, True)
    assert bracket([], 0.2, window=1).last_miss_s == 0.0


def test_nothing_is_interpolated_from_a_diverged_evaluation():
    assert bracket(curve(math.nan, 0.1), 0.2, window=1).interpolated_s is None


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(0, 1), max_size=10), st.floats(0, 1), st.integers(1, 4))
def test_the_rules_value_closes_the_bracket(values, target, window):
    found = bracket(curve(*values), target, window=window)
    assert found.first_hit_s == first_sustained(curve(*values), target, window=window).seconds
    if found.interpolated_s is not None:
        assert found.last_miss_s <= found.interpolated_s <= found.first_hit_s


@pytest.mark.parametrize("window", [1, 2])
def test_a_second_evaluation_that_hits_was_last_missed_at_the_first(window):
    found = bracket(curve(0.5, 0.1), 0.3, window=window)
    assert (found.last_miss_s, found.first_hit_s) == (10.0, 20.0)
    assert found.interpolated_s == (15.0 if window == 1 else None)
