import dataclasses

import pytest
from hypothesis import given, settings

from tests.tta.ledger_builder import LedgerBuilder
from tests.tta.test_intervals import ledgers
from tfasr.errors import UsageError
from tfasr.ledger.timeline import Timeline
from tfasr.tta.policies import PAPER, POLICIES


@pytest.fixture
def events():
    """Every kind of second in another power of two; CER 0.3, 0.1, 0.2, 0.1, 0.1."""
    ledger = LedgerBuilder().event("session_start", {"session": 0}).wait(1000)
    ledger.event("init_start").event("model_creation").wait(100).event("init_stop").wait(10)
    ledger.event("run_start")
    for epoch, cer in enumerate([0.3, 0.1, 0.2, 0.1, 0.1], start=1):
        ledger.event("epoch_start", epoch_num=epoch)
        ledger.step(1, wait_s=2, epoch=epoch).interval("sentences", 4).checkpoint(8)
        ledger.event("eval_start", epoch_num=epoch).wait(16)
        ledger.interval("eval_forward", 32).interval("decode", 64)
        ledger.event("tracked_stats", {"cer": cer}, epoch_num=epoch)
        ledger.event("eval_stop", epoch_num=epoch).wait(128)
        ledger.event("epoch_stop", epoch_num=epoch)
    return ledger.end().events


@pytest.mark.parametrize(
    ("name", "epoch", "seconds"),
    [
        # The median of 3 is first 0.1 at epoch 4; creation of the model, rest of init, epochs.
        ("paper", 4, 100 + 10 + 4 * 255),
        # First crossing at epoch 2; from run_start to the end of its evaluation.
        ("mlperf", 2, 255 + 127),
        # Steps, waiting, and what is between them: neither sentences, checkpoint nor evaluation.
        ("algoperf", 2, 2 * 3 + 128),
        # From the program's start, without checkpoints and evaluation, to the end of the epoch.
        ("dawnbench", 2, 1000 + 100 + 10 + 2 * (1 + 2 + 4 + 128)),
    ],
)
def test_each_policy_counts_what_its_rules_say(events, name, epoch, seconds):
    found, bracket = POLICIES[name].time_to_accuracy(Timeline(events), 0.1)
    assert (found.epoch, found.seconds) == (epoch, seconds)
    assert bracket.first_hit_s == seconds
    assert bracket.last_miss_s < seconds


def test_lost_work_is_counted_by_all_but_algoperf():
    ledger = LedgerBuilder().begin(init_s=1).step(2).checkpoint().step(100)
    events = ledger.resume(down_s=9, from_step=1, init_s=10).epoch(1, 0.1).end().events
    times = {
        name: one.time_to_accuracy(Timeline(events), 0.1, window=1)[0].seconds
        for name, one in POLICIES.items()
    }
    assert times == {"paper": 115, "mlperf": 114, "algoperf": 4, "dawnbench": 115}


def test_an_unknown_policy_is_refused():
    with pytest.raises(UsageError, match="no policy 'mine'.*paper, mlperf, algoperf, dawnbench"):
        POLICIES["mine"]


@settings(deadline=None, max_examples=100)
@given(ledgers())
def test_the_papers_policy_is_the_plain_clock(ledger):
    timeline = Timeline(ledger.events)
    assert PAPER.times_s(timeline) == timeline.elapsed_s


@settings(deadline=None, max_examples=100)
@given(ledgers())
def test_no_clock_runs_backwards_or_faster_than_the_runs_own(ledger):
    timeline = Timeline(ledger.events)
    own = timeline.elapsed_s
    for one in POLICIES.values():
        times = one.times_s(timeline)
        for i in range(1, len(own)):
            assert times[i] >= times[i - 1] - 1e-9
            assert times[i] - times[i - 1] <= own[i] - own[i - 1] + 1e-9


def test_what_logging_takes_stands_still_for_algoperf_alone():
    ledger = LedgerBuilder().begin(init_s=1)
    for epoch in (1, 2, 3):
        ledger.event("epoch_start", epoch_num=epoch)
        ledger.step(2, epoch=epoch).interval("logging", 16, step=epoch)
        ledger.evaluate(epoch, 0.1).event("epoch_stop", epoch_num=epoch)
    times = {
        name: one.time_to_accuracy(Timeline(ledger.events), 0.1, window=1)[0].seconds
        for name, one in POLICIES.items()
    }
    assert times == {"paper": 19, "mlperf": 18, "algoperf": 2, "dawnbench": 19}


def overlapped(*, policy, window=1, until=0.1):
    """Epochs of 10 s with 4 s of decoding that training overlaps by a step of 3 s and waits for."""
    ledger = LedgerBuilder().event("session_start", {"session": 0}).event("model_creation")
    ledger.event("run_start")
    cers = [0.3, 0.1, 0.1]
    for epoch in (1, 2, 3):
        ledger.event("epoch_start", epoch_num=epoch)
        if epoch > 1:
            ledger.step(3, epoch=epoch)
            decoded(ledger, epoch - 1, cers[epoch - 2])
        ledger.step(10 if epoch == 1 else 7, epoch=epoch)
        ledger.event("eval_start", epoch_num=epoch).interval("eval_forward", 0, epoch_num=epoch)
        ledger.event("eval_stop", epoch_num=epoch).event("epoch_stop", epoch_num=epoch)
    decoded(ledger, 3, cers[2])
    line = Timeline(ledger.end().events)
    found, bracket = policy.time_to_accuracy(line, until, window=window)
    return found.seconds, bracket


