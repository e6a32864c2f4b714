"""Enough seeds: looks that together err no more than one would."""

import numpy as np
import pytest

from tests.benchmarks.conftest import BENCHMARKS  # noqa: F401 - puts the benchmarks on the path
from tfasr.tta.comparison import LOOKS, decide, levels, run_until_decided
from tfasr.tta.policies import Bracket


def times(*seconds, grid=1.0):
    return [Bracket(s - grid, s, s - grid / 2) for s in seconds]


def drawn(median, n, seed, spread=0.05):
    rng = np.random.default_rng(seed)
    return times(*(median * np.exp(spread * rng.standard_normal(n))))


def test_levels_spend_five_percent_over_all_looks():
    from scipy.stats import norm

    rng = np.random.default_rng(0)
    sums = rng.standard_normal((30_000, LOOKS[-1])).cumsum(axis=1)
    bounds = {n: norm.isf(level / 2) for n, level in zip(LOOKS, levels(), strict=True)}
    beyond = [np.abs(sums[:, n - 1]) / np.sqrt(n) > bound for n, bound in bounds.items()]
    assert np.mean(np.any(beyond, axis=0)) == pytest.approx(0.05, abs=0.005)
    assert levels((7,))[0] == pytest.approx(0.05, abs=0.001)
    for wrong in ((), (1, 3), (3, 3), (5, 3)):
        with pytest.raises(ValueError, match="Looks must increase"):
            levels(wrong)


def test_a_clear_gap_is_decided_at_the_first_look_and_stands():
    first, second = drawn(100, 12, 1), drawn(150, 12, 2)
    found = decide(first[:3], second[:3])
    assert (found.sooner, found.runs, found.over) == ("first", 3, True)
    assert found.verdict.startswith("the first group is faster (p = ")
    # What came later does not undo it.
    assert decide(first, [*second[:3], *drawn(100, 9, 3)]) == found
    assert decide(second, first).sooner == "second"


def test_no_gap_is_undecided_to_the_end():
    groups = drawn(100, 12, 4), drawn(100, 12, 5)
    assert decide(*groups, looks=(3, 5)).verdict.startswith("undecided after all looks (p = ")
    found = decide(groups[0][:6], groups[1][:4])
    assert (found.sooner, found.runs, found.next_look) == (None, 3, 5)
    assert found.verdict.endswith("next look at 5")
    assert decide([], []).verdict == "undecided: the first look is at 3 runs a group"


def test_a_gap_below_a_bracket_is_not_decided():
    first = times(*[10.0] * 12, grid=2.0)
    second = times(*[10.4] * 12, grid=2.0)
    found = decide(first, second)
    assert found.sooner is None
    assert found.over
    assert "no larger than the time between evaluations" in found.verdict


def test_runs_that_never_arrive_are_waited_for_and_tested_by_order():
    never = Bracket(300.0, None, None)
    first = drawn(100, 12, 6)
    second = [never if n % 2 else one for n, one in enumerate(drawn(140, 12, 7))]
    early = decide(first[:3], second[:3])
    assert "no test at 3 runs a group" in early.verdict
    found = decide(first, second)
    assert found.sooner == "first"
    assert found.runs > 3
    assert found.comparison.test == "gehan"
    assert decide([never] * 12, [never] * 12).sooner is None


def test_the_loop_trains_no_more_than_it_needs():
    trained = []

    def train(group, seed):
        trained.append((group, seed))
        return drawn(100 if group == "first" else 160, 12, seed)[seed - 1]

    found = run_until_decided(train)
    assert found.sooner == "first"
    assert trained == [(g, s) for s in range(1, found.runs + 1) for g in ("first", "second")]
    assert found.runs < LOOKS[-1]
    alike = run_until_decided(lambda group, seed: drawn(100, 12, 9)[seed - 1], looks=(3, 5))
    assert alike.sooner is None
    assert alike.runs == 5


def test_the_simulation_errs_rarely_and_saves_seeds():
    from enough_seeds import arriving_rows, never_rows, tables

    rows = list(arriving_rows(200, np.random.default_rng(2)))
    equal = [row for row in rows if row["ratio"] == 1]
    # 200 draws: 5 % is known up to some 5.
    assert max(row["wrong"] for row in equal) < 11
    assert np.mean([row["wrong"] for row in equal]) < 5.5
    clear = [row for row in rows if row["ratio"] == 1.5]
    assert min(row["right"] for row in clear) > 97
    assert min(row["saved"] for row in clear) > 4
    never = list(never_rows(200, np.random.default_rng(2)))
    assert max(row["wrong"] for row in never if row["ratio"] == 1) < 10
    rows += never
    assert tables(rows).count("\n") == 2 + len(rows)


def test_the_first_look_may_come_after_two_runs():
    assert len(levels((2, 4))) == 2
    with pytest.raises(ValueError, match="from 2 runs on"):
        levels((1, 4))
