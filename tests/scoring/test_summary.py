import itertools
import math
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.errors import UsageError
from tfasr.scoring.errors import Transcript, count_errors, score
from tfasr.scoring.summary import (
    LEVEL,
    compare_pairs,
    difference_interval,
    probability_text,
    rate_interval,
    speaker_rows,
    summarise_scored,
    summary_rows,
    verdict,
)


def exact_rates(edits, lengths):
    """The rates of all resamples of a few utterances, each as probable as any other."""
    draws = itertools.product(range(len(edits)), repeat=len(edits))
    return np.array(
        [
            sum(edits[i] for i in d) / sum(lengths[i] for i in d)
            for d in map(list, draws)
        ]
    )


def test_it_estimates_the_percentiles_of_all_resamples():
    edits = [0, 1, 2, 0, 5]
    lengths = [4, 3, 7, 2, 9]

    low, high = rate_interval(edits, lengths)
    rates = exact_rates(edits, lengths)

    # Student's t at 4 degrees of freedom, 2.7764, times sqrt(5 / 4) is 3.104, beyond
    # which a normal distribution has 0.00095.
    assert low == pytest.approx(np.quantile(rates, 0.00095), abs=0.01)
    assert high == pytest.approx(np.quantile(rates, 1 - 0.00095), abs=0.02)


def test_few_speakers_widen_the_percentiles_until_the_interval_covers():
    # Rates of speakers uniform from 0.1 to 0.5, 100 words each: percentiles at 2.5 %
    # cover 82 %.
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(300):
        edits = rng.integers(10, 51, size=5)
        low, high = rate_interval(edits, [100] * 5, resamples=500)
        covered.append(low <= 0.3 <= high)

    assert 0.90 < np.mean(covered) <= 1


def test_long_utterances_weigh_more():
    # A mean of utterances' rates would be 0.5 on average, and its interval centred
    # there.
    edits = [1, 0] * 50
    lengths = [1, 99] * 50

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
    edits = [0] * 50 + [5] * 50
    lengths = [10] * 100
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
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=2, max_size=8)
)
def test_an_interval_lies_between_the_utterances_rates(utterances):
    edits, lengths = zip(*utterances, strict=True)
    low, high = rate_interval(edits, lengths, resamples=200)
    rates = [edit / length for edit, length in utterances]

    assert min(rates) - 1e-9 <= low <= high <= max(rates) + 1e-9


def test_a_difference_is_of_the_same_utterances():
    rng = np.random.default_rng(0)
    # What makes an utterance hard is the same for both.
    hard = rng.integers(0, 9, size=200)
    second = np.maximum(hard - (rng.random(200) < 0.3), 0)

    result = difference_interval(hard, second, [10] * 200)

    assert result.interval[1] < 0
    assert result.probability_of_improvement == 1

    alone = rate_interval(hard, [10] * 200), rate_interval(second, [10] * 200)
    assert alone[1][1] > alone[0][0]  # each one's interval overlaps the other's


def test_systems_change_places():
    first = [3, 1, 4, 1, 5]
    second = [2, 7, 1, 8, 2]
    lengths = [9, 9, 8, 7, 9]

    one = difference_interval(first, second, lengths)
    other = difference_interval(second, first, lengths)

    assert one.interval == pytest.approx([-end for end in reversed(other.interval)])

    together = one.probability_of_improvement + other.probability_of_improvement
    assert together == pytest.approx(1)


def test_equal_systems_are_each_better_half_of_the_time():
    result = difference_interval([1, 2, 0], [1, 2, 0], [4, 4, 4])

    assert (result.interval, result.probability_of_improvement) == ((0, 0), 0.5)


def test_two_utterances_are_enough_and_the_seed_is_zero_unless_said():
    assert (
        rate_interval([0, 1], [1, 1]) == rate_interval([0, 1], [1, 1], seed=0) == (0, 1)
    )
    assert difference_interval([0, 1], [1, 1], [1, 1]).interval == (0, 1)
    assert rate_interval([3, 0, 1, 2], [5, 6, 4, 9]) == rate_interval(
        [3, 0, 1, 2], [5, 6, 4, 9], seed=0
    )


def test_a_resample_with_one_word_has_its_own_rate():
    # Drawn twice the first has 2 errors in 2 words; both together have 2 in 1; the
    # second none.
    assert rate_interval([1, 1], [1, 0]) == (1, 2)


