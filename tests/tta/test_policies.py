import dataclasses
import math
import statistics
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ledger.test_timeline import ledgers
from tests.tta.ledger_builder import LedgerBuilder
from tfasr.errors import UsageError
from tfasr.ledger.intervals import EVALUATION
from tfasr.ledger.timeline import Timeline
from tfasr.tta.policies import (
    PAPER,
    POLICIES,
    AccuracyPoint,
    bracket,
    evaluations_in,
    first_sustained,
    rule_met,
)


def curve(*values, every_s=10.0):
    return [
        AccuracyPoint(n, n * every_s, value) for n, value in enumerate(values, start=1)
    ]


def test_a_crossing_lies_between_the_last_miss_and_the_first_hit():
    result = bracket(curve(0.5, 0.3, 0.1), 0.15, window=1)

    assert (result.last_miss_s, result.first_hit_s, result.censored) == (
        20.0,
        30.0,
        False,
    )
    assert result.interpolated_s == pytest.approx(27.5)


def test_a_median_is_about_its_middle_evaluation():
    result = bracket(curve(0.5, 0.3, 0.1, 0.1), 0.2, window=3)

    assert (result.last_miss_s, result.first_hit_s, result.rule_s) == (20.0, 30.0, 40.0)
    assert result.interpolated_s == pytest.approx(25.0)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=30).map(
        lambda gaps: list(accumulate(gaps))
    ),
    st.floats(0.01, 1),
    st.sampled_from([1, 3, 5, 7]),
)
def test_the_bracket_holds_the_time_at_which_a_falling_curve_crosses(
    times, share, window
):
    crossing_s = share * times[-1]
    points = [
        AccuracyPoint(n, t, 0.1 * crossing_s / t) for n, t in enumerate(times, start=1)
    ]
    target = 0.1

    result = bracket(points, target, window=window)

    assert result.last_miss_s <= crossing_s * (1 + 1e-9)
    assert result.censored == (
        not first_sustained(points, target, window=window).reached
    )

    if not result.censored:
        assert crossing_s <= result.first_hit_s * (1 + 1e-9)

        # And it is as narrow as the curve's evaluations allow.
        edges = [0.0, *times]
        assert edges.index(result.first_hit_s) == edges.index(result.last_miss_s) + 1


def test_windows_of_an_even_number_have_their_middle_between_two_evaluations():
    result = bracket(curve(0.5, 0.4, 0.3, 0.1, 0.1), 0.25, window=4)

    # The first four have a median of 0.35 at 25 s, the last four one of 0.2 at 35 s.
    assert (result.last_miss_s, result.first_hit_s, result.rule_s) == (25.0, 35.0, 50.0)
    assert result.interpolated_s == pytest.approx(35 - 10 / 3)


def test_a_first_evaluation_that_hits_has_no_point_to_interpolate_from():
    assert bracket(curve(0.1), 0.2, window=1).interpolated_s is None
    assert bracket(curve(0.1), 0.2, window=1).last_miss_s == 0.0


def test_a_first_window_that_hits_has_no_point_to_interpolate_from():
    result = bracket(curve(0.1, 0.1, 0.1), 0.2, window=3)

    assert result.last_miss_s == 0.0
    assert result.first_hit_s == 10.0
    assert result.interpolated_s is None
    assert result.rule_s == 30.0


def test_the_bracket_is_about_the_middle_of_the_window():
    result = bracket(curve(0.3, 0.1, 0.1), 0.2, window=3)
    assert (result.last_miss_s, result.first_hit_s, result.rule_s) == (10.0, 20.0, 30.0)


def test_never_is_censored_at_the_last_evaluation():
    result = bracket(curve(0.5, 0.4), 0.2, window=1)

    assert (result.last_miss_s, result.first_hit_s, result.censored) == (
        20.0,
        None,
        True,
    )
    assert bracket([], 0.2, window=1).last_miss_s == 0.0


def test_a_hit_without_half_a_window_behind_it_is_censored():
    result = bracket(curve(0.5, 0.4, 0.4, 0.1), 0.2, window=3)

    assert (result.last_miss_s, result.rule_s, result.censored) == (30.0, 40.0, True)
    assert bracket(curve(0.5, 0.1), 0.2, window=3).last_miss_s == 0.0


