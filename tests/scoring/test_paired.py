import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.errors import UsageError
from tfasr.scoring.errors import Transcript, score
from tfasr.scoring.summary import compare_pairs, probability_text, verdict


def heard(errors, words=5, speakers=None):
    """A system that gets so many of an utterance's words wrong."""
    said = " ".join("abcdefghij"[:words])
    return score(
        Transcript(
            f"u{index}",
            said,
            " ".join(["x"] * wrong + said.split()[wrong:]),
            "" if speakers is None else speakers[index],
        )
        for index, wrong in enumerate(errors)
    )


FIRST = [3, 1, 4, 1, 5, 2, 5, 3]
SECOND = [2, 1, 2, 0, 5, 1, 2, 3]


def test_matched_pairs_by_hand():
    found = compare_pairs(heard(FIRST), heard(SECOND))
    # Differences -1 0 -2 -1 0 -1 -3 0: mean -1, sum of squares about it 8.
    assert (found.utterances, found.fewer_errors, found.more_errors) == (8, 5, 0)
    assert found.wer_difference == pytest.approx(-8 / 40)
    assert found.matched_pairs_z == pytest.approx(-1 / math.sqrt(8 / 7 / 8))
    # All five that differ do so in one direction: 2 of the 2 ** 5 exchanges are as extreme.
    assert found.permutation_p == pytest.approx(2 / 32)
    assert found.significant is False
    assert (
        verdict(found, "one", "two")
        == "no difference shown (p = 0.062, by utterance, speakers unknown)"
    )


def test_a_clear_difference_is_said_by_name():
    found = compare_pairs(heard([1] * 12), heard([0] * 11 + [1]))
    assert found.permutation_p == pytest.approx(2 / 2**11)
    assert found.significant is True
    said = "two makes fewer word errors than one (p < 0.001, by utterance, speakers unknown)"
    assert verdict(found, "one", "two") == said
    back = compare_pairs(heard([0] * 11 + [1]), heard([1] * 12))
    assert verdict(back, "two", "one").startswith("two makes fewer word errors than one")
    assert "no difference" in verdict(found, "one", "two", tests=100)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=5, max_size=9))
def test_the_permutation_test_counts_all_exchanges(errors):
    first, second = zip(*errors, strict=True)
    found = compare_pairs(heard(first), heard(second))
    differences = [b - a for a, b in errors]
    sums = [
        abs(sum(sign * d for sign, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    exact = sum(one >= abs(sum(differences)) for one in sums) / len(sums)
    assert found.permutation_p == pytest.approx(exact)


def test_equal_systems_do_not_differ():
    found = compare_pairs(heard(FIRST), heard(FIRST))
    assert found.permutation_p == 1.0
    assert (found.matched_pairs_z, found.matched_pairs_p) == (None, None)
    assert found.by_utterance.interval == (0, 0)


def test_few_utterances_allow_no_test():
    found = compare_pairs(heard([1, 2, 3, 4]), heard([0] * 4))
    assert (found.permutation_p, found.significant) == (None, None)
    assert "5 utterances or more" in verdict(found, "one", "two")
    assert found.by_utterance is not None


def test_order_does_not_matter_and_other_references_are_refused():
    turned = list(reversed(heard(SECOND)))
    assert compare_pairs(heard(FIRST), turned) == compare_pairs(heard(FIRST), heard(SECOND))
    with pytest.raises(UsageError, match="same references. Received: 8 of 8"):
        compare_pairs(heard(FIRST), heard(SECOND, words=6))
    with pytest.raises(UsageError, match=r"1 \(u7\) only in the first"):
        compare_pairs(heard(FIRST), heard(SECOND[:7]))
    silent = score([Transcript("u1", "", "a")])
    with pytest.raises(UsageError, match="references with words"):
        compare_pairs(silent, silent)


def test_speakers_are_resampled_where_there_are_enough():
    five = ["ann", "bob", "cat", "dan", "eve", "ann", "bob", "cat"]
    assert compare_pairs(heard(FIRST), heard(SECOND)).by_speaker is None
    assert compare_pairs(heard(FIRST, speakers=["ann"] * 8), heard(SECOND)).by_speaker is None
    assert compare_pairs(heard(FIRST, speakers=five), heard(SECOND)).by_speaker is not None


def test_where_speakers_are_known_they_are_exchanged_as_a_whole():
    # Two systems, each of which suits three of six speakers; four utterances of each.
    speakers = [name for name in "abcdef" for _ in range(4)]
    first = [1 + (name in "abcd") for name in speakers]
    second = [2 - (name in "abcd") for name in speakers]
    found = compare_pairs(heard(first, speakers=speakers), heard(second, speakers=speakers))
    assert (found.exchanged, found.speakers) == ("speaker", 6)
    # Sums by speaker -4 -4 -4 -4 4 4: as far from 0 as 8 are all but the 20 of 64 with three each.
    assert found.permutation_p == pytest.approx(44 / 64)
    by_utterance = compare_pairs(heard(first), heard(second))
    assert (by_utterance.exchanged, by_utterance.speakers) == ("utterance", None)
    # By utterance: 16 better, 8 worse; 24 tosses of a coin 8 or fewer times, or 16 or more.
    tail = sum(math.comb(24, k) for k in range(9)) / 2**24
    assert by_utterance.permutation_p == pytest.approx(2 * tail, abs=0.015)
    assert "by 6 speakers" in verdict(found, "one", "two")


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abcdefg")), min_size=8, max_size=16))
def test_the_permutation_by_speaker_counts_all_exchanges_of_speakers(utterances):
    errors, speakers = zip(*utterances, strict=True)
    first, second = heard([2] * len(errors), speakers=speakers), heard(errors, speakers=speakers)
    found = compare_pairs(first, second)
    if len(set(speakers)) < 5:
        assert found.exchanged == "utterance"
        return
    sums = [sum(e - 2 for e, s in utterances if s == name) for name in set(speakers)]
    signs = itertools.product((1, -1), repeat=len(sums))
    far = [
        abs(sum(a * b for a, b in zip(one, sums, strict=True))) >= abs(sum(sums)) for one in signs
    ]
    assert found.permutation_p == pytest.approx(sum(far) / len(far))


def test_few_speakers_are_said():
    three = ["ann", "bob", "cat"] * 4
    found = compare_pairs(heard([1] * 12, speakers=three), heard([0] * 12, speakers=three))
    assert verdict(found, "one", "two").endswith(
        "by utterance: of these 3 speakers, not of others)"
    )
    five = ["ann", "bob", "cat", "dan", "eve"] * 4
    found = compare_pairs(heard([1] * 20, speakers=five), heard([0] * 20, speakers=five))
    # Two of the 32 exchanges of five are as extreme as can be.
    said = "no difference shown (p = 0.062, by 5 speakers, with whom p can't be below 0.062)"
    assert verdict(found, "one", "two") == said


def test_probabilities_as_people_read_them():
    assert [probability_text(p) for p in (0.0002, 0.0312, 0.2, 1.0)] == [
        "< 0.001", "0.031", "0.20", "1.00",
    ]  # fmt: skip


def test_a_probability_at_the_level_shows_nothing():
    found = replace(compare_pairs(heard([1] * 12), heard([0] * 12)), permutation_p=0.05)
    assert found.significant is False
    assert verdict(found, "one", "two").startswith("no difference shown (p = 0.050")
    assert replace(found, permutation_p=0.0499).significant is True


def test_a_thousandth_is_written_as_one():
    assert [probability_text(p) for p in (0.0009, 0.001, 0.0012)] == ["< 0.001", "0.001", "0.001"]
