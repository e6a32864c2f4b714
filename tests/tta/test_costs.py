import dataclasses
import json
import math

import gin
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tta.ledger_builder import LedgerBuilder
from tfasr.errors import UsageError
from tfasr.kit.gin import presets_folder
from tfasr.ledger.intervals import INTERVALS
from tfasr.ledger.timeline import Timeline
from tfasr.tta.costs import HardwareConfig, cost_of, load_hardware, relative_cost
from tfasr.tta.energy import (
    ENERGY_COLUMNS,
    MAX_GAP_S,
    MOST_W,
    EnergySample,
    EnergyUse,
    energy_spans,
    energy_use,
    read_samples,
)

KWH = 3.6e6
RAPL_J = 262_143.32885


def measured(joules, unknown_s=0.0):
    """Energy that a processor's counter measured in training."""
    return EnergyUse({"train": joules}, {"train": unknown_s}, ["package-0"])


def test_rent_includes_electricity_unless_it_has_a_price():
    rented = HardwareConfig(price_usd_per_hour=4)
    cost = cost_of(rented, 1800, measured(2 * KWH))

    assert (cost.machine_usd, cost.electricity_usd, cost.usd) == (2, None, 2)
    assert (cost.kwh, cost.kwh_is) == (2, "measured")


def test_a_purchase_and_its_electricity_are_paid_together():
    own = HardwareConfig(
        purchase_price_usd=8766, amortisation_years=1, electricity_usd_per_kwh=0.25
    )
    cost = cost_of(own, 7200, measured(3 * KWH))

    assert cost.machine_usd == pytest.approx(2)
    assert cost.electricity_usd == pytest.approx(0.75)
    assert cost.usd == pytest.approx(2.75)


def test_nominal_power_is_an_estimate_and_gives_way_to_a_counter():
    own = HardwareConfig(price_usd_per_hour=1, power_w=500, electricity_usd_per_kwh=0.2)
    cost = cost_of(own, 3600, None)

    assert (cost.kwh, cost.kwh_is) == (0.5, "estimate")
    assert cost.usd == pytest.approx(1.1)
    assert cost_of(own, 3600, measured(KWH)).kwh == 1


def test_seconds_without_a_counter_make_energy_a_lower_bound():
    cost = cost_of(HardwareConfig(), 3600, measured(KWH, unknown_s=5))

    assert (cost.kwh, cost.kwh_is, cost.usd) == (1, "at least", None)


def test_without_a_machine_no_cost_is_known():
    nothing = cost_of(None, 3600, None)
    assert (nothing.hourly_usd, nothing.machine_usd, nothing.usd, nothing.kwh) == (
        None,
    ) * 4


def test_electricity_without_measured_energy_has_no_cost():
    unmeasured = HardwareConfig(price_usd_per_hour=1, electricity_usd_per_kwh=0.2)
    cost = cost_of(unmeasured, 3600, None)

    assert (cost.machine_usd, cost.electricity_usd, cost.usd) == (1, None, None)


def test_costs_compare_by_purchase_prices_without_dollars():
    cheap = HardwareConfig(purchase_price_usd=1)
    dear = HardwareConfig(purchase_price_usd=10)

    # The paper's question: ten times the price is worth it above ten times the speed.
    assert relative_cost(
        cost_of(cheap, 6000, None), cost_of(dear, 2400, None)
    ) == pytest.approx(4)


def test_costs_compare_by_dollars_where_both_have_them():
    cheap = HardwareConfig(purchase_price_usd=1)

    rented = HardwareConfig(price_usd_per_hour=2, purchase_price_usd=10)
    other = HardwareConfig(price_usd_per_hour=1, purchase_price_usd=1)

    assert relative_cost(
        cost_of(other, 60, None), cost_of(rented, 60, None)
    ) == pytest.approx(2)
    assert relative_cost(
        cost_of(cheap, 60, None), cost_of(other, 60, None)
    ) == pytest.approx(1)
    assert relative_cost(cost_of(None, 60, None), cost_of(rented, 60, None)) is None


