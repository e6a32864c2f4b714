import json

import pytest

from tests.reports.conftest import COMPARABLE, ledger_of, objects
from tests.tta.ledger_builder import LedgerBuilder
from tfasr.commands.report import report as report_report
from tfasr.errors import UsageError
from tfasr.kit.config import to_json
from tfasr.reports.groups import group_results
from tfasr.reports.numbers import (
    analyse_run,
    ask,
    epoch_seconds,
    make_report,
    mean_utilisation,
)
from tfasr.reports.tables.paper import paper_tables
from tfasr.reports.write import report
from tfasr.tta.costs import HardwareConfig
from tfasr.tta.energy import ENERGY_COLUMNS
from tfasr.tta.policies import POLICIES
from tfasr.tta.published.results import SOURCES, published
from tfasr.tta.run import load_run

# Published results beside one's own: quoted as they stand, and never ranked against
# them.


@pytest.mark.parametrize("name", SOURCES)
def test_every_share_that_contradicts_its_minutes_says_so(name):
    for table in published(name).tables.values():
        if table.kind != "time_to_accuracy":
            continue

        first = {}
        for row in table.rows:
            base = first.setdefault((row["metric"], row["target"]), row["seconds"])
            printed = row.get("printed_relative")
            if printed is None or row["seconds"] is None:
                continue

            right = abs(row["seconds"] / base - printed) < 0.0051

            assert right == ("note" not in row), row


def test_where_the_papers_text_differs_from_its_tables_a_note_says_so():
    notes = {
        key: " ".join(table.notes) for key, table in published("paper").tables.items()
    }

    # A WER target
    assert "20 %" in notes["Table 4"]
    assert "22 %" in notes["Table 4"]
    assert "Section 6" in notes["Table 4"]
    # A beam width
    assert "256" in notes["Table 5"]
    assert "512" in notes["Table 5"]


def test_the_papers_beam_widths_were_measured_between_clean_and_other_speech():
    tables = published("paper").tables
    rates = [row["wer"] for row in tables["Table 3"].rows]
    final = {
        r["split"]: r["wer"] for r in tables["Table 5"].rows if r["system"] == "Sys10$"
    }
    clean, other = ({final[f"{kind} {split}"] for split in ("validation", "test")}
                    for kind in ("clean", "other"))  # fmt: skip

    assert max(clean) < min(rates) <= max(rates) < min(other)

    (note,) = tables["Table 3"].notes
    assert "between" in note


def test_sys1_is_faster_than_sys10_at_the_harder_targets_alone():
    times = {}
    for row in published("paper").tables["Table 4"].rows:
        times.setdefault((row["metric"], row["target"]), {})[row["system"]] = row[
            "seconds"
        ]

    faster = {
        key for key, by in times.items() if by["Sys1$"] < (by["Sys10$"] or float("inf"))
    }

    assert faster == {("cer", 0.07), ("wer", 0.202), ("wer", 0.192)}


def test_published_prices_and_times_are_those_that_the_paper_prints():
    tables = published("paper").tables

    assert [row["total_usd"] for row in tables["Table 1"].rows] == [
        2605.29,
        5699.95,
        25999.00,
    ]
    assert [row["evaluation_s"] for row in tables["Table 3"].rows] == [
        154, 187, 266, 443, 849, 1860, 4200,
    ]  # fmt: skip


def test_the_papers_systems_that_never_arrive_have_no_time():
    tables = published("paper").tables

    never = [
        (r["system"], r["target"])
        for r in tables["Table 4"].rows
        if r["seconds"] is None
    ]

    assert never == [("Sys10$", 0.07), ("Sys10$", 0.192)]
    assert len(tables["Table 4"].rows) == len(tables["Table 6"].rows) == 18


def test_a_share_that_contradicts_the_papers_minutes_is_noted():
    tables = published("paper").tables

    noted = [r["note"] for r in tables["Table 4"].rows if "note" in r]

    assert noted[0] == "1118 of 1641 minutes are 68 %; the paper prints 62 %."


def test_an_unknown_source_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="of paper, mlperf.*Received: 'nobody'"):
        published("nobody")