def heard(errors, words=5, speakers=None):
    """A system that gets so many of an utterance's words wrong."""
    text = " ".join("abcdefghij"[:words])
    return score(
        Transcript(
            f"u{index}",
            text,
            " ".join(["x"] * wrong + text.split()[wrong:]),
            "" if speakers is None else speakers[index],
        )
        for index, wrong in enumerate(errors)
    )


FIRST = [3, 1, 4, 1, 5, 2, 5, 3]
SECOND = [2, 1, 2, 0, 5, 1, 2, 3]


def test_matched_pairs_are_those_computed_by_hand():
    comparison = compare_pairs(heard(FIRST), heard(SECOND))

    # Differences -1 0 -2 -1 0 -1 -3 0: mean -1, sum of squares about it 8.
    assert (comparison.utterances, comparison.fewer_errors, comparison.more_errors) == (
        8,
        5,
        0,
    )
    assert comparison.wer_difference == pytest.approx(-8 / 40)
    assert comparison.matched_pairs_z == pytest.approx(-1 / math.sqrt(8 / 7 / 8))
    # All five that differ do so in one direction: 2 of the 2 ** 5 exchanges are as
    # extreme.
    assert comparison.permutation_p == pytest.approx(2 / 32)
    assert comparison.permutation_p >= LEVEL
    assert (
        verdict(comparison, "one", "two")
        == "no difference shown (p = 0.062, by utterance, speakers unknown)"
    )


def test_a_clear_difference_is_said_by_name():
    comparison = compare_pairs(heard([1] * 12), heard([0] * 11 + [1]))

    assert comparison.permutation_p == pytest.approx(2 / 2**11)
    assert comparison.permutation_p < LEVEL

    expected = "two makes fewer word errors than one (p < 0.001, by utterance, speakers unknown)"
    assert verdict(comparison, "one", "two") == expected


def test_a_difference_is_said_alike_in_either_order():
    back = compare_pairs(heard([0] * 11 + [1]), heard([1] * 12))

    assert verdict(back, "two", "one").startswith(
        "two makes fewer word errors than one"
    )


def test_many_tests_ask_for_a_clearer_difference():
    comparison = compare_pairs(heard([1] * 12), heard([0] * 11 + [1]))

    assert "no difference" in verdict(comparison, "one", "two", tests=100)


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=5, max_size=9)
)
def test_the_permutation_test_counts_all_exchanges(errors):
    first, second = zip(*errors, strict=True)
    comparison = compare_pairs(heard(first), heard(second))
    differences = [b - a for a, b in errors]
    sums = [
        abs(sum(sign * d for sign, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]

    exact = sum(one >= abs(sum(differences)) for one in sums) / len(sums)

    assert comparison.permutation_p == pytest.approx(exact)


def test_equal_systems_do_not_differ():
    comparison = compare_pairs(heard(FIRST), heard(FIRST))

    assert comparison.permutation_p == 1.0
    assert (comparison.matched_pairs_z, comparison.matched_pairs_p) == (None, None)
    assert comparison.by_utterance.interval == (0, 0)


def test_few_utterances_allow_no_test():
    comparison = compare_pairs(heard([1, 2, 3, 4]), heard([0] * 4))

    assert comparison.permutation_p is None
    assert "5 utterances or more" in verdict(comparison, "one", "two")
    assert comparison.by_utterance is not None


def test_the_order_of_utterances_does_not_matter():
    turned = list(reversed(heard(SECOND)))

    assert compare_pairs(heard(FIRST), turned) == compare_pairs(
        heard(FIRST), heard(SECOND)
    )


def test_other_references_are_refused():
    with pytest.raises(UsageError, match="Received: 8 of 8"):
        compare_pairs(heard(FIRST), heard(SECOND, words=6))
    with pytest.raises(UsageError, match=r"1 \(u7\) only in the first"):
        compare_pairs(heard(FIRST), heard(SECOND[:7]))


def test_references_without_words_are_refused():
    silent = score([Transcript("u1", "", "a")])
    with pytest.raises(UsageError, match="1 empty ones"):
        compare_pairs(silent, silent)


def test_speakers_are_resampled_where_there_are_enough():
    five = ["ann", "bob", "cat", "dan", "eve", "ann", "bob", "cat"]

    assert compare_pairs(heard(FIRST), heard(SECOND)).by_speaker is None
    assert (
        compare_pairs(heard(FIRST, speakers=["ann"] * 8), heard(SECOND)).by_speaker
        is None
    )
    assert (
        compare_pairs(heard(FIRST, speakers=five), heard(SECOND)).by_speaker is not None
    )


def test_where_speakers_are_known_they_are_exchanged_as_a_whole():
    # Two systems, each of which suits three of six speakers; four utterances of each.
    speakers = [name for name in "abcdef" for _ in range(4)]
    first = [1 + (name in "abcd") for name in speakers]
    second = [2 - (name in "abcd") for name in speakers]

    comparison = compare_pairs(
        heard(first, speakers=speakers), heard(second, speakers=speakers)
    )

    assert (comparison.exchanged, comparison.speakers) == ("speaker", 6)
    # Sums by speaker -4 -4 -4 -4 4 4: as far from 0 as 8 are all but the 20 of 64 with
    # three each.
    assert comparison.permutation_p == pytest.approx(44 / 64)

    by_utterance = compare_pairs(heard(first), heard(second))
    assert (by_utterance.exchanged, by_utterance.speakers) == ("utterance", None)

    # By utterance: 16 better, 8 worse; 24 tosses of a coin 8 or fewer times, or 16 or
    # more.
    tail = sum(math.comb(24, k) for k in range(9)) / 2**24

    assert by_utterance.permutation_p == pytest.approx(2 * tail, abs=0.015)
    assert "by 6 speakers" in verdict(comparison, "one", "two")


@settings(deadline=None, max_examples=20)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from("abcdefg")),
        min_size=8,
        max_size=16,
    )
)
def test_the_permutation_by_speaker_counts_all_exchanges_of_speakers(utterances):
    errors, speakers = zip(*utterances, strict=True)
    first = heard([2] * len(errors), speakers=speakers)
    second = heard(errors, speakers=speakers)
    comparison = compare_pairs(first, second)

    if len(set(speakers)) < 5:
        assert comparison.exchanged == "utterance"

        return

    sums = [sum(e - 2 for e, s in utterances if s == name) for name in set(speakers)]
    signs = itertools.product((1, -1), repeat=len(sums))

    far = [
        abs(sum(a * b for a, b in zip(one, sums, strict=True))) >= abs(sum(sums))
        for one in signs
    ]

    assert comparison.permutation_p == pytest.approx(sum(far) / len(far))


