"""Utilisation per worker, and energy over hosts: each counter once, or no sum."""

import json
import sys
import time

import pytest

from tests.tta.ledger_builder import LedgerBuilder
from tests.tta.test_host import Machine
from tfasr.commands.report import report
from tfasr.errors import UsageError
from tfasr.kit.files import worker_events_file, worker_host_file
from tfasr.ledger.events import Ledger, read_events
from tfasr.ledger.schema import Cluster, Link
from tfasr.reports.charges import (
    WorkerTimes,
    charges_of,
    exchange_of,
    machines_of,
    read_worker_files,
    times_of_workers,
)
from tfasr.reports.groups import configuration
from tfasr.telemetry import samplers as machine_notes
from tfasr.telemetry.samplers import MachineNotes
from tfasr.tta.energy import ENERGY_COLUMNS
from tfasr.tta.run import load_run

# The table of a cluster's workers: who waited for whom.


def note(run_dir, rank, steps, session=0):
    """Writes what a worker noted: ``(begin, ready, end)`` of each step on a clock of
    its own.
    """
    lines = []
    for number, (begin_s, ready_s, end_s, more) in enumerate(steps, start=1):
        value = {"utterances": 2, "input_wait_s": 0.25, "compiled": False}
        value |= {"step_s": end_s - begin_s, "ready_s": ready_s - begin_s, **more}
        metadata = {"session": session, "step": number, "mono_s": 1000.0 * rank}
        lines.append(
            {"key": "worker_step", "time_ms": 1, "value": value, "metadata": metadata}
        )

    text = "".join(json.dumps(line) + "\n" for line in lines)
    with (run_dir / f"events-worker-{rank}.jsonl").open("a") as file:
        file.write(text)


def test_who_is_ready_last_is_waited_for_whatever_the_clocks_say(tmp_path):
    # Worker 1 computes longer in the first step and begins later in the second.
    note(tmp_path, 0, [(0, 1, 3.5, {}), (4, 5, 7.5, {}), (8, 9, 9.5, {})])
    note(
        tmp_path, 1, [(0, 3, 3.5, {}), (6, 7, 7.5, {}), (8, 9, 9.5, {"compiled": True})]
    )

    chief, other = times_of_workers(read_worker_files(tmp_path))

    assert chief.rank == 0
    assert chief.steps == 2
    assert chief.utterances == 4
    assert chief.input_wait_s == 0.5
    assert (chief.step_s, chief.waited_s, chief.held_up_s) == (7, 4, 0)
    assert (other.step_s, other.waited_s, other.held_up_s) == (5, 0, 4)
    assert (chief.exchange_s, other.exchange_s) == (1, 1)
    assert (chief.sent_buffers, other.sent_buffers) == (2, 2)
    assert chief.waited_share == pytest.approx(4 / 7)


def test_each_session_has_its_own_workers(tmp_path):
    for rank in (0, 1, 2):
        note(tmp_path, rank, [(0, 1 + rank, 4, {})])

    for rank in (0, 1):
        note(tmp_path, rank, [(0, 2 - rank, 4, {})] * 2, session=1)

    parts = times_of_workers(read_worker_files(tmp_path))

    assert [part.steps for part in parts] == [3, 3, 1]
    # The first waited 2 s for worker 2, then worker 1 twice 1 s for the first.
    assert [part.waited_s for part in parts] == [2, 1 + 2, 0]
    assert [part.held_up_s for part in parts] == [2, 0, 2]
    assert [part.sent_buffers for part in parts] == pytest.approx(
        [2 + 4 / 3, 2 + 4 / 3, 4 / 3]
    )


def test_without_workers_files_there_are_no_times(tmp_path):
    assert times_of_workers(read_worker_files(tmp_path / "missing")) == []


def test_a_worker_alone_waits_for_nobody(tmp_path):
    note(tmp_path, 0, [(0, 1, 2, {})])
    assert times_of_workers(read_worker_files(tmp_path)) == []


def test_damaged_times_of_workers_say_nothing(tmp_path):
    note(tmp_path, 0, [(0, 1, 2, {})])
    note(tmp_path, 1, [(0, 1, 2, {"step_s": "long"})])
    assert times_of_workers(read_worker_files(tmp_path)) == []


def test_a_damaged_file_of_a_worker_says_nothing(tmp_path):
    note(tmp_path, 0, [(0, 1, 2, {})])
    (tmp_path / "events-worker-1.jsonl").write_text("nothing\nnothing\nnothing\n")
    assert times_of_workers(read_worker_files(tmp_path)) == []


def test_a_report_of_one_process_has_no_table_of_workers(small):
    assert "who waited for whom" not in report([small])