def decoded(ledger, epoch, cer):
    """The result of an overlapped evaluation, for which training waited a second."""
    ledger.event("eval_start", epoch_num=epoch).interval("decode", 1, epoch_num=epoch)
    ledger.event("tracked_stats", {"cer": cer}, epoch_num=epoch)
    ledger.event("eval_stop", epoch_num=epoch)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        # Known 3 s of training and 1 s of decoding after the epoch's end; the clocks run on.
        ("paper", 14, 14 + 7 + 3 + 1),
        ("mlperf", 14, 14 + 7 + 3 + 1),
        # These clocks stood still for the evaluation: the weights were those of 10 and 20 s.
        ("algoperf", 10, 20),
        ("dawnbench", 10, 20),
    ],
)
def test_an_overlapped_evaluation_is_read_at_the_time_of_its_weights_or_of_its_result(
    name, first, second
):
    assert overlapped(policy=POLICIES[name], until=0.3)[0] == first
    seconds, bracket = overlapped(policy=POLICIES[name])
    assert (seconds, bracket.last_miss_s, bracket.first_hit_s) == (second, first, second)


def born(ledger, age_s):
    """The ledger, with the last session's process created before its first event."""
    start = [event for event in ledger.events if event["key"] == "session_start"][-1]
    start["metadata"]["process_age_s"] = age_s
    return ledger


def test_dawnbench_and_what_is_charged_begin_with_the_process():
    ledger = born(LedgerBuilder().begin(init_s=2), 5)
    line = Timeline(ledger.epoch(1, 0.1).end().events)
    times = {
        name: one.time_to_accuracy(line, 0.1, window=1)[0].seconds for name, one in POLICIES.items()
    }
    # 5 s of imports, 2 s of initialisation from the model's creation on, 2 s of steps.
    assert times == {"paper": 4, "mlperf": 2, "algoperf": 2, "dawnbench": 9}
    assert line.wall_s == 9
    assert line.interval_seconds()["init"] == 7
    assert sum(line.interval_seconds(until_s=4).values()) == 9


def test_a_process_that_resumes_is_charged_its_start_and_not_the_downtime():
    ledger = born(LedgerBuilder().begin(init_s=1), 4).step(2).checkpoint().step(16)
    ledger = born(ledger.resume(down_s=100, from_step=1, init_s=8), 4)
    line = Timeline(ledger.epoch(1, 0.1).end().events)
    times = {
        name: one.time_to_accuracy(line, 0.1, window=1)[0].seconds for name, one in POLICIES.items()
    }
    # 1 + 2 + 16 + 4 + 8 + 2 = 33 s from the model's creation on.
    assert times == {
        "paper": 33,
        "mlperf": 32,
        "algoperf": 4,
        "dawnbench": 33 + 4,
    }
    spent = {name: s for name, s in line.interval_seconds().items() if s}
    assert spent == {"init": 4 + 1 + 4 + 8, "train": 4, "lost_work": 16}


def test_a_process_counts_only_from_its_predecessors_end():
    ledger = LedgerBuilder().begin().step(2).checkpoint()
    ledger = born(ledger.resume(down_s=3, from_step=1), 60)
    assert Timeline(ledger.step(1).events).wall_s == 2 + 3 + 1


def test_a_policy_of_ones_own_is_asked_for_by_its_name():
    mine = dataclasses.replace(PAPER, name="mine", excluded=frozenset({"init"}), window=1)
    line = Timeline(LedgerBuilder().begin(init_s=2).epoch(1, 0.1).end().events)
    assert mine.time_to_accuracy(line, 0.1)[0].seconds == 2
    with pytest.raises(ValueError, match=r"stand still during some of.*\['breaks'\].*'mine'"):
        dataclasses.replace(mine, excluded=frozenset({"breaks"}))
    with pytest.raises(ValueError, match="at least 1 evaluation"):
        dataclasses.replace(mine, window=0)
    with pytest.raises(UsageError, match="must be a tfasr.tta.policies.Policy"):
        POLICIES.register("mine", "paper")


def test_what_comes_before_the_first_evaluation_is_no_evaluation():
    ledger = LedgerBuilder().event("run_start").wait(5).event("epoch_start", epoch_num=1)
    ledger.step(1).event("eval_start", epoch_num=1).wait(7)
    ledger.event("tracked_stats", {"cer": 0.1}, epoch_num=1).event("eval_stop", epoch_num=1)
    events = ledger.event("epoch_stop", epoch_num=1).end().events
    found, _ = POLICIES["algoperf"].time_to_accuracy(Timeline(events), 0.2)
    assert found.seconds == 6
