"""The table of a cluster's workers: who waited for whom."""

import json

import pytest

from tests.tta.ledger_builder import LedgerBuilder
from tfasr.commands.report import report
from tfasr.reports.cluster import WorkerPart, exchange_of, worker_parts
from tfasr.reports.groups import configuration
from tfasr.tta.run import load_run


def note(run_dir, rank, steps, session=0):
    """Writes what a worker noted: ``(begin, ready, end)`` of each step on a clock of its own."""
    lines = []
    for number, (begin_s, ready_s, end_s, more) in enumerate(steps, start=1):
        value = {"utterances": 2, "input_wait_s": 0.25, "compiled": False}
        value |= {"step_s": end_s - begin_s, "ready_s": ready_s - begin_s, **more}
        metadata = {"session": session, "step": number, "mono_s": 1000.0 * rank}
        lines.append({"key": "worker_step", "time_ms": 1, "value": value, "metadata": metadata})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    with (run_dir / f"events-worker-{rank}.jsonl").open("a") as file:
        file.write(text)


def test_who_is_ready_last_is_waited_for_whatever_the_clocks_say(tmp_path):
    # Worker 1 computes longer in the first step and begins later in the second.
    note(tmp_path, 0, [(0, 1, 3.5, {}), (4, 5, 7.5, {}), (8, 9, 9.5, {})])
    note(tmp_path, 1, [(0, 3, 3.5, {}), (6, 7, 7.5, {}), (8, 9, 9.5, {"compiled": True})])
    chief, other = worker_parts(tmp_path)
    assert (chief.rank, chief.steps, chief.utterances, chief.input_wait_s) == (0, 2, 4, 0.5)
    assert (chief.step_s, chief.waited_s, chief.held_up_s) == (7, 4, 0)
    assert (other.step_s, other.waited_s, other.held_up_s) == (5, 0, 4)
    assert (chief.exchange_s, other.exchange_s) == (1, 1)
    assert (chief.sent_buffers, other.sent_buffers) == (2, 2)
    assert chief.waited_share == pytest.approx(4 / 7)


def test_each_session_has_its_own_workers(tmp_path):
    for rank in (0, 1, 2):
        note(tmp_path, rank, [(0, 1 + rank, 4, {})])
    for rank in (0, 1):
        note(tmp_path, rank, [(0, 2 - rank, 4, {})] * 2, session=1)
    parts = worker_parts(tmp_path)
    assert [part.steps for part in parts] == [3, 3, 1]
    # The first waited 2 s for worker 2, then worker 1 twice 1 s for the first.
    assert [part.waited_s for part in parts] == [2, 1 + 2, 0]
    assert [part.held_up_s for part in parts] == [2, 0, 2]
    assert [part.sent_buffers for part in parts] == pytest.approx([2 + 4 / 3, 2 + 4 / 3, 4 / 3])


def test_what_is_damaged_or_alone_says_nothing(tmp_path):
    assert worker_parts(tmp_path / "missing") == []
    note(tmp_path, 0, [(0, 1, 2, {})])
    assert worker_parts(tmp_path) == []
    note(tmp_path, 1, [(0, 1, 2, {"step_s": "long"})])
    assert worker_parts(tmp_path) == []
    (tmp_path / "events-worker-1.jsonl").write_text("nothing\nnothing\nnothing\n")
    assert worker_parts(tmp_path) == []


def test_a_report_has_the_table_where_there_was_a_cluster(small):
    assert "who waited for whom" not in report([small])
    note(small, 0, [(0, 1, 3.5, {})])
    note(small, 1, [(0, 3, 3.5, {})])
    text = " ".join(report([small]).split())
    assert "Workers: who waited for whom" in text
    assert f"{small.name}, 0 (chief) 1 2 0.25 3.5 2.00 57.1 0.00 0.50" in text
    assert f"{small.name}, 1 1 2 0.25 3.5 0.00 0.0 2.00 0.50" in text


LINK = {"small_bytes": 4096, "small_s": 0.002, "bytes_per_s": 1.2e9}


def test_the_exchange_stands_against_the_link_that_was_measured(tmp_path):
    builder = LedgerBuilder().event("cluster", {"workers": 2, "gradient_bytes": 8e6, "link": LINK})
    builder.write(tmp_path / "run")
    for rank in (0, 1):
        note(tmp_path / "run", rank, [(0, 1, 1.02, {}), (2, 3, 3.02, {})])
    text = " ".join(report([tmp_path / "run"]).split())
    assert "Workers: exchange of gradients" in text
    # 8 MB in 20 ms; and that is 2 % of a step.
    assert "run 2 8 20.00 2.0 400 1200 2.00" in text


@pytest.mark.parametrize(
    "cluster", [None, 3, {}, {"workers": "2", "gradient_bytes": 8}, {"workers": 2}]
)
def test_an_exchange_of_unknown_size_has_no_table(tmp_path, cluster):
    LedgerBuilder().event("cluster", cluster).write(tmp_path / "run")
    for rank in (0, 1):
        note(tmp_path / "run", rank, [(0, 1, 2, {})])
    assert "exchange of gradients" not in report([tmp_path / "run"])


def test_what_was_not_measured_is_not_told(tmp_path):
    parts = [WorkerPart(0, 2, 4, 0.0, 8.0, 0.0, 0.0, 0.5, 2.0)]
    found = exchange_of(parts, {"workers": 2, "gradient_bytes": 1000, "link": {"small_s": -1}})
    assert (found.achieved_bytes_per_s, found.share) == (4000, 1 / 16)
    assert found.measured_bytes_per_s is None
    assert found.latency_s is None


def test_runs_of_other_numbers_of_workers_are_no_group(tmp_path):
    found = {}
    for name, workers in (("one", None), ("two", 2), ("two_again", 2), ("three", 3)):
        builder = LedgerBuilder().event("global_batch_size", 4)
        if workers is not None:
            link = {"took_s": len(name)}
            builder.event("cluster", {"workers": workers, "gradient_bytes": 8, "link": link})
        builder.write(tmp_path / name)
        (tmp_path / name / "operative_config.gin").write_text("TrainingConfig.epochs = 3\n")
        found[name] = configuration(load_run(tmp_path / name))
    assert found["two"] == found["two_again"]
    assert len(set(found.values())) == 3
