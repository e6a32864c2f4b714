import pytest

from tests.tta.ledger_builder import LedgerBuilder
from tfasr.ledger.intervals import session_ranges
from tfasr.ledger.timeline import Timeline


def elapsed_s(events):
    return Timeline(events).elapsed_s


def at(events, key):
    return [
        now for event, now in zip(events, elapsed_s(events), strict=True) if event["key"] == key
    ]


def test_zero_is_the_creation_of_the_model_and_the_time_before_it_is_kept():
    ledger = LedgerBuilder().event("session_start", {"session": 0}).wait(3)
    events = ledger.event("model_creation").wait(5).event("run_stop").events
    assert elapsed_s(events) == [-3.0, 0.0, 5.0]


def test_without_a_model_creation_the_clock_starts_at_the_first_event():
    events = LedgerBuilder().event("run_start").wait(2).event("run_stop").events
    assert elapsed_s(events) == [0.0, 2.0]


def test_downtime_is_not_counted_but_the_life_after_the_last_event_is():
    ledger = LedgerBuilder().begin(init_s=2).step(3)
    events = ledger.resume(down_s=1000, alive_s=4, from_step=None, init_s=1).step(6).events
    assert at(events, "session_start") == [0.0, 9.0]
    assert at(events, "train_step") == [5.0, 16.0]


@pytest.mark.parametrize("alive_until_ms", [None, 0])
def test_a_session_lasts_at_least_until_its_last_event(alive_until_ms):
    ledger = LedgerBuilder().begin().step(3).resume(down_s=50, from_step=None)
    start = [event for event in ledger.events if event["key"] == "session_start"][1]
    start["value"]["alive_until_ms"] = alive_until_ms
    assert at(ledger.events, "session_start") == [0.0, 3.0]


def test_a_session_does_not_outlive_the_start_of_the_next():
    ledger = LedgerBuilder().begin().step(3).resume(down_s=50, from_step=None)
    start = [event for event in ledger.events if event["key"] == "session_start"][1]
    start["value"]["alive_until_ms"] += 10_000_000
    assert at(ledger.events, "session_start") == [0.0, 53.0]


def test_a_jump_of_the_wall_clock_changes_nothing():
    ledger = LedgerBuilder().begin().step(3)
    ledger.wall_s -= 7200
    events = ledger.step(4).resume(down_s=10, alive_s=1, from_step=None).step(2).events
    assert at(events, "train_step") == [3.0, 7.0, 10.0]


def test_a_log_without_a_monotonic_clock_uses_the_wall_clock_and_never_runs_backwards():
    ledger = LedgerBuilder(with_mono=False).event("model_creation").wait(2).event("a")
    ledger.wall_s -= 1
    events = ledger.event("b").wait(5).event("c").events
    assert elapsed_s(events) == [0.0, 2.0, 2.0, 6.0]


def test_events_written_out_of_order_by_threads_do_not_move_the_clock_back():
    ledger = LedgerBuilder().event("model_creation").wait(2).event("a")
    ledger.mono_s -= 0.5
    assert elapsed_s(ledger.event("b").events) == [0.0, 2.0, 2.0]


def test_no_events_have_no_times():
    assert elapsed_s([]) == []


@pytest.mark.parametrize("time", ["soon", None, True, float("nan")])
def test_an_event_without_a_usable_time_is_named(time):
    events = LedgerBuilder(with_mono=False).event("run_start").events
    events[0]["time_ms"] = time
    with pytest.raises(ValueError, match="time_ms must be a finite number.*run_start"):
        elapsed_s(events)
    events[0] |= {"time_ms": 5, "metadata": {"mono_s": time}}
    with pytest.raises(ValueError, match="mono_s must be a finite number.*run_start"):
        elapsed_s(events)


def test_one_event_and_none():
    alone = Timeline(LedgerBuilder().event("run_start").events)
    assert (alone.wall_s, alone.elapsed_s, alone.pieces) == (0.0, [0.0], [])
    empty = Timeline([])
    assert (empty.wall_s, empty.zero_us, empty.pieces, len(empty.steps)) == (0.0, 0, [], 0)
    assert set(empty.interval_seconds().values()) == {0.0}


