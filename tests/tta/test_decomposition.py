import dataclasses
import math

import pytest
from hypothesis import assume, given, settings

from tests.ledger.test_timeline import ledgers
from tests.tta.ledger_builder import LedgerBuilder
from tfasr.ledger.timeline import Timeline
from tfasr.tta import decomposition as measured
from tfasr.tta.decomposition import FACTORS, decompose
from tfasr.tta.decomposition import parts_until as parts_of


def elapsed_s(events):
    return Timeline(events).elapsed_s


def pair(first, second):
    """The comparison of two single runs."""
    return decompose([first], [second])


def parts_until(events, until_s, **options):
    return parts_of(Timeline(events), until_s, **options)


def run_of(
    epochs,
    *,
    utterances=4,
    train_s=1.0,
    init_s=0.0,
    wait_s=0.0,
    forward_s=0.0,
    host_share=1.0,
):
    """The parts of a run of two steps an epoch, whose times are given in seconds."""
    ledger = LedgerBuilder().begin(init_s=init_s)
    for epoch in range(1, epochs + 1):
        for _ in range(20):
            ledger.step(train_s, wait_s=wait_s, utterances=utterances, epoch=epoch)

        ledger.evaluate(epoch, 0.1, forward_s=forward_s)

    return parts_until(
        ledger.events, elapsed_s(ledger.events)[-1], host_share=host_share
    )


def product(found):
    return math.prod(found.factors.values())


def test_parts_add_up_to_the_time():
    parts = run_of(2, init_s=3, wait_s=0.5, forward_s=7)

    assert parts.seconds == pytest.approx(
        {
            "training": 40, "input_wait": 20, "evaluation": 14, "startup": 3,
            "lost_work": 0, "workers": 0, "other": 0,
        }
    )  # fmt: skip
    assert parts.total_s == pytest.approx(77)
    assert (parts.utterances, parts.utterances_per_s) == (160, 4)


def test_pure_training_splits_into_utterances_and_throughput():
    # Twice the epochs on a machine three times as fast.
    result = pair(run_of(2), run_of(4, train_s=1 / 3))

    assert result.ratio == pytest.approx(2 / 3, rel=1e-5)
    assert result.factors["statistical_efficiency"] == pytest.approx(2, rel=1e-5)
    assert result.factors["hardware_throughput"] == pytest.approx(1 / 3, rel=1e-5)

    others = set(FACTORS) - {"statistical_efficiency", "hardware_throughput"}
    assert all(result.factors[name] == pytest.approx(1, abs=1e-5) for name in others)


def test_what_the_machine_took_is_a_factor_of_its_own():
    # Steps take three times as long: 1.5 times because of the recipe, twice because of
    # the machine.
    disturbed = run_of(2, train_s=3.0, host_share=0.5)
    result = pair(run_of(2), disturbed)

    assert result.factors["host"] == pytest.approx(2)
    assert result.factors["hardware_throughput"] == pytest.approx(1.5)
    assert result.throughput_ratio == pytest.approx(1 / 3)


def test_the_machines_factor_is_weighted_by_the_time_of_steps():
    # It is weighted by the part of the time that steps take.
    with_more = pair(
        run_of(2, init_s=40), run_of(2, init_s=40, train_s=3.0, host_share=0.5)
    )

    assert 1 < with_more.factors["host"] < 2
    assert product(with_more) == pytest.approx(with_more.ratio)


def test_a_machine_that_took_as_much_from_both_explains_nothing():
    # If both were disturbed alike, the machine explains nothing.
    alike = pair(run_of(2, host_share=0.5), run_of(2, train_s=2.0, host_share=0.5))
    assert alike.factors["host"] == 1


def test_a_part_that_one_run_lacks_is_a_finite_factor():
    result = pair(run_of(2), run_of(2, init_s=40))

    assert result.factors["startup"] == pytest.approx(result.ratio) == pytest.approx(2)


def test_a_factor_is_weighted_by_its_part_of_the_time():
    result = pair(run_of(2, init_s=40), run_of(4, init_s=40))

    assert result.utterances_ratio == 2
    assert result.factors["statistical_efficiency"] == pytest.approx(result.ratio)
    assert 1 < result.ratio < 2


def test_runs_change_places():
    a = run_of(2, init_s=5, wait_s=0.1)
    b = run_of(3, utterances=8, forward_s=2)

    there = pair(a, b)
    back = pair(b, a)

    for name in FACTORS:
        assert there.factors[name] == pytest.approx(1 / back.factors[name])