def test_nothing_is_interpolated_from_a_diverged_evaluation():
    assert bracket(curve(math.nan, 0.1), 0.2, window=1).interpolated_s is None


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(0, 1), max_size=10), st.floats(0, 1), st.integers(1, 4))
def test_the_bracket_ends_half_a_window_before_the_rule(values, target, window):
    result = bracket(curve(*values), target, window=window)
    seconds = first_sustained(curve(*values), target, window=window).seconds

    assert result.censored == (seconds is None)

    if seconds is not None:
        assert result.rule_s == seconds

        early_s = seconds - 5.0 * (window - 1) - result.first_hit_s
        # The first whole window may be about an evaluation before its middle.
        assert early_s == 0 or (early_s > 0 and seconds == 10.0 * window)

    if result.interpolated_s is not None:
        assert result.last_miss_s <= result.interpolated_s <= result.first_hit_s


@pytest.mark.parametrize("window", [1, 2])
def test_a_second_evaluation_that_hits_was_last_missed_at_the_first(window):
    result = bracket(curve(0.5, 0.1), 0.3, window=window)

    assert result.last_miss_s == 10.0
    assert result.first_hit_s == 20.0 if window == 1 else 15.0
    assert result.interpolated_s == 15.0


@pytest.fixture
def events():
    """Every kind of second in another power of two; CER 0.3, 0.1, 0.2, 0.1, 0.1."""
    ledger = LedgerBuilder().event("session_start", {"session": 0}).wait(1000)
    ledger.event("init_start").event("model_creation").wait(100).event(
        "init_stop"
    ).wait(10)
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
        # The median of 3 is first 0.1 at epoch 4; creation of the model, rest of init,
        # epochs.
        ("paper", 4, 100 + 10 + 4 * 255),
        # First crossing at epoch 2; from run_start to the end of its evaluation.
        ("mlperf", 2, 255 + 127),
        # Steps, waiting, and what is between them: neither sentences, checkpoint nor
        # evaluation.
        ("algoperf", 2, 2 * 3 + 128),
        # From the program's start, without checkpoints and evaluation, to the end of
        # the epoch.
        ("dawnbench", 2, 1000 + 100 + 10 + 2 * (1 + 2 + 4 + 128)),
    ],
)
def test_each_policy_counts_what_its_rules_say(events, name, epoch, seconds):
    result, bracket = POLICIES[name].time_to_accuracy(Timeline(events), 0.1)

    assert (result.epoch, result.seconds) == (epoch, seconds)
    assert bracket.rule_s == seconds
    assert bracket.last_miss_s < bracket.first_hit_s <= seconds


def test_algoperfs_printed_rule_names_all_that_it_leaves_out():
    words = {"init": "initialisation", "checkpoint": "checkpoints", "lost_work": "lost"}
    policy = POLICIES["algoperf"]

    named = {words.get(name, name) for name in policy.excluded - set(EVALUATION)} | {
        "evaluation"
    }

    assert {word for word in named if word not in policy.rule} == set()


def test_lost_work_is_counted_by_all_but_algoperf():
    ledger = LedgerBuilder().begin(init_s=1).step(2).checkpoint().step(100)
    events = ledger.resume(down_s=9, from_step=1, init_s=10).epoch(1, 0.1).end().events

    times = {
        name: one.time_to_accuracy(Timeline(events), 0.1, window=1)[0].seconds
        for name, one in POLICIES.items()
    }

    assert times == {"paper": 115, "mlperf": 114, "algoperf": 4, "dawnbench": 115}


def test_an_unknown_policy_is_refused():
    with pytest.raises(
        UsageError, match="no policy 'mine'.*paper, mlperf, algoperf, dawnbench"
    ):
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
    """Epochs of 10 s with 4 s of decoding that training overlaps by a step of 3 s and
    waits for.
    """
    ledger = (
        LedgerBuilder().event("session_start", {"session": 0}).event("model_creation")
    )
    ledger.event("run_start")
    cers = [0.3, 0.1, 0.1]

    for epoch in (1, 2, 3):
        ledger.event("epoch_start", epoch_num=epoch)
        if epoch > 1:
            ledger.step(3, epoch=epoch)
            decoded(ledger, epoch - 1, cers[epoch - 2])

        ledger.step(10 if epoch == 1 else 7, epoch=epoch)
        ledger.event("eval_start", epoch_num=epoch).interval(
            "eval_forward", 0, epoch_num=epoch
        )
        ledger.event("eval_stop", epoch_num=epoch).event("epoch_stop", epoch_num=epoch)

    decoded(ledger, 3, cers[2])
    line = Timeline(ledger.end().events)
    result, bracket = policy.time_to_accuracy(line, until, window=window)

    return result.seconds, bracket


