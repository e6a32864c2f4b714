import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tta.ledger_builder import LedgerBuilder
from tfasr.ledger.intervals import INTERVALS
from tfasr.ledger.timeline import Timeline
from tfasr.tta.energy import (
    ENERGY_COLUMNS,
    MAX_GAP_S,
    EnergySample,
    energy_spans,
    energy_use,
    read_samples,
)

MONO = 50.0  # where the builder's clocks begin
WALL = 1_700_000_000.0


def sample(at_s, joules, *, counter="package-0", session=0, limit=None, mono=MONO, wall=WALL):
    return EnergySample(
        (wall + at_s) * 1000, session, round(mono + at_s, 6), counter, joules, limit
    )


def use(ledger, samples, until_us=math.inf):
    timeline = Timeline(ledger.events)
    spans = energy_spans(samples, timeline)
    counters = {one.counter for one in samples}
    return energy_use(spans, timeline.pieces, counters, until_us=until_us)


def run_of_ten_seconds():
    """2 s of initialisation, two epochs of 2 s of training, 1 s forward and 1 s of decoding."""
    ledger = LedgerBuilder().begin(init_s=2)
    for epoch in (1, 2):
        ledger.epoch(epoch, 0.5, forward_s=1, decode_s=1)
    return ledger.end()


def test_joules_go_to_the_intervals_they_were_used_in():
    samples = [sample(0, 100), sample(2, 110), sample(4, 150), sample(6, 154), sample(8, 194)]
    samples += [sample(10, 200)]
    found = use(run_of_ten_seconds(), samples)
    assert found.joules["init"] == pytest.approx(10)
    assert found.joules["train"] == pytest.approx(40 + 40)
    assert found.joules["eval_forward"] == pytest.approx(2 + 3)
    assert found.joules["decode"] == pytest.approx(2 + 3)
    assert found.total_joules == pytest.approx(100)
    assert found.total_unknown_s == 0
    assert found.counters == ["package-0"]


def test_energy_until_a_target_ends_in_the_midst_of_a_span():
    samples = [sample(at, 10 * at) for at in range(11)]
    found = use(run_of_ten_seconds(), samples, until_us=4_500_000)
    assert found.total_joules == pytest.approx(45)
    assert found.joules["eval_forward"] == pytest.approx(5)
    assert found.joules["decode"] == 0


def test_a_counter_that_begins_again_goes_on():
    samples = [sample(at, (90 + 10 * at) % 100, limit=100) for at in range(11)]
    assert use(run_of_ten_seconds(), samples).total_joules == pytest.approx(100)


def test_a_counter_that_falls_without_a_range_leaves_a_gap():
    samples = [sample(at, 10 * at if at < 5 else 10 * at - 50) for at in range(11)]
    found = use(run_of_ten_seconds(), samples)
    assert found.total_joules == pytest.approx(90)
    assert found.total_unknown_s == 1
    assert found.unknown_s["eval_forward"] == 1
    assert found.joules["eval_forward"] == pytest.approx(10)


def test_counters_add_up_and_one_that_comes_later_is_a_gap():
    samples = []
    for at in range(11):
        samples.append(sample(at, 10 * at))
        samples += [sample(at, 1000 + at, counter="gpu0")] if at >= 2 else []
    found = use(run_of_ten_seconds(), samples)
    assert found.total_joules == pytest.approx(10 + 8 * 11)
    assert found.unknown_s["init"] == 1
    assert found.counters == ["gpu0", "package-0"]


def test_what_a_killed_process_used_after_its_last_sample_is_unknown():
    ledger = LedgerBuilder().begin(init_s=2).step(2).checkpoint(0)
    ledger.resume(down_s=100, from_step=1, alive_s=1, init_s=1).step(2).end()
    second = {"session": 1, "mono": 7.0, "wall": WALL + 105}
    samples = [sample(at, 10 * at) for at in range(5)]
    samples += [sample(at, 5000 + 20 * at, **second) for at in range(4)]
    found = use(ledger, samples)
    assert found.total_joules == pytest.approx(40 + 60)
    assert found.unknown_s["lost_work"] == 1
    assert found.joules["lost_work"] is None
    assert found.total_unknown_s == 1


def test_a_session_without_samples_is_unknown_and_none_at_all_is_none():
    ledger = LedgerBuilder().begin(init_s=2).step(2).checkpoint(0)
    ledger.resume(down_s=1, from_step=1, init_s=1).step(2).end()
    found = use(ledger, [sample(at, 10 * at) for at in range(5)])
    assert found.total_joules == pytest.approx(40)
    assert found.total_unknown_s == 3
    assert use(ledger, []) is None
    assert use(ledger, [sample(1, 10)]) is None