def test_steps_after_the_target_and_lost_steps_do_not_count():
    ledger = LedgerBuilder().begin().step(1).checkpoint().step(50)
    ledger.resume(down_s=5, from_step=1).step(1).step(1)
    until_s = elapsed_s(ledger.events)[-2]

    parts = parts_until(ledger.events, until_s)

    assert parts.utterances == 8
    assert parts.seconds["lost_work"] == 50
    assert parts.total_s == until_s == 52


def test_a_run_without_utterances_is_not_decomposed():
    events = LedgerBuilder().begin(init_s=2).end().events

    with pytest.raises(ValueError, match="0 utterances"):
        parts_until(events, 2.0)


def test_equal_runs_have_no_factors():
    result = pair(run_of(2), run_of(2))

    assert result.ratio == product(result) == 1


@settings(deadline=None, max_examples=150)
@given(ledgers(), ledgers())
def test_the_factors_multiply_to_the_ratio_for_any_ledgers(one, other):
    parts = []
    for ledger in (one, other):
        ledger.step(0.5).step(1.5)
        until_s = elapsed_s(ledger.events)[-1]

        parts.append(parts_until(ledger.events, until_s, warmup_steps=0))

        assert parts[-1].total_s == pytest.approx(until_s, abs=1e-5)

        assume(parts[-1].total_s > 0)

    result = pair(*parts)

    assert set(result.factors) == set(FACTORS)
    assert product(result) == pytest.approx(result.ratio, rel=2e-14)


def by_hand(number, seconds, total):
    """A part's factors by Ang's formula, written out: of its number, and of its cost."""

    def log_mean(a, b):
        return a if a == b else (b - a) / math.log(b / a)

    weight = log_mean(*seconds) / log_mean(*total)
    of_number = (number[1] / number[0]) ** weight
    cost = (seconds[1] / number[1]) / (seconds[0] / number[0])

    return of_number, cost**weight


def test_twice_the_evaluations_are_statistical_efficiency_and_their_cost_is_evaluation():
    # 2 epochs of 20 s and an evaluation of 5 s, against 4 epochs with one of 6 s.
    result = pair(run_of(2, forward_s=5), run_of(4, forward_s=6))
    total = (2 * 25, 4 * 26)
    of_utterances, _ = by_hand((160, 320), (40, 80), total)
    of_evaluations, of_cost = by_hand((2, 4), (10, 24), total)
    expected = of_utterances * of_evaluations

    assert result.factors["statistical_efficiency"] == pytest.approx(expected, rel=1e-6)
    assert result.factors["evaluation"] == pytest.approx(of_cost, rel=1e-6)
    assert result.factors["hardware_throughput"] == pytest.approx(1, rel=1e-6)
    assert result.evaluations_ratio == pytest.approx(2)
    # The same evaluations more often cost no more each.
    assert (
        pair(run_of(2, forward_s=5), run_of(4, forward_s=5)).factors["evaluation"] == 1
    )


def test_evaluating_the_same_training_more_often_is_evaluation():
    often = LedgerBuilder().begin()
    for epoch in range(1, 5):
        often.event("epoch_start", None, "INTERVAL_START", epoch_num=epoch)
        for _ in range(10):
            often.step(1.0, epoch=epoch)

        often.checkpoint(2.0).evaluate(epoch, 0.1, forward_s=5)

    often = parts_until(often.events, elapsed_s(often.events)[-1])
    seldom = LedgerBuilder().begin()
    for epoch in range(1, 3):
        seldom.event("epoch_start", None, "INTERVAL_START", epoch_num=epoch)
        for _ in range(20):
            seldom.step(1.0, epoch=epoch)

        seldom.checkpoint(2.0).evaluate(epoch, 0.1, forward_s=5)

    seldom = parts_until(seldom.events, elapsed_s(seldom.events)[-1])
    result = pair(seldom, often)

    assert result.ratio == pytest.approx(68 / 54)
    assert product(result) == pytest.approx(result.ratio)
    assert result.factors["statistical_efficiency"] == pytest.approx(1)

    _, of_rate_and_cost = by_hand((1, 1), (10, 20), (54, 68))
    assert result.factors["evaluation"] == pytest.approx(of_rate_and_cost, rel=1e-6)

    _, of_checkpoints = by_hand((1, 1), (4, 8), (54, 68))

    assert result.factors["other"] == pytest.approx(of_checkpoints, rel=1e-6)
    assert result.evaluations_ratio == pytest.approx(2)


