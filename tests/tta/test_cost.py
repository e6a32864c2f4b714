import pytest

from tfasr.tta.costs import HardwareConfig, cost_of, relative_cost
from tfasr.tta.energy import EnergyUse

KWH = 3.6e6


def measured(joules, unknown_s=0.0):
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


def test_what_is_not_known_is_none_and_never_nought():
    nothing = cost_of(None, 3600, None)
    assert (nothing.hourly_usd, nothing.machine_usd, nothing.usd, nothing.kwh) == (None,) * 4
    unmeasured = HardwareConfig(price_usd_per_hour=1, electricity_usd_per_kwh=0.2)
    cost = cost_of(unmeasured, 3600, None)
    assert (cost.machine_usd, cost.electricity_usd, cost.usd) == (1, None, None)


def test_costs_compare_by_dollars_else_by_relative_prices():
    cheap, dear = HardwareConfig(relative_price=1), HardwareConfig(relative_price=10)
    # The paper's question: ten times the price is worth it above ten times the speed.
    assert relative_cost(cost_of(cheap, 6000, None), cost_of(dear, 2400, None)) == pytest.approx(4)
    rented = HardwareConfig(price_usd_per_hour=2, relative_price=10)
    other = HardwareConfig(price_usd_per_hour=1, relative_price=1)
    assert relative_cost(cost_of(other, 60, None), cost_of(rented, 60, None)) == pytest.approx(2)
    assert relative_cost(cost_of(cheap, 60, None), cost_of(other, 60, None)) == pytest.approx(1)
    assert relative_cost(cost_of(None, 60, None), cost_of(rented, 60, None)) is None


def test_purchases_without_years_compare_by_hours_times_price():
    first, second = (HardwareConfig(purchase_price_usd=price) for price in (2605.29, 5699.95))
    one, other = cost_of(first, 60 * 820, None), cost_of(second, 60 * 672, None)
    assert (one.usd, other.usd) == (None, None)
    # The paper's Tables 1 and 4, CER 10 %: 672 / 820 of the minutes at 2.19 times the price.
    assert relative_cost(one, other) == pytest.approx(1.793, abs=1e-3)
    ratios_alone = cost_of(HardwareConfig(relative_price=2), 60, None)
    assert relative_cost(one, ratios_alone) is None
