import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import nct, norm, t

from tfasr.tta.groups import (
    bracketed_mean,
    group_statistics,
    mean_difference,
    mean_without_extremes,
    restricted_mean_s,
    runs_to_detect,
)
from tfasr.tta.policies import Bracket


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
    assert found.bracket_s == pytest.approx(4)  # a tenth of 40 s on average


def test_the_interval_is_of_the_times_between_misses_and_hits_whatever_the_rule_took():
    logs = [(math.log(10) + x - 0.5, math.log(10) + x + 0.5) for x in (-1.0, 0.0, 2.0)]
    brackets = [Bracket(math.exp(a), math.exp(b), None, math.exp(b) + 90) for a, b in logs]
    found = group_statistics(brackets)
    low, high = map(math.log, found.interval_s)
    # Logarithms of middles -1, 0, 2 about 10 s: mean 1/3, variance 7/3; Student's t at 2 degrees
    # is 4.303. They spread over several evaluations, which leaves nothing for the grid: exp(-46).
    assert (low + high) / 2 == pytest.approx(math.log(10) + 1 / 3)
    assert (high - low) / 2 == pytest.approx(4.3027 * math.sqrt(7 / 3 / 3), 1e-4)
    assert not found.at_least
    assert found.median_s == pytest.approx(10 * math.exp(0.5) + 90)


def test_an_interval_that_evaluations_decide_is_one_of_at_least_95_percent():
    assert group_statistics([Bracket(9, 10, None)] * 3).at_least


@pytest.mark.parametrize(
    ("brackets", "reason"),
    [
        ([Bracket(9, 10, None)] * 2, "3 runs"),
        ([Bracket(9, 10, None)] * 3 + [Bracket(99, None, None)], "never"),
        ([Bracket(9, 10, None)] * 3 + [Bracket(0, 10, None)], "first evaluation"),
        # Two of five are 1.6 times slower than the others.
        ([Bracket(t - 0.1, t, None) for t in (10, 10.1, 10.2, 16, 16.1)], "far slower"),
    ],
)
def test_where_no_interval_is_right_the_reason_is_given(brackets, reason):
    found = group_statistics(brackets)
    assert found.interval_s is None
    assert reason in found.no_interval


def test_runs_within_one_bracket_are_known_no_better_than_it():
    # AlgoPerf's four arriving studies: equal to 2 s, read every 1440 s.
    hits = [36051, 36051, 36049, 36047]
    found = group_statistics([Bracket(hit - 1440, hit, hit - 1440 * u) for hit, u in
                              zip(hits, (0.9, 0.4, 0.2, 0.6), strict=True)])  # fmt: skip
    low, high = found.interval_s
    assert low < 36049 - 1440
    assert high > 36051
    assert found.bracket_s == 1440
    # The CV is that of times interpolated between evaluations: 34755, 35475, 35761, 35183.
    finer = [36051 - 1296, 36051 - 576, 36049 - 288, 36047 - 864]
    expected = statistics.stdev(finer) / statistics.fmean(finer)
    assert found.coefficient_of_variation == pytest.approx(expected)
    assert expected > 0.01


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


times = st.lists(st.floats(1, 1000), min_size=1, max_size=8)


@settings(deadline=None, max_examples=50)
@given(times, st.lists(st.floats(1, 1000), max_size=4))
def test_the_restricted_mean_lies_between_nothing_and_the_restriction(arrived, seen):
    found = group_statistics([*hits(*arrived), *never(*seen)])
    assert 0 < found.restricted_mean_s <= found.restriction_s * (1 + 1e-9)
    if not seen:
        assert found.restricted_mean_s == pytest.approx(statistics.fmean(arrived))


def test_more_noise_needs_more_runs():
    # Tables of the two-sample t test: a gap of one standard deviation takes 17 runs per arm.
    deviation = math.log1p(0.10)
    assert runs_to_detect(math.sqrt(math.expm1(deviation**2))) == 17
    needed = [runs_to_detect(cv) for cv in (0.0, 0.03, 0.1, 0.2)]
    assert needed == sorted(needed)
    # Fewer than three have no interval, and so no verdict.
    assert needed[0] == 3
    assert runs_to_detect(50.0, 0.001) is None


