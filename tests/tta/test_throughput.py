import pytest

from tests.tta.ledger_builder import LedgerBuilder
from tfasr.ledger.timeline import Timeline
from tfasr.tta import decomposition as measured


def throughput(events, **options):
    return measured.throughput(Timeline(events), **options)


def test_steady_steps_alone_are_measured_and_the_others_counted():
    ledger = LedgerBuilder().begin().step(90).step(90)
    ledger.step(0, compile_s=50).step(1.5, wait_s=0.5, utterances=8).step(1, utterances=4)
    found = throughput(ledger.events, warmup_steps=2)
    assert (found.steps, found.warmup_steps, found.traced_steps) == (2, 2, 1)
    # 12 utterances and 30 s of audio in 2.5 s of training; the 0.5 s of waiting stand apart.
    assert found.utterances_per_s == 4.8
    assert found.audio_s_per_s == 12.0
    assert found.input_wait_share == pytest.approx(0.5 / 3)
    assert found.padding_efficiency == 0.8


def test_each_session_warms_up_and_lost_steps_do_not_count():
    ledger = LedgerBuilder().begin().step(9).step(1).checkpoint().step(5)
    ledger.resume(down_s=1, from_step=2).step(9).step(3)
    found = throughput(ledger.events, warmup_steps=1)
    assert (found.steps, found.warmup_steps, found.utterances_per_s) == (2, 2, 2.0)


def test_nothing_left_to_measure_is_none_and_not_zero():
    found = throughput(LedgerBuilder().begin().step(1).events, warmup_steps=5)
    assert found.utterances_per_s is found.audio_s_per_s is found.input_wait_share is None
    assert (found.steps, found.warmup_steps, found.padding_efficiency) == (0, 1, 0.8)
    assert throughput([]).padding_efficiency is None


def test_a_negative_warm_up_is_refused():
    with pytest.raises(ValueError, match="warmup_steps must be 0 or more.*-1"):
        throughput([], warmup_steps=-1)


def test_the_mean_batch_is_that_of_all_steps_that_count():
    # Batches of 16, 16, 16 and a rest of 1 have a mean of 49 / 4, whatever was warm.
    ledger = LedgerBuilder().begin().step(9, utterances=16).checkpoint().step(1, utterances=300)
    ledger.resume(down_s=1, from_step=1)
    for utterances in (16, 16, 1):
        ledger.step(1, utterances=utterances)
    assert throughput(ledger.events, warmup_steps=2).mean_batch == 12.25
    assert throughput(ledger.events, until_s=9.0).mean_batch == 16
    assert throughput([]).mean_batch is None


def test_a_target_has_the_throughput_of_the_steps_until_then():
    ledger = LedgerBuilder().begin().step(1).step(2).step(4)
    assert throughput(ledger.events, until_s=3.0, warmup_steps=1).utterances_per_s == 2
    assert throughput(ledger.events, until_s=7.0, warmup_steps=1).utterances_per_s == 8 / 6


@pytest.mark.parametrize("nothing", [None, float("nan"), -3, "4"])
def test_a_step_that_says_nothing_usable_adds_nothing(nothing):
    ledger = LedgerBuilder().begin().step(1).step(1).step(1)
    ledger.events[-1]["value"] |= {"utterances": nothing, "audio_s": nothing}
    found = throughput(ledger.events, warmup_steps=1)
    assert (found.utterances_per_s, found.audio_s_per_s) == (4 / 2, 10 / 2)
    assert found.mean_batch == 8 / 3
