import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.tta.comparison import GroupComparison, adjusted, compare_groups
from tfasr.tta.policies import Bracket


def hits(*times, width=0.1, interpolated=None):
    """Brackets that end at these times, a share of them wide."""
    return [
        Bracket(time * (1 - width), time, None if interpolated is None else time * interpolated)
        for time in times
    ]


def never(*seen):
    return [Bracket(time, None, None) for time in seen]


def test_below_three_runs_no_significance_is_possible():
    found = compare_groups(hits(10, 11), hits(20, 21, 22))
    assert found.ratio == pytest.approx(math.exp(math.log(20 * 21 * 22) / 3) / 110**0.5)
    assert found.interval is found.p_value is found.sooner is None
    assert "too few runs" in found.verdict
    assert compare_groups(hits(10), hits(20)).ratio_of_middles == pytest.approx(2)


def test_three_runs_have_an_interval_and_a_p_value_and_five_a_permutation_test_too():
    three = compare_groups(hits(10, 11, 12), hits(20, 21, 22))
    assert three.interval[0] > 1.5
    assert three.interval[0] < three.ratio < three.interval[1]
    assert three.p_value < 0.01
    assert (three.test, three.permutation_p, three.sooner) == ("welch", None, "first")
    five = compare_groups(hits(10, 11, 12, 13, 14), hits(20, 21, 22, 23, 24))
    # 252 ways to deal ten runs, two of them as extreme as this one.
    assert five.permutation_p == pytest.approx(2 / 252)
    assert five.test == "welch"
    assert "times as long (95 % interval" in five.verdict


def test_the_interval_by_hand():
    # Logarithms of middles 0, 0.1, 0.2 and 1, 1.1, 1.2, brackets 0.02 wide: variances 0.01, 4
    # degrees of freedom, t 2.7764; the grid's exp(-2 pi^2 25) is nothing.
    def of(*logs):
        return [Bracket(math.exp(x - 0.01), math.exp(x + 0.01), math.exp(x)) for x in logs]

    found = compare_groups(of(0, 0.1, 0.2), of(1, 1.1, 1.2))
    reach = 2.7764 * math.sqrt(2 * 0.01 / 3)
    expected = (math.exp(1 - reach), math.exp(1 + reach))
    assert found.interval == pytest.approx(expected, rel=1e-4)
    assert found.ratio == pytest.approx(math.e)
    assert found.ratio_of_middles == pytest.approx(math.e)
    assert found.interpolated_ratio == pytest.approx(math.e)
    assert found.interpolated_interval == pytest.approx(expected, rel=1e-4)
    assert found.bracket == pytest.approx(math.expm1(0.02))


def test_what_is_undecided_is_said():
    found = compare_groups(hits(10, 20, 30), hits(12, 18, 33))
    assert found.interval[0] < 1 < found.interval[1]
    assert found.sooner is None
    assert "undecided" in found.verdict


def test_a_gap_below_the_bracket_is_undecided_however_alike_the_runs():
    found = compare_groups(hits(10, 10, 10), hits(10.001, 10.001, 10.001))
    assert found.below_bracket
    assert found.sooner is None
    assert found.interval[0] < 0.9
    assert found.interval[1] > 1.1


@pytest.mark.parametrize("n", [3, 8])
def test_one_evaluation_later_is_undecided(n):
    first = [Bracket(24 + 0.01 * k, 25 + 0.01 * k, None) for k in range(n)]
    second = [Bracket(25 + 0.01 * k, 26 + 0.01 * k, None) for k in range(n)]
    found = compare_groups(first, second)
    assert found.ratio == pytest.approx(1.04, rel=1e-3)
    # The truth lies between 1 and what last misses and first hits are apart: 26 / 24.
    assert found.interval[0] < 1.005
    assert found.interval[1] > 1.075
    assert found.sooner is None
    later = [Bracket(36 + 0.01 * k, 37 + 0.01 * k, None) for k in range(n)]
    assert compare_groups(first, later).sooner == "first"


def test_groups_on_different_grids_are_compared_without_the_readings_bias():
    # Both truly take 30 s; one is evaluated every second, the other every 6 s.
    first = [Bracket(t - 1, t, None) for t in (29.5, 30.5, 31.5)]
    second = [Bracket(t - 6, t, None) for t in (33, 33.1, 33.2)]
    found = compare_groups(first, second)
    assert found.ratio > 1.08
    assert found.ratio_of_middles == pytest.approx(1, abs=0.01)
    assert found.reading_bias == pytest.approx(found.ratio / found.ratio_of_middles)
    assert found.sooner is None


