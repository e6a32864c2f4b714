import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.tta.brackets import Bracket
from tfasr.tta.groups import (
    compare_groups,
    group_statistics,
    mean_without_extremes,
    restricted_mean_s,
    runs_to_detect,
)


def hits(*times):
    return [Bracket(time * 0.9, time, None) for time in times]


def never(*seen):
    return [Bracket(time, None, None) for time in seen]


def test_runs_that_all_arrived():
    found = group_statistics(hits(10, 20, 30, 40, 100))
    assert (found.n, found.reached, found.failure_probability) == (5, 5, 0)
    assert (found.median_s, found.mean_without_extremes_s) == (30, 30)
    assert found.coefficient_of_variation == pytest.approx(
        statistics.stdev([10, 20, 30, 40, 100]) / 40
    )
    # Every run arrived: the restricted mean is the mean.
    assert found.restricted_mean_s == pytest.approx(40)
    low, high = found.interval_s
    # Student's t at 4 degrees of freedom is 2.776.
    assert high - 40 == pytest.approx(
        2.776 * statistics.stdev([10, 20, 30, 40, 100]) / 5**0.5, 1e-3
    )
    assert low == pytest.approx(80 - high)


def test_a_run_that_never_arrived_is_censored_not_missing():
    found = group_statistics([*hits(10, 20, 30, 40), *never(50)])
    assert (found.n, found.reached) == (5, 4)
    assert found.failure_probability == pytest.approx(0.2)
    assert (found.median_s, found.mean_without_extremes_s) == (30, 30)
    # 10 s at 1, then 0.8, 0.6, 0.4 and 0.2 for 10 s each.
    assert found.restricted_mean_s == pytest.approx(10 * (1 + 0.8 + 0.6 + 0.4 + 0.2))
    assert found.restriction_s == 50
    assert found.interval_s is None


def test_a_run_censored_early_says_nothing_of_later():
    # Kaplan-Meier: the run seen until 5 s leaves both others to share what comes after.
    assert restricted_mean_s([*never(5), *hits(10, 20)], 20) == pytest.approx(10 + 0.5 * 10)


def test_too_many_that_never_arrived():
    found = group_statistics([*hits(10, 20, 30), *never(50, 50, 50)])
    assert found.mean_without_extremes_s is None
    assert found.median_s is None
    nothing = group_statistics(never(50))
    assert nothing.restricted_mean_s is nothing.coefficient_of_variation is None
    assert nothing.failure_probability == 1


def test_few_runs_have_few_statistics():
    found = group_statistics(hits(10, 20))
    assert found.mean_without_extremes_s is found.interval_s is None
    assert found.median_s == 15
    assert mean_without_extremes([1, 2, 3, 4]) is None
    with pytest.raises(ValueError, match="at least one run"):
        group_statistics([])


def test_below_three_runs_no_significance_is_possible():
    found = compare_groups(hits(10, 11), hits(20, 21, 22))
    assert found.verdict == "no significance possible: fewer than 3 runs in a group"
    assert found.ratio == pytest.approx(math.exp(math.log(20 * 21 * 22) / 3) / 110**0.5)
    assert found.interval is found.p_value is None


def test_three_runs_have_an_interval_and_five_a_test():
    three = compare_groups(hits(10, 11, 12), hits(20, 21, 22))
    assert three.interval[0] > 1.5
    assert three.interval[0] < three.ratio < three.interval[1]
    assert three.p_value is None
    five = compare_groups(hits(10, 11, 12, 13, 14), hits(20, 21, 22, 23, 24))
    # 252 ways to deal ten runs, two of them as extreme as this one.
    assert five.p_value == pytest.approx(2 / 252)
    assert "times as long (95 % interval" in five.verdict


def test_what_is_undecided_is_said():
    found = compare_groups(hits(10, 20, 30), hits(12, 18, 33))
    assert found.interval[0] < 1 < found.interval[1]
    assert "includes 1: undecided" in found.verdict


def test_runs_that_never_arrived_are_last_in_the_test_and_leave_a_restricted_ratio():
    found = compare_groups(hits(10, 11, 12, 13, 14), [*hits(20, 21, 22, 23), *never(30)])
    assert found.p_value == pytest.approx(2 / 252)
    assert found.interval is None
    # Up to 14 s, which both groups observed: nobody of the second group had arrived.
    assert found.ratio == pytest.approx(14 / 12)
    hopeless = compare_groups(hits(10, 11, 12), never(30, 30, 30))
    assert hopeless.ratio is None
    assert "never reached" in hopeless.verdict


def test_equal_times_have_an_interval_without_width():
    found = compare_groups(hits(10, 10, 10), hits(20, 20, 20))
    assert found.interval == (pytest.approx(2), pytest.approx(2))


def test_more_noise_needs_more_runs():
    # Tables of the two-sample t test: a gap of one standard deviation takes 17 runs per arm.
    deviation = math.log1p(0.10)
    assert runs_to_detect(math.sqrt(math.expm1(deviation**2))) == 17
    needed = [runs_to_detect(cv) for cv in (0.0, 0.03, 0.1, 0.2)]
    assert needed == sorted(needed)
    assert needed[0] == 2
    assert runs_to_detect(50.0, 0.001) is None
    with pytest.raises(ValueError, match="gap must be larger than 0"):
        runs_to_detect(0.1, 0)


times = st.lists(st.floats(1, 1000), min_size=1, max_size=8)


@settings(deadline=None, max_examples=50)
@given(times, times)
def test_a_comparison_turned_round_is_its_inverse(first, second):
    there = compare_groups(hits(*first), hits(*second))
    back = compare_groups(hits(*second), hits(*first))
    assert there.ratio == pytest.approx(1 / back.ratio)
    if there.interval is not None:
        assert there.interval == pytest.approx((1 / back.interval[1], 1 / back.interval[0]))


@settings(deadline=None, max_examples=50)
@given(times, st.lists(st.floats(1, 1000), max_size=4))
def test_the_restricted_mean_lies_between_nothing_and_the_restriction(arrived, seen):
    found = group_statistics([*hits(*arrived), *never(*seen)])
    assert 0 < found.restricted_mean_s <= found.restriction_s * (1 + 1e-9)
    if not seen:
        assert found.restricted_mean_s == pytest.approx(statistics.fmean(arrived))
