import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.tta.groups import group_statistics, mean_without_extremes, restricted_mean_s
from tfasr.tta.policies import Bracket


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


def test_the_interval_of_the_mean_is_of_the_true_times_between_misses_and_hits():
    brackets = [Bracket(time - 1, time, None) for time in (9, 10, 12)]
    low, high = group_statistics(brackets).interval_s
    # Middles 8.5, 9.5, 11.5: mean 59/6, variance 7/3; Student's t at 2 degrees is 4.303. They
    # spread over several evaluations, which leaves nothing for the grid: exp(-46).
    assert (low + high) / 2 == pytest.approx(59 / 6)
    assert (high - low) / 2 == pytest.approx(4.3027 * math.sqrt(7 / 3 / 3), 1e-4)


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
