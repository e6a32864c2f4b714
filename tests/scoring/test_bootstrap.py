import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.scoring.bootstrap import difference_interval, rate_interval


def exact_rates(edits, lengths):
    """The rates of all resamples of a few utterances, each as probable as any other."""
    draws = itertools.product(range(len(edits)), repeat=len(edits))
    return np.array(
        [sum(edits[i] for i in d) / sum(lengths[i] for i in d) for d in map(list, draws)]
    )


def test_it_estimates_the_percentiles_of_all_resamples():
    edits, lengths = [0, 1, 2, 0, 5], [4, 3, 7, 2, 9]
    low, high = rate_interval(edits, lengths)
    rates = exact_rates(edits, lengths)
    # Student's t at 4 degrees of freedom, 2.7764, times sqrt(5 / 4) is 3.104, beyond which a
    # normal distribution has 0.00095.
    assert low == pytest.approx(np.quantile(rates, 0.00095), abs=0.01)
    assert high == pytest.approx(np.quantile(rates, 1 - 0.00095), abs=0.02)


def test_few_speakers_widen_the_percentiles_until_the_interval_covers():
    # Rates of speakers uniform from 0.1 to 0.5, 100 words each: percentiles at 2.5 % cover 82 %.
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(300):
        edits = rng.integers(10, 51, size=5)
        low, high = rate_interval(edits, [100] * 5, resamples=500)
        covered.append(low <= 0.3 <= high)
    assert 0.90 < np.mean(covered) <= 1


def test_long_utterances_weigh_more():
    # A mean of utterances' rates would be 0.5 on average, and its interval centred there.
    edits, lengths = [1, 0] * 50, [1, 99] * 50
    low, high = rate_interval(edits, lengths)
    assert low < 0.01 < high < 0.02


def test_many_alike_utterances_have_the_normal_approximations_interval():
    edits = np.random.default_rng(1).binomial(10, 0.2, size=400)
    low, high = rate_interval(edits, [10] * 400)
    spread = 1.96 * edits.std(ddof=1) / 10 / np.sqrt(400)
    assert low == pytest.approx(edits.sum() / 4000 - spread, abs=0.001)
    assert high == pytest.approx(edits.sum() / 4000 + spread, abs=0.001)


def test_the_same_seed_gives_the_same_interval():
    data = [3, 0, 1, 2, 0, 0], [5, 6, 4, 9, 1, 8]
    assert rate_interval(*data) == rate_interval(*data)
    assert rate_interval(*data, seed=1) != rate_interval(*data)


def test_utterances_of_one_speaker_are_drawn_together():
    # Two kinds of speaker: what one utterance says, its speaker's others say again.
    edits, lengths = [0] * 50 + [5] * 50, [10] * 100
    speakers = [index // 10 for index in range(100)]
    alone = rate_interval(edits, lengths)
    together = rate_interval(edits, lengths, blocks=speakers)
    assert together[1] - together[0] > 2 * (alone[1] - alone[0])
    one_each = rate_interval(edits, lengths, blocks=range(100))
    assert one_each == alone


def test_what_cannot_be_resampled_has_no_interval():
    assert rate_interval([], []) is None
    assert rate_interval([1], [2]) is None
    assert rate_interval([1, 2], [2, 4], blocks=["ann", "ann"]) is None
    assert difference_interval([1], [2], [3]) is None
    with pytest.raises(ValueError, match="Every utterance must have"):
        rate_interval([1, 2], [2])
    with pytest.raises(ValueError, match="Every utterance must have"):
        rate_interval([1, 2], [2, 3], blocks=["ann"])


def test_empty_references_are_wrong_only_where_something_was_written():
    assert rate_interval([0, 0], [0, 0]) == (0, 0)
    assert rate_interval([2, 3], [0, 0]) == (1, 1)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=2, max_size=8))
def test_an_interval_lies_between_the_utterances_rates(utterances):
    edits, lengths = zip(*utterances, strict=True)
    low, high = rate_interval(edits, lengths, resamples=200)
    rates = [edit / length for edit, length in utterances]
    assert min(rates) - 1e-9 <= low <= high <= max(rates) + 1e-9


def test_a_difference_is_of_the_same_utterances():
    rng = np.random.default_rng(0)
    hard = rng.integers(0, 9, size=200)  # what makes an utterance hard is the same for both
    second = np.maximum(hard - (rng.random(200) < 0.3), 0)
    found = difference_interval(hard, second, [10] * 200)
    assert found.interval[1] < 0
    assert found.probability_of_improvement == 1
    alone = rate_interval(hard, [10] * 200), rate_interval(second, [10] * 200)
    assert alone[1][1] > alone[0][0]  # each one's interval overlaps the other's


def test_systems_change_places():
    first, second, lengths = [3, 1, 4, 1, 5], [2, 7, 1, 8, 2], [9, 9, 8, 7, 9]
    one = difference_interval(first, second, lengths)
    other = difference_interval(second, first, lengths)
    assert one.interval == pytest.approx([-end for end in reversed(other.interval)])
    together = one.probability_of_improvement + other.probability_of_improvement
    assert together == pytest.approx(1)


def test_equal_systems_are_each_better_half_of_the_time():
    found = difference_interval([1, 2, 0], [1, 2, 0], [4, 4, 4])
    assert (found.interval, found.probability_of_improvement) == ((0, 0), 0.5)


def test_two_utterances_are_enough_and_the_seed_is_zero_unless_said():
    assert rate_interval([0, 1], [1, 1]) == rate_interval([0, 1], [1, 1], seed=0) == (0, 1)
    assert difference_interval([0, 1], [1, 1], [1, 1]).interval == (0, 1)
    assert rate_interval([3, 0, 1, 2], [5, 6, 4, 9]) == rate_interval(
        [3, 0, 1, 2], [5, 6, 4, 9], seed=0
    )


def test_a_resample_with_one_word_has_its_own_rate():
    # Drawn twice the first has 2 errors in 2 words; both together have 2 in 1; the second none.
    assert rate_interval([1, 1], [1, 0]) == (1, 2)