def decoded(ledger, epoch, cer):
    """The result of an overlapped evaluation, for which training waited a second."""
    ledger.event("eval_start", epoch_num=epoch).interval("decode", 1, epoch_num=epoch)
    ledger.event("tracked_stats", {"cer": cer}, epoch_num=epoch)
    ledger.event("eval_stop", epoch_num=epoch)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        # Known 3 s of training and 1 s of decoding after the epoch's end; the clocks
        # run on.
        ("paper", 14, 14 + 7 + 3 + 1),
        ("mlperf", 14, 14 + 7 + 3 + 1),
        # These clocks stood still for the evaluation: the weights were those of 10 and
        # 20 s.
        ("algoperf", 10, 20),
        ("dawnbench", 10, 20),
    ],
)
def test_an_overlapped_evaluation_is_read_at_the_time_of_its_weights_or_of_its_result(
    name, first, second
):
    assert overlapped(policy=POLICIES[name], until=0.3)[0] == first

    seconds, bracket = overlapped(policy=POLICIES[name])
    assert seconds == second
    assert bracket.last_miss_s == first
    assert bracket.first_hit_s == second


def born(ledger, age_s):
    """The ledger, with the last session's process created before its first event."""
    start = [event for event in ledger.events if event["key"] == "session_start"][-1]
    start["metadata"]["process_age_s"] = age_s
    return ledger


