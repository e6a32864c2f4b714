import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tta.interval_reference import pieces_of
from tests.tta.ledger_builder import LedgerBuilder
from tfasr.ledger.intervals import INTERVALS, session_ranges
from tfasr.ledger.timeline import Timeline


def elapsed_s(events):
    return Timeline(events).elapsed_s


def interval_seconds(events, **until):
    return Timeline(events).interval_seconds(**until)


def useful_events(events):
    useful = Timeline(events).useful
    return [event for event, counts in zip(events, useful, strict=True) if counts]


def seconds(ledger, **options):
    result = interval_seconds(ledger.events, **options)
    assert tuple(result) == INTERVALS
    return {name: value for name, value in result.items() if value}


def test_every_kind_of_interval_has_its_seconds():
    ledger = LedgerBuilder().begin(init_s=5).wait(0.25)
    ledger.step(0, compile_s=7, wait_s=1).step(2, wait_s=0.5)

    ledger.interval("sentences", 0.125, step=2).checkpoint(3).evaluate(
        1, 0.5, forward_s=11, decode_s=13
    )

    ledger.end()

    assert seconds(ledger) == {
        "init": 5, "overhead": 0.25, "compile": 7, "input_wait": 1.5, "train": 2,
        "sentences": 0.125, "checkpoint": 3, "eval_forward": 11, "decode": 13,
    }  # fmt: skip


def test_a_step_takes_its_time_only_from_what_passed_since_the_last_one():
    ledger = LedgerBuilder().begin().step(2).checkpoint(3).step(1)
    # The step claims more than the second since the checkpoint: a checkpoint stays a
    # checkpoint.
    ledger.events[-1]["value"]["train_s"] = 100.0

    assert seconds(ledger) == {"train": 3, "checkpoint": 3}


@pytest.mark.parametrize("claim", [None, float("nan"), -1.0, "1"])
def test_a_step_that_says_nothing_usable_is_overhead(claim):
    ledger = LedgerBuilder().begin().step(2)
    ledger.events[-1]["value"]["train_s"] = claim

    assert seconds(ledger) == {"overhead": 2}


def test_the_innermost_open_interval_has_the_time():
    ledger = LedgerBuilder().begin().event("eval_forward_start").wait(1)
    ledger.interval("decode", 2).wait(4).event("eval_forward_stop").wait(8).end()

    assert seconds(ledger) == {"eval_forward": 5, "decode": 2, "overhead": 8}


def test_an_interval_that_several_processes_begin_ends_once():
    ledger = LedgerBuilder().begin().event("init_start").event("init_start").wait(1)
    ledger.event("init_stop").wait(2).event("init_stop").end()

    assert seconds(ledger) == {"init": 1, "overhead": 2}


def test_a_stop_without_its_start_is_ignored():
    ledger = LedgerBuilder().begin().event("decode_stop").wait(2).end()

    assert seconds(ledger) == {"overhead": 2}


def test_work_after_the_checkpoint_that_was_resumed_from_is_lost():
    ledger = (
        LedgerBuilder()
        .begin(init_s=1)
        .step(2)
        .checkpoint(4)
        .step(8)
        .event("decode_start")
    )
    ledger.resume(down_s=1000, alive_s=16, from_step=1, init_s=32).step(64).end()

    assert seconds(ledger) == {
        "init": 33, "train": 66, "checkpoint": 4, "lost_work": 24,
    }  # fmt: skip


def test_the_last_checkpoint_of_a_step_is_the_one_resumed_from():
    ledger = LedgerBuilder().begin().step(1).checkpoint(1).evaluate(1, 0.5, forward_s=2)

    ledger.checkpoint(1).step(4).resume(down_s=1, from_step=1).end()
    assert seconds(ledger) == {
        "train": 1,
        "checkpoint": 2,
        "eval_forward": 2,
        "lost_work": 4,
    }