def test_waiting_is_what_an_utterance_waits():
    result = pair(run_of(2, wait_s=0.5), run_of(4, wait_s=0.5))

    assert result.factors["input_wait"] == pytest.approx(1, rel=1e-9)
    assert result.factors["statistical_efficiency"] == pytest.approx(2, rel=1e-9)


def test_an_evaluation_that_takes_no_time_in_one_run_is_all_cost():
    result = pair(run_of(2), run_of(4, forward_s=10))

    assert result.ratio == pytest.approx(3)
    assert product(result) == pytest.approx(3, rel=2e-14)
    assert result.factors["evaluation"] > 1


def test_groups_multiply_to_the_ratio_of_their_geometric_means():
    first = [run_of(2, train_s=s) for s in (1.0, 1.5, 2.0)]
    second = [run_of(epochs, forward_s=3) for epochs in (3, 5)]

    # 40, 60 and 80 s; 3 * 23 and 5 * 23 s.
    headline = math.sqrt(69 * 115) / (40 * 60 * 80) ** (1 / 3)
    result = decompose(first, second)
    back = decompose(second, first)

    assert result.ratio == pytest.approx(headline, rel=1e-9)
    assert product(result) == pytest.approx(result.ratio, rel=2e-14)
    # 240 and 400 utterances against 160 each; 4 a second against 4, 8/3 and 2.
    assert result.utterances_ratio == pytest.approx(math.sqrt(240 * 400) / 160)
    assert result.throughput_ratio == pytest.approx(4 / (4 * 8 / 3 * 2) ** (1 / 3))
    assert (result.runs, result.never) == ((3, 2), (0, 0))
    for name in FACTORS:
        assert result.factors[name] * back.factors[name] == pytest.approx(1, rel=2e-14)


def test_a_group_of_none_is_not_decomposed():
    with pytest.raises(ValueError, match="larger than 0"):
        decompose([], [run_of(2)])


def test_what_came_before_the_model_was_created_is_no_part_of_the_time():
    ledger = LedgerBuilder().event("session_start").event("init_start").wait(3)
    ledger.event("model_creation").wait(2).event("init_stop")
    for _ in range(12):
        ledger.step(1)

    until_s = elapsed_s(ledger.events)[-1]

    parts = parts_until(ledger.events, until_s)

    assert parts.seconds["startup"] == pytest.approx(2)
    assert parts.total_s == pytest.approx(until_s) == pytest.approx(14)


def test_without_a_steady_step_all_steps_do_with_what_they_compiled():
    ledger = (
        LedgerBuilder()
        .begin(init_s=1)
        .step(0.25, compile_s=0.5)
        .step(0.125, wait_s=0.125)
    )
    parts = parts_until(ledger.events, elapsed_s(ledger.events)[-1])

    # 8 utterances in 0.875 s, which leaves the waiting and the initialisation.
    assert parts.utterances_per_s == pytest.approx(8 / 0.875)
    assert parts.seconds["training"] == pytest.approx(0.875)
    assert parts.seconds["startup"] == pytest.approx(1)
    assert parts.total_s == pytest.approx(2)


def test_epochs_and_evaluations_are_counted_until_the_target_and_without_lost_ones():
    ledger = LedgerBuilder().begin().epoch(1, 0.5, forward_s=1).checkpoint()
    ledger.epoch(2, 0.4, forward_s=1).resume(down_s=5, from_step=2)
    ledger.epoch(2, 0.4, forward_s=1)
    until_s = elapsed_s(ledger.events)[-1]
    ledger.wait(0.5).epoch(3, 0.1, forward_s=1)

    parts = parts_until(ledger.events, until_s)

    assert (parts.evaluations, parts.epochs, parts.utterances) == (2, 2, 16)


def test_times_below_a_second_are_split_like_others():
    def scaled(parts, factor):
        seconds = {name: factor * value for name, value in parts.seconds.items()}
        return dataclasses.replace(parts, seconds=seconds)

    one = run_of(2, init_s=5, wait_s=0.1, forward_s=1)
    other = run_of(3, wait_s=0.2, forward_s=2)

    large = pair(one, other)
    small = pair(scaled(one, 1e-3), scaled(other, 1e-3))

    assert small.ratio == pytest.approx(large.ratio)
    for name in FACTORS:
        assert small.factors[name] == pytest.approx(large.factors[name])


def test_a_part_that_only_the_first_has_is_a_finite_factor():
    result = pair(run_of(2, init_s=40, wait_s=1), run_of(2))

    assert product(result) == pytest.approx(result.ratio) == pytest.approx(1 / 3)
    assert result.factors["startup"] < 1
    assert result.factors["input_wait"] < 1