def test_own_runs_stand_first_and_are_ranked_among_themselves_alone(
    small, large, tmp_path
):
    unlike = ledger_of([0.1] * 3, comparability=COMPARABLE | {"beam_width": 9})
    unlike.write(tmp_path / "unlike")
    text = report(
        [small, large, tmp_path / "unlike"], beside="paper", out=tmp_path / "out"
    )
    table = text[text.index("Time to accuracy at each system's own") :]
    table = table[: table.index("with Table 5")]
    lines = [line.split() for line in table.splitlines() if line.startswith(" ")]
    times = {line[0]: line for line in lines}

    assert times["small"][1:3] == ["0.133", "(100"]
    assert times["large"][1:3] == ["0.2", "(150"]
    assert times["unlike"][1:3] == ["0.133", "(refused)"]
    # The published share is of the published first row.
    assert times["Sys2$"][1:4] == ["(published)", "672", "(82"]
    assert "(62 %*)" in table
    assert "not ranked" in " ".join(table.split())

    page = (tmp_path / "out" / "report.html").read_text()
    assert "Sys10$ (published)" in page

    records = (tmp_path / "out" / "beside_table_4.csv").read_text().splitlines()

    assert records[0].startswith("run,published,cer_0.1_s")
    assert any(line.startswith("Sys1$,") and "49200" in line for line in records)


def test_the_papers_use_of_its_gpus_is_shown_below_ones_own(small):
    write_files(small)
    text = report([small], beside="paper")
    table = text[text.index("Use of the GPUs, with Section 5.3 of the paper") :]
    lines = [line.split() for line in table.splitlines() if line.startswith(" ")]

    shares = {" ".join(line[:-1]): line[-1] for line in lines[2:5]}

    assert shares == {
        "small n/a": "75.0",
        "own batch (published) n/a": "76.0",
        "batch 96 (published) 96": "67.0",
    }
    assert "which of its systems" in " ".join(table.split())


def test_prices_and_speeds_of_other_sources(small):
    assert "16.7" in report([small], beside="mlperf")
    assert "601" in report([small], beside="algoperf")


def test_deepmarks_times_are_quoted_in_seconds(small):
    deepmark = report([small], beside="deepmark")

    assert "4 x Titan (published)" in deepmark
    assert " 180 " in deepmark
    assert "4013" in deepmark  # seconds, as they were published


def test_json_stays_what_it_was(small):
    assert json.loads(
        report([small], output_format="json", beside="paper")
    ) == json.loads(report([small], output_format="json"))


def hardware_file(folder, name="machine.gin", **values):
    """Writes a gin file that describes a machine and returns its path."""
    path = folder / name
    path.write_text(
        "".join(f"HardwareConfig.{key} = {value!r}\n" for key, value in values.items())
    )
    return str(path)


def write_energy(run_dir, watts, *, until_s=40, counter="package-0"):
    """A sample a second from the builder's first moment on."""
    rows = [
        f"{1_700_000_000_000 + 1000 * at},0,{50 + at},{counter},{watts * at},262143.32885"
        for at in range(until_s)
    ]
    (run_dir / "energy.csv").write_text(
        "\n".join([",".join(ENERGY_COLUMNS), *rows]) + "\n"
    )


def said(*paths, **options):
    """The report's text, whatever its lines' width."""
    return " ".join(report_report(paths, **options).split())


def test_nothing_is_said_of_cost_where_nothing_is_known(small):
    assert "Cost and energy" not in report_report([small])
    assert "cost_usd" not in objects(small)[0]


def test_a_price_turns_minutes_into_dollars(small, large, tmp_path):
    machine = hardware_file(tmp_path, price_usd_per_hour=450.0, name="m.gin")
    first, second = objects(small, large, hardware=[machine])

    # 2 s of initialisation and three epochs of two steps.
    assert first["charged_s"] == pytest.approx(8)
    assert first["cost_usd"] == pytest.approx(1)
    assert second["cost_usd"] == pytest.approx(1.5)
    assert (first["cost_relative"], second["cost_relative"]) == (1, pytest.approx(1.5))
    assert first["energy_kwh"] is None


def test_dollars_are_shown_in_the_text(small, large, tmp_path):
    machine = hardware_file(tmp_path, price_usd_per_hour=450.0, name="m.gin")

    text = report_report([small, large], hardware=[machine])

    assert "Cost and energy to CER 10 %" in text
    assert "150 %" in text.split("Cost and energy")[1]