@pytest.mark.parametrize("nothing", [None, 0])
def test_a_session_that_resumed_from_nothing_leaves_only_the_first_initialisation(
    nothing,
):
    ledger = LedgerBuilder().begin(init_s=1).step(2).checkpoint(4)
    ledger.resume(down_s=9, from_step=nothing, init_s=8).step(16).end()

    assert seconds(ledger) == {"init": 9, "train": 16, "lost_work": 6}


def test_an_initialisation_that_was_killed_is_lost():
    ledger = (
        LedgerBuilder()
        .event("session_start", {"session": 0})
        .event("init_start")
        .wait(3)
    )
    ledger.resume(down_s=9, from_step=None, init_s=8).end()

    assert seconds(ledger) == {"init": 8, "lost_work": 3}


def test_sessions_that_resume_twice_from_one_checkpoint_lose_the_one_between():
    ledger = LedgerBuilder().begin(init_s=1).step(2).checkpoint().step(4)
    ledger.resume(down_s=9, from_step=1, init_s=8).step(16)

    ledger.resume(down_s=9, from_step=1, init_s=32).step(64).end()

    assert seconds(ledger) == {"init": 33, "train": 66, "lost_work": 28}


@pytest.mark.parametrize(
    ("left", "lost"), [("checkpoint_start", 3 + 8), ("train_step", 1 + 3 + 8)]
)
def test_a_checkpoint_whose_stop_was_never_written_still_counts(left, lost):
    ledger = LedgerBuilder().begin().step(2).wait(1).checkpoint(3).step(8)
    written = ["checkpoint_stop", "checkpoint_start"][
        : 1 if left == "checkpoint_start" else 2
    ]
    ledger.events = [event for event in ledger.events if event["key"] not in written]

    ledger.resume(down_s=9, from_step=1).end()

    assert seconds(ledger)["lost_work"] == lost


def test_a_lost_evaluation_is_superseded():
    ledger = LedgerBuilder().begin().epoch(1, 0.9).checkpoint().epoch(2, 0.8)
    ledger.resume(down_s=1, from_step=2).epoch(2, 0.7).end()

    stats = [
        e["value"]["cer"]
        for e in useful_events(ledger.events)
        if e["key"] == "tracked_stats"
    ]

    assert stats == [0.9, 0.7]


def test_intervals_up_to_a_time_since_the_creation_of_the_model():
    ledger = (
        LedgerBuilder()
        .event("session_start", {"session": 0})
        .wait(1)
        .event("init_start")
    )
    ledger.wait(2).event("model_creation").wait(4).event("init_stop").step(8).end()

    assert seconds(ledger, until_s=5) == {"overhead": 1, "init": 6, "train": 1}
    assert seconds(ledger, until_s=-2) == {"overhead": 1}


short = st.floats(0, 3, allow_nan=False)


@st.composite
def ledgers(draw):
    """Runs of any length with kills anywhere, resumed from any step that has a checkpoint."""
    ledger = LedgerBuilder().begin(draw(short))
    saved = [None]
    for _ in range(draw(st.integers(0, 12))):
        action = draw(
            st.sampled_from(["step", "save", "evaluate", "open", "kill", "wait", "lie"])
        )
        if action == "step":
            ledger.step(draw(short), wait_s=draw(short), compile_s=draw(short))
        elif action == "lie":
            ledger.step(draw(short))
            ledger.events[-1]["value"]["input_wait_s"] = draw(short)
        elif action == "save":
            ledger.checkpoint(draw(short))
            saved.append(ledger.step_number or None)
        elif action == "evaluate":
            ledger.evaluate(1, 0.5, forward_s=draw(short), decode_s=draw(short))
        elif action == "open":
            name = draw(
                st.sampled_from(["init", "eval_forward", "decode", "checkpoint"])
            )
            ledger.event(f"{name}_start", step=ledger.step_number)
        elif action == "kill":
            ledger.resume(
                down_s=draw(short),
                alive_s=draw(short),
                from_step=draw(st.sampled_from(saved)),
                init_s=draw(short),
            )

        ledger.wait(draw(short))

    return ledger.end()


