"""The time that is left of a study."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfasr.studies.progress import Lap, time_left_s, time_text

seconds = st.floats(0, 1e6)
laps = st.lists(st.builds(Lap, st.sampled_from("ab"), st.sampled_from("xy"), seconds), max_size=6)


def test_steps_take_what_steps_alike_took():
    done = [Lap("train", "slow", 100), Lap("train", "slow", 200), Lap("train", "fast", 10)]
    waiting = [Lap("train", "fast"), Lap("train", "new"), Lap("score", "slow")]
    # The fast one 10 s, the new one the mean of all, of the score nothing is known.
    left, known = time_left_s(done, waiting)
    assert (left, known) == (pytest.approx(10 + 310 / 3), False)
    # The one at work has 30 of its 150 s behind it.
    assert time_left_s(done, [], Lap("train", "slow"), elapsed_s=30, share=0.01) == (120, True)
    # It takes longer than any before: nothing is left of it, not less.
    assert time_left_s(done, [], Lap("train", "fast"), elapsed_s=30) == (0, True)


def test_the_first_training_tells_from_its_own_progress():
    running, waiting = Lap("train", "a"), [Lap("train", "b")]
    assert time_left_s([], waiting, running, elapsed_s=20, share=0.25) == (60 + 80, True)
    assert time_left_s([], waiting, running, elapsed_s=20, share=0.0) == (0, False)


@given(laps, laps, seconds, st.floats(0, 1))
def test_no_time_is_negative_and_waiting_adds_to_it(done, waiting, elapsed, share):
    left, _ = time_left_s(done, waiting, Lap("a"), elapsed, share)
    more, _ = time_left_s(done, [*waiting, Lap("b")], Lap("a"), elapsed, share)
    assert 0 <= left <= more


def test_times_as_people_say_them():
    assert [time_text(s) for s in (40, 150, 6000)] == ["40 s", "2 min", "1.7 h"]