def test_dawnbench_and_what_is_charged_begin_with_the_process():
    ledger = born(LedgerBuilder().begin(init_s=2), 5)
    line = Timeline(ledger.epoch(1, 0.1).end().events)

    times = {
        name: one.time_to_accuracy(line, 0.1, window=1)[0].seconds
        for name, one in POLICIES.items()
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
        name: one.time_to_accuracy(line, 0.1, window=1)[0].seconds
        for name, one in POLICIES.items()
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
    mine = dataclasses.replace(
        PAPER, name="mine", excluded=frozenset({"init"}), window=1
    )
    line = Timeline(LedgerBuilder().begin(init_s=2).epoch(1, 0.1).end().events)

    assert mine.time_to_accuracy(line, 0.1)[0].seconds == 2
    with pytest.raises(ValueError, match=r"intervals.*\['breaks'\].*'mine'"):
        dataclasses.replace(mine, excluded=frozenset({"breaks"}))
    with pytest.raises(ValueError, match="at least 1 evaluation"):
        dataclasses.replace(mine, window=0)
    with pytest.raises(UsageError, match="must be a tfasr.tta.policies.Policy"):
        POLICIES.register("mine", "paper")


def test_what_comes_before_the_first_evaluation_is_no_evaluation():
    ledger = (
        LedgerBuilder().event("run_start").wait(5).event("epoch_start", epoch_num=1)
    )
    ledger.step(1).event("eval_start", epoch_num=1).wait(7)
    ledger.event("tracked_stats", {"cer": 0.1}, epoch_num=1).event(
        "eval_stop", epoch_num=1
    )
    events = ledger.event("epoch_stop", epoch_num=1).end().events

    result, _ = POLICIES["algoperf"].time_to_accuracy(Timeline(events), 0.2)

    assert result.seconds == 6


def accuracy_curve(events, metric):
    return PAPER.curve(Timeline(events), metric)


def time_to_accuracy(events, target, **rule):
    return PAPER.time_to_accuracy(Timeline(events), target, **rule)[0]


def run_of(*cers, **epoch):
    """A run of 2 s of initialisation and 2 s an epoch."""
    ledger = LedgerBuilder().begin(init_s=2)
    for number, cer in enumerate(cers, start=1):
        ledger.epoch(number, cer, **epoch)

    return ledger.end().events


def test_the_curve_has_a_point_at_the_end_of_each_epoch():
    points = accuracy_curve(run_of(0.5, 0.25, forward_s=3), "cer")

    assert [(p.epoch, p.elapsed_s, p.value) for p in points] == [
        (1, 7.0, 0.5),
        (2, 12.0, 0.25),
    ]
    assert [p.value for p in accuracy_curve(run_of(0.5, 0.25), "wer")] == [1.0, 0.5]
    assert accuracy_curve(run_of(0.5), "bleu") == []


def test_the_median_of_three_epochs_decides_not_the_first_crossing():
    result = time_to_accuracy(run_of(0.5, 0.09, 0.2, 0.08, 0.07), 0.1)

    assert result.epoch == 4
    assert result.seconds == 10.0
    assert result.value == 0.09
    assert result.reached is True
    assert result.minutes == pytest.approx(10 / 60)


def test_the_target_itself_is_good_enough():
    assert time_to_accuracy(run_of(0.3, 0.1, 0.1), 0.1).epoch == 3


def test_fewer_than_three_epochs_decide_nothing():
    assert not time_to_accuracy(run_of(0.01, 0.01), 0.1).reached


def test_never_has_neither_time_nor_epoch():
    result = time_to_accuracy(run_of(0.5, 0.4, 0.3, 0.2), 0.1)

    assert result.seconds is None
    assert result.minutes is None
    assert result.epoch is None
    assert result.value is None
    assert (result.metric, result.target, result.window) == ("cer", 0.1, 3)


def test_another_metric_and_another_window():
    assert time_to_accuracy(run_of(0.5, 0.2), 0.5, metric="wer", window=1).epoch == 2
    with pytest.raises(ValueError, match="window must be at least 1.*window=0"):
        time_to_accuracy(run_of(0.5), 0.5, window=0)


@pytest.mark.parametrize("value", [math.nan, None])
def test_a_diverged_evaluation_meets_no_target(value):
    events = run_of(0.05, 0.05, 0.05)
    for event in events:
        if event["key"] == "tracked_stats" and event["metadata"]["epoch_num"] < 3:
            event["value"]["cer"] = value

    assert not time_to_accuracy(events, 0.1).reached


def test_an_epoch_that_never_ended_is_no_point():
    events = run_of(0.3, 0.2)

    assert len(accuracy_curve(events[:-2], "cer")) == 1


def test_a_lost_evaluation_is_superseded_and_the_lost_time_counted():
    ledger = LedgerBuilder().begin(init_s=2).epoch(1, 0.3).checkpoint().epoch(2, 0.01)
    ledger.resume(down_s=500, from_step=2, init_s=1)
    events = ledger.epoch(2, 0.2).epoch(3, 0.1).epoch(4, 0.1).end().events

    points = accuracy_curve(events, "cer")

    assert [(p.epoch, p.value) for p in points] == [
        (1, 0.3),
        (2, 0.2),
        (3, 0.1),
        (4, 0.1),
    ]
    # 2 s and 5 epochs of 2 s, one of them twice, and a second initialisation.
    assert time_to_accuracy(events, 0.1).seconds == 13.0


def test_a_log_that_evaluates_after_the_epoch_has_its_point_at_the_evaluations_end():
    ledger = LedgerBuilder(with_mono=False).event("model_creation").wait(1)
    for epoch in (1, 2):
        ledger.event("epoch_stop", epoch_num=epoch).event(
            "eval_start", epoch_num=epoch
        ).wait(4)
        ledger.event("eval_accuracy", 0.5 / epoch, epoch_num=epoch)
        ledger.event("eval_stop", epoch_num=epoch)

    points = accuracy_curve(ledger.events, "wer")
    assert [(p.epoch, p.elapsed_s, p.value) for p in points] == [
        (1, 5.0, 0.5),
        (2, 9.0, 0.25),
    ]


rates = st.lists(st.floats(0, 1.5, allow_nan=False), max_size=12)


@settings(deadline=None, max_examples=100)
@given(rates, st.floats(0, 1), st.integers(1, 5))
def test_it_is_the_first_epoch_at_which_the_rule_holds(cers, target, window):
    result = time_to_accuracy(run_of(*cers), target, window=window)
    holds = [
        last
        for last in range(window, len(cers) + 1)
        if statistics.median(cers[last - window : last]) <= target
    ]

    assert result.epoch == (holds[0] if holds else None)


@settings(deadline=None, max_examples=100)
@given(rates, st.floats(0, 1), st.floats(0, 0.5))
def test_an_easier_target_is_never_reached_later(cers, target, easier):
    hard, easy = (time_to_accuracy(run_of(*cers), t) for t in (target, target + easier))

    assert not hard.reached or easy.seconds <= hard.seconds


@pytest.mark.parametrize(
    ("cers", "met"),
    [
        ([0.5, 0.09, 0.2, 0.08], True),  # the median of 0.09, 0.2, 0.08 is 0.09
        ([0.05, 0.05, 0.5, 0.4], False),  # of 0.05, 0.5, 0.4 it is 0.4
        ([0.3, 0.1, 0.1], True),
        ([0.01, 0.01], False),
        ([0.05, math.nan, 0.05], True),
        ([0.05, math.nan, math.nan], False),
    ],
)
def test_a_training_that_stops_at_its_targets_asks_the_same_rule(cers, met):
    history = [{"cer": cer, "wer": 2 * cer} for cer in cers]

    assert rule_met(history, [("cer", 0.1)]) is met
    assert not rule_met(history, [("cer", 0.1), ("wer", 0.0)])
    assert not rule_met(history, [])


@given(
    st.lists(st.floats(0, 1) | st.just(math.nan), max_size=12),
    st.floats(0, 1),
    st.integers(1, 4),
)
def test_it_stops_at_the_evaluation_at_which_the_report_says_it_arrived(
    values, target, window
):
    points = [
        AccuracyPoint(n, float(n), value) for n, value in enumerate(values, start=1)
    ]
    arrived = first_sustained(points, target, window=window).epoch
    history = [{"cer": value} for value in values]

    stops = [
        n
        for n in range(len(values) + 1)
        if rule_met(history[:n], [("cer", target)], window)
    ]

    assert arrived == (stops[0] if stops else None)


FINER = st.tuples(
    st.lists(st.floats(0, 1) | st.just(math.nan), max_size=24),
    st.integers(1, 5),
    st.floats(0, 1),
)


@given(FINER)
def test_a_first_hit_is_the_first_hit_on_any_grid(finer):
    values, per_epoch, target = finer
    points = [
        AccuracyPoint(n / per_epoch, float(n), value, per_epoch)
        for n, value in enumerate(values, start=1)
    ]
    first = next((point for point in points if point.value <= target), None)
    result = first_sustained(points, target, window=1)
    limits = bracket(points, target, window=1)
    history = [{"cer": value} for value in values]

    stops = [
        n
        for n in range(len(values) + 1)
        if rule_met(history[:n], [("cer", target)], 1, per_epoch)
    ]

    if first is None:
        assert not result.reached
        assert limits.censored
    else:
        number = points.index(first) + 1

        assert (result.epoch, result.seconds) == (first.epoch, first.elapsed_s)
        assert (limits.first_hit_s, limits.read_s) == (float(number), float(number))
        assert limits.last_miss_s == number - 1

    assert stops == [point.elapsed_s for point in points if point.value <= target]


@given(FINER, st.integers(2, 4))
def test_a_longer_window_covers_as_many_epochs_on_any_grid(finer, window):
    values, per_epoch, target = finer
    points = [
        AccuracyPoint(n / per_epoch, float(n), value, per_epoch)
        for n, value in enumerate(values, start=1)
    ]

    result = first_sustained(points, target, window=window)

    if result.reached:
        assert result.epoch >= window

    covered = evaluations_in(window, per_epoch)

    assert 0 <= covered - window * per_epoch <= 1
    assert covered % 2 == 1 or per_epoch == 1


def test_a_notebook_is_told_the_rule_and_the_time():
    two = time_to_accuracy(run_of(0.5, 0.1, 0.1), 0.2, window=2)._repr_html_()

    assert "by the median of 2" in two
    assert "<td>median of 2</td>" in two
    assert "8 s, at epoch 3" in two


def test_a_notebook_names_the_first_crossing():
    first = time_to_accuracy(run_of(0.5, 0.1), 0.2, window=1)._repr_html_()
    assert "by the first crossing" in first


def test_a_notebook_says_never_without_a_rule():
    never = time_to_accuracy(run_of(0.5, 0.4, 0.3), 0.2)._repr_html_()

    assert "never" in never
    assert "<td>median of 3</td>" not in never


@pytest.mark.parametrize("value", [10**400, "0.01", [0.01], True])
def test_what_is_no_rate_meets_no_target(value):
    events = run_of(0.05, 0.05, 0.05)
    for event in events:
        if event["key"] == "tracked_stats":
            event["value"]["cer"] = value

    assert not time_to_accuracy(events, 0.1).reached
