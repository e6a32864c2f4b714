import pytest
from hypothesis import given, settings

from tests.tta.ledger_builder import LedgerBuilder
from tests.tta.test_intervals import ledgers
from tfasr.tta.policies import POLICIES, policy, policy_time_to_accuracy, policy_times_s
from tfasr.tta.time_to_accuracy import time_to_accuracy
from tfasr.tta.timeline import elapsed_s


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
    found, bracket = policy_time_to_accuracy(events, 0.1, policy=policy(name))
    assert (found.epoch, found.seconds) == (epoch, seconds)
    assert bracket.first_hit_s == seconds
    assert bracket.last_miss_s < seconds


def test_lost_work_is_counted_by_all_but_algoperf():
    ledger = LedgerBuilder().begin(init_s=1).step(2).checkpoint().step(100)
    events = ledger.resume(down_s=9, from_step=1, init_s=10).epoch(1, 0.1).end().events
    times = {
        name: policy_time_to_accuracy(events, 0.1, policy=one, window=1)[0].seconds
        for name, one in POLICIES.items()
    }
    assert times == {"paper": 115, "mlperf": 114, "algoperf": 4, "dawnbench": 115}


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="must be one of.*algoperf.*Received: 'mine'"):
        policy("mine")


@settings(deadline=None, max_examples=100)
@given(ledgers())
def test_the_papers_policy_is_the_plain_clock(ledger):
    ledger.epoch(1, 0.2).epoch(2, 0.1).epoch(3, 0.1)
    plain = time_to_accuracy(ledger.events, 0.1)
    found, _ = policy_time_to_accuracy(ledger.events, 0.1)
    assert (found.epoch, found.seconds) == (plain.epoch, plain.seconds)
    assert policy_times_s(ledger.events, policy("paper")) == elapsed_s(ledger.events)


@settings(deadline=None, max_examples=100)
@given(ledgers())
def test_no_clock_runs_backwards_or_faster_than_the_runs_own(ledger):
    own = elapsed_s(ledger.events)
    for one in POLICIES.values():
        times = policy_times_s(ledger.events, one)
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
        name: policy_time_to_accuracy(ledger.events, 0.1, policy=one, window=1)[0].seconds
        for name, one in POLICIES.items()
    }
    assert times == {"paper": 19, "mlperf": 18, "algoperf": 2, "dawnbench": 19}