def test_purchases_without_years_compare_by_hours_times_price():
    first, second = (
        HardwareConfig(purchase_price_usd=price) for price in (2605.29, 5699.95)
    )

    one = cost_of(first, 60 * 820, None)
    other = cost_of(second, 60 * 672, None)

    assert (one.usd, other.usd) == (None, None)
    # The paper's Tables 1 and 4, CER 10 %: 672 / 820 of the minutes at 2.19 times the
    # price.
    assert relative_cost(one, other) == pytest.approx(1.793, abs=1e-3)


MONO = 50.0  # where the builder's clocks begin
WALL = 1_700_000_000.0


def sample(
    at_s, joules, *, counter="package-0", session=0, limit=None, mono=MONO, wall=WALL
):
    """A sample of a counter, so many seconds after the run's beginning."""
    return EnergySample(
        (wall + at_s) * 1000, session, round(mono + at_s, 6), counter, joules, limit
    )


def use(ledger, samples, until_us=math.inf):
    """The energy that samples show for a run."""
    timeline = Timeline(ledger.events)
    spans = energy_spans(samples, timeline)
    counters = {one.counter for one in samples}

    return energy_use(spans, timeline.pieces, counters, until_us=until_us)


def run_of_ten_seconds():
    """2 s of initialisation, two epochs of 2 s of training, 1 s forward and 1 s of
    decoding.
    """
    ledger = LedgerBuilder().begin(init_s=2)
    for epoch in (1, 2):
        ledger.epoch(epoch, 0.5, forward_s=1, decode_s=1)

    return ledger.end()


def test_joules_go_to_the_intervals_they_were_used_in():
    samples = [
        sample(0, 100),
        sample(2, 110),
        sample(4, 150),
        sample(6, 154),
        sample(8, 194),
    ]
    samples += [sample(10, 200)]

    result = use(run_of_ten_seconds(), samples)

    assert result.joules["init"] == pytest.approx(10)
    assert result.joules["train"] == pytest.approx(40 + 40)
    assert result.joules["eval_forward"] == pytest.approx(2 + 3)
    assert result.joules["decode"] == pytest.approx(2 + 3)
    assert result.total_joules == pytest.approx(100)
    assert result.total_unknown_s == 0
    assert result.counters == ["package-0"]


def test_energy_until_a_target_ends_in_the_midst_of_a_span():
    samples = [sample(at, 10 * at) for at in range(11)]
    result = use(run_of_ten_seconds(), samples, until_us=4_500_000)

    assert result.total_joules == pytest.approx(45)
    assert result.joules["eval_forward"] == pytest.approx(5)
    assert result.joules["decode"] == 0


def test_a_counter_that_begins_again_goes_on():
    samples = [sample(at, (90 + 10 * at) % 100, limit=100) for at in range(11)]

    assert use(run_of_ten_seconds(), samples).total_joules == pytest.approx(100)


def test_a_counter_that_falls_without_a_range_leaves_a_gap():
    samples = [sample(at, 10 * at if at < 5 else 10 * at - 50) for at in range(11)]
    result = use(run_of_ten_seconds(), samples)

    assert result.total_joules == pytest.approx(90)
    assert result.total_unknown_s == 1
    assert result.unknown_s["eval_forward"] == 1
    assert result.joules["eval_forward"] == pytest.approx(10)


def test_counters_add_up_and_one_that_comes_later_is_a_gap():
    samples = []
    for at in range(11):
        samples.append(sample(at, 10 * at))
        samples += [sample(at, 1000 + at, counter="gpu0")] if at >= 2 else []

    result = use(run_of_ten_seconds(), samples)

    assert result.total_joules == pytest.approx(10 + 8 * 11)
    assert result.unknown_s["init"] == 1
    assert result.counters == ["gpu0", "package-0"]


