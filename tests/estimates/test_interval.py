"""The intervals of an estimate contain new runs as often as they say."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.estimates.interval import drawn_speeds, drawn_utterances, range_of

EPOCH = 845


@settings(deadline=None, max_examples=12)
@given(
    spread=st.floats(0.08, 0.2),
    runs=st.integers(3, 12),
    epochs=st.floats(15, 60),
    seed=st.integers(0, 99),
)
def test_about_eight_new_runs_in_ten_lie_in_the_interval(spread, runs, epochs, seed):
    rng = np.random.default_rng(seed)
    inside = []
    for _ in range(250):
        true = epochs * np.exp(spread * rng.standard_normal(runs + 1))
        met = np.ceil(true) * EPOCH  # a target is met at an evaluation
        seen = range_of(
            drawn_utterances(met[:-1], step=EPOCH, rng=np.random.default_rng(0))
        )
        inside.append(seen.low <= met[-1] <= seen.high)

    assert np.mean(inside) >= 0.7
    # With few runs the assumed spread counts, and theirs may be smaller.
    assert np.mean(inside) <= 0.95 or runs < 8


def test_one_run_is_enough_for_a_wide_interval_and_many_make_it_narrow():
    one, many = (
        range_of(
            drawn_utterances([10_000] * count, step=1, rng=np.random.default_rng(0))
        )
        for count in (1, 30)
    )

    assert one.high / one.low > 1.3
    assert many.high / many.low < 1.15
    assert one.middle == pytest.approx(10_000, rel=0.02)


def test_utterances_are_those_of_whole_evaluations_and_at_least_one():
    drawn = drawn_utterances([300, 500], step=400, rng=np.random.default_rng(0))

    assert (drawn % 400 == 0).all()
    assert drawn.min() >= 400


def test_a_step_that_is_less_certain_widens_the_interval():
    sure, unsure = (
        range_of(drawn_speeds(e, np.random.default_rng(0))) for e in (0.0, 0.3)
    )

    assert math.log(unsure.high / unsure.low) > 2 * math.log(sure.high / sure.low)
