import json

import pytest

from tests.reports.conftest import ledger_of
from tests.tta.ledger_builder import LedgerBuilder
from tfasr.commands.report import report
from tfasr.errors import UsageError
from tfasr.kit.config import to_json
from tfasr.tta.costs import HardwareConfig
from tfasr.tta.energy import ENERGY_COLUMNS


def hardware_file(folder, name="machine.gin", **values):
    path = folder / name
    path.write_text("".join(f"HardwareConfig.{key} = {value!r}\n" for key, value in values.items()))
    return str(path)


def write_energy(run_dir, watts, *, until_s=40, counter="package-0"):
    """A sample a second from the builder's first moment on."""
    rows = [
        f"{1_700_000_000_000 + 1000 * at},0,{50 + at},{counter},{watts * at},262143.32885"
        for at in range(until_s)
    ]
    (run_dir / "energy.csv").write_text("\n".join([",".join(ENERGY_COLUMNS), *rows]) + "\n")


def said(*paths, **options):
    """The report's text, whatever its lines' width."""
    return " ".join(report(paths, **options).split())


def rows_of(*paths, **options):
    return json.loads(report(paths, output_format="json", **options))


def test_nothing_is_said_of_cost_where_nothing_is_known(small):
    assert "Cost and energy" not in report([small])
    assert "cost_usd" not in rows_of(small)[0]


def test_a_price_turns_minutes_into_dollars(small, large, tmp_path):
    machine = hardware_file(tmp_path, price_usd_per_hour=450.0, name="m.gin")
    first, second = rows_of(small, large, hardware=[machine])
    # 2 s of initialisation and three epochs of two steps.
    assert first["charged_s"] == pytest.approx(8)
    assert first["cost_usd"] == pytest.approx(1)
    assert second["cost_usd"] == pytest.approx(1.5)
    assert (first["cost_relative"], second["cost_relative"]) == (1, pytest.approx(1.5))
    assert first["energy_kwh"] is None
    text = report([small, large], hardware=[machine])
    assert "Cost and energy to CER 10 %" in text
    assert "150 %" in text.split("Cost and energy")[1]


def test_each_run_may_have_its_own_machine(small, large, tmp_path):
    dear = hardware_file(tmp_path, "dear.gin", price_usd_per_hour=900.0)
    rows = rows_of(small, large, hardware=[f"large={dear}"], price_usd_per_hour=None)
    assert [row["cost_usd"] for row in rows] == [None, pytest.approx(3)]
    rows = rows_of(small, large, hardware=["paper_sys10", "large=paper_sys1"])
    assert [row["cost_usd"] for row in rows] == [None, None]
    # 1.5 times as long at the price of Table 1: 2605.29 for 25999.00 USD.
    assert rows[1]["cost_relative"] == pytest.approx(0.15031, abs=1e-5)
    assert [row["hardware"] for row in rows] == ["Sys10$", "Sys1$"]
    assert "no price in dollars" in said(small, hardware=["paper_sys1"])


def test_a_folder_of_runs_may_have_a_machine(tmp_path):
    for seed in (1, 2):
        ledger_of([0.1] * 3).write(tmp_path / "many" / f"seed{seed}")
    rows = rows_of(tmp_path / "many", hardware=["many=rented_per_hour"], price_usd_per_hour=450)
    assert [row["cost_usd"] for row in rows] == [pytest.approx(1)] * 2


def test_what_a_run_recorded_of_its_machine_is_used(tmp_path):
    machine = HardwareConfig(name="mine", price_usd_per_hour=450)
    run_dir = ledger_of([0.5, 0.1, 0.1]).event("hardware", to_json(machine)).write(tmp_path / "a")
    (row,) = rows_of(run_dir)
    assert (row["hardware"], row["cost_usd"]) == ("mine", pytest.approx(1))
    (row,) = rows_of(run_dir, price_usd_per_hour=900)
    assert row["cost_usd"] == pytest.approx(2)
    (row,) = rows_of(run_dir, hardware=["paper_sys1"])
    assert row["hardware"] == "Sys1$"


def test_sessions_on_different_machines_need_a_choice(tmp_path):
    ledger = ledger_of([0.5, 0.1, 0.1])
    for price in (1, 2):
        ledger.event("hardware", to_json(HardwareConfig(price_usd_per_hour=price)))
    run_dir = ledger.write(tmp_path / "a")
    assert rows_of(run_dir)[0]["cost_usd"] is None
    assert "sessions state different machines" in said(run_dir)