def test_what_a_killed_process_used_after_its_last_sample_is_unknown():
    ledger = LedgerBuilder().begin(init_s=2).step(2).checkpoint(0)
    ledger.resume(down_s=100, from_step=1, alive_s=1, init_s=1).step(2).end()
    second = {"session": 1, "mono": 7.0, "wall": WALL + 105}
    samples = [sample(at, 10 * at) for at in range(5)]
    samples += [sample(at, 5000 + 20 * at, **second) for at in range(4)]

    result = use(ledger, samples)

    assert result.total_joules == pytest.approx(40 + 60)
    assert result.unknown_s["lost_work"] == 1
    assert result.joules["lost_work"] is None
    assert result.total_unknown_s == 1


def test_a_session_without_samples_is_unknown_and_none_at_all_is_none():
    ledger = LedgerBuilder().begin(init_s=2).step(2).checkpoint(0)
    ledger.resume(down_s=1, from_step=1, init_s=1).step(2).end()

    result = use(ledger, [sample(at, 10 * at) for at in range(5)])

    assert result.total_joules == pytest.approx(40)
    assert result.total_unknown_s == 3
    assert use(ledger, []) is None
    assert use(ledger, [sample(1, 10)]) is None


def test_samples_too_far_apart_tell_nothing():
    ledger = LedgerBuilder().begin(init_s=0).step(10 * MAX_GAP_S).end()
    samples = [sample(0, 0), sample(10, 5), sample(11 + MAX_GAP_S, 900)]

    result = use(ledger, samples)

    assert result.total_joules == pytest.approx(5)
    assert result.total_unknown_s == pytest.approx(10 * MAX_GAP_S - 10)


def test_what_lies_outside_the_run_is_not_its_energy():
    samples = [sample(-2, 0), sample(2, 40), sample(8, 100), sample(12, 140)]
    result = use(run_of_ten_seconds(), samples)

    assert result.joules["init"] == pytest.approx(20)
    assert result.total_joules == pytest.approx(100)


@pytest.mark.parametrize("jump_s", [-3600, -2, 2, 3600])
def test_energy_is_unknown_while_the_wall_clock_jumps(jump_s):
    samples = [
        sample(at, 10 * at, wall=WALL + (jump_s if at > 4 else 0)) for at in range(11)
    ]
    result = use(run_of_ten_seconds(), samples)

    assert result.total_joules == pytest.approx(90)
    assert result.total_unknown_s == 1


@settings(deadline=None, max_examples=60)
@given(
    before=st.floats(0, RAPL_J, exclude_max=True),
    after=st.floats(0, RAPL_J, exclude_max=True),
    limit=st.sampled_from([None, RAPL_J]),
    slept_s=st.floats(1.5, 1e6),
)
def test_what_counters_show_after_a_sleep_is_not_the_runs_energy(
    before, after, limit, slept_s
):
    # 10 W; the machine sleeps between the samples at 4 and 5 s, and the counter shows
    # anything.
    samples = []
    for at in range(11):
        base, wall = (after, WALL + slept_s) if at > 4 else (before, WALL)
        samples.append(sample(at, base + 10 * at, limit=limit, wall=wall))

    result = use(run_of_ten_seconds(), samples)

    assert result.total_joules == pytest.approx(90, rel=1e-6)
    assert result.total_unknown_s == 1


@settings(deadline=None, max_examples=60)
@given(before=st.floats(0, RAPL_J - 2 * MOST_W), watts=st.floats(1, 1000))
def test_a_counter_that_began_again_far_from_its_range_did_not_wrap(before, watts):
    samples = [
        sample(at, (before if at < 5 else 0.0) + watts * at, limit=RAPL_J)
        for at in range(11)
    ]
    result = use(run_of_ten_seconds(), samples)

    if samples[5].joules >= samples[4].joules:
        assert result.total_joules <= MOST_W * 10
    else:
        assert result.total_joules == pytest.approx(9 * watts)
        assert result.total_unknown_s == 1


def test_no_counter_rises_faster_than_a_machine_draws():
    samples = [
        sample(at, 10 * at + (5000 if at > 4 else 0), counter="gpu0")
        for at in range(11)
    ]
    result = use(run_of_ten_seconds(), samples)

    assert result.total_joules == pytest.approx(90)
    assert result.unknown_s["eval_forward"] == 1


