import dataclasses
import json

import gin
import pytest

from tfasr.errors import UsageError
from tfasr.kit.gin import presets_folder
from tfasr.tta.costs import HardwareConfig, hardware_presets, load_hardware


def test_a_purchase_is_spread_over_the_hours_in_which_the_machine_works():
    bought = HardwareConfig(purchase_price_usd=8766.0, amortisation_years=2, utilisation=0.5)
    assert bought.hourly_usd == pytest.approx(1.0)
    assert HardwareConfig(price_usd_per_hour=3).hourly_usd == 3
    assert HardwareConfig(relative_price=10).hourly_usd is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"price_usd_per_hour": 1, "purchase_price_usd": 9, "amortisation_years": 3}, "not both"),
        ({"purchase_price_usd": 0}, "greater than 0"),
        ({"amortisation_years": 3}, "must come with .*purchase_price_usd"),
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
    assert hardware_presets() == sorted(path.stem for path in folder.glob("*.gin"))
    for name in hardware_presets():
        priced = load_hardware(name, price_usd_per_hour=2.5)
        assert priced.hourly_usd == 2.5
        assert priced.name
        assert "by hand" in priced.source
        assert load_hardware(f"hardware/{name}.gin", price_usd_per_hour=2.5) == priced
        assert load_hardware(folder / f"{name}.gin", price_usd_per_hour=2.5) == priced


def test_a_rented_machine_has_no_price_of_its_own():
    with pytest.raises(UsageError, match="price_usd_per_hour must be.*nothing: bind it"):
        load_hardware("rented_per_hour")


def test_a_price_by_hand_does_not_join_a_purchase(tmp_path):
    path = tmp_path / "bought.gin"
    path.write_text(
        "HardwareConfig.purchase_price_usd = 9000\nHardwareConfig.amortisation_years = 3\n"
    )
    assert load_hardware(path).hourly_usd == pytest.approx(9000 / (3 * 8766))
    with pytest.raises(UsageError, match=r"bought\.gin.*not both"):
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
def test_files_that_describe_no_machine_are_refused_by_name(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=rf"{name} must describe.*{message}|{message}"):
        load_hardware(tmp_path / name)


def test_an_unknown_machine_lists_the_known():
    with pytest.raises(UsageError, match="paper_sys1, paper_sys10, paper_sys2, rented_per_hour"):
        load_hardware("nowhere")


def test_an_mlperf_description_is_a_machine_without_a_price(tmp_path):
    content = {"system_name": "Eos_n4", "number_of_nodes": "4", "accelerators_per_node": "8"}
    path = tmp_path / "system.json"
    path.write_text(json.dumps(content))
    machine = load_hardware(path)
    assert (machine.name, machine.num_hosts, machine.num_devices) == ("Eos_n4", 4, 32)
    assert machine.hourly_usd is None
    assert load_hardware(path, price_usd_per_hour=98).hourly_usd == 98
    path.write_text(json.dumps({**content, "accelerators_per_node": "N/A", "power_w": 700}))
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
