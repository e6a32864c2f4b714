import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from tfasr.tta.groups import (
    group_statistics,
    mean_without_extremes,
    median_interval,
    runs_to_detect,
)
from tfasr.tta.policies import Bracket
from tfasr.tta.ranks import compare_ends


def hits(*times):
    return [Bracket(time * 0.9, time, None) for time in times]


def never(*seen):
    return [Bracket(time, None, None) for time in seen]


def test_runs_that_all_arrived_have_every_statistic():
    result = group_statistics(hits(10, 20, 30, 40, 100))

    assert (result.n, result.reached, result.failure_probability) == (5, 5, 0)
    assert (result.median_s, result.mean_without_extremes_s) == (30, 30)
    assert result.coefficient_of_variation == pytest.approx(
        statistics.stdev([10, 20, 30, 40, 100]) / 40
    )
    assert result.bracket_s == pytest.approx(4)  # a tenth of 40 s on average


def test_the_interval_of_the_median_is_two_of_the_times():
    brackets = [Bracket(t - 1, t, None, t + 2) for t in (10, 20, 30, 40, 50, 60)]
    result = group_statistics(brackets)

    # Both ends are times of the rule, as the median is; 6 runs are all on one side in 2
    # of 64.
    assert (result.median_s, result.interval_s) == (37, (12, 62))


def test_five_runs_have_no_interval_of_the_median():
    brackets = [Bracket(t - 1, t, None, t + 2) for t in (10, 20, 30, 40, 50, 60)]

    assert group_statistics(brackets[:5]).interval_s is None
    assert "6 runs" in group_statistics(brackets[:5]).no_interval


def test_the_interval_of_nine_runs_leaves_out_one_at_either_end():
    # Of 9 runs, P(at most 1 below the median) = 10 / 512.
    assert median_interval([*range(1, 10)]) == (2, 8)


def test_runs_that_never_arrived_may_end_the_interval_of_the_median():
    brackets = [Bracket(t - 1, t, None, t + 2) for t in (10, 20, 30, 40, 50, 60)]

    lost = group_statistics([*brackets, *never(70)])

    assert (lost.interval_s, lost.no_interval) == (None, "too many runs never arrived")
    assert group_statistics([*brackets, *hits(70, 80), *never(90)]).interval_s == (
        22,
        80,
    )


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 60))
def test_the_intervals_ends_are_those_of_the_binomial_distribution(n):
    result = median_interval(range(1, n + 1))

    assert (result is None) == (2 * 0.5**n > 0.05)
    if result is not None:
        assert (
            2 * binom.cdf(result[0] - 1, n, 0.5)
            <= 0.05
            < 2 * binom.cdf(result[0], n, 0.5)
        )
        assert result[0] - 1 == n - result[1]


def test_runs_of_two_kinds_are_named():
    assert group_statistics(
        [Bracket(t - 0.1, t, None) for t in (10, 10.1, 10.2, 16, 16.1)]
    ).two_kinds
    assert not group_statistics(
        [Bracket(t - 0.1, t, None) for t in (10, 10.1, 10.2, 11, 9)]
    ).two_kinds


def test_the_variation_is_that_of_times_interpolated_between_evaluations():
    # AlgoPerf's four arriving studies: equal to 2 s, read every 1440 s.
    hits = [36051, 36051, 36049, 36047]
    result = group_statistics([Bracket(hit - 1440, hit, hit - 1440 * u) for hit, u in
                              zip(hits, (0.9, 0.4, 0.2, 0.6), strict=True)])  # fmt: skip

    assert result.bracket_s == 1440

    # The CV is that of times interpolated between evaluations: 34755, 35475, 35761,
    # 35183.
    finer = [36051 - 1296, 36051 - 576, 36049 - 288, 36047 - 864]
    expected = statistics.stdev(finer) / statistics.fmean(finer)

    assert result.coefficient_of_variation == pytest.approx(expected)
    assert expected > 0.01


def test_a_run_that_never_arrived_is_censored_not_missing():
    result = group_statistics([*hits(10, 20, 30, 40), *never(50)])

    assert (result.n, result.reached) == (5, 4)
    assert result.failure_probability == pytest.approx(0.2)
    assert (result.median_s, result.mean_without_extremes_s) == (30, 30)
    assert result.interval_s is None


def test_a_group_of_which_half_arrived_has_no_median():
    result = group_statistics([*hits(10, 20, 30), *never(50, 50, 50)])

    assert result.mean_without_extremes_s is None
    assert result.median_s is None


def test_a_group_of_which_none_arrived_has_no_variation():
    nothing = group_statistics(never(50))

    assert nothing.coefficient_of_variation is None
    assert nothing.failure_probability == 1


def test_few_runs_have_few_statistics():
    result = group_statistics(hits(10, 20))

    assert result.mean_without_extremes_s is result.interval_s is None
    assert result.median_s == 15
    assert mean_without_extremes([1, 2, 3, 4]) is None
    with pytest.raises(ValueError, match="at least one run"):
        group_statistics([])


def test_more_noise_needs_more_runs():
    # A gap of one standard deviation takes 17 runs per arm by the t test, which needs
    # 95 % of the runs of a rank test.
    deviation = math.log1p(0.10)
    assert runs_to_detect(math.sqrt(math.expm1(deviation**2))) == 18

    needed = [runs_to_detect(cv) for cv in (0.0, 0.03, 0.1, 0.2)]

    assert needed == sorted(needed)
    # With three a group, p can't be below 0.1.
    assert needed[0] == 4
    assert runs_to_detect(50.0, 0.001) is None


def test_no_number_of_runs_shows_a_gap_below_the_bracket():
    # AlgoPerf's studies: a CV of 0.005 % of their first hits, brackets of 4 % of the
    # time.
    assert runs_to_detect(0.00005, 0.01) == 4
    assert runs_to_detect(0.00005, 0.01, bracket=0.04) is None
    assert runs_to_detect(0.012, 0.10, bracket=0.04) is not None


def test_wider_brackets_need_more_runs():
    needed = [
        runs_to_detect(0.05, bracket=bracket) for bracket in (0.0, 0.03, 0.05, 0.08)
    ]

    assert needed == sorted(needed)
    assert needed[0] < needed[-1]


@pytest.mark.parametrize(
    ("variation", "bracket"), [(0.1, 0.0), (0.05, 0.05), (0.03, 0.06)]
)
def test_so_many_runs_do_show_it(variation, bracket):
    n = runs_to_detect(variation, 0.2, bracket=bracket)
    rng = np.random.default_rng(0)
    draws = 4000
    width = math.log1p(bracket)
    groups = []

    for centre in (0.0, math.log(1.2)):
        # Times on a grid of logarithms, at any place between two evaluations; no two
        # runs evaluate at exactly the same times.
        times = centre + math.sqrt(math.log1p(variation**2)) * rng.standard_normal(
            (draws, n)
        )
        low = high = times
        if width:
            phase = rng.random((draws, 1)) * width + 1e-6 * rng.standard_normal(
                times.shape
            )
            low = np.floor((times - phase) / width) * width + phase
            high = low + width

        groups.append((low, high))

    comparison = compare_ends(*groups, "groups", 0.95)
    shown = (comparison.p_value < 0.05) & (comparison.sign > 0)

    assert np.mean(shown) > 0.76
    if n > 6:
        assert np.mean(shown) < 0.9  # nor is it far too many


@pytest.mark.parametrize("wrong", [{"gap": 0}, {"bracket": -0.1}])
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="gap must be larger than 0"):
        runs_to_detect(0.1, **wrong)