def test_a_ledger_without_a_monotonic_clock_goes_by_the_wall_clock():
    ledger = LedgerBuilder(with_mono=False).begin(init_s=2).step(3).end()
    result = use(ledger, [sample(at, 10 * at, mono=9e5) for at in range(6)])

    assert result.joules["init"] == pytest.approx(20)
    assert result.joules["train"] == pytest.approx(30)
    assert result.total_joules == pytest.approx(50)


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
    at = 0.0
    joules = data.draw(st.floats(0, limit))
    samples = [sample(0, joules, limit=limit)]
    risen = 0.0

    while at < length:
        before = at
        at += data.draw(st.integers(1, 29_000)) / 1000
        rise = data.draw(st.floats(0, min(900, 0.99 * MOST_W * (at - before))))
        joules = (joules + rise) % limit
        samples.append(sample(at, joules, limit=limit))
        risen += rise * min(1, (length - before) / (at - before))

    result = use(ledger, samples)
    if length == 0:
        assert result is None

        return

    assert result.total_joules == pytest.approx(risen, abs=1e-3)
    assert result.total_unknown_s == pytest.approx(0, abs=1e-9)
    assert set(result.joules) == set(INTERVALS)


def test_a_counter_that_stands_still_used_nothing_and_small_uses_count_once():
    samples = [sample(at, 7.0 + 0.25 * (at > 5), limit=100) for at in range(11)]
    result = use(run_of_ten_seconds(), samples)

    assert result.total_joules == pytest.approx(0.25)
    assert result.total_unknown_s == 0


def test_samples_as_far_apart_as_may_be_are_still_known():
    ledger = LedgerBuilder().begin(init_s=0).step(MAX_GAP_S).end()
    result = use(ledger, [sample(0, 0), sample(MAX_GAP_S, 60)])

    assert (result.total_joules, result.total_unknown_s) == (60, 0)


def test_a_purchase_is_spread_over_the_hours_in_which_the_machine_works():
    bought = HardwareConfig(
        purchase_price_usd=8766.0, amortisation_years=2, utilisation=0.5
    )

    assert bought.hourly_usd == pytest.approx(1.0)
    assert HardwareConfig(price_usd_per_hour=3).hourly_usd == 3
    assert HardwareConfig(purchase_price_usd=10).hourly_usd is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"price_usd_per_hour": 1, "purchase_price_usd": 9, "amortisation_years": 3},
            "rented or written",
        ),
        ({"purchase_price_usd": 0}, "greater than 0"),
        ({"amortisation_years": 3}, "must be given with the purchase_price_usd"),
        ({"price_usd_per_hour": -1}, "price_usd_per_hour must be greater than 0.*-1"),
        ({"price_usd_per_hour": 0}, "greater than 0"),
        ({"price_usd_per_hour": float("nan")}, "greater than 0"),
        ({"power_w": float("inf")}, "power_w must be"),
        ({"electricity_usd_per_kwh": -0.1}, "at least 0"),
        ({"utilisation": 0}, "utilisation must be"),
        ({"utilisation": 1.1}, "utilisation must be"),
        ({"num_devices": 0}, "num_devices must be"),
    ],
)
def test_prices_that_make_no_sense_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        HardwareConfig(**values)


def test_the_papers_machines_cost_what_its_table_1_says():
    machines = [load_hardware(f"paper_sys{number}") for number in (1, 2, 10)]
    parts = ("purchase_price_usd", "gpus_price_usd", "cpus_price_usd")

    assert [[getattr(machine, part) for part in parts] for machine in machines] == [
        [2605.29, 1980.00, 354.25],
        [5699.95, 3599.97, 97.98],
        [25999.00, 17956.00, 5422.20],
    ]
    # No years of use are stated, so no dollars an hour are invented.
    assert [machine.num_devices for machine in machines] == [4, 4, 2]
    assert [machine.name for machine in machines] == ["Sys1$", "Sys2$", "Sys10$"]
    assert {machine.hourly_usd for machine in machines} == {None}
    assert all("2003.12366" in machine.source for machine in machines)