def test_runs_that_never_arrived_are_tested_by_order_and_leave_a_restricted_ratio():
    found = compare_groups(hits(10, 11, 12, 13, 14), [*hits(20, 21, 22, 23), *never(30)])
    assert (found.p_value, found.test) == (pytest.approx(2 / 252), "gehan")
    assert found.interval is None
    assert found.sooner == "first"
    # Up to 14 s, which both groups observed: nobody of the second group had arrived.
    assert found.ratio == pytest.approx(14 / 12)
    assert found.restricted_to_s == 14
    assert "1.17 times as long within the 14 s that both observed" in found.verdict
    few = compare_groups(hits(10, 11, 12), [*hits(20, 21), *never(30)])
    assert (few.p_value, few.sooner) == (None, None)
    hopeless = compare_groups(hits(10, 11, 12), never(30, 30, 30))
    assert hopeless.ratio is None
    assert "never reached" in hopeless.verdict


def test_a_group_stopped_early_is_not_slower_for_that():
    # The same times, seen up to 11 s only: "never" ranked last would give p = 0.04.
    times = (10, 11.5, 12, 13, 14)
    stopped = [*hits(10), *never(11, 11, 11, 11)]
    found = compare_groups(hits(*times), stopped)
    assert found.p_value > 0.5
    assert found.sooner is None


def test_a_target_met_at_the_first_evaluation_has_no_lower_end():
    found = compare_groups(hits(10, 11, 12), [Bracket(0.0, time, None) for time in (4, 5, 6)])
    assert found.ratio == pytest.approx((120 / 1320) ** (1 / 3))
    assert found.interval is found.p_value is found.ratio_of_middles is None
    five = compare_groups(
        hits(10, 11, 12, 13, 14), [Bracket(0.0, time, None) for time in (4, 5, 6, 7, 8)]
    )
    assert (five.test, five.p_value, five.sooner) == ("gehan", pytest.approx(2 / 252), "second")


def test_neither_spread_nor_bracket_is_nothing_to_judge_by():
    found = compare_groups(hits(10, 10, 10, width=0), hits(20, 20, 20, width=0))
    assert found.ratio == pytest.approx(2)
    assert found.interval is found.p_value is found.sooner is None


def with_p(*p_values):
    base = compare_groups(hits(10, 11, 12), hits(20, 21, 22))
    return [replace(base, p_value=p, adjusted_p=p) for p in p_values]


def test_holm_by_hand():
    # Sorted 0.01, 0.02, 0.03 times 3, 2, 1: 0.03, 0.04 and, as none is below one before, 0.04.
    found = adjusted([*with_p(0.03, 0.01, 0.02), GroupComparison(2.0)])
    assert [one.adjusted_p for one in found] == [*map(pytest.approx, (0.04, 0.03, 0.04)), None]
    assert [one.comparisons for one in found] == [3, 3, 3, 1]
    assert [one.sooner for one in found] == ["first", "first", "first", None]
    assert [one.sooner for one in adjusted(with_p(0.03, 0.03))] == [None, None]
    assert [one.adjusted_p for one in adjusted(with_p(0.9, 0.8))] == [1, 1]
    assert adjusted([]) == []


times = st.lists(st.floats(1, 1000), min_size=1, max_size=8)


@settings(deadline=None, max_examples=50)
@given(times, times)
def test_a_comparison_turned_round_is_its_inverse(first, second):
    there = compare_groups(hits(*first), hits(*second))
    back = compare_groups(hits(*second), hits(*first))
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.p_value == pytest.approx(back.p_value)
    if there.interval is not None:
        assert there.interval == pytest.approx((1 / back.interval[1], 1 / back.interval[0]))
    turned = {"first": "second", "second": "first", None: None}
    assert turned[there.sooner] == back.sooner


def test_times_below_a_second_are_compared_like_others():
    seen = [*hits(0.20, 0.21, 0.22, 0.23), *never(0.30)]
    found = compare_groups(hits(0.10, 0.11, 0.12, 0.13, 0.14), seen)
    assert found.ratio == pytest.approx(14 / 12)


def test_a_group_and_itself_do_not_differ():
    group = hits(10, 12, 14, interpolated=0.95)
    found = compare_groups(group, group)
    assert (found.ratio, found.ratio_of_middles, found.p_value) == (1, 1, 1)
    assert (found.sooner, found.later, found.reading_bias) == (None, None, 1)
    assert found.interval[0] == pytest.approx(1 / found.interval[1])
    assert found.interpolated_ratio == 1


def test_two_runs_each_have_no_interval_of_interpolated_times():
    found = compare_groups(hits(10, 11, interpolated=0.95), hits(20, 22, interpolated=0.95))
    assert found.interpolated_ratio == pytest.approx(2)
    assert found.interpolated_interval is None
    alike = [hits(time, time, time, interpolated=0.95) for time in (10, 20)]
    assert compare_groups(*alike).interpolated_interval is None
    assert compare_groups(*alike).interpolated_ratio == pytest.approx(2)


def test_targets_met_at_once_have_no_ratio():
    at_once = [Bracket(0.0, 0.0, None)] * 3
    assert compare_groups(at_once, at_once).ratio is None
    assert compare_groups(at_once, hits(1, 2, 3)).ratio is None
