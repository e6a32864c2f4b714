"""Tests by the order of times that lie between two ends."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, wilcoxon

from tfasr.tta.policies import Bracket
from tfasr.tta.ranks import (
    compare_ends,
    end_of_interval,
    least_p,
    log_ends,
    log_ratios,
    order_distribution,
)


def exact(times):
    """Times that are known without a bracket."""
    times = np.array(times, float)
    return times, times


@pytest.mark.parametrize(("ones", "others"), [(4, 4), (5, 9), (12, 12), (30, 31)])
def test_exact_times_have_the_usual_test_of_groups(ones, others):
    rng = np.random.default_rng(ones)
    first = rng.standard_normal(ones)
    second = 0.5 + rng.standard_normal(others)

    comparison = compare_ends(exact(first), exact(second), "groups", 0.95)

    assert comparison.p_value == pytest.approx(
        mannwhitneyu(first, second, method="exact").pvalue
    )
    assert comparison.estimate == pytest.approx(
        np.median(second[:, None] - first[None])
    )


def test_large_groups_have_the_normal_distribution():
    rng = np.random.default_rng(1)
    first = rng.standard_normal(80)
    second = 0.2 + rng.standard_normal(70)

    comparison = compare_ends(exact(first), exact(second), "groups", 0.95)
    usual = mannwhitneyu(first, second, method="exact").pvalue

    assert comparison.p_value == pytest.approx(usual, rel=0.01)


@pytest.mark.parametrize("pairs", [6, 9, 20])
def test_exact_times_have_the_usual_test_of_pairs(pairs):
    rng = np.random.default_rng(pairs)
    first = rng.standard_normal(pairs)
    second = 0.5 + rng.standard_normal(pairs)

    comparison = compare_ends(exact(first), exact(second), "pairs", 0.95)

    assert comparison.p_value == pytest.approx(
        wilcoxon(second - first, method="exact").pvalue
    )


def test_the_smallest_p_values_by_hand():
    for n in (3, 4, 5, 8):
        assert least_p("groups", n, n) == pytest.approx(2 / math.comb(2 * n, n))
        assert least_p("pairs", n, n) == pytest.approx(2 / 2**n)

    assert (
        least_p("groups", 1, 0)
        == least_p("groups", 1, 1)
        == least_p("pairs", 1, 1)
        == 1
    )
    # 95 % takes 4 runs a group, or 6 pairs.
    assert [end_of_interval("groups", n, n, 0.95) for n in (3, 4, 5)] == [0, 1, 3]
    assert [end_of_interval("pairs", n, n, 0.95) for n in (5, 6)] == [0, 1]


@pytest.mark.parametrize(
    ("test", "sizes"), [("groups", (4, 6)), ("groups", (70, 70)), ("pairs", (9, 9))]
)
def test_distributions_are_symmetric_and_end_at_1(test, sizes):
    shares = order_distribution(test, *sizes)

    assert shares[-1] == pytest.approx(1)
    assert shares[:-1] + shares[-2::-1] == pytest.approx(np.ones(shares.size - 1))


ends = st.lists(st.tuples(st.floats(-5, 5), st.floats(0, 3)), min_size=6, max_size=8)


@settings(deadline=None, max_examples=100)
@given(
    ends,
    ends,
    st.lists(st.floats(0, 1), min_size=16, max_size=16),
    st.sampled_from(["groups", "pairs"]),
)
def test_wherever_the_times_lie_they_are_no_less_decided(first, second, places, test):
    if test == "pairs":
        first = first[:6]
        second = second[:6]

    known = []
    true = []
    for side, group in enumerate((first, second)):
        low, width = np.array(group).T
        known.append((low, low + width))
        true.append(exact(low + width * places[8 * side : 8 * side + len(group)]))

    comparison = compare_ends(*known, test, 0.95)
    exactly = compare_ends(*true, test, 0.95)

    assert comparison.p_value >= exactly.p_value - 1e-12
    assert comparison.low <= exactly.low + 1e-9
    assert comparison.high >= exactly.high - 1e-9
    assert (comparison.p_value < 0.05) == (comparison.low > 0 or comparison.high < 0)


def test_runs_without_a_time_have_open_ends():
    low, high = log_ends(
        [Bracket(2, 3, None), Bracket(0, 3, None), Bracket(5, None, None)]
    )

    assert low == pytest.approx([math.log(2), -math.inf, math.log(5)])
    assert high == pytest.approx([math.log(3), math.log(3), math.inf])


def test_a_time_of_zero_is_open_below():
    low, high = log_ends([Bracket(0.0, 0.0, None)])
    assert (low[0], high[0]) == (-math.inf, math.log(1e-3))


def test_ratios_of_groups_are_those_computed_by_hand():
    least, greatest = log_ratios(exact([0, 1]), exact([4, 8]), "groups")
    assert least.tolist() == greatest.tolist() == [3, 4, 7, 8]


def test_ratios_of_pairs_are_those_computed_by_hand():
    # Ratios of pairs 4 and 7, and the mean of both
    least, _ = log_ratios(exact([0, 1]), exact([4, 8]), "pairs")
    assert least.tolist() == [4, 5.5, 7]

    wide, _ = log_ratios(
        (np.array([0.0]), np.array([1.0])), (np.array([4.0]), np.array([9.0])), "pairs"
    )
    assert wide.tolist() == [3]


def test_many_comparisons_at_once_are_those_of_each():
    rng = np.random.default_rng(0)
    low = rng.integers(1, 9, (2, 4, 6)).astype(float)
    groups = [(each, each + 1) for each in low]

    for test in ("groups", "pairs"):
        together = compare_ends(*groups, test, 0.9)
        for index in range(4):
            alone = compare_ends(*((a[index], b[index]) for a, b in groups), test, 0.9)

            for name in ("estimate", "low", "high", "p_value", "sign"):
                assert getattr(together, name)[index] == getattr(alone, name)