def test_no_number_of_runs_shows_a_gap_below_the_bracket():
    # AlgoPerf's studies: a CV of 0.005 % of their first hits, brackets of 4 % of the time.
    assert runs_to_detect(0.00005, 0.01) == 3
    assert runs_to_detect(0.00005, 0.01, bracket=0.04) is None
    assert runs_to_detect(0.012, 0.10, bracket=0.04) is not None


def test_wider_brackets_need_more_runs():
    needed = [runs_to_detect(0.05, bracket=bracket) for bracket in (0.0, 0.05, 0.08, 0.095)]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1]


@pytest.mark.parametrize(("variation", "bracket"), [(0.1, 0.0), (0.05, 0.05), (0.03, 0.06)])
def test_so_many_runs_do_show_it(variation, bracket):
    n = runs_to_detect(variation, 0.2, bracket=bracket)
    rng = np.random.default_rng(0)
    draws, width = 4000, math.log1p(bracket)
    groups = []
    for centre in (0.0, math.log(1.2)):
        # Times on a grid of logarithms, at any place between two evaluations.
        times = centre + math.sqrt(math.log1p(variation**2)) * rng.standard_normal((draws, n))
        if width:
            phase = rng.random((draws, 1)) * width
            low = np.floor((times - phase) / width) * width + phase
            groups.append(bracketed_mean(low, low + width))
        else:
            groups.append(bracketed_mean(times, times))
    found = mean_difference(*groups)
    shown = (found.p_value < 0.05) & (np.abs(found.shift) > width)
    assert np.mean(shown) > 0.76
    if n > 3:
        assert np.mean(shown) < 0.93  # nor is it far too many


@pytest.mark.parametrize("wrong", [{"gap": 0}, {"bracket": -0.1}])
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="gap must be larger than 0"):
        runs_to_detect(0.1, **wrong)


def by_formula(variation, gap, bracket):
    """The runs per arm by the formulas of docs/statistics.md, written out."""
    shift, width = math.log(1 + gap), math.log(1 + bracket)
    variance = math.log(1 + variation**2) + width**2 / 12
    bound = width * math.exp(-2 * math.pi**2 * variance / width**2)
    for n in range(3, 1000):
        error = math.sqrt(2 * variance / n)
        away = math.sqrt(shift**2 - bound**2) / error
        shown = nct.sf(t.ppf(0.975, 2 * n - 2), 2 * n - 2, away)
        if min(shown, norm.cdf((shift - width) / error)) >= 0.8:
            return n
    return None


@pytest.mark.parametrize(
    ("variation", "gap", "bracket"),
    [
        (0.02, 0.1, 0.08),
        (0.03, 0.1, 0.05),
        (0.01, 0.05, 0.045),
        (0.005, 0.03, 0.025),
        (0.2, 0.3, 0.1),
    ],
)
def test_the_number_of_runs_by_formula(variation, gap, bracket):
    assert runs_to_detect(variation, gap, bracket=bracket) == by_formula(variation, gap, bracket)


def test_a_thousand_runs_are_the_most():
    # By the t test's power: 0.8841 to 0.8847 takes 1000 runs per arm, anything more takes others.
    assert runs_to_detect(0.8844) == 1000
    assert runs_to_detect(0.8850) is None


def test_a_gap_far_beyond_all_noise_takes_the_fewest_runs():
    assert runs_to_detect(1e-9, 0.5) == 3
    assert runs_to_detect(0.0, 0.5) == 3


@pytest.mark.parametrize(
    "variation", [0.03, 0.035, 0.04, 0.045, 0.05, 0.055, 0.06, 0.07, 0.08, 0.09]
)
def test_few_runs_have_few_degrees_of_freedom(variation):
    assert runs_to_detect(variation) == by_formula(variation, 0.1, 1e-6)