def test_three_speakers_are_too_few_to_exchange():
    three = ["ann", "bob", "cat"] * 4
    comparison = compare_pairs(
        heard([1] * 12, speakers=three), heard([0] * 12, speakers=three)
    )

    assert verdict(comparison, "one", "two").endswith(
        "by utterance: valid for these 3 speakers, not for others)"
    )


def test_five_speakers_limit_how_small_p_can_be():
    five = ["ann", "bob", "cat", "dan", "eve"] * 4
    comparison = compare_pairs(
        heard([1] * 20, speakers=five), heard([0] * 20, speakers=five)
    )
    # Two of the 32 exchanges of five are as extreme as can be.
    expected = (
        "no difference shown (p = 0.062, by 5 speakers, so p can't be below 0.062)"
    )

    assert verdict(comparison, "one", "two") == expected


def test_probabilities_as_people_read_them():
    assert [probability_text(p) for p in (0.0002, 0.0312, 0.2, 1.0)] == [
        "< 0.001", "0.031", "0.20", "1.00",
    ]  # fmt: skip


def test_a_probability_at_the_level_shows_nothing():
    comparison = replace(
        compare_pairs(heard([1] * 12), heard([0] * 12)), permutation_p=0.05
    )

    assert comparison.permutation_p >= LEVEL
    assert verdict(comparison, "one", "two").startswith(
        "no difference shown (p = 0.050"
    )


def test_a_probability_below_the_level_shows_a_difference():
    comparison = replace(
        compare_pairs(heard([1] * 12), heard([0] * 12)), permutation_p=0.05
    )

    below = replace(comparison, permutation_p=0.0499)
    assert verdict(below, "one", "two").startswith(
        "two makes fewer word errors than one"
    )


def test_a_thousandth_is_written_as_one():
    assert [probability_text(p) for p in (0.0009, 0.001, 0.0012)] == [
        "< 0.001",
        "0.001",
        "0.001",
    ]


DOCUMENT = Path(__file__).parents[2] / "docs" / "statistics.md"


def percent(interval):
    return " to ".join(f"{100 * end:.1f}" for end in interval)