def test_dollars_are_a_lower_bound_where_electricity_is_unknown_for_a_while(
    small, tmp_path
):
    start = json.loads((small / "events.jsonl").read_text().splitlines()[0])
    began_ms = start["time_ms"]
    mono_s = start["metadata"]["mono_s"]
    rows = [
        f"{began_ms + 1000 * at},0,{mono_s + at},package-0,{20 * at},262143.32885"
        for at in range(2, 13)
    ]
    (small / "energy.csv").write_text(
        "\n".join([",".join(ENERGY_COLUMNS), *rows]) + "\n"
    )
    prices = {"price_usd_per_hour": 450.0, "electricity_usd_per_kwh": 3600.0}
    machine = hardware_file(tmp_path, name="m.gin", **prices)

    (row,) = objects(small, hardware=[machine])

    assert row["energy_unknown_s"] == pytest.approx(2)
    assert row["energy_is"] == "at least"
    assert row["cost_usd"] == pytest.approx(1 + 0.12)

    text = report_report([small], hardware=[machine])

    assert "> 1.12" in text
    assert "> 0.12" in text
    assert "the energy of 2.0 s is unknown and not included (init 2.0 s)" in " ".join(
        text.split()
    )

    rented = hardware_file(tmp_path, name="r.gin", price_usd_per_hour=450.0)
    assert "> 1" not in report_report([small], hardware=[rented]).split("USD")[1]


def test_each_run_may_have_its_own_machine(small, large, tmp_path):
    dear = hardware_file(tmp_path, "dear.gin", price_usd_per_hour=900.0)
    rows = objects(small, large, hardware=[f"large={dear}"], price_usd_per_hour=None)

    assert [row["cost_usd"] for row in rows] == [None, pytest.approx(3)]


def test_the_papers_systems_are_machines_without_a_price_in_dollars(small, large):
    rows = objects(small, large, hardware=["paper_sys10", "large=paper_sys1"])

    assert [row["cost_usd"] for row in rows] == [None, None]
    # 1.5 times as long at the price of Table 1: 2605.29 for 25999.00 USD.
    assert rows[1]["cost_relative"] == pytest.approx(0.15031, abs=1e-5)
    assert [row["hardware"] for row in rows] == ["Sys10$", "Sys1$"]
    assert "no price in dollars" in said(small, hardware=["paper_sys1"])


def test_a_folder_of_runs_may_have_a_machine(tmp_path):
    for seed in (1, 2):
        ledger_of([0.1] * 3).write(tmp_path / "many" / f"seed{seed}")

    rows = objects(
        tmp_path / "many", hardware=["many=rented_per_hour"], price_usd_per_hour=450
    )

    assert [row["cost_usd"] for row in rows] == [pytest.approx(1)] * 2


@pytest.fixture
def run_of_my_machine(tmp_path):
    """A run that recorded a machine of 450 USD an hour."""
    machine = HardwareConfig(name="mine", price_usd_per_hour=450)
    ledger = ledger_of([0.5, 0.1, 0.1]).event("hardware", to_json(machine))
    return ledger.write(tmp_path / "a")


def test_what_a_run_recorded_of_its_machine_is_used(run_of_my_machine):
    (row,) = objects(run_of_my_machine)

    assert (row["hardware"], row["cost_usd"]) == ("mine", pytest.approx(1))


def test_a_price_that_is_named_comes_before_the_recorded_one(run_of_my_machine):
    (row,) = objects(run_of_my_machine, price_usd_per_hour=900)
    assert row["cost_usd"] == pytest.approx(2)


def test_a_machine_that_is_named_comes_before_the_recorded_one(run_of_my_machine):
    (row,) = objects(run_of_my_machine, hardware=["paper_sys1"])
    assert row["hardware"] == "Sys1$"


def test_sessions_on_different_machines_need_a_choice(tmp_path):
    ledger = ledger_of([0.5, 0.1, 0.1])
    for price in (1, 2):
        ledger.event("hardware", to_json(HardwareConfig(price_usd_per_hour=price)))

    run_dir = ledger.write(tmp_path / "a")

    assert objects(run_dir)[0]["cost_usd"] is None
    assert "sessions state different machines" in said(run_dir)


