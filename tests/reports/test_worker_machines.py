"""Utilisation per worker, and energy over hosts: each counter once, or no sum."""

import json
import sys
import time

import pytest

from tests.tta.ledger_builder import LedgerBuilder
from tfasr.commands.report import report
from tfasr.kit.files import worker_events_file
from tfasr.ledger.events import Ledger, read_events
from tfasr.reports.charges import charges_of
from tfasr.reports.cluster import worker_machines
from tfasr.telemetry import samplers as machine_notes
from tfasr.telemetry.samplers import MachineNotes
from tfasr.tta.energy import ENERGY_COLUMNS
from tfasr.tta.run import load_run

WATTS = {"a": 100, "b": 60, "c": 20}
AHEAD_S = {0: 0.0, 1: 5000.0, 2: -300.0}
"""Monotonic clocks of hosts begin when they were booted."""


def noted(run_dir, rank, host, counters, *, seconds=40, sessions=(0,), **sample):
    """Writes what a worker notes while all begin together at second 1000 of the chief's clock."""
    lines = []

    def line(key, value, at_s, **metadata):
        mono_s = 1000 + at_s + AHEAD_S[rank]
        metadata |= {"mono_s": mono_s}
        lines.append({"key": key, "time_ms": 1.7e12, "value": value, "metadata": metadata})

    for session in sessions:
        identities = {name: own for name, (own, _) in counters.items()}
        machine = {"host": host, "hostname": f"node-{host}", "counters": identities}
        line("worker_machine", machine, 0, session=session)
        for at_s in range(0, seconds + 1, 10):
            energy = {n: [500 + watts * at_s, None] for n, (_, watts) in counters.items()}
            uses = {"cpu_percent": None, "process_percent": None, "gpu_percent": []}
            uses |= {n: v for n, v in sample.items() if at_s or n == "gpu_percent"}
            line("worker_sample", {**uses, "energy": energy}, at_s, session=session)
        for step in (1, 2, 3):
            line("worker_step", {}, 10 * step, session=session, step=step)
    text = "".join(json.dumps(one) + "\n" for one in lines)
    (run_dir / worker_events_file(rank)).write_text(text)


@pytest.fixture
def run_dir(tmp_path):
    """A run of 40 s of three workers; the chief's host needs 100 W."""
    folder = tmp_path / "run"
    builder = LedgerBuilder(mono_s=1000.0).event("session_start", {"session": 0})
    builder.event("cluster", {"workers": 3, "gradient_bytes": 8}).event("model_creation")
    builder.wait(40).event("run_stop", status="success").write(folder)
    rows = [f"1,0,{1000 + s},package-0,{WATTS['a'] * s}," for s in range(0, 41, 10)]
    (folder / "energy.csv").write_text("\n".join([",".join(ENERGY_COLUMNS), *rows]) + "\n")
    return folder


def package(watts):
    return {"package-0": ("package-0", watts)}


def test_workers_of_one_host_share_its_counters_and_others_add_theirs(run_dir):
    noted(run_dir, 0, "a", package(100), cpu_percent=80.0, process_percent=30.0)
    noted(run_dir, 1, "b", package(60) | {"gpu0": ("GPU-1", 200)}, gpu_percent=[50, 100])
    noted(run_dir, 2, "a", package(100), cpu_percent=80.0, process_percent=50.0)
    chief, other, last = worker_machines(run_dir)
    assert (chief.cpu_percent, chief.process_percent, chief.gpu_percent) == (80, 30, None)
    assert (other.cpu_percent, other.gpu_percent) == (None, 75)
    assert (last.counters, last.shares_with, last.process_percent) == ((), 0, 50)
    text = " ".join(report([run_dir]).split())
    assert "run, 0 (chief) node-a 80.0 30.0 n/a 1.111" in text
    assert "run, 1 node-b n/a n/a 75.0 2.889" in text
    assert "run, 2 node-a 80.0 50.0 n/a with 0" in text
    assert "run: 4 Wh over all hosts" in text


def test_energy_to_a_target_is_that_of_all_hosts_on_the_chiefs_clock(run_dir):
    noted(run_dir, 0, "a", package(100))
    noted(run_dir, 1, "b", package(60))
    noted(run_dir, 2, "c", package(20))
    charges = charges_of(load_run(run_dir), (None, []), [{"train": 25.0}])
    assert charges.targets[0].energy.total_joules == pytest.approx(25 * 180)
    assert charges.targets[0].energy.total_unknown_s == 0
    assert charges.counters == ["package-0", "package-0 of worker 1", "package-0 of worker 2"]


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ({0: "a", 1: "b", 2: None}, "would lack that of worker 2 (node-None)"),
        ({0: "a", 1: "b"}, "of the machines of workers 2 nothing is known; copy"),
    ],
)
def test_there_is_no_sum_that_would_be_too_small(run_dir, hosts, said):
    for rank, host in hosts.items():
        noted(run_dir, rank, host, package(WATTS[host]) if host else {})
    charges = charges_of(load_run(run_dir), (None, []), [{"train": 25.0}])
    assert charges.targets[0].energy is None
    assert charges.counters == []
    assert any(said in note for note in charges.notes)
    if len(hosts) == 3:
        assert "no sum of energy, since not every host shows" in report([run_dir])


def test_without_any_counter_nothing_is_said_of_energy(run_dir):
    (run_dir / "energy.csv").unlink()
    noted(run_dir, 0, "a", {})
    charges = charges_of(load_run(run_dir), (None, []), [{"train": 25.0}])
    assert not charges.known
    text = report([run_dir])
    assert "Workers: machines" in text
    assert "over all hosts" not in text
    assert "no sum of energy" not in text


def test_damaged_notes_are_left_out(run_dir):
    noted(run_dir, 0, "a", package(100))
    values = [None, 3, {"energy": 3}, {"energy": {"package-0": [None, None]}, "cpu_percent": "x"}]
    with (run_dir / worker_events_file(0)).open("a") as file:
        for at_s, value in enumerate(values):
            metadata = {"session": 0, "mono_s": 1041.0 + at_s}
            event = {"key": "worker_sample", "time_ms": 1, "value": value, "metadata": metadata}
            file.write(json.dumps(event) + "\n")
    (machine,) = worker_machines(run_dir)
    assert len(machine.samples) == 5


def test_a_worker_notes_its_machine_at_both_ends_and_between(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # the tests' own machine may have GPUs
    zone = tmp_path / "powercap" / "intel-rapl:0"
    zone.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("energy_uj", "7"), ("max_energy_range_uj", "9")):
        (zone / name).write_text(text)
    ledger = Ledger(tmp_path, file=worker_events_file(0))
    notes = MachineNotes(ledger.event, root=tmp_path / "powercap", interval_s=0.01)
    deadline = time.monotonic() + 30
    while (tmp_path / worker_events_file(0)).read_text().count("worker_sample") < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    notes.stop()
    ledger.close()
    notes.stop()
    first, *samples = read_events(tmp_path / worker_events_file(0))
    assert first["value"]["counters"] == {"package-0": "package-0"}
    assert first["value"]["host"] == machine_notes.host_id() != ""
    assert samples[0]["value"]["cpu_percent"] is None
    for sample in samples:
        assert sample["value"]["energy"] == {"package-0": [7e-06, 9e-06]}
    assert all(0 <= sample["value"]["cpu_percent"] <= 100 for sample in samples[1:])
    assert all(0 <= sample["value"]["process_percent"] <= 100 for sample in samples[1:])
