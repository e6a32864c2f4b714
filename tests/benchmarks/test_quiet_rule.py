"""The simulation behind `StudyConfig.most_taken`: verdicts err rarely on any machine."""

import numpy as np
import pytest
from quiet_rule import MACHINES, decided, rows_of, studied, table


def errors(sign):
    """In how many percent of studies a verdict was reached."""
    return 100 * float(np.mean(sign != 0))


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("test", ["groups", "pairs"])
def test_the_rule_errs_rarely_whichever_recipe_the_machine_disturbs(name, test):
    study = studied(MACHINES[name], 1.0, "again", 400, np.random.default_rng(1))

    # 400 draws: 5 % is known up to some 3.
    assert errors(decided(study.times, study.undisturbed, test)) < 8.5


def test_without_it_a_machine_that_disturbs_one_recipe_decides():
    machine = MACHINES["disturbs the second recipe alone: 1 in 2"]
    rng = np.random.default_rng(2)

    plain = studied(machine, 1.0, "", 400, rng)
    again = studied(machine, 1.0, "again", 400, rng)

    assert errors(decided(plain.times, None, "groups")) > 25
    assert errors(decided(again.times, None, "groups")) > 10


def test_a_real_gap_is_still_found():
    machine = MACHINES["disturbs the second recipe more: 1 in 3, not 1 in 20"]
    study = studied(machine, 1.2, "again", 400, np.random.default_rng(3))

    assert np.mean(decided(study.times, study.undisturbed, "groups") > 0) > 0.85


def test_the_table_has_a_row_for_each_machine_ratio_and_test():
    rows = list(rows_of(20, np.random.default_rng(1)))

    assert len(rows) == len(MACHINES) * 4
    assert table(rows, 20).count("\n|") == len(rows) + 2
