"""Damaged logs of other benchmarks through ``tfasr report``: one error that names the file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reliability.fuzzing import bounded, damaged
from tests.reports.conftest import ledger_of
from tfasr.errors import UsageError
from tfasr.reports.write import report
from tfasr.tta.published import READERS
from tfasr.tta.run import load_run

NAMES = {"mlperf": "result_0.txt", "algoperf": "eval_measurements.csv", "dawnbench": "entry.tsv"}


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """One run, written as each benchmark's log; a folder for the damaged ones."""
    folder = tmp_path_factory.mktemp("logs")
    run = load_run(ledger_of([0.5, 0.4, 0.1, 0.1]).write(folder / "run"))
    for name, file in NAMES.items():
        (folder / name).mkdir()
        READERS[name].write(run, folder / name / file)
    return folder


def read_or_refused(path):
    try:
        assert report([path], targets=["wer=0.5"], policy="mlperf")
    except UsageError as error:
        assert str(path) in str(error)  # noqa: PT017 - either is right


@pytest.mark.parametrize("name", sorted(NAMES))
@bounded(12)
@given(data=st.data())
def test_a_damaged_log_is_read_or_refused_by_name(logs, name, data):
    content = (logs / name / NAMES[name]).read_bytes()
    bad = logs / "bad" / NAMES[name]
    bad.parent.mkdir(exist_ok=True)
    bad.write_bytes(data.draw(damaged(content)))
    if name == "dawnbench":
        described = (logs / name / "entry.json").read_bytes()
        bad.with_suffix(".json").write_bytes(data.draw(st.just(described) | damaged(described)))
    read_or_refused(bad)
