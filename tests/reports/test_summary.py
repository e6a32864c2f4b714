"""The line of a report's first screen on machines, corpora and dates."""

import json

import pytest

from tests.reports.conftest import ledger_of
from tfasr.reports.groups import load_report
from tfasr.reports.numbers import ask
from tfasr.reports.summary import about_runs


@pytest.mark.parametrize(
    ("corpora", "shown"),
    [
        (["an4"], "data/an4"),
        (["an4", "fleurs"], "data/an4 and data/fleurs"),
        (["an4", "fleurs", "mls"], "3 corpora"),
    ],
)
def test_a_few_corpora_are_named_and_more_are_counted(tmp_path, corpora, shown):
    runs = []
    for corpus in corpora:
        run_dir = ledger_of([0.5, 0.1, 0.1]).write(tmp_path / corpus)
        (run_dir / "run.json").write_text(json.dumps({"shard_dir": f"/data/{corpus}"}))
        runs.append(run_dir)

    assert shown in about_runs(load_report(runs, ask()))