def test_a_time_of_nothing_is_not_decomposed():
    parts = run_of(2)
    nothing = dataclasses.replace(parts, seconds=dict.fromkeys(parts.seconds, 0.0))

    for groups in (([parts], [nothing]), ([nothing], [parts]), ([parts], [])):
        with pytest.raises(ValueError, match="larger than 0"):
            decompose(*groups)


def test_steps_that_took_no_time_are_not_decomposed():
    ledger = LedgerBuilder().begin(init_s=2).step(0).step(0).wait(1).end()

    with pytest.raises(ValueError, match="8 utterances in 2 timed steps"):
        parts_until(ledger.events, 3.0)


def test_a_part_that_was_paid_no_known_number_of_times_is_all_cost():
    run = run_of(2, forward_s=5)
    result = pair(dataclasses.replace(run, evaluations=0), run)

    assert result.factors == {name: pytest.approx(1) for name in FACTORS}
    assert result.evaluations_ratio is None


def throughput(events, **options):
    return measured.throughput(Timeline(events), **options)


def test_steady_steps_alone_are_measured_and_the_others_counted():
    ledger = LedgerBuilder().begin().step(90).step(90)
    ledger.step(0, compile_s=50).step(1.5, wait_s=0.5, utterances=8).step(
        1, utterances=4
    )

    result = throughput(ledger.events, warmup_steps=2)

    assert (result.steps, result.warmup_steps, result.traced_steps) == (2, 2, 1)
    # 12 utterances and 30 s of audio in 2.5 s of training; the 0.5 s of waiting stand
    # apart.
    assert result.utterances_per_s == 4.8
    assert result.audio_s_per_s == 12.0
    assert result.input_wait_share == pytest.approx(0.5 / 3)
    assert result.padding_efficiency == 0.8


def test_each_session_warms_up_and_lost_steps_do_not_count():
    ledger = LedgerBuilder().begin().step(9).step(1).checkpoint().step(5)
    ledger.resume(down_s=1, from_step=2).step(9).step(3)

    result = throughput(ledger.events, warmup_steps=1)

    assert (result.steps, result.warmup_steps, result.utterances_per_s) == (2, 2, 2.0)


def test_nothing_left_to_measure_is_none_and_not_zero():
    result = throughput(LedgerBuilder().begin().step(1).events, warmup_steps=5)

    assert (
        result.utterances_per_s
        is result.audio_s_per_s
        is result.input_wait_share
        is None
    )
    assert (result.steps, result.warmup_steps, result.padding_efficiency) == (0, 1, 0.8)
    assert throughput([]).padding_efficiency is None


def test_a_negative_warm_up_is_refused():
    with pytest.raises(ValueError, match="warmup_steps must be 0 or more.*-1"):
        throughput([], warmup_steps=-1)


def test_the_mean_batch_is_that_of_all_steps_that_count():
    # Batches of 16, 16, 16 and a rest of 1 have a mean of 49 / 4, whatever was warm.
    ledger = (
        LedgerBuilder()
        .begin()
        .step(9, utterances=16)
        .checkpoint()
        .step(1, utterances=300)
    )
    ledger.resume(down_s=1, from_step=1)
    for utterances in (16, 16, 1):
        ledger.step(1, utterances=utterances)

    assert throughput(ledger.events, warmup_steps=2).mean_batch == 12.25
    assert throughput(ledger.events, until_s=9.0).mean_batch == 16
    assert throughput([]).mean_batch is None


def test_a_target_has_the_throughput_of_the_steps_until_then():
    ledger = LedgerBuilder().begin().step(1).step(2).step(4)

    assert throughput(ledger.events, until_s=3.0, warmup_steps=1).utterances_per_s == 2
    assert (
        throughput(ledger.events, until_s=7.0, warmup_steps=1).utterances_per_s == 8 / 6
    )


@pytest.mark.parametrize("nothing", [None, float("nan"), -3, "4"])
def test_a_step_that_says_nothing_usable_adds_nothing(nothing):
    ledger = LedgerBuilder().begin().step(1).step(1).step(1)
    ledger.events[-1]["value"] |= {"utterances": nothing, "audio_s": nothing}

    result = throughput(ledger.events, warmup_steps=1)

    assert (result.utterances_per_s, result.audio_s_per_s) == (4 / 2, 10 / 2)
    assert result.mean_batch == 8 / 3