def test_a_report_of_a_cluster_shows_who_waited_for_whom(small):
    note(small, 0, [(0, 1, 3.5, {})])
    note(small, 1, [(0, 3, 3.5, {})])

    text = " ".join(report([small]).split())

    assert "Workers: who waited for whom" in text
    assert f"{small.name}, 0 (chief) 1 2 0.25 3.5 2.00 57.1 0.00 0.50" in text
    assert f"{small.name}, 1 1 2 0.25 3.5 0.00 0.0 2.00 0.50" in text


LINK = {"small_bytes": 4096, "small_s": 0.002, "bytes_per_s": 1.2e9}


def test_the_exchange_stands_against_the_link_that_was_measured(tmp_path):
    builder = LedgerBuilder().event(
        "cluster", {"workers": 2, "gradient_bytes": 8e6, "link": LINK}
    )
    builder.write(tmp_path / "run")
    for rank in (0, 1):
        note(tmp_path / "run", rank, [(0, 1, 1.02, {}), (2, 3, 3.02, {})])

    text = " ".join(report([tmp_path / "run"]).split())

    assert "Workers: exchange of gradients" in text
    # 8 MB in 20 ms; and that is 2 % of a step.
    assert "run 2 8 20.00 2.0 400 1200 2.00" in text


@pytest.mark.parametrize("cluster", [None, {"workers": 2}])
def test_an_exchange_of_unknown_size_has_no_table(tmp_path, cluster):
    LedgerBuilder().event("cluster", cluster).write(tmp_path / "run")
    for rank in (0, 1):
        note(tmp_path / "run", rank, [(0, 1, 2, {})])

    assert "exchange of gradients" not in report([tmp_path / "run"])


@pytest.mark.parametrize("cluster", [3, {}, {"workers": "2", "gradient_bytes": 8}])
def test_a_cluster_of_another_type_is_refused_by_line(tmp_path, cluster):
    LedgerBuilder().event("cluster", cluster).write(tmp_path / "run")

    with pytest.raises(
        UsageError, match="In line 1 .* the value of cluster must be an object"
    ):
        report([tmp_path / "run"])


def test_what_was_not_measured_is_not_told(tmp_path):
    parts = [WorkerTimes(0, 2, 4, 0.0, 8.0, 0.0, 0.0, 0.5, 2.0)]
    result = exchange_of(parts, Cluster(workers=2, gradient_bytes=1000, link=Link()))

    assert (result["achieved_bytes_per_s"], result["share"]) == (4000, 1 / 16)
    assert result["measured_bytes_per_s"] is None
    assert result["latency_s"] is None


def test_runs_of_other_numbers_of_workers_are_no_group(tmp_path):
    result = {}
    for name, workers in (("one", None), ("two", 2), ("two_again", 2), ("three", 3)):
        builder = LedgerBuilder().event("global_batch_size", 4)
        if workers is not None:
            link = {"took_s": len(name)}
            builder.event(
                "cluster", {"workers": workers, "gradient_bytes": 8, "link": link}
            )

        builder.write(tmp_path / name)
        (tmp_path / name / "operative_config.gin").write_text(
            "TrainingConfig.epochs = 3\n"
        )
        result[name] = configuration(load_run(tmp_path / name))

    assert result["two"] == result["two_again"]
    assert len(set(result.values())) == 3


WATTS = {"a": 100, "b": 60, "c": 20}
AHEAD_S = {0: 0.0, 1: 5000.0, 2: -300.0}
"""Monotonic clocks of hosts begin when they were booted."""


def noted(run_dir, rank, host, counters, *, seconds=40, sessions=(0,), **sample):
    """Writes what a worker notes while all begin together at second 1000 of the chief's
    clock.
    """
    lines = []

    def line(key, value, at_s, **metadata):
        mono_s = 1000 + at_s + AHEAD_S[rank]
        metadata |= {"mono_s": mono_s}
        time_ms = 1.7e12 + 1000 * at_s
        lines.append(
            {"key": key, "time_ms": time_ms, "value": value, "metadata": metadata}
        )

    for session in sessions:
        identities = {name: own for name, (own, _) in counters.items()}
        machine = {"host": host, "hostname": f"node-{host}", "counters": identities}
        line("worker_machine", machine, 0, session=session)

        for at_s in range(0, seconds + 1, 10):
            energy = {
                n: [500 + watts * at_s, None] for n, (_, watts) in counters.items()
            }
            uses = {"cpu_percent": None, "process_percent": None, "gpu_percent": []}
            uses |= {n: v for n, v in sample.items() if at_s or n == "gpu_percent"}
            line("worker_sample", {**uses, "energy": energy}, at_s, session=session)

        for step in (1, 2, 3):
            line("worker_step", None, 10 * step, session=session, step=step)

    text = "".join(json.dumps(one) + "\n" for one in lines)
    (run_dir / worker_events_file(rank)).write_text(text)


