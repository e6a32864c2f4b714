"""Change points that do not cry wolf."""

import math

import numpy as np
import pytest

from tfasr.reports.history import FEWEST_AFTER, FEWEST_BEFORE, LEAST_CHANGE, changes


def noisy(levels, spread=0.02, seed=0):
    """Measurements that vary around these levels."""
    rng = np.random.default_rng(seed)
    return list(np.asarray(levels) * np.exp(spread * rng.standard_normal(len(levels))))


def test_ten_percent_slower_is_found_within_five_runs():
    found_in = []
    for seed in range(20):
        result = changes(noisy([1.0] * 20 + [1.1] * 5, seed=seed))
        found_in.append(any(c.ratio > 1 and abs(c.index - 20) <= 2 for c in result))

    assert np.mean(found_in) > 0.85


def test_noise_alone_is_no_change():
    result = [len(changes(noisy([1.0] * 50, spread, seed))) for seed in range(12)
            for spread in (0.02, 0.05)]  # fmt: skip

    assert np.mean(result) < 0.5


def test_what_changed_when_and_back_again():
    values = noisy([1.0] * 15 + [1.3] * 15 + [1.0] * 15, 0.01)
    slower, faster = changes(values)

    assert (slower.index, faster.index) == (15, 30)
    assert slower.ratio == pytest.approx(1.3, abs=0.02)
    assert faster.ratio == pytest.approx(1 / 1.3, abs=0.02)
    assert slower.found_at == 15 + FEWEST_AFTER - 1


def test_one_slow_run_and_two_are_none():
    values = noisy([1.0] * 30)
    values[17] *= 3
    values[25:27] = [1.6, 1.7]

    assert changes(values) == []


def test_small_shifts_few_runs_and_equal_ones_are_no_changes():
    assert changes(noisy([1.0] * 30 + [1.02] * 30, 0.001)) == []
    assert changes([]) == changes([1.0]) == changes([1.0] * 40) == []
    assert changes(noisy([1.0] * (FEWEST_BEFORE - 1) + [1.5] * 6)) == []


def test_missing_runs_move_no_change():
    gaps = noisy([1.0] * 15 + [1.2] * 8, 0.01)
    gaps[3] = gaps[15] = math.nan

    (result,) = changes(gaps)

    assert result.index == 16


def test_a_change_begins_with_a_commit():
    values = noisy([1.0] * 12 + [1.2] * 8, 0.01)
    starts = [n % 4 == 2 for n in range(20)]  # commits begin at 2, 6, 10, 14, 18

    (result,) = changes(values, starts)

    assert result.index in (10, 14)


def test_a_commits_second_run_stands_for_a_missing_first_one():
    values = noisy([1.0] * 12 + [1.2] * 8, 0.01)

    # A commit's first run is missing: its second stands for it.
    values[10] = math.nan

    assert changes(values, [n == 10 for n in range(20)])[0].index == 11
    assert changes(values, [False] * 20) == []


def test_levels_with_ties_are_ranked_by_their_middle():
    # Utterances to a target come in whole epochs.
    (result,) = changes([5, 6, 5, 6, 5, 6, 5, 6, 5, 6, 9, 10, 9, 10, 9])

    assert result.index == 10
    assert result.ratio == pytest.approx(9 / 5.5, rel=0.1)


def test_a_change_among_five_hundred_runs_is_found_among_few_others():
    result = changes(noisy([1.0] * 400 + [1.1] * 100, 0.02))

    assert any(abs(one.index - 400) <= 1 and one.found_at < 405 for one in result)
    assert len(result) <= 500 / 50


def test_a_small_shift_in_noise_is_found_once_there_are_runs_enough():
    # 5 % in 4 % of noise: three standard errors of medians take some 13 runs after the
    # change.
    found_after = []
    for seed in range(12):
        result = changes(noisy([1.0] * 40 + [1.05] * 60, 0.04, seed))
        found_after += [
            one.found_at - 40 for one in result if one.ratio > 1 and one.found_at >= 40
        ]

    assert len(found_after) >= 8
    assert 6 <= np.median(found_after) <= 40


def test_a_machine_that_wanders_is_seldom_a_change():
    # Each run is like the one before it by 0.7: without regard to that, 36 changes
    # would be told.
    rng = np.random.default_rng(3)
    told = 0
    for _ in range(5):
        walk = [0.0]
        for step in 0.03 * rng.standard_normal(119):
            walk.append(0.7 * walk[-1] + step)

        told += len(changes(np.exp(walk)))

    assert told <= 20


def test_a_rise_and_the_same_fall_are_as_sure():
    values = noisy([1.0] * 14 + [1.2] * 6, 0.02)

    (rise,) = changes(values)
    (fall,) = changes([1 / value for value in values])

    assert (fall.index, fall.found_at) == (rise.index, rise.found_at)
    assert fall.z == pytest.approx(-rise.z)
    assert fall.ratio == pytest.approx(1 / rise.ratio)


def test_the_least_change_is_told_and_what_is_less_is_not():
    (result,) = changes([1.0] * 10 + [math.exp(LEAST_CHANGE)] * 6)

    assert result.ratio == pytest.approx(1.03)
    assert changes([1.0] * 10 + [1.0299] * 6) == []


def test_the_unit_does_not_matter():
    values = noisy([1.0] * 15 + [1.3] * 15, 0.01)

    assert [c.index for c in changes(values)] == [
        c.index for c in changes(np.divide(values, 1e4))
    ]


def test_ties_count_half_on_both_sides():
    values = [5, 6, 5, 6, 5, 6, 5, 6, 5, 6, 6, 9, 9, 9, 6, 9, 9]

    (rise,) = changes(values)
    (fall,) = changes([1 / value for value in values])

    assert fall.index == rise.index
    assert fall.z == pytest.approx(-rise.z)


def test_noise_of_any_size_is_seldom_called_a_change():
    for spread in (0.03, 0.08, 0.15):
        result = [bool(changes(noisy([1.0] * 50, spread, seed))) for seed in range(40)]

        assert sum(result) <= 2