def test_every_preset_of_a_machine_loads_once_it_has_a_price():
    folder = presets_folder() / "hardware"
    names = sorted(path.stem for path in folder.glob("*.gin"))

    with pytest.raises(UsageError, match=f"Presets: {', '.join(names)}"):
        load_hardware("nothing", price_usd_per_hour=2.5)

    for name in names:
        priced = load_hardware(name, price_usd_per_hour=2.5)

        assert priced.hourly_usd == 2.5
        assert priced.name
        assert "by hand" in priced.source
        assert load_hardware(f"hardware/{name}.gin", price_usd_per_hour=2.5) == priced
        assert load_hardware(folder / f"{name}.gin", price_usd_per_hour=2.5) == priced


def test_a_rented_machine_has_no_price_of_its_own():
    with pytest.raises(
        UsageError, match="price_usd_per_hour must be.*nothing: bind it"
    ):
        load_hardware("rented_per_hour")


def test_a_price_by_hand_does_not_join_a_purchase(tmp_path):
    path = tmp_path / "bought.gin"
    path.write_text(
        "HardwareConfig.purchase_price_usd = 9000\nHardwareConfig.amortisation_years = 3\n"
    )

    assert load_hardware(path).hourly_usd == pytest.approx(9000 / (3 * 8766))
    with pytest.raises(UsageError, match=r"bought\.gin.*rented or written off"):
        load_hardware(path, price_usd_per_hour=1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.gin", "HardwareConfig.price = 3\n", "price"),
        ("a.gin", "NoSuchConfig.price = 3\n", "NoSuchConfig"),
        ("a.gin", "", "HardwareConfig alone"),
        ("a.gin", "HardwareConfig.name = \n", r"a\.gin:1: Unable to parse value"),
        ("a.gin", "HardwareConfig.price_usd_per_hour = 'three'\n", "'three'"),
        ("a.json", "{", "must describe a machine"),
        ("a.json", "[]", "system_name"),
        ("a.json", '{"accelerators_per_node": "8"}', "system_name"),
        ("a.json", '{"system_name": "x", "price_usd_per_hour": -2}', "greater than 0"),
    ],
)
def test_files_that_describe_no_machine_are_refused_by_name(
    tmp_path, name, content, message
):
    (tmp_path / name).write_text(content)

    with pytest.raises(UsageError, match=rf"{name} must describe.*{message}|{message}"):
        load_hardware(tmp_path / name)


def test_an_unknown_machine_lists_the_known():
    with pytest.raises(
        UsageError, match="paper_sys1, paper_sys10, paper_sys2, rented_per_hour"
    ):
        load_hardware("nowhere")


def test_an_mlperf_description_is_a_machine_without_a_price(tmp_path):
    content = {
        "system_name": "Eos_n4",
        "number_of_nodes": "4",
        "accelerators_per_node": "8",
    }
    path = tmp_path / "system.json"
    path.write_text(json.dumps(content))

    machine = load_hardware(path)

    assert (machine.name, machine.num_hosts, machine.num_devices) == ("Eos_n4", 4, 32)
    assert machine.hourly_usd is None
    assert load_hardware(path, price_usd_per_hour=98).hourly_usd == 98


def test_numbers_of_devices_that_make_no_sense_are_unknown(tmp_path):
    content = {
        "system_name": "Eos_n4",
        "number_of_nodes": "4",
        "accelerators_per_node": "8",
    }
    path = tmp_path / "system.json"

    path.write_text(
        json.dumps({**content, "accelerators_per_node": "N/A", "power_w": 700})
    )

    assert load_hardware(path).num_devices is None
    assert load_hardware(path).power_w == 700

    path.write_text(json.dumps({**content, "accelerators_per_node": "0"}))
    assert load_hardware(path).num_devices is None


def test_loading_leaves_no_trace_in_gin():
    first = load_hardware("paper_sys10", price_usd_per_hour=3)

    assert load_hardware("paper_sys1").hourly_usd is None
    assert load_hardware("paper_sys10") == dataclasses.replace(
        first, price_usd_per_hour=None, source=first.source.partition(";")[0]
    )
    assert gin.config_str() == ""
