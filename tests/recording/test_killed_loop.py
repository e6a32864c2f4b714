"""A plain loop that is killed and started again, in real processes."""

import signal
import subprocess
import sys

import pytest

import tfasr
from tests.recording.plain_loop import STEPS, train
from tfasr.ledger.events import read_events

EPOCHS = 4
KILLED_AFTER = 2 * STEPS + 3


@pytest.fixture(scope="module")
def continued(tmp_path_factory):
    """The folder of a run that was killed in its third epoch, then run to its end."""
    run_dir = tmp_path_factory.mktemp("runs") / "killed"
    arguments = [run_dir, str(EPOCHS), "0.02", str(KILLED_AFTER)]
    command = [sys.executable, "-m", "tests.recording.plain_loop", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == f"step {KILLED_AFTER}\n"
        with pytest.raises(tfasr.UsageError, match="Only one process may write a run"):
            train(run_dir, EPOCHS, 0.0)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    train(run_dir, EPOCHS, 0.0)
    return run_dir


def test_it_goes_on_at_its_checkpoint_and_books_what_was_lost(continued):
    run = tfasr.load_run(continued)
    assert (run.status, run.sessions) == ("success", 2)
    starts = [e["value"] for e in read_events(continued) if e["key"] == "session_start"]
    assert [one["resumed_from_step"] for one in starts] == [None, 2 * STEPS]
    assert starts[1]["alive_until_ms"] is not None
    # The three steps after the checkpoint, each of 0.02 s at least, and they count once.
    assert run.intervals["lost_work"] > 3 * 0.02
    steps = run.loss_curve().steps.tolist()
    assert steps == list(range(1, EPOCHS * STEPS + 1))
    assert sum(run.intervals.values()) == pytest.approx(run.wall_s)


def test_it_arrives_where_a_run_arrives_that_nobody_killed(continued, tmp_path):
    train(tmp_path / "whole", EPOCHS, 0.0)
    found, whole = (
        [point.value for point in tfasr.load_run(path).accuracy_curve("loss")]
        for path in (continued, tmp_path / "whole")
    )
    assert found == whole
    assert len(found) == EPOCHS


def test_the_report_tells_the_lost_work(continued):
    text = tfasr.report([continued])
    assert "loss 0.01" in text
    assert "2 sessions" in text
    assert "lost" in text
