import pytest

from tests.tta.ledger_builder import LedgerBuilder
from tfasr.tta.throughput import throughput


def test_steady_steps_alone_are_measured_and_the_others_counted():
    ledger = LedgerBuilder().begin().step(90).step(90)
    ledger.step(0, compile_s=50).step(1.5, wait_s=0.5, utterances=8).step(1, utterances=4)
    found = throughput(ledger.events, warmup_steps=2)
    assert (found.steps, found.warmup_steps, found.traced_steps) == (2, 2, 1)
    assert found.utterances_per_s == 4.0
    assert found.audio_s_per_s == 10.0
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
