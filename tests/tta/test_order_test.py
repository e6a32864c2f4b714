import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import permutation_test

from tfasr.tta.comparison import order_scores, order_test


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
