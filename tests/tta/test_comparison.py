import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import permutation_test

from tfasr.tta.comparison import (
    LOOKS,
    GroupComparison,
    adjusted,
    compare_groups,
    decide,
    levels,
    order_scores,
    order_test,
    run_until_decided,
)
from tfasr.tta.policies import AccuracyPoint, Bracket, bracket

by_median_of_3 = functools.partial(bracket, window=3)


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
    assert "times as long (at least 95 % interval" in five.verdict


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
    assert "1.17 times as long within the first 14 s, which both ran for" in found.verdict
    few = compare_groups(hits(10, 11, 12), [*hits(20, 21), *never(30)])
    assert (few.p_value, few.sooner) == (None, None)
    hopeless = compare_groups(hits(10, 11, 12), never(30, 30, 30))
    assert hopeless.ratio is None
    assert "never reached" in hopeless.verdict


def test_a_verdict_without_a_ratio_is_said_all_the_same():
    found = compare_groups(hits(10, 11, 12, 13, 14), never(30, 30, 30, 30, 30))
    assert (found.ratio, found.test, found.sooner) == (None, "gehan", "first")
    assert "the first group is faster, p = 0.0079" in found.verdict


def test_what_so_few_runs_can_never_decide_is_said():
    group = compare_groups(hits(10, 11, 12, 13, 14), never(30, 30, 30, 30, 30))
    six, seven = adjusted([group] * 6), adjusted([group] * 7)
    assert group.least_p == group.p_value == pytest.approx(2 / 252)
    assert {(one.sooner, one.decidable) for one in six} == {("first", True)}
    assert {(one.sooner, one.decidable) for one in seven} == {(None, False)}
    assert "7 comparisons" in seven[0].verdict
    # Welch's test has no least p-value.
    assert adjusted([compare_groups(hits(*range(10, 15)), hits(*range(20, 25)))] * 7)[0].decidable


def test_a_narrow_interval_is_shown_with_the_digits_that_it_has():
    def group(centre):
        logs = (math.log(centre) + 0.004 * n for n in range(-3, 4))
        return [Bracket(math.exp(x - 1e-4), math.exp(x + 1e-4), None) for x in logs]

    found = compare_groups(group(1000), group(104.4))
    low, high = found.interval
    assert f"{found.ratio:.4f}" in found.verdict
    assert f"{low:.4f} to {high:.4f}" in found.verdict
    assert 0.001 < high - low < 0.01


@pytest.mark.parametrize("grids", [(1, 1), (1, 3)])
def test_equal_groups_on_unequal_grids_are_equal_at_the_crossings(grids):
    """Five runs each whose CER crosses 10 % at the same moments, by the median of three."""
    groups = []
    for grid in grids:
        runs = []
        for crossing_s in (9.3, 9.7, 10.2, 10.6, 11.1):
            points = [AccuracyPoint(n, n * grid, crossing_s / n / grid / 10) for n in range(1, 40)]
            runs.append(by_median_of_3(points, 0.1))
        groups.append(runs)
    found = compare_groups(*groups)
    late = 1.5 * (grids[1] - grids[0])
    assert found.ratio == pytest.approx((10.2 + 1.5 + late) / (10.2 + 1.5), rel=0.1)
    assert found.ratio_of_middles == pytest.approx(1, abs=0.08)
    assert found.interval[0] < 1 < found.interval[1]
    assert found.sooner is None
    assert ("at the crossings" in found.verdict) == (grids[1] == 3)


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


def ends(*brackets):
    low, high = np.array(brackets, float).T
    return low, high


NEVER = math.inf


def test_scores_by_hand():
    # 1-2 is before 2-3 and before the run last seen at 4; 2-3 likewise; the run last seen at 1.5
    # may be any of them.
    low, high = ends((1, 2), (2, 3), (4, NEVER), (1.5, NEVER))
    assert order_scores(low, high).tolist() == [-2, 0, 2, 0]


def test_brackets_that_overlap_are_equal():
    low, high = ends((3, 6), (3, 4), (5, 6))
    assert order_scores(low, high).tolist() == [0, -1, 1]


def test_groups_apart_are_the_two_most_extreme_of_all_exchanges():
    found = order_test(
        ends(*((t, t + 1) for t in range(5))), ends(*((t, t + 1) for t in range(10, 15)))
    )
    assert found.p_value == pytest.approx(2 / 252)
    assert found.excess == 25


def test_a_group_stopped_early_is_not_late():
    arrived = ends(*((t, t + 1) for t in (20, 21, 22, 23, 24)))
    stopped = ends(*[(15, NEVER)] * 5)
    found = order_test(arrived, stopped)
    assert (found.p_value, found.excess) == (1, 0)
    # Stopped later than the others arrived they are later.
    assert order_test(arrived, ends(*[(30, NEVER)] * 5)).p_value == pytest.approx(2 / 252)


brackets = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from([1, 2, math.inf])), min_size=2, max_size=4
)


@settings(deadline=None, max_examples=25)
@given(brackets, brackets)
def test_it_counts_all_exchanges(first, second):
    runs = [(low, low + width) for low, width in (*first, *second)]
    found = order_test(ends(*runs[: len(first)]), ends(*runs[len(first) :]))

    def excess(ones):
        others = [index for index in range(len(runs)) if index not in ones]
        later = sum(runs[o][0] >= runs[i][1] for o in others for i in ones)
        return later - sum(runs[i][0] >= runs[o][1] for o in others for i in ones)

    own = tuple(range(len(first)))
    assert found.excess == excess(own)
    centre = sum(excess(c) for c in itertools.combinations(range(len(runs)), len(first)))
    assert centre == 0
    sums = [abs(excess(c)) for c in itertools.combinations(range(len(runs)), len(first))]
    exact = np.mean(np.array(sums) >= abs(found.excess))
    # SciPy takes twice the smaller tail: the same where both groups are of one size.
    if len(first) == len(second):
        assert found.p_value == pytest.approx(min(1, exact))


