"""How a framework's words become the ledger's, without a framework."""

import numpy as np
import pytest

import tfasr
from tfasr.adapters.found import batch_utterances, check_step, note

LOGS = {"val_loss": 0.5, "val_accuracy": 0.9, "val_whim": 3, "epoch": 1}


def noted(tmp_path, logs, names=None, score=None):
    with tfasr.Recorder(tmp_path / "run") as run:
        run.epoch()
        with run.evaluation() as e:
            note(e, logs, "val_", names, score)
    return e.scores


def test_what_has_a_known_name_is_noted_and_nothing_else(tmp_path):
    assert noted(tmp_path, LOGS) == {"loss": 0.5, "accuracy": 0.9}


def test_names_may_be_given(tmp_path):
    assert noted(tmp_path, LOGS, {"perplexity": "val_whim"}) == {"perplexity": 3.0}


def test_texts_are_scored_beside(tmp_path):
    found = noted(tmp_path, {"val_loss": 0.5}, score=lambda: (["a b"], ["a c"]))
    assert (found["wer"], found["loss"]) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("logs", "names", "message"),
    [
        (LOGS, {"accuracy": "val_acc"}, "must find val_acc. Received: val_loss, val_accuracy"),
        ({"val_whim": 3}, None, "or what the recorder declares. Received: val_whim"),
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
    inputs, labels = np.zeros((4, 7)), np.zeros(4)
    for batch in (inputs, (inputs, labels), {"x": inputs, "y": labels}, [{"x": (inputs,)}]):
        assert batch_utterances(batch) == 4