def test_downtime_is_not_charged_and_lost_work_is(tmp_path):
    ledger = LedgerBuilder().begin(init_s=1, targets=[["cer", 0.1]])
    ledger.step(2).checkpoint(0).step(5).resume(down_s=1000, from_step=1, init_s=1)

    for epoch in (1, 2, 3):
        ledger.epoch(epoch, 0.1, steps=1, train_s=1)

    run_dir = ledger.end().write(tmp_path / "resumed")
    options = {"hardware": ["rented_per_hour"], "price_usd_per_hour": 3600, "window": 3}
    everything = 1 + 2 + 5 + 1 + 3

    assert objects(run_dir, **options)[0]["cost_usd"] == pytest.approx(everything)

    # AlgoPerf's clock leaves out initialisation and lost work; the bill does not.
    (group,) = objects(run_dir, policy="algoperf", **options)

    assert group["time_to_accuracy_s"][0] == pytest.approx(2 + 3)
    assert group["charges"][0]["cost_usd"] == pytest.approx(everything)


def test_a_target_never_reached_never_has_a_cost(small, tmp_path):
    never = ledger_of([0.5, 0.5, 0.5]).write(tmp_path / "never")
    rows = objects(small, never, price_usd_per_hour=1)

    assert rows[1]["cost_usd"] is None
    assert rows[1]["charged_s"] is None


def test_a_target_never_reached_has_no_cost_in_the_table(small, tmp_path):
    never = ledger_of([0.5, 0.5, 0.5]).write(tmp_path / "never")

    table = report_report([small, never], price_usd_per_hour=1).split(
        "Cost and energy"
    )[1]
    line = next(line for line in table.splitlines() if line.strip().startswith("never"))

    assert line.split()[1:] == ["NA", "1", "NA", "NA", "NA"]


def test_measured_energy_is_given_by_interval_and_its_counters_named(small):
    write_energy(small, 100)
    (row,) = objects(small)

    assert row["energy_joules"] == pytest.approx(800)
    assert row["energy_by_interval_joules"]["init"] == pytest.approx(200)
    assert row["energy_by_interval_joules"]["train"] == pytest.approx(600)
    assert row["energy_kwh"] == pytest.approx(800 / 3.6e6)
    assert (row["energy_is"], row["energy_unknown_s"]) == ("measured", 0)
    assert row["energy_counters"] == ["package-0"]
    assert (row["cost_usd"], row["hardware"]) == (None, None)
    assert "energy of package-0 only" in said(small)


def test_many_runs_of_one_machine_are_named_once(tmp_path):
    for seed in range(5):
        ledger_of([0.1] * 3).write(tmp_path / "many" / f"seed{seed}")

    notes = said(tmp_path / "many", hardware=["paper_sys10"])

    assert notes.count("machine Sys10$") == 1
    assert "many/seed2 and 2 more: machine Sys10$" in notes


def test_a_gap_makes_energy_a_lower_bound_and_is_said(small):
    write_energy(small, 100, until_s=6)
    (row,) = objects(small)

    assert row["energy_is"] == "at least"
    assert row["energy_unknown_s"] == pytest.approx(3)

    text = said(small)

    assert "> " in text.split("Cost and energy")[1]
    assert "the energy of 3.0 s is unknown" in text


def test_a_nominal_power_is_labelled_an_estimate(small, tmp_path):
    machine = hardware_file(
        tmp_path,
        power_w=450.0,
        price_usd_per_hour=450.0,
        electricity_usd_per_kwh=1000.0,
    )
    (row,) = objects(small, hardware=[machine])

    assert row["energy_kwh"] == pytest.approx(0.001)
    assert row["energy_is"] == "estimate"
    assert row["electricity_usd"] == pytest.approx(1)
    assert row["cost_usd"] == pytest.approx(2)

    text = said(small, hardware=[machine])

    assert "0.001 (est.)" in text
    assert "estimated from a nominal power of 450 W" in text


