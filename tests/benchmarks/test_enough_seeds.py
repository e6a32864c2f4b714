"""The simulation behind docs/enough_seeds.md errs rarely and saves seeds."""

import numpy as np
from enough_seeds import arriving_rows, never_rows, tables


def test_the_simulation_errs_rarely_and_saves_seeds():
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