@pytest.mark.parametrize(("ones", "others"), [(5, 6), (8, 8), (10, 9), (12, 14)])
def test_its_p_value_is_scipys(ones, others):
    rng = np.random.default_rng(ones)
    low = rng.integers(0, 9, ones + others).astype(float)
    high = low + rng.choice([1, 3, NEVER], low.size)
    first, second = (low[:ones], high[:ones]), (low[ones:] + 1, high[ones:] + 1)
    scores = order_scores(*(np.concatenate(ends) for ends in zip(first, second, strict=True)))
    expected = permutation_test(
        (scores[:ones], scores[ones:]),
        lambda a, b, axis: np.mean(a, axis=axis) - np.mean(b, axis=axis),
        vectorized=True,
        n_resamples=19_999,
        rng=np.random.default_rng(0),
    )
    assert order_test(first, second).p_value == pytest.approx(expected.pvalue, rel=1e-12)


def test_a_group_too_large_to_keep_all_its_exchanges():
    low = np.arange(240.0)
    found = order_test((low, low + 30), (low + 5, low + 35))
    assert 0 < found.p_value < 1
    assert found.p_value == order_test((low, low + 30), (low + 5, low + 35)).p_value


def test_large_groups_apart_have_the_exact_probability_of_ranks():
    first, second = (ends(*((t, t + 1) for t in range(at, at + 10))) for at in (0, 20))
    assert order_test(first, second).p_value == pytest.approx(2 / math.comb(20, 10))


# Enough seeds: looks that together err no more than one would.


def drawn_times(*seconds, grid=1.0):
    return [Bracket(s - grid, s, s - grid / 2) for s in seconds]


def drawn(median, n, seed, spread=0.05):
    rng = np.random.default_rng(seed)
    return drawn_times(*(median * np.exp(spread * rng.standard_normal(n))))


def test_levels_spend_five_percent_over_all_looks():
    from scipy.stats import norm

    rng = np.random.default_rng(0)
    sums = rng.standard_normal((30_000, LOOKS[-1])).cumsum(axis=1)
    bounds = {n: norm.isf(level / 2) for n, level in zip(LOOKS, levels(), strict=True)}
    beyond = [np.abs(sums[:, n - 1]) / np.sqrt(n) > bound for n, bound in bounds.items()]
    assert np.mean(np.any(beyond, axis=0)) == pytest.approx(0.05, abs=0.005)
    assert levels((7,))[0] == pytest.approx(0.05, abs=0.001)
    for wrong in ((), (1, 3), (3, 3), (5, 3)):
        with pytest.raises(ValueError, match="Looks must increase"):
            levels(wrong)


def test_a_clear_gap_is_decided_at_the_first_look_and_stands():
    first, second = drawn(100, 12, 1), drawn(150, 12, 2)
    found = decide(first[:3], second[:3])
    assert (found.sooner, found.runs, found.over) == ("first", 3, True)
    assert found.verdict.startswith("the first group is faster (p = ")
    # What came later does not undo it.
    assert decide(first, [*second[:3], *drawn(100, 9, 3)]) == found
    assert decide(second, first).sooner == "second"


def test_no_gap_is_undecided_to_the_end():
    groups = drawn(100, 12, 4), drawn(100, 12, 5)
    assert decide(*groups, looks=(3, 5)).verdict.startswith("undecided after all looks (p = ")
    found = decide(groups[0][:6], groups[1][:4])
    assert (found.sooner, found.runs, found.next_look) == (None, 3, 5)
    assert found.verdict.endswith("next look at 5")
    assert decide([], []).verdict == "undecided: the first look is at 3 runs a group"


def test_a_gap_below_a_bracket_is_not_decided():
    first = drawn_times(*[10.0] * 12, grid=2.0)
    second = drawn_times(*[10.4] * 12, grid=2.0)
    found = decide(first, second)
    assert found.sooner is None
    assert found.over
    assert "no larger than the time between evaluations" in found.verdict


def test_runs_that_never_arrive_are_waited_for_and_tested_by_order():
    never = Bracket(300.0, None, None)
    first = drawn(100, 12, 6)
    second = [never if n % 2 else one for n, one in enumerate(drawn(140, 12, 7))]
    early = decide(first[:3], second[:3])
    assert "no test at 3 runs a group" in early.verdict
    found = decide(first, second)
    assert found.sooner == "first"
    assert found.runs > 3
    assert found.comparison.test == "gehan"
    assert decide([never] * 12, [never] * 12).sooner is None


def test_the_loop_trains_no_more_than_it_needs():
    trained = []

    def train(group, seed):
        trained.append((group, seed))
        return drawn(100 if group == "first" else 160, 12, seed)[seed - 1]

    found = run_until_decided(train)
    assert found.sooner == "first"
    wanted = itertools.product(("first", "second"), range(1, found.runs + 1))
    assert sorted(trained) == sorted(wanted)
    # Groups take turns at being first.
    assert [group for group, _ in trained[:4]] == ["first", "second", "second", "first"]
    assert found.runs < LOOKS[-1]
    alike = run_until_decided(lambda group, seed: drawn(100, 12, 9)[seed - 1], looks=(3, 5))
    assert alike.sooner is None
    assert alike.runs == 5


def test_the_first_look_may_come_after_two_runs():
    assert len(levels((2, 4))) == 2
    with pytest.raises(ValueError, match="from 2 runs on"):
        levels((1, 4))