def test_samples_too_far_apart_tell_nothing():
    ledger = LedgerBuilder().begin(init_s=0).step(10 * MAX_GAP_S).end()
    samples = [sample(0, 0), sample(10, 5), sample(11 + MAX_GAP_S, 900)]
    found = use(ledger, samples)
    assert found.total_joules == pytest.approx(5)
    assert found.total_unknown_s == pytest.approx(10 * MAX_GAP_S - 10)


def test_what_lies_outside_the_run_is_not_its_energy():
    samples = [sample(-2, 0), sample(2, 40), sample(8, 100), sample(12, 140)]
    found = use(run_of_ten_seconds(), samples)
    assert found.joules["init"] == pytest.approx(20)
    assert found.total_joules == pytest.approx(100)


def test_a_jump_of_the_wall_clock_changes_nothing():
    samples = [sample(at, 10 * at, wall=WALL + (3600 if at > 4 else 0)) for at in range(11)]
    assert use(run_of_ten_seconds(), samples).total_joules == pytest.approx(100)


def test_a_ledger_without_a_monotonic_clock_goes_by_the_wall_clock():
    ledger = LedgerBuilder(with_mono=False).begin(init_s=2).step(3).end()
    found = use(ledger, [sample(at, 10 * at, mono=9e5) for at in range(6)])
    assert found.joules["init"] == pytest.approx(20)
    assert found.joules["train"] == pytest.approx(30)
    assert found.total_joules == pytest.approx(50)


def test_files_are_read_but_for_what_a_crash_cut(tmp_path):
    assert read_samples(tmp_path) == []
    (tmp_path / "energy.csv").write_text(
        ",".join(ENERGY_COLUMNS) + "\n"
        "1000,0,5.5,package-0,12.25,262143.32885\n"
        "1000,0,5.5,gpu0,7.0,\n"
        "1500,0,6.0,pack\n"
        "\n"
        "2000,1,nan,gpu0,7.0,\n"
        "2500,1,7.0,gpu0,8.5,\n"
        "3000,1,7"
    )
    assert read_samples(tmp_path) == [
        EnergySample(1000, 0, 5.5, "package-0", 12.25, 262143.32885),
        EnergySample(1000, 0, 5.5, "gpu0", 7.0, None),
        EnergySample(2500, 1, 7.0, "gpu0", 8.5, None),
    ]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_intervals_add_up_to_what_the_counter_rose_by(data):
    """Over any run and any times of samples that enclose it, with a counter that wraps."""
    seconds = st.integers(0, 8000).map(lambda ms: ms / 1000)
    ledger = LedgerBuilder().begin(init_s=data.draw(seconds))
    for epoch in range(1, data.draw(st.integers(1, 3)) + 1):
        ledger.epoch(
            epoch, 0.5, train_s=data.draw(seconds), wait_s=data.draw(seconds),
            forward_s=data.draw(seconds), decode_s=data.draw(seconds),
        )  # fmt: skip
        ledger.checkpoint(data.draw(seconds))
    ledger.end()
    length = Timeline(ledger.events).wall_s
    limit = 1000.0
    at, joules = 0.0, data.draw(st.floats(0, limit))
    samples, risen = [sample(0, joules, limit=limit)], 0.0
    while at < length:
        before = at
        at += data.draw(st.integers(1, 29_000)) / 1000
        rise = data.draw(st.floats(0, 900))
        joules = (joules + rise) % limit
        samples.append(sample(at, joules, limit=limit))
        risen += rise * min(1, (length - before) / (at - before))
    found = use(ledger, samples)
    if length == 0:
        assert found is None
        return
    assert found.total_joules == pytest.approx(risen, abs=1e-3)
    assert found.total_unknown_s == pytest.approx(0, abs=1e-9)
    assert set(found.joules) == set(INTERVALS)


def test_a_counter_that_stands_still_used_nothing_and_small_uses_count_once():
    samples = [sample(at, 7.0 + 0.25 * (at > 5), limit=100) for at in range(11)]
    found = use(run_of_ten_seconds(), samples)
    assert found.total_joules == pytest.approx(0.25)
    assert found.total_unknown_s == 0


def test_samples_as_far_apart_as_may_be_are_still_known():
    ledger = LedgerBuilder().begin(init_s=0).step(MAX_GAP_S).end()
    found = use(ledger, [sample(0, 0), sample(MAX_GAP_S, 60)])
    assert (found.total_joules, found.total_unknown_s) == (60, 0)