def test_the_documents_example_is_what_is_computed():
    text = " ".join(DOCUMENT.read_text().split())

    one = summarise_scored(heard(FIRST))
    two = summarise_scored(heard(SECOND))
    comparison = compare_pairs(heard(FIRST), heard(SECOND))

    assert ", ".join(map(str, FIRST)) in text
    assert ", ".join(map(str, SECOND)) in text
    assert f"24 / 40 = {one.counts.wer:.1%}".replace("%", " %") in text
    assert f"16 / 40 = {two.counts.wer:.1%}".replace("%", " %") in text
    assert f"{percent(one.wer_interval)} % and {percent(two.wer_interval)} %" in text
    assert (
        f"= {comparison.matched_pairs_z:.2f}`; p = {comparison.matched_pairs_p:.3f}"
        in text
    )
    assert f"is {100 * comparison.wer_difference:.1f} points" in text
    assert f"interval of {percent(comparison.by_utterance.interval)}" in text
    assert comparison.permutation_p == pytest.approx(2 / 32)
    assert (
        f"permutation p is 2 / 32 = {probability_text(comparison.permutation_p)}"
        in text
    )


TEXTS = [
    ("u1", "a b c d", "a b c d", "bob"),
    ("u2", "a b", "a x", "ann"),
    ("u3", "a b c d", "a c d e", "ann"),
    ("u4", "a b c d", "a", "eve"),
]


@pytest.fixture
def scored():
    return score(Transcript(*text) for text in TEXTS)


def test_a_row_for_each_speaker(scored):
    ann, bob, eve = speaker_rows(scored)

    assert (ann.name, ann.utterances, ann.words) == ("ann", 2, 6)
    # b -> x; b left out and e added.
    assert ann.rates == pytest.approx(
        {"correct": 4 / 6, "substitutions": 1 / 6, "deletions": 1 / 6, "insertions": 1 / 6,
         "errors": 3 / 6, "wrong_utterances": 1.0}
    )  # fmt: skip
    assert bob.name == "bob"
    assert bob.rates["errors"] == 0
    assert bob.rates["wrong_utterances"] == 0
    assert eve.name == "eve"
    assert eve.rates["errors"] == 0.75
    assert eve.rates["deletions"] == 0.75


def test_the_sum_is_over_words_and_the_mean_over_speakers(scored):
    total, mean, deviation, median = summary_rows(scored, speaker_rows(scored))

    assert (total.utterances, total.words) == (4, 14)
    assert total.rates["errors"] == pytest.approx(6 / 14)

    rates = [0.5, 0, 0.75]

    assert (mean.name, mean.rates["errors"]) == ("Mean", pytest.approx(1.25 / 3))
    assert deviation.rates["errors"] == pytest.approx(statistics.stdev(rates))
    assert (median.rates["errors"], median.words) == (0.5, 4)


def test_unknown_speakers_have_no_rows():
    unknown = score([Transcript("u1", "a", "a"), Transcript("u2", "b", "c")])

    assert speaker_rows(unknown) == []
    assert [row.name for row in summary_rows(unknown, [])] == ["Sum/Avg"]


def test_one_speaker_has_no_mean():
    known = score([Transcript("u1", "a", "a", "ann")])
    assert [row.name for row in summary_rows(known, speaker_rows(known))] == ["Sum/Avg"]


def test_unknown_speakers_have_a_row_next_to_known_ones():
    mixed = score([Transcript("u1", "a", "a", "ann"), Transcript("u2", "b", "c")])
    assert [row.name for row in speaker_rows(mixed)] == ["(unknown)", "ann"]


def test_a_speaker_without_words_has_no_rate():
    silent = score(
        [Transcript("u1", "", "a", "ann"), Transcript("u2", "b", "b", "bob")]
    )
    rows = speaker_rows(silent)

    assert math.isnan(rows[0].rates["errors"])
    assert math.isnan(summary_rows(silent, rows)[1].rates["errors"])


def test_a_summary_has_the_rates_of_metrics_and_intervals_around_them(scored):
    result = summarise_scored(scored)

    assert result.counts == count_errors([t[1] for t in TEXTS], [t[2] for t in TEXTS])
    assert result.wer_interval[0] <= result.counts.wer <= result.wer_interval[1]
    assert result.cer_interval[0] <= result.counts.cer <= result.cer_interval[1]
    assert result.wer_interval_by_speaker is None  # three speakers


def test_a_summary_is_written_with_its_confidence(scored):
    result = summarise_scored(scored)

    written = result.to_json()

    assert written["wer"] == result.counts.wer
    assert written["confidence"] == 0.95
    assert written["wer_interval"] == result.wer_interval