@settings(deadline=None, max_examples=200)
@given(ledgers(), st.floats(0, 1))
def test_every_second_is_in_exactly_one_interval(ledger, part):
    times = elapsed_s(ledger.events)
    result = interval_seconds(ledger.events)

    assert all(value >= 0 for value in result.values())

    microseconds = sum(round(value * 1e6) for value in result.values())
    assert microseconds == round(times[-1] * 1e6) - round(times[0] * 1e6)

    until_s = times[0] + part * (times[-1] - times[0])
    some = interval_seconds(ledger.events, until_s=until_s)

    assert sum(some.values()) == pytest.approx(until_s - times[0], abs=1e-5)
    assert all(some[name] <= result[name] for name in INTERVALS)


@settings(deadline=None, max_examples=200)
@given(ledgers())
def test_the_pieces_are_those_of_going_from_event_to_event(ledger):
    ledger.events[0]["metadata"]["process_age_s"] = 0.5
    timeline = Timeline(ledger.events)

    assert timeline.pieces == pieces_of(timeline)


@settings(deadline=None, max_examples=100)
@given(ledgers())
def test_there_is_lost_work_only_where_there_are_lost_events_or_a_silence(ledger):
    kills = any(event["metadata"]["session"] for event in ledger.events)
    lost = len(ledger.events) - len(useful_events(ledger.events))

    if not kills:
        assert lost == 0
        assert interval_seconds(ledger.events)["lost_work"] == 0

    kept_stats = [
        e["value"] for e in useful_events(ledger.events) if e["key"] == "train_step"
    ]
    claimed = sum(stats["train_s"] for stats in kept_stats)

    assert interval_seconds(ledger.events)["train"] <= claimed + 1e-3


def test_a_lost_step_takes_no_time_from_before_the_checkpoint_it_was_lost_after():
    ledger = LedgerBuilder().begin(1.0).step(0.0).wait(1.0).checkpoint(0.0)
    ledger.event("decode_start", step=1)  # never ended: it has the step's time
    ledger.step(1.0).resume(down_s=1.0, from_step=1)

    result = interval_seconds(ledger.end().events)

    assert result["train"] == 0
    assert result["lost_work"] == pytest.approx(1.0, abs=1e-3)


def test_a_start_that_was_killed_before_its_initialisation_ended_is_lost_from_the_beginning():
    ledger = (
        LedgerBuilder()
        .event("session_start", {"session": 0})
        .wait(2)
        .event("init_start")
    )
    ledger.wait(3).resume(down_s=9, from_step=None, init_s=8).end()

    assert seconds(ledger) == {"init": 8, "lost_work": 5}


def test_a_step_of_infinite_seconds_takes_none():
    ledger = LedgerBuilder().begin().step(1.0).step(2.0)
    ledger.events[-1]["value"]["train_s"] = math.inf

    assert Timeline(ledger.events).interval_seconds()["train"] == pytest.approx(1.0)


