"""An explanation's lines, checked against a ledger whose seconds are powers of two."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tta.ledger_builder import LedgerBuilder
from tfasr.errors import UsageError
from tfasr.tta.policies import POLICIES
from tfasr.tta.run import load_run

BEFORE_S = 1024
INIT_S = 256
LOADING_S = 512
CHECKPOINT_S = 8


@pytest.fixture
def run(tmp_path):
    """CER 0.3, 0.1, 0.2, 0.1, 0.1; the third was lost and made again after 77 s of
    downtime.
    """
    ledger = LedgerBuilder().event("session_start", {"session": 0}).wait(BEFORE_S)
    ledger.event("init_start").event("model_creation").wait(INIT_S).event("init_stop")
    ledger.event("run_start").event("targets", [["cer", 0.1]])

    for epoch, cer in ((1, 0.3), (2, 0.1)):
        an_epoch(ledger, epoch, cer)

    an_epoch(ledger, 3, 0.05, saved=False)  # lost
    ledger.resume(down_s=77, from_step=2, init_s=LOADING_S)

    for epoch, cer in ((3, 0.2), (4, 0.1), (5, 0.1)):
        an_epoch(ledger, epoch, cer)

    folder = ledger.end().write(tmp_path / "run")
    # An empty line holds no event, and moves the others down.
    lines = (folder / "events.jsonl").read_text().splitlines()
    (folder / "events.jsonl").write_text("\n".join([lines[0], "", *lines[1:]]) + "\n")

    return load_run(folder)


def an_epoch(ledger, epoch, cer, *, saved=True):
    """Adds an epoch in which every kind of work takes another power of two."""
    ledger.event("epoch_start", epoch_num=epoch)
    ledger.step(1, wait_s=2, epoch=epoch).interval("sentences", 4)
    ledger.event("eval_start", epoch_num=epoch).wait(16)
    ledger.interval("eval_forward", 32).interval("decode", 64)
    ledger.event("tracked_stats", {"cer": cer}, epoch_num=epoch)
    ledger.event("eval_stop", epoch_num=epoch).wait(128)
    ledger.event("epoch_stop", epoch_num=epoch)
    if saved:
        ledger.checkpoint(CHECKPOINT_S)


EPOCH_S = 1 + 2 + 4 + 16 + 32 + 64 + 128

# What each clock leaves out of the time between its start and the decisive reading, by
# hand.
EXPECTED = {
    "paper": {
        "epoch": 4,
        "start": "model_creation",
        "before_s": BEFORE_S,
        "seconds": INIT_S + 4 * EPOCH_S + 3 * CHECKPOINT_S + EPOCH_S + LOADING_S,
        "left_out": {},
    },
    "mlperf": {
        "epoch": 2,
        "start": "run_start",
        "before_s": BEFORE_S + INIT_S,
        "seconds": 2 * EPOCH_S + CHECKPOINT_S - 128,
        "left_out": {},
    },
    "algoperf": {
        "epoch": 2,
        "start": "run_start",
        "before_s": BEFORE_S + INIT_S,
        "seconds": 2 * 3 + 128,
        "left_out": {
            "eval_forward": 2 * 32, "decode": 2 * 64, "overhead": 2 * 16, "sentences": 2 * 4,
            "checkpoint": CHECKPOINT_S,
        },
    },
    "dawnbench": {
        "epoch": 2,
        "start": "session_start",
        "before_s": 0,
        "seconds": BEFORE_S + INIT_S + 2 * (3 + 4 + 128),
        "left_out": {
            "eval_forward": 2 * 32, "decode": 2 * 64, "overhead": 2 * 16,
            "checkpoint": CHECKPOINT_S,
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("policy", sorted(EXPECTED))
def test_the_lines_say_how_the_time_came_about(run, policy):
    expected = EXPECTED[policy]

    explanation = run.explain(cer=0.1, policy=policy)
    result = run.time_to_accuracy(cer=0.1, policy=policy)

    assert explanation.result == result
    assert (result.epoch, result.seconds) == (expected["epoch"], expected["seconds"])

    _, bracket = POLICIES[policy].time_to_accuracy(run.timeline, 0.1)
    assert explanation.bracket == bracket

    reasons = explanation.reasons
    assert (reasons[0].kind, reasons[0].key) == ("start", expected["start"])

    amounts = [reason.seconds for reason in reasons if reason.seconds is not None]
    whole_s = run.timeline.clock_us[reasons[-1].event] / 1e6

    assert whole_s - math.fsum(amounts) == pytest.approx(result.seconds, abs=1e-6)
    assert math.fsum(amounts) == expected["before_s"] + sum(
        expected["left_out"].values()
    )

    for name, seconds in expected["left_out"].items():
        (reason,) = [reason for reason in reasons if f" s of {name}" in reason.text]

        assert reason.seconds == seconds


@pytest.mark.parametrize("policy", sorted(EXPECTED))
def test_the_lines_end_with_the_bracket_and_the_result(run, policy):
    expected = EXPECTED[policy]

    explanation = run.explain(cer=0.1, policy=policy)
    result = run.time_to_accuracy(cer=0.1, policy=policy)

    _, bracket = POLICIES[policy].time_to_accuracy(run.timeline, 0.1)

    reasons = explanation.reasons

    kinds = [reason.kind for reason in reasons]

    assert kinds.count("evaluation") == expected["epoch"]
    assert kinds[-3:] == ["bracket", "bracket", "result"]

    misses, hits, ends = reasons[-3:]

    assert (misses.clock_s, hits.clock_s) == (bracket.last_miss_s, bracket.first_hit_s)
    assert ends.clock_s == result.seconds


@pytest.mark.parametrize("policy", sorted(EXPECTED))
def test_every_line_stands_on_the_event_that_it_names(run, policy):
    lines = (run.path / "events.jsonl").read_text().splitlines()
    for reason in run.explain(cer=0.1, policy=policy).reasons:
        event = json.loads(lines[reason.line - 1])

        assert (event["key"], event["time_ms"]) == (reason.key, reason.time_ms)
        assert event == run.events[reason.event]


def test_what_was_lost_and_the_downtime_are_named(run):
    texts = [reason.text for reason in run.explain(cer=0.1).reasons]

    assert "left out: 77.000 s of downtime before a session" in texts
    assert any("evaluation of epoch 3, lost work" in text for text in texts)
    assert any(
        "epoch 3: CER 20 %" in text and "is 20 %, misses 10 %" in text for text in texts
    )
    assert any("epoch 2: CER 10 %" in text and "too early" in text for text in texts)
    assert any("is 10 %, meets 10 %" in text for text in texts)
    assert texts[-1].endswith("at epoch 4; 1 later evaluations change nothing")


def test_a_target_that_was_never_met(run):
    explanation = run.explain(cer=0.01, policy="mlperf")

    assert not explanation.result.reached
    assert explanation.reasons[-1].text.startswith("never: longer than")
    with pytest.raises(UsageError, match="explain .*one target"):
        run.explain()


def test_the_report_prints_it(run):
    command = [sys.executable, "-m", "tfasr.cli", "report", str(run.path), "--explain"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout == str(run.explain(cer=0.1))


def test_the_report_prints_it_as_json(run):
    command = [sys.executable, "-m", "tfasr.cli", "report", str(run.path), "--explain"]

    command += ["--policy", "algoperf", "--target", "cer=0.2", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    (explained,) = json.loads(done.stdout)

    assert explained == run.explain(cer=0.2, policy="algoperf").to_json()


def test_explaining_loads_no_tensorflow(run):
    script = f"import sys, tfasr; tfasr.load_run({str(run.path)!r}).explain(cer=0.1)"
    script += "; assert not {'tensorflow', 'keras'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_pages_example_has_the_lines_that_are_printed(tmp_path):
    ledger = LedgerBuilder().begin(init_s=4.324)
    ledger.epoch(1, 0.5833, steps=1, train_s=1.792).epoch(
        2, 0.4242, steps=1, train_s=0.328
    )
    run = load_run(ledger.end().write(tmp_path / "run"))
    page = Path(__file__).parents[2] / "docs" / "time_to_accuracy.md"
    example = page.read_text("utf-8").split("     how the time came about", 1)[1]
    columns = re.compile(r"( +[\d.]+)? +\d+ +(run_start|eval_stop)$")
    shown = [
        columns.sub("", line.strip())
        for line in example.split("\n\n")[0].splitlines()[1:]
    ]

    def without_lines(texts):
        return [re.sub(r"\(line \d+\)", "(line)", text) for text in texts]

    reasons = run.explain(policy="mlperf", cer=0.5).reasons
    assert without_lines(shown) == without_lines(reason.text for reason in reasons)
