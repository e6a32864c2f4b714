"""A fixed selection of the forgeries that ``python -m campaigns.forgeries`` tries."""

import json
import signal

import pytest

from campaigns.forgeries import (
    UNNOTICED,
    WRONG,
    Case,
    chosen_cases,
    judged,
    signal_limits,
)
from tests.studies.forging import Forger
from tests.studies.races import RECORDS, unpack
from tfasr.studies.verify import verify_study

SELECTED = chosen_cases("study, ", every=40) + chosen_cases("submission, ", every=120)


@pytest.fixture(autouse=True)
def limited():
    before = signal_limits()
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("case", SELECTED, ids=lambda case: case.name)
def test_a_forgery_is_refused_for_the_right_reason_or_listed_as_not_checked(case: Case):
    outcome, why = judged(case)
    assert outcome not in (UNNOTICED, WRONG), why


def drop(key, forger, run):
    events = forger.ledgers[run]
    place = max(number for number, event in enumerate(events) if event["key"] == key)
    del events[place]


def other_status(forger, run):
    forger.ledgers[run][-1]["metadata"]["status"] = "aborted"


def pair(name, forger, run):
    drop(f"{name}_start", forger, run)
    drop(f"{name}_stop", forger, run)


def other_level(forger, run):
    forger.sealed["looks"]["5"] = 0.05


def other_rule(forger, run):
    forger.sealed["trained"][run[0]]["target_window"] = 1


def other_exit(forger, run):
    forger.list[-1]["value"]["exit_code"] = 1


def sealed_earlier(forger, run):
    forger.list[0]["time_ms"] -= 1000 * 60 * 60


def no_mark(forger, run):
    del forger.list[-2]


# Each was accepted until `tfasr.studies.form` looked for it.
FORMS = {
    "the end of a run that finished": (
        lambda *a: drop("run_stop", *a),
        "does not end with succ",
    ),
    "another end than the process's": (other_status, "does not end with success"),
    "another exit code": (other_exit, "ledger ends with success"),
    "the start of an evaluation": (
        lambda *a: drop("eval_start", *a),
        "not within its evaluation",
    ),
    "a whole forward pass": (
        lambda *a: pair("eval_forward", *a),
        "before its forward pass",
    ),
    "a whole decoding": (lambda *a: pair("decode", *a), "before its decoding ended"),
    "an accuracy": (lambda *a: drop("eval_accuracy", *a), "its eval_accuracy"),
    "levels of looks": (other_level, "looks have other levels"),
    "the rule of the plan": (other_rule, "target_window is not the plan's"),
    "the time of sealing": (sealed_earlier, "by the monotonic one"),
    "a begun training": (no_mark, "the list doesn't say so"),
}


@pytest.mark.parametrize("what", FORMS)
def test_what_clocks_and_verdicts_rest_on_can_not_be_left_out(
    tmp_path, monkeypatch, what
):
    # The archive's trainings take seconds, in which a study need not note that they
    # have begun.
    monkeypatch.setattr("tfasr.studies.verify._NOTED_S", 0.5)
    forge, reason = FORMS[what]
    study = unpack(RECORDS / "studies" / "plain.tar.xz", tmp_path / "study")
    forger = Forger(study)
    forge(forger, list(forger.folders)[-1])
    forger.write()
    failed = [check.text for check in verify_study(study) if check.passed is False]
    assert any(reason in text for text in failed), failed


def test_a_key_that_occurs_twice_is_refused(tmp_path):
    study = unpack(RECORDS / "studies" / "plain.tar.xz", tmp_path / "study")
    forger = Forger(study)
    run = list(forger.folders)[-1]

    def doubled(text: str) -> str:
        content = json.loads(text)
        return f'{{"training": {json.dumps(content["training"])}, {text.lstrip()[1:]}'

    forger.file(run, "experiment.json", doubled)
    forger.write()
    failed = [check.text for check in verify_study(study) if check.passed is False]
    assert any("'training' occurs twice" in text for text in failed), failed