def at(events, key):
    """When the events of a key happened, in seconds."""
    return [
        now
        for event, now in zip(events, elapsed_s(events), strict=True)
        if event["key"] == key
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
    events = (
        ledger.resume(down_s=1000, alive_s=4, from_step=None, init_s=1).step(6).events
    )

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


@pytest.mark.parametrize("time", ["soon", None, True, float("nan")])
def test_an_event_without_a_usable_monotonic_time_is_named(time):
    events = LedgerBuilder(with_mono=False).event("run_start").events

    events[0] |= {"time_ms": 5, "metadata": {"mono_s": time}}
    with pytest.raises(ValueError, match="mono_s must be a finite number.*run_start"):
        elapsed_s(events)


def test_one_event_takes_no_time():
    alone = Timeline(LedgerBuilder().event("run_start").events)
    assert (alone.wall_s, alone.elapsed_s, alone.pieces) == (0.0, [0.0], [])


def test_a_timeline_without_events_is_empty():
    empty = Timeline([])

    assert empty.wall_s == 0.0
    assert empty.zero_us == 0
    assert empty.pieces == []
    assert len(empty.steps) == 0
    assert set(empty.interval_seconds().values()) == {0.0}


def test_a_session_begins_where_the_events_say_another_one():
    ledger = LedgerBuilder().event("run_start").wait(2).event("a")
    ledger.session = 1
    ledger.mono_s = 3.0
    ledger.wall_s += 100

    events = ledger.event("b").wait(4).event("c").events

    assert Timeline(events).sessions == [range(0, 2), range(2, 4)]
    # Nobody knows that the first process lived on: the second begins where that one
    # ended.
    assert Timeline(events).clock_us == [0, 2_000_000, 2_000_000, 6_000_000]


@pytest.mark.parametrize(("age_s", "began_s"), [(1.5, 4.5), (60.0, 13.0)])
def test_a_process_counts_from_its_creation_but_not_from_before_its_predecessors_end(
    age_s, began_s
):
    ledger = (
        LedgerBuilder().begin().step(2).resume(down_s=10, alive_s=1, from_step=None)
    )
    ledger.events[-5]["metadata"]["process_age_s"] = age_s

    assert ledger.events[-5]["key"] == "session_start"

    timeline = Timeline(ledger.events)

    assert timeline.session_begins_us == [0, 3_000_000]
    assert at(ledger.events, "session_start") == [0.0, began_s]


@settings(deadline=None, max_examples=60)
@given(
    back_s=st.floats(0, 1e6),
    age_s=st.floats(0, 60),
    alive_s=st.floats(0, 5),
    with_mono=st.booleans(),
)
def test_a_wall_clock_set_back_between_sessions_takes_no_time_away(
    back_s, age_s, alive_s, with_mono
):
    def events(back_s):
        ledger = LedgerBuilder(with_mono=with_mono).begin().step(2)
        ledger.resume(down_s=100, alive_s=alive_s, from_step=None).step(3)
        for event in ledger.events[-6:]:
            event["time_ms"] -= back_s * 1000

        assert ledger.events[-6]["key"] == "session_start"
        ledger.events[-6]["metadata"]["process_age_s"] = age_s

        return ledger.events

    # Set back to before the first process's last event: that the two didn't overlap is
    # all one can know.
    right = Timeline(events(0))
    result = Timeline(events(102 + alive_s + back_s))

    assert result.wall_s == pytest.approx(right.wall_s, abs=2e-3)
    assert result.wall_s == pytest.approx(2 + alive_s + age_s + 3, abs=2e-3)


def test_the_first_process_counts_from_its_creation():
    ledger = LedgerBuilder().begin(init_s=1).step(2)
    ledger.events[0]["metadata"]["process_age_s"] = 4.25

    timeline = Timeline(ledger.end().events)

    assert (timeline.wall_s, timeline.interval_seconds()["init"]) == (7.25, 5.25)


@pytest.mark.parametrize("time_ms", [1.5e15, -1.5e15, 10**400])
def test_a_time_beyond_all_use_is_refused(time_ms):
    events = LedgerBuilder(with_mono=False).event("run_start").events
    events[0]["time_ms"] = time_ms

    with pytest.raises(ValueError, match="plausible size"):
        elapsed_s(events)


def test_a_resumed_session_that_says_nothing_of_its_step_loses_nothing():
    ledger = (
        LedgerBuilder()
        .begin(init_s=1)
        .step(2)
        .resume(down_s=5, from_step=None, init_s=1)
    )
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

    assert session_ranges(list("abcde"), numbers) == [
        range(0, 1),
        range(1, 3),
        range(3, 5),
    ]


def test_seconds_may_be_whole_numbers():
    events = (
        LedgerBuilder(mono_s=3)
        .event("a")
        .wait(2)
        .event("b")
        .wait(1.5)
        .event("c")
        .events
    )
    for event in events[:2]:
        event["metadata"]["mono_s"] = int(event["metadata"]["mono_s"])

    assert Timeline(events).clock_us == [0, 2_000_000, 3_500_000]
