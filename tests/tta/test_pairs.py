"""Comparisons by pairs of equal seeds, and the always-valid test."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_rel, wilcoxon

from tfasr.tta.comparison import (
    LEVEL,
    LOOKS,
    MOST_PAIRS,
    TESTS,
    compare,
    compare_groups,
    compare_pairs,
    decide,
    levels_of,
    run_until_decided,
)
from tfasr.tta.pairs import (
    evidence,
    evidence_interval,
    pair_scores,
    paired_difference,
    signed_rank_p,
)
from tfasr.tta.policies import Bracket

WIDTH = 0.01


def hits(times, width=WIDTH):
    return [Bracket(time * (1 - width), time, None) for time in times]


def never(seen):
    return Bracket(seen, None, None)


def drawn(ratio, pairs, seed, *, spread=0.1, own=0.005):
    """Pairs whose common part varies far more than what is of each run."""
    rng = np.random.default_rng(seed)
    common = 100 * np.exp(spread * rng.standard_normal(pairs))
    own = np.exp(own * rng.standard_normal((2, pairs)))
    return hits(common * own[0]), hits(ratio * common * own[1])


def test_pairs_show_what_groups_cannot():
    first, second = drawn(1.05, 5, 1)
    assert compare_groups(first, second).sooner is None
    found = compare(first, second, "pairs")
    assert (found.test, found.sooner, found.pairs) == ("paired_t", "first", 5)
    assert found.interval[0] < 1.05 < found.interval[1]
    assert found.interval[1] / found.interval[0] < 1.05
    assert compare(second, first, "pairs").sooner == "second"


def test_exact_times_have_the_usual_paired_t_test():
    rng = np.random.default_rng(3)
    logs = rng.standard_normal((2, 7))
    result = paired_difference((logs[0], logs[0]), (logs[1], logs[1]))
    usual = ttest_rel(logs[1], logs[0])
    assert result.p_value == pytest.approx(usual.pvalue)
    assert result.shift + result.reach == pytest.approx(usual.confidence_interval().high)


def test_pairs_that_are_all_as_many_evaluations_apart_are_known_up_to_one():
    # Seven percent between evaluations: a gap of 5 % can be nothing or one of them, in every pair.
    first = hits([100, 110, 125, 140, 150], 0.07)
    found = compare(first, hits([100, 110, 125, 140, 150], 0.07), "pairs")
    assert found.interval[0] < 1 / 1.07
    assert found.interval[1] > 1.07
    assert found.sooner is None


def test_a_run_that_never_arrived_leaves_the_order():
    first, second = drawn(1.3, 6, 2)
    second[2] = never(400.0)
    found = compare_pairs(first, second)
    assert (found.test, found.interval, found.sooner) == ("signed_rank", None, "first")
    assert found.p_value == found.least_p == 2 / 2**6
    # Seen for a shorter time than its partner took, it says nothing; five pairs are too few.
    second[2] = never(50.0)
    found = compare_pairs(first, second)
    assert (found.p_value, found.sooner) == (2 / 2**5, None)
    assert compare_pairs(first[:5], second[:5]).p_value is None
    both = compare_pairs([never(9.0)] * 8, [never(9.0)] * 8)
    assert (both.p_value, both.sooner) == (1.0, None)
    assert compare_pairs([], []).p_value is None


times = st.floats(1, 1e4)
runs = st.tuples(times, times, st.sampled_from(["arrived", "first", "never"]))


@given(st.lists(st.tuples(runs, runs), min_size=1, max_size=9))
@settings(max_examples=60, deadline=None)
def test_exchanged_groups_give_the_opposite_answer(pairs):
    def made(low, more, kind):
        if kind == "never":
            return never(low)
        return Bracket(low if kind == "arrived" else 0.0, low + more, None)

    groups = [[made(*pair[side]) for pair in pairs] for side in (0, 1)]
    ends = [
        (np.array([b.last_miss_s for b in g]), np.array([b.first_hit_s or math.inf for b in g]))
        for g in groups
    ]
    scores = pair_scores(*ends)
    assert np.isfinite(scores).all()
    assert (pair_scores(*ends[::-1]) == -scores).all()
    other = {"first": "second", "second": "first", None: None}
    for test in TESTS[1:]:
        there, back = compare(*groups, test), compare(*groups[::-1], test)
        assert there.p_value == (back.p_value and pytest.approx(back.p_value))
        assert there.later == other[back.later]


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=9).filter(any))
@settings(max_examples=60, deadline=None)
def test_the_signed_rank_test_is_exact_also_with_ties(scores):
    scores = np.array(scores, float)
    moved = scores[scores != 0]
    ranks = np.array([np.mean(np.flatnonzero(np.sort(abs(moved)) == abs(s))) + 1 for s in moved])
    signs = np.array(np.meshgrid(*[[0, 1]] * moved.size)).reshape(moved.size, -1)
    sums, seen = ranks @ signs, ranks[moved > 0].sum()
    tails = np.mean(sums <= seen + 1e-9), np.mean(sums >= seen - 1e-9)
    assert signed_rank_p(scores) == pytest.approx(min(1.0, 2 * min(tails)))
    if len(set(map(abs, moved))) == scores.size:
        assert signed_rank_p(scores) == pytest.approx(wilcoxon(scores, method="exact").pvalue)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=7))
@example([2.2250738585072014e-308, 1.0])
@settings(max_examples=40, deadline=None)
def test_the_evidence_of_fair_signs_has_a_mean_of_1_after_every_pair(sizes):
    signs = np.array(np.meshgrid(*[[-1, 1]] * len(sizes))).reshape(len(sizes), -1).T
    means = evidence(signs * np.abs(sizes)).mean(axis=(0, 1))
    assert means == pytest.approx(np.ones(len(sizes)))


def test_equal_pairs_are_called_unequal_in_at_most_5_of_100_studies_looked_at_all_the_time():
    rng = np.random.default_rng(4)
    for scores in (rng.standard_normal((4000, MOST_PAIRS)), rng.standard_t(3, (4000, MOST_PAIRS))):
        ever = evidence(scores).mean(axis=0).max(axis=-1) >= 1 / LEVEL
        assert np.mean(ever) < LEVEL
        held = [evidence_interval(row, LEVEL) for row in scores[:150]]
        covers = [low < 0 < high for low, high in filter(None, held)]
        assert np.mean(covers) > 0.93
        assert len(covers) > 140


def test_an_interval_needs_as_many_pairs_as_a_verdict():
    scores = np.array([0.1, 0.12, 0.09, 0.11, 0.1])
    assert evidence_interval(scores, LEVEL) is None
    low, high = evidence_interval(np.tile(scores, 4), LEVEL)
    assert 0.05 < low < 0.1 < high < 0.15


def test_one_may_look_after_every_pair():
    first, second = drawn(1.1, MOST_PAIRS, 5)
    found = decide(first, second, test="always_valid")
    assert (found.sooner, found.over, found.level) == ("first", True, LEVEL)
    assert found.runs == found.comparison.pairs == 6
    # The evidence of six pairs is the most that six coins give.
    assert "p = 0.039 at 6 runs a group, which must be below 0.05" in found.verdict
    assert [decide(first[:n], second[:n], test="always_valid").next_look for n in (0, 1, 5)] == [
        1,
        2,
        6,
    ]
    alike = decide(*drawn(1.0, MOST_PAIRS, 6), test="always_valid")
    assert (alike.sooner, alike.runs, alike.over) == (None, MOST_PAIRS, True)


def test_four_looks_at_pairs_spend_5_percent():
    assert max(levels_of("pairs", LOOKS)) < max(levels_of("groups", LOOKS)) < LEVEL
    trained = []

    def train(group, seed):
        trained.append((group, seed))
        return drawn(1.05, 12, 1)[group == "second"][seed - 1]

    found = run_until_decided(train, test="pairs")
    assert (found.sooner, found.comparison.test) == ("first", "paired_t")
    assert len(trained) == 2 * found.runs < 24