def test_downtime_is_not_charged_and_lost_work_is(tmp_path):
    ledger = LedgerBuilder().begin(init_s=1, targets=[["cer", 0.1]])
    ledger.step(2).checkpoint(0).step(5).resume(down_s=1000, from_step=1, init_s=1)
    for epoch in (1, 2, 3):
        ledger.epoch(epoch, 0.1, steps=1, train_s=1)
    run_dir = ledger.end().write(tmp_path / "resumed")
    options = {"hardware": ["rented_per_hour"], "price_usd_per_hour": 3600, "window": 3}
    everything = 1 + 2 + 5 + 1 + 3
    assert rows_of(run_dir, **options)[0]["cost_usd"] == pytest.approx(everything)
    # AlgoPerf's clock leaves out initialisation and lost work; the bill does not.
    (group,) = rows_of(run_dir, policy="algoperf", **options)
    assert group["time_to_accuracy_s"][0] == pytest.approx(2 + 3)
    assert group["charges"][0]["cost_usd"] == pytest.approx(everything)


def test_a_target_never_reached_never_has_a_cost(small, tmp_path):
    never = ledger_of([0.5, 0.5, 0.5]).write(tmp_path / "never")
    rows = rows_of(small, never, price_usd_per_hour=1)
    assert rows[1]["cost_usd"] is None
    assert rows[1]["charged_s"] is None
    table = report([small, never], price_usd_per_hour=1).split("Cost and energy")[1]
    line = next(line for line in table.splitlines() if line.strip().startswith("never"))
    assert line.split()[1:] == ["NA", "1", "NA", "NA", "NA"]


def test_measured_energy_is_given_by_interval_and_its_counters_named(small):
    write_energy(small, 100)
    (row,) = rows_of(small)
    assert row["energy_joules"] == pytest.approx(800)
    assert row["energy_by_interval_joules"]["init"] == pytest.approx(200)
    assert row["energy_by_interval_joules"]["train"] == pytest.approx(600)
    assert row["energy_kwh"] == pytest.approx(800 / 3.6e6)
    assert (row["energy_is"], row["energy_unknown_s"]) == ("measured", 0)
    assert row["energy_counters"] == ["package-0"]
    assert (row["cost_usd"], row["hardware"]) == (None, None)
    assert "energy of package-0, and of nothing else" in said(small)


def test_many_runs_of_one_machine_are_named_once(tmp_path):
    for seed in range(5):
        ledger_of([0.1] * 3).write(tmp_path / "many" / f"seed{seed}")
    notes = said(tmp_path / "many", hardware=["paper_sys10"])
    assert notes.count("machine Sys10$") == 1
    assert "many/seed2 and 2 more: machine Sys10$" in notes


def test_a_gap_makes_energy_a_lower_bound_and_is_said(small):
    write_energy(small, 100, until_s=6)
    (row,) = rows_of(small)
    assert row["energy_is"] == "at least"
    assert row["energy_unknown_s"] == pytest.approx(3)
    text = said(small)
    assert "> " in text.split("Cost and energy")[1]
    assert "the energy of 3.0 s is unknown" in text


def test_a_nominal_power_is_labelled_an_estimate(small, tmp_path):
    machine = hardware_file(
        tmp_path, power_w=450.0, price_usd_per_hour=450.0, electricity_usd_per_kwh=1000.0
    )
    (row,) = rows_of(small, hardware=[machine])
    assert row["energy_kwh"] == pytest.approx(0.001)
    assert row["energy_is"] == "estimate"
    assert row["electricity_usd"] == pytest.approx(1)
    assert row["cost_usd"] == pytest.approx(2)
    text = said(small, hardware=[machine])
    assert "0.001 (est.)" in text
    assert "estimated from a nominal power of 450 W" in text


def test_unlike_runs_are_refused_a_relative_cost(small, tmp_path):
    other = ledger_of([0.1] * 3, comparability={"split": "test"}).write(tmp_path / "other")
    rows = rows_of(small, other, price_usd_per_hour=1)
    assert rows[1]["cost_relative"] is None
    assert rows[1]["cost_usd"] > 0


def test_wrong_use_says_what_is_wrong(small, tmp_path):
    with pytest.raises(UsageError, match=r"'smal'.*small"):
        report([small], hardware=["smal=paper_sys1"])
    with pytest.raises(UsageError, match="one machine for all runs"):
        report([small], hardware=["paper_sys1", "paper_sys2"])
    with pytest.raises(UsageError, match="greater than 0"):
        report([small], price_usd_per_hour=-1)
    broken = ledger_of([0.1] * 3).event("hardware", {"price_usd_per_hour": -2})
    with pytest.raises(UsageError, match=r"run broken must describe its machine.*greater than 0"):
        report([broken.write(tmp_path / "broken")])


def test_the_page_holds_the_table(small, tmp_path):
    report([small], price_usd_per_hour=450, out=tmp_path / "out")
    assert "Cost and energy to CER 10 %" in (tmp_path / "out" / "report.html").read_text()
    assert "Cost and energy to CER 10 %" in (tmp_path / "out" / "report.md").read_text()
    (group,) = json.loads((tmp_path / "out" / "groups.json").read_text())
    assert group["charges"][0]["cost_usd"] == pytest.approx(1)