def test_unlike_runs_are_refused_a_relative_cost(small, tmp_path):
    other = ledger_of([0.1] * 3, comparability={"split": "test"}).write(
        tmp_path / "other"
    )
    rows = objects(small, other, price_usd_per_hour=1)

    assert rows[1]["cost_relative"] is None
    assert rows[1]["cost_usd"] > 0


def test_wrong_use_says_what_is_wrong(small, tmp_path):
    with pytest.raises(UsageError, match=r"'smal'.*small"):
        report_report([small], hardware=["smal=paper_sys1"])
    with pytest.raises(UsageError, match="one machine for all runs"):
        report_report([small], hardware=["paper_sys1", "paper_sys2"])
    with pytest.raises(UsageError, match="price_usd_per_hour.*-1"):
        report_report([small], price_usd_per_hour=-1)

    broken = ledger_of([0.1] * 3).event("hardware", {"price_usd_per_hour": -2})
    with pytest.raises(
        UsageError,
        match=r"run broken recorded a wrong description of its machine.*greater than 0",
    ):
        report_report([broken.write(tmp_path / "broken")])


def test_the_page_holds_the_table(small, tmp_path):
    report_report([small], price_usd_per_hour=450, out=tmp_path / "out")

    assert (
        "Cost and energy to CER 10 %" in (tmp_path / "out" / "report.html").read_text()
    )
    assert "Cost and energy to CER 10 %" in (tmp_path / "out" / "report.md").read_text()

    (group,) = json.loads((tmp_path / "out" / "groups.json").read_text())
    assert group["charges"][0]["cost_usd"] == pytest.approx(1)


SYSTEM = {
    "processor": "Some CPU",
    "cores": 8,
    "memory_bytes": 64_000_000_000,
    "gpus": ["H_200", "H_200", "L4"],
    "python": "3.11.7",
    "packages": {"tensorflow": "2.21.0"},
}


def write_files(run_dir, system=SYSTEM):
    """Writes a run's system and samples, whose last lines are cut."""
    (run_dir / "run.json").write_text(json.dumps({"system": system}))
    (run_dir / "cpu.csv").write_text("time_ms,cpu_percent\n1,20.0\n2,40.0\n3,")
    (run_dir / "gpu.csv").write_text(
        "time_ms,gpu,utilisation_percent,memory_used_bytes,power_w\n"
        "1,0,50,1000000000,300.0\n1,1,100,3000000000,500.0\n2,0"
    )

    return run_dir


def tables_of(*run_dirs, targets=(("cer", 0.1),)):
    """The tables as in the paper, by name."""
    question = ask(targets, beside=POLICIES.values())
    runs = [analyse_run(load_run(path), question) for path in run_dirs]
    made = make_report(runs, question)

    return {table.name: table for table in paper_tables(made, group_results(made))}


def test_machines_are_described_as_far_as_they_are_known(small, large):
    table = tables_of(write_files(small), large)["systems"]
    records = dict(zip(table.records.columns, table.records.rows[0], strict=True))

    assert records == {
        "run": "small", "group": "small", "processor": "Some CPU", "cores": 8,
        "memory_bytes": 64_000_000_000, "gpus": "2 x H_200, 1 x L4", "python": "3.11.7",
        "tensorflow": "2.21.0",
    }  # fmt: skip
    assert table.rows[0][:4] == ["small", "Some CPU", "8", "64.0"]
    # The other run describes no machine: unknown, not none.
    assert set(table.rows[1][1:]) == {"n/a"}
    assert table.records.rows[1][2:] == [None] * 6


def test_runs_that_describe_nothing_have_no_such_tables(small, large):
    assert {"systems", "utilisation"}.isdisjoint(tables_of(small, large))


def test_times_to_accuracy_as_the_paper_prints_them(small, large, tmp_path):
    never = ledger_of([0.5] * 3).write(tmp_path / "never")
    unlike = ledger_of([0.1] * 3, comparability=COMPARABLE | {"beam_width": 9})

    table = tables_of(small, large, never, unlike.write(tmp_path / "unlike"))[
        "time_to_accuracy_of_groups"
    ]

    assert [row[1] for row in table.rows] == [
        "0.133 (100 %)", "0.200 (150 %)", "NA", "0.133 (refused)",
    ]  # fmt: skip
    assert table.records.columns == [
        "group",
        "cer_0.1_median_s",
        "cer_0.1_relative_to_first",
    ]
    assert table.records.rows[1:] == [["large", 12.0, 1.5], ["never", None, None],
                                      ["unlike", 8.0, None]]  # fmt: skip


