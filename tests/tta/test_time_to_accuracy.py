import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tta.ledger_builder import LedgerBuilder
from tfasr.ledger.timeline import Timeline
from tfasr.tta.policies import PAPER, AccuracyPoint, first_sustained, rule_met


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
    assert [(p.epoch, p.elapsed_s, p.value) for p in points] == [(1, 7.0, 0.5), (2, 12.0, 0.25)]
    assert [p.value for p in accuracy_curve(run_of(0.5, 0.25), "wer")] == [1.0, 0.5]
    assert accuracy_curve(run_of(0.5), "bleu") == []


def test_the_median_of_three_epochs_decides_not_the_first_crossing():
    found = time_to_accuracy(run_of(0.5, 0.09, 0.2, 0.08, 0.07), 0.1)
    assert (found.epoch, found.seconds, found.value, found.reached) == (4, 10.0, 0.09, True)
    assert found.minutes == pytest.approx(10 / 60)


def test_the_target_itself_is_good_enough():
    assert time_to_accuracy(run_of(0.3, 0.1, 0.1), 0.1).epoch == 3


def test_fewer_than_three_epochs_decide_nothing():
    assert not time_to_accuracy(run_of(0.01, 0.01), 0.1).reached


def test_never_has_neither_time_nor_epoch():
    found = time_to_accuracy(run_of(0.5, 0.4, 0.3, 0.2), 0.1)
    assert (found.seconds, found.minutes, found.epoch, found.value) == (None, None, None, None)
    assert (found.metric, found.target, found.window) == ("cer", 0.1, 3)


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
    assert [(p.epoch, p.value) for p in points] == [(1, 0.3), (2, 0.2), (3, 0.1), (4, 0.1)]
    # 2 s and 5 epochs of 2 s, one of them twice, and a second initialisation.
    assert time_to_accuracy(events, 0.1).seconds == 13.0


def test_a_log_that_evaluates_after_the_epoch_has_its_point_at_the_evaluations_end():
    ledger = LedgerBuilder(with_mono=False).event("model_creation").wait(1)
    for epoch in (1, 2):
        ledger.event("epoch_stop", epoch_num=epoch).event("eval_start", epoch_num=epoch).wait(4)
        ledger.event("eval_accuracy", 0.5 / epoch, epoch_num=epoch)
        ledger.event("eval_stop", epoch_num=epoch)
    points = accuracy_curve(ledger.events, "wer")
    assert [(p.epoch, p.elapsed_s, p.value) for p in points] == [(1, 5.0, 0.5), (2, 9.0, 0.25)]


rates = st.lists(st.floats(0, 1.5, allow_nan=False), max_size=12)


@settings(deadline=None, max_examples=100)
@given(rates, st.floats(0, 1), st.integers(1, 5))
def test_it_is_the_first_epoch_at_which_the_rule_holds(cers, target, window):
    found = time_to_accuracy(run_of(*cers), target, window=window)
    holds = [
        last
        for last in range(window, len(cers) + 1)
        if statistics.median(cers[last - window : last]) <= target
    ]
    assert found.epoch == (holds[0] if holds else None)


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
def test_it_stops_at_the_evaluation_at_which_the_report_says_it_arrived(values, target, window):
    points = [AccuracyPoint(n, float(n), value) for n, value in enumerate(values, start=1)]
    arrived = first_sustained(points, target, window=window).epoch
    history = [{"cer": value} for value in values]
    stops = [n for n in range(len(values) + 1) if rule_met(history[:n], [("cer", target)], window)]
    assert arrived == (stops[0] if stops else None)


def test_a_notebook_is_told_the_rule_and_the_time():
    two = time_to_accuracy(run_of(0.5, 0.1, 0.1), 0.2, window=2)._repr_html_()
    assert "by the median of 2" in two
    assert "<td>median of 2</td>" in two
    assert "8 s, at epoch 3" in two
    first = time_to_accuracy(run_of(0.5, 0.1), 0.2, window=1)._repr_html_()
    assert "by the first crossing" in first
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
