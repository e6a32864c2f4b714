"""The simulation behind the pairs of docs/statistics.md errs rarely and saves seeds."""

import numpy as np
from pairs import always, coverage_rows, looks_rows, seeds_needed, to_markdown, with_looks, world


def test_pairs_of_equal_groups_are_rarely_called_unequal():
    rng = np.random.default_rng(1)
    for facts in ({"shared": 0.9}, {"drifting": True, "times": "t3", "never": 0.2}):
        groups = world(300, 24, rng, per_epoch=8, **facts)
        # 300 draws: 5 % is known up to some 4.
        for verdict, _ in (with_looks(groups, "pairs"), always(groups)):
            assert np.mean(verdict != 0) < 0.09


def test_a_slowdown_takes_partners_fewer_seeds_than_groups():
    facts = {"shared": 0.9, "variation": 0.06, "epochs": 40}
    needed = [
        seeds_needed(test, 150, np.random.default_rng(2), per_epoch=8, **facts)["needed"]
        for test in ("groups", "pairs")
    ]
    assert needed[1] <= needed[0] / 2
    groups = world(150, 24, np.random.default_rng(2), ratio=1.05, per_epoch=8, **facts)
    verdict, spent = always(groups)
    assert np.mean(verdict == 1) > 0.9
    assert spent.min() == 6


def test_a_longer_window_keeps_more_looks_from_meeting_a_target_early():
    rows = list(looks_rows(60, np.random.default_rng(3)))
    of_eight = {r["window"]: r for r in rows if (r["per_epoch"], r["noise"]) == (8, 2.0)}
    assert of_eight[3]["rule_late"] < 0 < 1 < of_eight[25]["rule_late"] < 2
    assert of_eight[3]["middle_late"] < -0.5 < abs(of_eight[25]["middle_late"]) + 0.3
    assert to_markdown({"looks": rows}).count("\n|") == 2 + len(rows)


def test_intervals_by_pairs_cover():
    rows = list(coverage_rows(100, np.random.default_rng(4)))
    assert np.mean([row["pairs"] for row in rows]) > 94
    assert min(row["pairs"] for row in rows) > 84
