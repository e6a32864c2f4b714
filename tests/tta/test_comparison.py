"""Which group is faster, by how much, and how surely."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.tta.comparison import (
    LEVEL,
    LOOKS,
    TESTS,
    GroupComparison,
    adjusted,
    compare,
    decide,
    levels,
    looks_of,
    run_until_decided,
)
from tfasr.tta.policies import AccuracyPoint, Bracket, bracket

OTHER = {"first": "second", "second": "first", None: None}


def hits(*times, width=0.1):
    """Brackets that end at these times, a share of them wide."""
    return [Bracket(time * (1 - width), time, None) for time in times]


def never(*seen):
    """Runs that ended after these times without meeting the target."""
    return [Bracket(time, None, None) for time in seen]


def test_three_runs_a_group_differ_by_chance_too_often_for_a_test():
    comparison = compare(hits(10, 11, 12), hits(20, 21, 22))

    assert comparison.ratio == pytest.approx(21 / 11)
    assert comparison.interval is comparison.p_value is comparison.sooner is None
    assert "no test: too few runs" in comparison.verdict
    assert compare(hits(10), hits(20)).ratio == pytest.approx(2)


def test_four_runs_a_group_are_enough_for_a_test():
    four = compare(hits(10, 11, 12, 13), hits(20, 21, 22, 23))

    # 70 ways to choose four of eight runs, two of them as extreme as this one
    assert four.p_value == pytest.approx(2 / 70)
    assert four.sooner == "first"


def test_the_interval_is_that_computed_by_hand():
    # With 4 runs a group the interval is the whole range of ratios, each as wide as the
    # brackets.
    comparison = compare(hits(10, 11, 12, 13), hits(20, 21, 22, 23))
    assert comparison.interval == pytest.approx((20 * 0.9 / 13, 23 / (10 * 0.9)))

    ratios = [b / a for a in (10, 11, 12, 13) for b in (20, 21, 22, 23)]
    assert comparison.ratio == pytest.approx(np.exp(np.median(np.log(ratios))))


def test_pairs_that_share_their_slow_hours_show_what_groups_cannot():
    rng = np.random.default_rng(1)
    hour = 100 * np.exp(0.2 * rng.standard_normal(8))
    own = np.exp(0.005 * rng.standard_normal((2, 8)))

    first = hits(*hour * own[0], width=0.01)
    second = hits(*1.05 * hour * own[1], width=0.01)

    assert compare(first, second).sooner is None

    comparison = compare(first, second, "pairs")

    assert (comparison.test, comparison.sooner, comparison.pairs) == (
        "pairs",
        "first",
        8,
    )
    assert comparison.p_value == 2 / 2**8
    assert comparison.interval[0] < 1.05 < comparison.interval[1] < 1.08
    # A surplus run has no partner.
    assert compare(first, [*second, *never(9)], "pairs") == comparison


def test_a_gap_within_the_brackets_is_undecided_however_alike_the_runs():
    comparison = compare(hits(*[10] * 8), hits(*[10.001] * 8))

    assert comparison.sooner is None
    assert comparison.interval[0] <= 0.9001
    assert comparison.interval[1] >= 1.1


def test_a_gap_of_one_evaluation_is_undecided_and_one_of_many_is_not():
    # One evaluation later, all of them: no two runs are surely apart.
    first = [Bracket(24 + 0.01 * k, 25 + 0.01 * k, None) for k in range(8)]
    second = [Bracket(25 + 0.01 * k, 26 + 0.01 * k, None) for k in range(8)]

    assert compare(first, second).interval[0] < 1
    assert compare(first, second).sooner is None

    later = [Bracket(36 + 0.01 * k, 37 + 0.01 * k, None) for k in range(8)]
    assert compare(first, later).sooner == "first"


def disturbed(brackets, parts):
    """The brackets of runs that the machine gave only a part of its time."""
    return [
        replace(b, undisturbed=part) for b, part in zip(brackets, parts, strict=True)
    ]


def test_a_difference_that_the_machine_explains_is_undecided():
    first = hits(10, 11, 12, 13, 14, width=0)
    second = hits(20, 22, 24, 26, 28, width=0)

    assert compare(first, second).sooner == "first"

    comparison = compare(first, disturbed(second, [0.5] * 5))

    assert comparison.sooner is None
    assert comparison.measured_p == compare(first, second).p_value
    assert (
        "what the machine took from the runs may explain the difference"
        in comparison.verdict
    )
    # The times stay those of the clock; the interval now holds the ratio without
    # disturbances too.
    assert comparison.ratio == compare(first, second).ratio
    assert comparison.interval[0] < 1 < 2 < comparison.interval[1]


def test_disturbed_runs_of_the_faster_group_leave_the_verdict():
    first = hits(10, 11, 12, 13, 14, width=0)
    second = hits(20, 22, 24, 26, 28, width=0)

    # Disturbed runs of the faster group make its lead larger, not smaller.
    assert compare(disturbed(first, [0.5] * 5), second).sooner == "first"


def test_looks_are_undecided_as_long_as_the_machine_explains_the_difference():
    first = hits(*[10 + k / 10 for k in range(12)])
    second = hits(*[20 + k / 10 for k in range(12)])

    assert decide(first, second).runs == 5

    explained = decide(first, disturbed(second, [0.5] * 12))

    assert (explained.sooner, explained.runs) == (None, 12)
    assert "may explain the difference" in explained.verdict
    # Two of five runs were disturbed: the others show the difference.
    assert decide(first, disturbed(second, [0.5] * 2 + [1.0] * 10)).sooner == "first"


@given(
    st.lists(st.tuples(st.floats(1, 9), st.floats(1, 9)), min_size=4, max_size=8),
    st.lists(st.tuples(st.floats(0.1, 1), st.floats(0.1, 1)), min_size=8, max_size=8),
    st.sampled_from(TESTS),
)
def test_disturbances_never_make_a_verdict_easier(times, parts, test):
    first, second = (hits(*(pair[group] for pair in times)) for group in (0, 1))
    of_runs = [[pair[group] for pair in parts[: len(times)]] for group in (0, 1)]

    plain = compare(first, second, test)
    comparison = compare(
        disturbed(first, of_runs[0]), disturbed(second, of_runs[1]), test
    )

    if plain.p_value is not None:
        assert comparison.p_value >= plain.p_value
        assert comparison.interval[0] <= plain.interval[0]
        assert comparison.interval[1] >= plain.interval[1]


@pytest.mark.parametrize("grid", [1, 3])
def test_groups_are_not_ranked_by_how_often_they_are_evaluated(grid):
    """Six runs each whose CER crosses 10 % at the same moments, by the median of three."""
    groups = []
    for interval_s in (1, grid):
        runs = []
        for crossing_s in (9.3, 9.7, 10.2, 10.6, 11.1, 11.3):
            points = [
                AccuracyPoint(n, n * interval_s, crossing_s / n / interval_s / 10)
                for n in range(1, 40)
            ]
            runs.append(bracket(points, 0.1, window=3))

        groups.append(runs)

    comparison = compare(*groups)

    assert comparison.ratio == pytest.approx(1, abs=0.08)
    assert comparison.interval[0] < 1 < comparison.interval[1]
    assert comparison.sooner is None
    # The rule is met later where evaluations are rarer: that ratio is a detail.
    assert (comparison.ratio_by_rule > 1.15) == (grid == 3)


def test_equal_medians_are_not_called_different_for_a_few_slow_runs():
    usual = (10, 10.2, 9.8, 10.1, 9.9, 10.05, 10.15, 9.95, 10.3, 9.7, 10.12, 9.88)
    slow = (10.1, 10, 9.9, 16.2, 16.1, 10.05, 9.95, 16.3, 10.15, 9.85, 16.25, 10.02)

    comparison = compare(hits(*usual, width=0.02), hits(*slow, width=0.02))

    assert comparison.sooner is None
    assert comparison.ratio == pytest.approx(1.01, abs=0.01)
    assert comparison.interval[0] < 1 < comparison.interval[1]


def test_runs_that_never_arrived_are_later_than_those_before_they_ended():
    first = hits(10, 11, 12, 13, 14, 15, 16, 17)
    comparison = compare(first, [*hits(20, 21, 22, 23, 24, 25, 26), *never(30)])

    assert comparison.p_value == pytest.approx(2 / math.comb(16, 8))
    assert comparison.sooner == "first"

    # One of eight can't change median and interval, however late it would have been.
    late = compare(first, hits(20, 21, 22, 23, 24, 25, 26, 3000))

    assert (comparison.ratio, comparison.interval) == (late.ratio, late.interval)
    assert comparison.ratio == pytest.approx(1.75, abs=0.05)
    assert comparison.interval[1] < 2.6


def test_a_group_that_never_arrived_is_later_by_no_known_ratio():
    first = hits(10, 11, 12, 13, 14, 15, 16, 17)

    hopeless = compare(first, never(*[30] * 6))

    assert (hopeless.ratio, hopeless.interval, hopeless.sooner) == (None, None, "first")
    assert "unknown number of times as long" in hopeless.verdict


def test_groups_that_were_stopped_before_the_other_arrived_are_undecided():
    first = hits(10, 11, 12, 13, 14, 15, 16, 17)

    assert compare(never(*[9] * 6), never(*[9] * 6)).sooner is None
    # Both groups were stopped before the other arrived: nothing is known.
    assert compare(first, never(*[9] * 6)).sooner is None


def test_a_challenger_of_two_kinds_does_not_win_by_giving_up():
    """40 % of its seeds need 8, the others 16; the reigning recipe needs 10."""
    rng = np.random.default_rng(5)
    won = {math.inf: 0, 9.0: 0}
    for _ in range(100):
        reigning = 10 * np.exp(0.05 * rng.standard_normal(12))
        needed = np.where(rng.random(12) < 0.4, 8, 16) * np.exp(
            0.05 * rng.standard_normal(12)
        )
        for stop in won:
            challenger = [cut(run, stop) for run in hits(*needed, width=0.02)]
            decision = decide(hits(*reigning, width=0.02), challenger)
            won[stop] += decision.sooner == "second"

    assert won[9.0] <= won[math.inf] <= 6


def cut(run, at):
    """What is known of a run that was stopped at a moment."""
    if run.first_hit_s is not None and run.first_hit_s <= at:
        return run

    return Bracket(min(run.last_miss_s, at), None, None)


runs = st.tuples(
    st.floats(1, 100),
    st.floats(0.01, 20),
    st.sampled_from(["arrived", "first", "never"]),
)


def made(low, width, kind):
    """The bracket of a run that arrived, met the target at once, or never did."""
    if kind == "never":
        return Bracket(low, None, None)

    return Bracket(low if kind == "arrived" else 0.0, low + width, None)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(runs, min_size=4, max_size=9),
    st.lists(runs, min_size=4, max_size=9),
    st.lists(st.floats(0, 130), min_size=18, max_size=18),
    st.floats(1, 3),
)
def test_cutting_runs_short_never_makes_a_group_faster(first, second, stops, apart):
    groups = [
        [made(*run) for run in first],
        [made(low * apart, w, k) for low, w, k in second],
    ]
    shorter = [
        [cut(run, stop) for run, stop in zip(group, stops[side * 9 :], strict=False)]
        for side, group in enumerate(groups)
    ]
    for test in TESTS:
        whole = compare(*groups, test)
        for changed in (
            (shorter[0], groups[1]),
            (groups[0], shorter[1]),
            (shorter[0], shorter[1]),
        ):
            assert compare(*changed, test).sooner in (None, whole.sooner)

        by_looks = decide(shorter[0], shorter[1], looks=(4,), test=test)
        assert by_looks.sooner in (None, decide(*groups, looks=(4,), test=test).sooner)


@settings(deadline=None, max_examples=100)
@given(st.lists(runs, min_size=1, max_size=8), st.lists(runs, min_size=1, max_size=8))
def test_a_comparison_turned_round_is_its_inverse(first, second):
    groups = [[made(*run) for run in group] for group in (first, second)]
    for test in TESTS:
        there = compare(*groups, test)
        back = compare(*groups[::-1], test)

        assert OTHER[there.sooner] == back.sooner
        assert there.p_value == (back.p_value and pytest.approx(back.p_value))
        assert there.ratio == (back.ratio and pytest.approx(1 / back.ratio))
        if there.interval is not None:
            assert there.interval == pytest.approx(
                (1 / back.interval[1], 1 / back.interval[0])
            )


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.floats(10, 100), min_size=6, max_size=10),
    st.lists(st.floats(10, 100), min_size=6, max_size=10),
    st.floats(0.001, 0.2),
)
def test_verdict_ratio_and_interval_are_of_one_thing(first, second, width):
    for test in TESTS:
        comparison = compare(
            hits(*first, width=width), hits(*second, width=width), test
        )
        low, high = comparison.interval

        assert low <= comparison.ratio <= high
        assert (comparison.sooner is not None) == (low > 1 or high < 1)

        # Times twice as long give twice the ratio, and an interval of twice as much.
        doubled = compare(
            hits(*first, width=width), hits(*(2 * t for t in second), width=width), test
        )

        assert doubled.ratio == pytest.approx(2 * comparison.ratio)
        assert doubled.interval == pytest.approx((2 * low, 2 * high))


@pytest.mark.parametrize("test", TESTS)
def test_the_ratio_lies_about_the_middle_of_its_interval(test):
    """The geometric middle of other times' interval, such as those of the rule, lies
    elsewhere.
    """
    rng = np.random.default_rng(3)
    off = []
    for _ in range(50):
        first, second = np.exp(0.1 * rng.standard_normal((2, 12)))
        comparison = compare(
            hits(*30 * first, width=0.02),
            [Bracket(b.last_miss_s, b.first_hit_s, None, b.first_hit_s + 9)
             for b in hits(*36 * second, width=0.1)],
            test,
        )  # fmt: skip

        off.append(
            math.log(comparison.ratio / math.sqrt(math.prod(comparison.interval)))
        )

        assert comparison.ratio_by_rule / comparison.ratio > 1.2

    assert abs(np.mean(off)) < 0.01
    assert np.max(np.abs(off)) < 0.06


def test_what_so_few_runs_can_never_decide_is_said():
    group = compare(hits(10, 11, 12, 13, 14), never(30, 30, 30, 30, 30))

    six = adjusted([group] * 6)
    seven = adjusted([group] * 7)

    assert group.least_p == group.p_value == pytest.approx(2 / 252)
    assert {(one.sooner, one.decidable) for one in six} == {("first", True)}
    assert {(one.sooner, one.decidable) for one in seven} == {(None, False)}
    assert "7 comparisons" in seven[0].verdict


def test_a_narrow_interval_is_shown_with_the_digits_that_it_has():
    def group(centre):
        logs = (math.log(centre) + 0.004 * n for n in range(-3, 4))
        return [Bracket(math.exp(x - 1e-4), math.exp(x + 1e-4), None) for x in logs]

    comparison = compare(group(1000), group(104.4))
    low, high = comparison.interval

    assert f"{comparison.ratio:.4f}" in comparison.verdict
    assert f"{low:.4f} to {high:.4f}" in comparison.verdict


def test_a_target_met_at_the_first_evaluation_leaves_the_order():
    at_once = [Bracket(0.0, time, None) for time in (4, 5, 6, 7, 8)]
    comparison = compare(hits(10, 11, 12, 13, 14), at_once)

    assert (comparison.ratio, comparison.interval, comparison.sooner) == (
        None,
        None,
        "second",
    )
    assert comparison.ratio_by_rule == pytest.approx(0.5)


def test_a_target_met_at_once_is_sooner_than_any_other():
    at_zero = [Bracket(0.0, 0.0, None)] * 5

    assert compare(at_zero, at_zero).sooner is None
    assert compare(at_zero, hits(1, 2, 3, 4, 5)).sooner == "first"


def with_p(*p_values):
    """Comparisons with these p-values."""
    base = compare(hits(*range(10, 16)), hits(*range(20, 26)))
    return [replace(base, p_value=p, adjusted_p=p) for p in p_values]


def test_adjusted_p_values_are_those_of_holm_computed_by_hand():
    # Sorted 0.01, 0.02, 0.03 times 3, 2, 1: 0.03, 0.04 and, as none is below one
    # before, 0.04.
    result = adjusted([*with_p(0.03, 0.01, 0.02), GroupComparison(2.0)])

    assert [one.adjusted_p for one in result] == [
        *map(pytest.approx, (0.04, 0.03, 0.04)),
        None,
    ]
    assert [one.comparisons for one in result] == [3, 3, 3, 1]
    assert [one.sooner for one in result] == ["first", "first", "first", None]
    assert [one.sooner for one in adjusted(with_p(0.03, 0.03))] == [None, None]
    assert [one.adjusted_p for one in adjusted(with_p(0.9, 0.8))] == [1, 1]
    assert adjusted([]) == []


def test_a_group_and_itself_do_not_differ():
    group = hits(10, 12, 14, 15)
    for test in TESTS:
        comparison = compare(group, group, test)

        assert comparison.ratio == comparison.ratio_by_rule == 1
        assert comparison.sooner is None

    assert compare([], []).ratio is None


# Enough seeds: looks that together err no more than one would.


def drawn_times(*seconds, grid=1.0):
    return [Bracket(s - grid, s, s - grid / 2) for s in seconds]


def drawn(median, n, seed, spread=0.05):
    """Times of runs that vary around a median, always the same for a seed."""
    rng = np.random.default_rng(seed)
    return drawn_times(*(median * np.exp(spread * rng.standard_normal(n))))


def test_levels_spend_five_percent_over_all_looks():
    from scipy.stats import norm

    rng = np.random.default_rng(0)
    sums = rng.standard_normal((30_000, LOOKS[-1])).cumsum(axis=1)
    bounds = {n: norm.isf(level / 2) for n, level in zip(LOOKS, levels(), strict=True)}

    beyond = [
        np.abs(sums[:, n - 1]) / np.sqrt(n) > bound for n, bound in bounds.items()
    ]

    assert np.mean(np.any(beyond, axis=0)) == pytest.approx(0.05, abs=0.005)
    assert levels((7,))[0] == pytest.approx(0.05, abs=0.001)
    for wrong in ((), (1, 3), (3, 3), (5, 3)):
        with pytest.raises(ValueError, match="Looks must increase"):
            levels(wrong)


def test_a_look_needs_as_many_runs_as_its_test():
    assert looks_of("groups") == LOOKS
    # p of 5 pairs can't be below 0.0625, and that of 8 not below 0.0078.
    assert looks_of("pairs") == (8, 12)
    assert looks_of("groups", 0.01) == (8, 12)
    assert looks_of("pairs", 0.01) == (12,)
    with pytest.raises(ValueError, match="can't give p < 1e-07"):
        looks_of("groups", 1e-7)


def test_a_clear_gap_is_decided_at_the_first_look_and_stands():
    first = drawn(100, 12, 1)
    second = drawn(150, 12, 2)

    comparison = decide(first[:5], second[:5])

    assert (comparison.sooner, comparison.runs, comparison.over) == ("first", 5, True)
    assert comparison.verdict.startswith(
        "the first group is faster (p = 0.0079 at 5 runs a group"
    )
    assert (
        f"the second group takes {comparison.comparison.ratio:.2f} times as long"
        in comparison.verdict
    )
    # What came later does not undo it.
    assert decide(first, [*second[:5], *drawn(100, 7, 3)]) == comparison
    assert decide(second, first).sooner == "second"


def test_no_gap_is_undecided_to_the_end():
    groups = drawn(100, 12, 4), drawn(100, 12, 5)
    assert decide(*groups, looks=(5, 8)).verdict.startswith(
        "undecided after all looks (p = "
    )


def test_between_two_looks_the_next_one_is_named():
    groups = drawn(100, 12, 4), drawn(100, 12, 5)

    comparison = decide(groups[0][:9], groups[1][:7])

    assert (comparison.sooner, comparison.runs, comparison.next_look) == (None, 5, 8)
    assert comparison.verdict.endswith("next look at 8")


def test_before_the_first_look_and_with_few_runs_nothing_is_tested():
    groups = drawn(100, 12, 4), drawn(100, 12, 5)

    assert decide([], []).verdict == "undecided: the first look is at 5 runs a group"
    assert "no test at 3 runs a group" in decide(*groups, looks=(2, 3)).verdict


def test_intervals_at_all_looks_hold_together():
    rng = np.random.default_rng(8)
    missed = 0
    for _ in range(400):
        times = 40 * np.exp(0.1 * rng.standard_normal((2, 12)))
        first = hits(*times[0], width=0.001)
        second = hits(*1.1 * times[1], width=0.001)

        for n, level in zip(LOOKS, levels(), strict=True):
            low, high = compare(first[:n], second[:n], level=level).interval
            if not low <= 1.1 <= high:
                missed += 1
                break

    # 5 % are allowed; the standard error is 1.1 %.
    assert missed / 400 < LEVEL + 2 * 0.011


@pytest.mark.parametrize("test", TESTS)
def test_a_recipe_hardly_ever_beats_itself_on_a_host_with_two_speeds(test):
    rng = np.random.default_rng(9)
    won = 0
    for _ in range(300):
        times = 20 * np.exp(0.05 * rng.standard_normal((2, 12)))
        times *= np.where(rng.random((2, 12)) < 0.5, 1.6, 1)
        won += (
            decide(*(hits(*of, width=0.001) for of in times), test=test).sooner
            is not None
        )

    assert won / 300 < LEVEL + 2 * 0.0126


def test_runs_that_never_arrive_are_late():
    late = Bracket(300.0, None, None)
    first = drawn(100, 12, 6)
    second = [late if n % 2 else run for n, run in enumerate(drawn(140, 12, 7))]

    comparison = decide(first, second)

    assert (comparison.sooner, comparison.runs) == ("first", 5)
    assert decide([late] * 12, [late] * 12).sooner is None


def test_the_loop_trains_no_more_than_it_needs():
    trained = []

    def train(group, seed):
        trained.append((group, seed))
        return drawn(100 if group == "first" else 160, 12, seed)[seed - 1]

    comparison = run_until_decided(train)
    assert comparison.sooner == "first"

    wanted = itertools.product(("first", "second"), range(1, comparison.runs + 1))

    assert sorted(trained) == sorted(wanted)
    # Groups take turns at being first.
    assert [group for group, _ in trained[:4]] == ["first", "second", "second", "first"]
    assert comparison.runs < LOOKS[-1]


def test_the_loop_ends_at_the_last_look_where_nothing_differs():
    alike = run_until_decided(
        lambda group, seed: drawn(100, 12, 9)[seed - 1], looks=(4, 5)
    )

    assert alike.sooner is None
    assert alike.runs == 5


def test_the_first_look_may_come_after_two_runs():
    assert len(levels((2, 4))) == 2
    with pytest.raises(ValueError, match="from 2 runs on"):
        levels((1, 4))