@pytest.fixture
def run_dir(tmp_path):
    """A run of 40 s of three workers; the chief's host needs 100 W."""
    folder = tmp_path / "run"
    builder = LedgerBuilder(mono_s=1000.0).event("session_start", {"session": 0})
    builder.event("cluster", {"workers": 3, "gradient_bytes": 8}).event(
        "model_creation"
    )
    builder.wait(40).event("run_stop", status="success").write(folder)
    rows = [
        f"{1000 * s},0,{1000 + s},package-0,{WATTS['a'] * s}," for s in range(0, 41, 10)
    ]
    (folder / "energy.csv").write_text(
        "\n".join([",".join(ENERGY_COLUMNS), *rows]) + "\n"
    )

    return folder


def package(watts):
    """The reading of a processor's energy counter, in joules."""
    return {"package-0": ("package-0", watts)}


def test_workers_of_one_host_share_its_counters_and_others_add_theirs(run_dir):
    noted(run_dir, 0, "a", package(100), cpu_percent=80.0, process_percent=30.0)
    noted(
        run_dir, 1, "b", package(60) | {"gpu0": ("GPU-1", 200)}, gpu_percent=[50, 100]
    )
    noted(run_dir, 2, "a", package(100), cpu_percent=80.0, process_percent=50.0)

    chief, other, last = machines_of(read_worker_files(run_dir))

    assert chief.cpu_percent == 80
    assert chief.process_percent == 30
    assert chief.gpu_percent is None
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
    assert charges.counters == [
        "package-0",
        "package-0 of worker 1",
        "package-0 of worker 2",
    ]


def test_a_second_that_any_host_does_not_know_is_unknown_once(run_dir):
    # The chief's counter goes away for a sample: unknown from 0 to 20 s. Worker 1: from
    # 30 s on.
    lines = (run_dir / "energy.csv").read_text().splitlines()
    rows = [
        row.replace("package-0", "other") if ",1010" in row else row for row in lines
    ]
    (run_dir / "energy.csv").write_text("\n".join(rows) + "\n")
    noted(run_dir, 0, "a", package(100))
    noted(run_dir, 1, "b", package(60), seconds=30)
    noted(run_dir, 2, "c", package(20))
    charges = charges_of(load_run(run_dir), (None, []), [{"train": 40.0}])
    energy = charges.targets[0].energy

    assert energy.total_unknown_s == pytest.approx(20 + 10)
    assert energy.total_joules == pytest.approx(20 * 100 + 30 * 60 + 40 * 20)


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ({0: "a", 1: "b", 2: None}, "worker 2 (node-None) has no energy counter"),
        ({0: "a", 1: "b"}, "known about the machines of workers 2; copy"),
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
        assert "no sum of energy" in report([run_dir])


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
    values = [
        None,
        3,
        {"energy": 3},
        {"energy": {"package-0": [None, None]}, "cpu_percent": "x"},
    ]
    with (run_dir / worker_events_file(0)).open("a") as file:
        for at_s, value in enumerate(values):
            metadata = {"session": 0, "mono_s": 1041.0 + at_s}
            event = {
                "key": "worker_sample",
                "time_ms": 1,
                "value": value,
                "metadata": metadata,
            }
            file.write(json.dumps(event) + "\n")

    (machine,) = machines_of(read_worker_files(run_dir))
    assert len(machine.samples) == 5


def test_a_worker_notes_its_machine_at_both_ends_and_between(tmp_path, monkeypatch):
    # The tests' own machine may have GPUs.
    monkeypatch.setitem(sys.modules, "pynvml", None)
    zone = tmp_path / "powercap" / "intel-rapl:0"
    zone.mkdir(parents=True)

    for name, text in (
        ("name", "package-0"),
        ("energy_uj", "7"),
        ("max_energy_range_uj", "9"),
    ):
        (zone / name).write_text(text)

    ledger = Ledger(tmp_path, file=worker_events_file(0))
    monkeypatch.setattr("tfasr.telemetry.energy.POWERCAP", tmp_path / "powercap")
    monkeypatch.setattr(machine_notes, "EVERY_S", 0.01)
    notes = MachineNotes(ledger.event)
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


def test_each_worker_has_the_share_that_its_machine_gave_it(tmp_path):
    run_dir = LedgerBuilder().begin().step(1.0).end().write(tmp_path / "run")
    for rank, waited_s in ((0, 0.0), (1, 1.0)):
        with_ledger = Ledger(run_dir, 0, file=worker_events_file(rank))
        with_ledger.event(
            "worker_machine", {"host": "a", "hostname": "a", "counters": {}}
        )
        with_ledger.close()
        machine = Machine()

        for _ in range(10):
            machine.second(ran_s=2.0 - waited_s, busy_s=2.0, waited_s=waited_s)

        machine.write(run_dir)

        if rank:
            (run_dir / "host.csv").rename(run_dir / worker_host_file(rank))

    chief, other = machines_of(read_worker_files(run_dir), run_dir)

    assert chief.host is None  # its file became the worker's
    assert other.host.share == pytest.approx(0.5)
