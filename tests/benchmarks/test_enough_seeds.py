"""The simulation behind docs/seeds_and_forecasts.md errs rarely and saves seeds."""

import numpy as np
from enough_seeds import HOSTS, host_times, rows_of, table


def test_looks_err_rarely_on_any_host_and_save_seeds():
    rows = list(rows_of(300, np.random.default_rng(1), quick=True))

    assert {row["host"] for row in rows} == set(HOSTS)
    for row in rows:
        if row["ratio"] == 1:
            # 300 draws: 5 % is known up to some 3.
            assert row["later"] + row["sooner"] < 9

        assert row["covers"] > 91

    even = [row for row in rows if (row["host"], row["ratio"]) == ("even", 1.2)]

    assert min(row["later"] for row in even) > 70
    assert min(row["runs"] for row in even) < 9
    assert table(rows, 300).count("\n|") == len(rows) + 2


def test_a_real_host_is_resampled_in_the_order_of_turns():
    result = host_times("real", 5, np.random.default_rng(2))

    assert result.shape == (5, 2, 12)
    assert result.std() > 0.05

    # Neighbouring runs resemble each other more than others do.
    beside = np.abs(np.log(result[:, 0] / result[:, 1])).mean()
    apart = np.abs(np.log(result[:, 0, :6] / result[:, 1, 6:])).mean()

    assert beside < 1.2 * apart
