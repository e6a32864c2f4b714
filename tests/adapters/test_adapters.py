"""The examples of recorded trainings, by the real libraries: interrupted, gone on, reported."""

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

import tfasr
from tests.tta.ledger_builder import step_numbers
from tfasr.adapters.translation import batch_utterances, check_step, note

NEEDS = {
    "plain_pytorch": ("torch", 16),
    "with_lightning": ("lightning", 32),
    "with_hugging_face": ("transformers", 32),
    "with_keras": ("keras", 32),
}


@pytest.fixture(params=NEEDS, scope="module")
def finished(request, tmp_path_factory):
    """An example's name, its run's folder, the updates of an epoch, and those until it
    failed.
    """
    library, steps_an_epoch = NEEDS[request.param]
    for needed in (library, "torch") if library != "keras" else (library,):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"needs {needed}: pip install tfasr[adapters]")

    run_dir = tmp_path_factory.mktemp(request.param) / "run"
    failed_at = 3 * steps_an_epoch + 5
    command = [
        sys.executable,
        "-m",
        "tests.adapters.interrupted",
        request.param,
        str(run_dir),
    ]
    done = subprocess.run(
        [*command, str(failed_at)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "interrupted" in done.stdout

    return request.param, run_dir, steps_an_epoch, failed_at


def test_steps_go_on_at_the_checkpoint_and_what_came_after_it_is_lost(finished):
    _, run_dir, steps_an_epoch, failed_at = finished
    run = tfasr.load_run(run_dir)

    assert (run.status, run.sessions) == ("success", 2)

    starts = [e["value"] for e in run.events if e["key"] == "session_start"]

    assert starts[1]["resumed_from_step"] == 3 * steps_an_epoch
    assert (
        len(run.timeline.of("train_step")) - len(run.timeline.steps)
        == failed_at % steps_an_epoch
    )

    steps = step_numbers(run)

    assert steps == list(range(1, len(steps) + 1))
    assert run.intervals["lost_work"] > 0
    assert run.intervals["eval_forward"] > 0
    assert sum(run.intervals.values()) == pytest.approx(run.wall_s)


def test_each_epoch_trains_on_all_there_is_and_is_evaluated_once(finished):
    name, run_dir, steps_an_epoch, _ = finished
    run = tfasr.load_run(run_dir)
    ((metric, target),) = run.targets

    points = run.accuracy_curve(metric)

    assert [point.epoch for point in points] == list(range(1, len(points) + 1))
    assert len(run.timeline.steps) == len(points) * steps_an_epoch

    utterances = run.timeline.steps.column("utterances")
    assert utterances.sum() == len(points) * run.fact("train_samples")

    if name != "with_hugging_face":  # whose callbacks are told no loss of a step
        losses = run.timeline.steps.column("loss")

        assert losses[-1] < losses[0]


def test_the_report_tells_the_time_to_the_target(finished):
    _, run_dir, *_ = finished
    run = tfasr.load_run(run_dir)
    ((metric, target),) = run.targets

    assert run.time_to_accuracy(**{metric: target}).reached
    assert "2 sessions" in tfasr.report([run_dir])


# How a framework's words become the ledger's, without a framework.

LOGS = {"val_loss": 0.5, "val_accuracy": 0.9, "val_whim": 3, "epoch": 1}


def noted(tmp_path, logs, names=None, score=None):
    """The scores that an evaluation notes from a trainer's logs."""
    with tfasr.Recorder(tmp_path / "run") as run:
        run.epoch()
        with run.evaluation() as e:
            note(e, logs, "val_", names, score)

    return e.scores


def test_what_has_a_known_name_is_noted_and_nothing_else(tmp_path):
    assert noted(tmp_path, LOGS) == {"loss": 0.5, "accuracy": 0.9}


def test_names_may_be_given(tmp_path):
    assert noted(tmp_path, LOGS, {"perplexity": "val_whim"}) == {"perplexity": 3.0}


def test_texts_are_scored_in_addition_to_logs(tmp_path):
    result = noted(tmp_path, {"val_loss": 0.5}, score=lambda: (["a b"], ["a c"]))

    assert (result["wer"], result["loss"]) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("logs", "names", "message"),
    [
        (LOGS, {"accuracy": "val_acc"}, "val_acc. Received: val_loss, val_accuracy"),
        ({"val_whim": 3}, None, "Received: val_whim"),
    ],
)
def test_what_is_not_there_is_missed(tmp_path, logs, names, message):
    with pytest.raises(tfasr.UsageError, match=message):
        noted(tmp_path, logs, names)


def test_trainer_and_recorder_go_on_from_one_step(tmp_path):
    with tfasr.Recorder(tmp_path / "run") as run:
        check_step(run, 0)
        with pytest.raises(tfasr.UsageError, match="resumed_from_step=40"):
            check_step(run, 40)


def test_a_batch_is_as_large_as_its_first_tensor():
    inputs = np.zeros((4, 7))
    labels = np.zeros(4)

    for batch in (
        inputs,
        (inputs, labels),
        {"x": inputs, "y": labels},
        [{"x": (inputs,)}],
    ):
        assert batch_utterances(batch) == 4


def test_a_keras_callback_takes_the_recorders_batch_size_or_asks_for_it(tmp_path):
    from tfasr.adapters.keras import RecordFit

    RecordFit(tfasr.Recorder(tmp_path / "run", global_batch_size=16))

    with pytest.raises(tfasr.UsageError, match=r"RecordFit\(run, batch_size=32\)"):
        RecordFit(tfasr.Recorder(tmp_path / "run"))
