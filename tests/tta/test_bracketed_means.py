import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.tta.groups import bracketed_mean, mean_difference


def test_runs_within_one_bracket_by_hand():
    found = bracketed_mean([9, 9, 9], [10, 10, 10])
    # Half a bracket for what all have in common; 1 / sqrt(48) as their least spread.
    assert (found.mean, found.bound, found.width) == (9.5, 0.5, 1)
    assert found.error == pytest.approx(1 / math.sqrt(48) / math.sqrt(3))
    # Student's t at 2 degrees of freedom is 4.3027.
    assert found.reach() == pytest.approx(math.hypot(4.3027 / 12, 0.5), 1e-4)


def test_runs_over_two_brackets_by_hand():
    found = bracketed_mean([1, 2], [2, 3])
    # Middles 1.5 and 2.5, variance 1/2: exp(-pi^2) of half a bracket.
    assert found.bound == pytest.approx(0.5 * math.exp(-(math.pi**2)))
    assert found.error == pytest.approx(0.5)


def test_exact_times_give_welch():
    from scipy.stats import ttest_ind

    first, second = np.array([10.0, 12, 11, 15]), np.array([14.0, 13, 19])
    found = mean_difference(bracketed_mean(first, first), bracketed_mean(second, second))
    expected = ttest_ind(second, first, equal_var=False)
    assert found.p_value == pytest.approx(expected.pvalue)
    ends = expected.confidence_interval(0.95)
    assert (found.shift - found.reach, found.shift + found.reach) == pytest.approx(
        (ends.low, ends.high)
    )


def test_a_gap_within_the_brackets_is_no_gap():
    first, second = bracketed_mean([4, 4, 4], [5, 5, 5]), bracketed_mean([5, 5, 5], [6, 6, 6])
    found = mean_difference(first, second)
    # Both may be off by half an interval: exactly the gap.
    assert (found.shift, found.p_value) == (1, 1)
    assert found.reach > 1


def test_the_bound_holds_for_rounded_times_wherever_the_mean_lies():
    # The mean of middles of N(mu, s) over a grid of 1, by the normal distribution itself.
    from scipy.stats import norm

    edges = np.arange(-30, 31)
    for spread in (0.05, 0.15, 0.3, 0.5):
        off = []
        for mean in np.linspace(0, 1, 41):
            shares = np.diff(norm.cdf(edges, mean, spread))
            off.append(abs(shares @ (edges[:-1] + 0.5) - mean))
        assert max(off) <= 0.5 * math.exp(-2 * math.pi**2 * spread**2) + 1e-12
        assert max(off) > 0.3 * math.exp(-2 * math.pi**2 * spread**2)


ends = st.lists(
    st.tuples(st.floats(0, 100), st.just(0.0) | st.floats(1e-3, 10)), min_size=2, max_size=6
)


@settings(deadline=None, max_examples=100)
@given(ends, ends)
def test_p_and_interval_say_the_same(first, second):
    groups = []
    for group in (first, second):
        low, width = np.array(group).T
        groups.append(bracketed_mean(low, low + width))
    found = mean_difference(*groups)
    back = mean_difference(*reversed(groups))
    assert back.shift == -found.shift
    assert (back.reach, back.p_value) == (pytest.approx(found.reach), pytest.approx(found.p_value))
    if abs(abs(found.shift) - found.reach) > 1e-9 * (1 + found.reach):
        assert (found.p_value < 0.05) == (abs(found.shift) > found.reach)


def test_groups_are_computed_at_once_as_one_by_one():
    rng = np.random.default_rng(0)
    low = rng.integers(1, 9, (4, 5)).astype(float)
    together = bracketed_mean(low, low + 1)
    for index in range(4):
        alone = bracketed_mean(low[index], low[index] + 1)
        assert (together.bound[index], together.error[index]) == (alone.bound, alone.error)


def test_the_p_value_by_hand():
    from scipy.stats import t

    # Shift 4; within (1, 2], (2, 3], (3, 4] a bound of half exp(-2 pi^2), which is nothing.
    low = np.array([1.0, 2.0, 3.0])
    found = mean_difference(bracketed_mean(low, low + 1), bracketed_mean(low + 4, low + 5))
    assert found.p_value == pytest.approx(2 * t.sf(4 / math.sqrt(2 / 3), 4), rel=1e-6)
    # Within one bracket each the bounds are half of it: of a shift of 3 there are sqrt(9 - 1).
    same = np.array([1.0, 1.0, 1.0])
    found = mean_difference(bracketed_mean(same, same + 1), bracketed_mean(same + 3, same + 4))
    error = math.sqrt(2 / 48 / 3)
    assert found.p_value == pytest.approx(2 * t.sf(math.sqrt(8) / error, 4), rel=1e-6)


def test_where_nothing_differs_p_is_one():
    exact = bracketed_mean([5.0, 5.0], [5.0, 5.0])
    assert mean_difference(exact, exact).p_value == 1
    wide = bracketed_mean([5.0, 5.0], [6.0, 6.0])
    assert mean_difference(wide, wide).p_value == 1


def test_the_least_spread_is_a_share_of_the_brackets_width():
    found = bracketed_mean([8, 8, 8], [12, 12, 12])
    assert found.error == pytest.approx(4 / math.sqrt(48) / math.sqrt(3))
    assert (found.bound, found.width) == (2, 4)


@settings(deadline=None, max_examples=30)
@given(st.floats(0.3, 1), st.floats(0.3, 1), st.floats(0, 3))
def test_the_interval_of_level_1_minus_p_ends_at_no_difference(spread, other, width):
    first = bracketed_mean(*np.add.outer([0, width], spread * np.array([0.0, 1, 3])))
    second = bracketed_mean(*np.add.outer([0, width], 5 + other * np.array([0.0, 2, 3, 7])))
    found = mean_difference(first, second)
    touching = mean_difference(first, second, confidence=1 - float(found.p_value))
    assert touching.reach == pytest.approx(abs(found.shift), rel=1e-6)