def test_the_times_of_epochs_and_evaluations_are_means(tmp_path):
    stated = {"decoder": {"name": "word_beam", "beam_width": 64}}
    ledger = LedgerBuilder().begin(
        init_s=2, targets=[["cer", 0.1]], comparability=stated
    )
    ledger.event("global_batch_size", 16).event("train_samples", 800)

    for epoch, train_s in enumerate([1.0, 2.0, 4.0], start=1):
        ledger.epoch(epoch, 0.1, train_s=train_s, forward_s=3, decode_s=epoch)

    result = tables_of(ledger.end().write(tmp_path / "run"))

    records = {
        name: dict(
            zip(result[name].records.columns, result[name].records.rows[0], strict=True)
        )
        for name in ("epochs", "evaluation")
    }

    assert records["epochs"]["epoch_s"] == 4.0
    assert records["epochs"]["global_batch_size"] == 16
    assert records["epochs"]["train_samples"] == 800
    assert records["epochs"]["epochs_to_cer_0.1"] == 3

    expected = {"decoder": "word_beam", "beam_width": 64, "evaluations": 3, "forward_s": 3.0,
                "decode_s": 2.0, "best_cer": 0.1}  # fmt: skip
    assert expected.items() <= records["evaluation"].items()


def test_the_epochs_tables_speed_leaves_out_waiting_for_input_and_says_so(tmp_path):
    ledger = LedgerBuilder().begin(init_s=2, targets=[["cer", 0.1]])
    ledger.event("global_batch_size", 16)
    ledger.epoch(1, 0.1, steps=12, train_s=1.0, wait_s=3.0)
    table = tables_of(ledger.end().write(tmp_path / "run"))["epochs"]

    records = dict(zip(table.records.columns, table.records.rows[0], strict=True))

    # 4 utterances in a step's second, not in 4 s
    assert records["utterances_per_s"] == 4.0
    assert "without waiting for input" in " ".join(table.notes)


def test_a_resumed_epoch_is_none_and_lost_ones_do_not_count(tmp_path):
    ledger = (
        LedgerBuilder().begin(init_s=1).epoch(1, 0.5, train_s=1.0, steps=4).checkpoint()
    )
    ledger.epoch(2, 0.4, train_s=1.0, steps=6)
    ledger.resume(down_s=100, from_step=4).epoch(2, 0.4, train_s=1.0, steps=3)

    ledger.epoch(3, 0.3, train_s=1.0, steps=5)

    assert epoch_seconds(load_run(ledger.end().write(tmp_path / "run"))) == [4.0, 5.0]


def test_a_runs_own_share_of_the_processors_stands_beside_the_machines(small):
    (small / "cpu.csv").write_text(
        "time_ms,cpu_percent,process_percent\n1,20.0,5.0\n2,40.0,35.0\n"
    )
    result = mean_utilisation(load_run(small))

    assert result == pytest.approx({"cpu_share": 0.3, "process_cpu_share": 0.2})


def test_mean_utilisation_is_of_all_whole_samples(small):
    # The cut last lines are left out.
    assert mean_utilisation(load_run(write_files(small))) == {
        "cpu_share": pytest.approx(0.3),
        "gpu_share": 0.75,
        "gpu_power_w": 400.0,
        "gpu_memory_bytes": 3e9,
    }


def test_without_a_file_of_samples_mean_utilisation_is_unknown(large):
    assert mean_utilisation(load_run(large)) == {}


@pytest.mark.parametrize("samples", ["", "time_ms,cpu_percent\n"])
def test_without_samples_mean_utilisation_is_unknown(large, samples):
    (large / "cpu.csv").write_text(samples)

    assert mean_utilisation(load_run(large)) == {}


def test_the_command_shows_them_where_all_is_asked_for(small, large):
    write_files(small)

    assert "Utilisation" not in report_report([small, large])
    assert "Utilisation" in report_report([small, large], policy="paper")
    assert "Utilisation" in report_report([small, large], output_format="latex")
