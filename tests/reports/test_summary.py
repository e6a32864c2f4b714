"""The line of a report's first screen on machines, corpora and dates."""

import json

import pytest

from tests.reports.conftest import ledger_of
from tfasr.ledger.declared import STARTS_FILE
from tfasr.reports.groups import group_results, load_report
from tfasr.reports.numbers import ask
from tfasr.reports.summary import about_runs, verdict


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


@pytest.mark.parametrize(
    ("cores", "shown"), [(1, "A chip, 1 core"), (2, "A chip, 2 cores")]
)
def test_cores_are_counted_in_words(tmp_path, cores, shown):
    run_dir = ledger_of([0.5, 0.1, 0.1]).write(tmp_path / "run")
    system = {"processor": "A chip", "cores": cores}
    (run_dir / "run.json").write_text(json.dumps({"system": system}))

    assert shown in about_runs(load_report([run_dir], ask()))


def test_a_sealed_study_is_not_given_more_runs(small, large):
    (small.parent / STARTS_FILE).touch()
    report = load_report([small, large], ask(targets=[("cer", 0.1)]))

    answer = verdict(report, group_results(report))

    assert "A new study with about" in answer.why
    assert answer.command == ""
