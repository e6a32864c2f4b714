import json

from tests.reports.conftest import COMPARABLE, ledger_of
from tests.tta.ledger_builder import LedgerBuilder
from tfasr.commands.report import report
from tfasr.reports.groups import group_results
from tfasr.reports.numbers import analyse_run, ask, epoch_seconds, make_report, mean_utilisation
from tfasr.reports.tables.paper import paper_tables
from tfasr.tta.policies import POLICIES
from tfasr.tta.run import load_run

SYSTEM = {
    "processor": "Some CPU",
    "cores": 8,
    "memory_bytes": 64_000_000_000,
    "gpus": ["H_200", "H_200", "L4"],
    "python": "3.11.7",
    "packages": {"tensorflow": "2.21.0"},
}


def write_files(run_dir, system=SYSTEM):
    (run_dir / "run.json").write_text(json.dumps({"system": system}))
    (run_dir / "cpu.csv").write_text("time_ms,cpu_percent\n1,20.0\n2,40.0\n3,")
    (run_dir / "gpu.csv").write_text(
        "time_ms,gpu,utilisation_percent,memory_used_bytes,power_w\n"
        "1,0,50,1000000000,300.0\n1,1,100,3000000000,500.0\n2,0"
    )
    return run_dir


def tables_of(*run_dirs, targets=(("cer", 0.1),)):
    question = ask(targets, beside=POLICIES.values())
    runs = [analyse_run(load_run(path), question) for path in run_dirs]
    made = make_report(runs, question)
    return {table.name: table for table in paper_tables(made, group_results(made))}


def test_the_machines(small, large):
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
    assert table.records.columns == ["group", "cer_0.1_median_s", "cer_0.1_relative_to_first"]
    assert table.records.rows[1:] == [["large", 12.0, 1.5], ["never", None, None],
                                      ["unlike", 8.0, None]]  # fmt: skip


def test_epochs_and_evaluations(tmp_path):
    stated = {"decoder": {"name": "word_beam", "beam_width": 64}}
    ledger = LedgerBuilder().begin(init_s=2, targets=[["cer", 0.1]], comparability=stated)
    ledger.event("global_batch_size", 16).event("train_samples", 800)
    for epoch, train_s in enumerate([1.0, 2.0, 4.0], start=1):
        ledger.epoch(epoch, 0.1, train_s=train_s, forward_s=3, decode_s=epoch)
    found = tables_of(ledger.end().write(tmp_path / "run"))
    records = {
        name: dict(zip(found[name].records.columns, found[name].records.rows[0], strict=True))
        for name in ("epochs", "evaluation")
    }
    assert records["epochs"]["epoch_s"] == 4.0
    assert records["epochs"]["global_batch_size"] == 16
    assert records["epochs"]["train_samples"] == 800
    assert records["epochs"]["epochs_to_cer_0.1"] == 3
    expected = {"decoder": "word_beam", "beam_width": 64, "evaluations": 3, "forward_s": 3.0,
                "decode_s": 2.0, "best_cer": 0.1}  # fmt: skip
    assert expected.items() <= records["evaluation"].items()


def test_a_resumed_epoch_is_none_and_lost_ones_do_not_count(tmp_path):
    ledger = LedgerBuilder().begin(init_s=1).epoch(1, 0.5, train_s=1.0, steps=4).checkpoint()
    ledger.epoch(2, 0.4, train_s=1.0, steps=6)
    ledger.resume(down_s=100, from_step=4).epoch(2, 0.4, train_s=1.0, steps=3)
    ledger.epoch(3, 0.3, train_s=1.0, steps=5)
    assert epoch_seconds(load_run(ledger.end().write(tmp_path / "run"))) == [4.0, 5.0]


def test_a_runs_own_share_of_the_processors_stands_beside_the_machines(small):
    (small / "cpu.csv").write_text("time_ms,cpu_percent,process_percent\n1,20.0,5.0\n2,40.0,35.0\n")
    found = mean_utilisation(load_run(small))
    assert found == {"cpu_percent": 30.0, "process_percent": 20.0}


def test_mean_utilisation(small, large):
    # The cut last lines are left out.
    assert mean_utilisation(load_run(write_files(small))) == {
        "cpu_percent": 30.0,
        "gpu_percent": 75.0,
        "gpu_power_w": 400.0,
        "gpu_memory_bytes": 3e9,
    }
    assert mean_utilisation(load_run(large)) == {}
    (large / "cpu.csv").write_text("")
    assert mean_utilisation(load_run(large)) == {}
    (large / "cpu.csv").write_text("time_ms,cpu_percent\n")
    assert mean_utilisation(load_run(large)) == {}


def test_the_command_shows_them_where_all_is_asked_for(small, large):
    write_files(small)
    assert "Utilisation" not in report([small, large])
    assert "Utilisation" in report([small, large], policy="paper")
    assert "Utilisation" in report([small, large], output_format="latex")