def test_a_session_begins_where_the_events_say_another_one():
    ledger = LedgerBuilder().event("run_start").wait(2).event("a")
    ledger.session, ledger.mono_s = 1, 3.0
    ledger.wall_s += 100
    events = ledger.event("b").wait(4).event("c").events
    assert Timeline(events).sessions == [range(0, 2), range(2, 4)]
    # Nobody knows that the first process lived on: the second begins where that one ended.
    assert Timeline(events).clock_us == [0, 2_000_000, 2_000_000, 6_000_000]


@pytest.mark.parametrize(("age_s", "began_s"), [(1.5, 4.5), (60.0, 13.0)])
def test_a_process_counts_from_its_creation_but_not_from_before_its_predecessors_end(
    age_s, began_s
):
    ledger = LedgerBuilder().begin().step(2).resume(down_s=10, alive_s=1, from_step=None)
    ledger.events[-5]["metadata"]["process_age_s"] = age_s
    assert ledger.events[-5]["key"] == "session_start"
    timeline = Timeline(ledger.events)
    assert timeline.session_begins_us == [0, 3_000_000]
    assert at(ledger.events, "session_start") == [0.0, began_s]


def test_the_first_process_counts_from_its_creation():
    ledger = LedgerBuilder().begin(init_s=1).step(2)
    ledger.events[0]["metadata"]["process_age_s"] = 4.25
    timeline = Timeline(ledger.end().events)
    assert (timeline.wall_s, timeline.interval_seconds()["init"]) == (7.25, 5.25)


@pytest.mark.parametrize("time_ms", [1.5e15, -1.5e15, 10**400])
def test_a_time_beyond_all_use_is_refused(time_ms):
    events = LedgerBuilder(with_mono=False).event("run_start").events
    events[0]["time_ms"] = time_ms
    with pytest.raises(ValueError, match="usual size"):
        elapsed_s(events)


def test_a_resumed_session_that_says_nothing_of_its_step_loses_nothing():
    ledger = LedgerBuilder().begin(init_s=1).step(2).resume(down_s=5, from_step=None, init_s=1)
    start = [event for event in ledger.events if event["key"] == "session_start"][1]
    start["value"] = None
    assert Timeline(ledger.end().events).lost == []


@pytest.mark.parametrize("alive_until_ms", [1.5e15, -1.5e15, "soon"])
def test_a_proof_of_life_beyond_all_use_is_refused(alive_until_ms):
    ledger = LedgerBuilder().begin().step(3).resume(down_s=50, from_step=None)
    start = [event for event in ledger.events if event["key"] == "session_start"][1]
    start["value"]["alive_until_ms"] = alive_until_ms
    with pytest.raises(ValueError, match="alive_until_ms must be a finite number"):
        elapsed_s(ledger.events)


def test_a_session_that_says_nothing_hides_no_loss_of_a_later_one():
    ledger = LedgerBuilder().begin(init_s=1).step(2).checkpoint(1).step(4)
    ledger.resume(down_s=5, from_step=1, init_s=1)
    ledger.resume(down_s=5, from_step=1, init_s=1)
    starts = [event for event in ledger.events if event["key"] == "session_start"]
    starts[1]["value"] = None
    (lost,) = Timeline(ledger.end().events).lost
    assert ledger.events[lost.stop] is starts[2]


def test_a_change_of_the_number_alone_begins_a_session():
    numbers = [{"session": number} for number in (0, 1, 1, 2, 2)]
    assert session_ranges(list("abcde"), numbers) == [range(0, 1), range(1, 3), range(3, 5)]


def test_seconds_may_be_whole_numbers():
    events = LedgerBuilder(mono_s=3).event("a").wait(2).event("b").wait(1.5).event("c").events
    for event in events[:2]:
        event["metadata"]["mono_s"] = int(event["metadata"]["mono_s"])
    assert Timeline(events).clock_us == [0, 2_000_000, 3_500_000]
