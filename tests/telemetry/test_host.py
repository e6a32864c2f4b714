import csv
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tfasr.kit.files import HOST_FILE
from tfasr.telemetry.host import (
    HostSampler,
    ProcessorTime,
    read_host,
    stalled_s,
    taken_now,
    thermal_throttles,
    throttled_s,
)
from tfasr.tta.host import HOST_COLUMNS

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="reads files of the Linux kernel"
)
BUSY = "while True: pass"


def samples(folder):
    """Rows of the file that `HostSampler` wrote."""
    with (folder / HOST_FILE).open() as file:
        return list(csv.DictReader(file))


def work(seconds):
    """Keeps the processor busy for so many seconds of its own time."""
    until_s = time.process_time() + seconds
    while time.process_time() < until_s:
        pass


def test_samples_enclose_the_session_and_resumed_runs_append(tmp_path):
    for session in (0, 1):
        with HostSampler(tmp_path, session):
            work(0.2)

    rows = samples(tmp_path)

    assert (tmp_path / HOST_FILE).read_text().splitlines()[0] == ",".join(HOST_COLUMNS)
    assert {row["session"] for row in rows} == {"0", "1"}

    in_first = [float(row["ran_s"]) for row in rows if row["session"] == "0"]
    assert in_first[-1] - in_first[0] >= 0.15


@linux
def test_time_behind_another_program_is_counted_as_waiting():
    processor = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    other = subprocess.Popen([sys.executable, "-c", BUSY])

    try:
        os.sched_setaffinity(0, {processor})
        os.sched_setaffinity(other.pid, {processor})
        counter = ProcessorTime()
        waited_s = counter.waited_s()
        work(0.5)
        waited_s = counter.waited_s() - waited_s
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(0, before)

    # Two programs share one processor, so half a second of work waits about as long.
    assert waited_s > 0.2


@linux
def test_writing_zeros_is_the_kernels_work_and_counts_as_time_that_ran(tmp_path):
    counter = ProcessorTime()
    before_s = counter.ran_and_kernel_s()

    with (tmp_path / "zeros").open("wb", buffering=0) as file:
        while counter.ran_and_kernel_s()[1] - before_s[1] < 0.2:
            file.seek(0)
            file.write(bytes(1 << 22))

    assert counter.ran_and_kernel_s()[0] - before_s[0] >= 0.15


@linux
def test_a_programs_own_loop_is_no_work_of_the_kernels():
    counter = ProcessorTime()
    before_s = counter.ran_and_kernel_s()

    # `work` would not do: it asks the kernel for the time again and again.
    sum(range(20_000_000))

    after_s = counter.ran_and_kernel_s()
    assert after_s[1] - before_s[1] < (after_s[0] - before_s[0]) / 2


@linux
def test_the_time_of_child_processes_counts():
    child = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        counter = ProcessorTime()
        before_s = counter.ran_s()
        while psutil.Process(child.pid).cpu_times().user < 0.5:
            time.sleep(0.05)

        assert counter.ran_s() - before_s > 0.3
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


@pytest.fixture
def control_group(tmp_path):
    """The folder of the control group that this process is in, still empty."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/work\n")

    group = tmp_path / "sys" / "fs" / "cgroup" / "work"
    group.mkdir(parents=True)
    return group


@pytest.mark.parametrize(
    ("statistics", "seconds"),
    [
        ("usage_usec 5\nnr_throttled 3\nthrottled_usec 2500000\n", 2.5),  # version 2
        ("nr_periods 30\nnr_throttled 29\nthrottled_time 1500000000\n", 1.5),
    ],
)
def test_quotas_are_read_in_both_versions_of_control_groups(
    control_group, tmp_path, statistics, seconds
):
    (control_group / "cpu.stat").write_text(statistics)

    assert throttled_s(tmp_path) == seconds


def test_quotas_are_unknown_without_statistics(control_group, tmp_path):
    assert throttled_s(tmp_path) is None


def test_pressure_is_unknown_without_its_file(tmp_path):
    assert stalled_s("memory", tmp_path / "nowhere") is None


def test_pressure_is_read_in_seconds(tmp_path):
    pressure = tmp_path / "proc" / "pressure"
    pressure.mkdir(parents=True)

    (pressure / "memory").write_text(
        "some avg10=0.15 avg60=0.28 avg300=0.35 total=7714965\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=12\n"
    )

    assert stalled_s("memory", tmp_path) == pytest.approx(7.714965)


def test_a_groups_own_pressure_comes_before_that_of_the_machine(tmp_path):
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/work/job\n")
    group = tmp_path / "sys" / "fs" / "cgroup" / "work" / "job"
    group.mkdir(parents=True)
    pressure = tmp_path / "proc" / "pressure"
    pressure.mkdir()

    for file, microseconds in (
        (pressure / "memory", 9),
        (group.parents[1] / "memory.pressure", 8),
        (group / "memory.pressure", 5_000_000),
    ):
        file.write_text(
            f"some avg10=0.00 avg60=0.00 avg300=0.00 total={microseconds}\n"
        )

    assert stalled_s("memory", tmp_path) == 5.0


def test_hot_processors_are_unknown_without_sensors(tmp_path):
    assert thermal_throttles(tmp_path / "nowhere") is None


def test_hot_processors_are_counted(tmp_path):
    for number, count in enumerate((2, 5)):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{number}/thermal_throttle"
        folder.mkdir(parents=True)
        (folder / "core_throttle_count").write_text(f"{count}\n")

    assert thermal_throttles(tmp_path) == 7


@linux
def test_another_program_is_seen_at_once():
    # Its parent ends at once, because a child of this process would count as this
    # program.
    parent = (
        "import subprocess, sys; "
        f"print(subprocess.Popen([sys.executable, '-c', {BUSY!r}]).pid)"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True
    )
    other = psutil.Process(int(started.stdout.readline()))

    try:
        started.wait()
        while other.cpu_times().user < 0.1:
            time.sleep(0.02)

        others = taken_now(1.0).others
    finally:
        other.kill()
        started.stdout.close()

    assert others > 0.5 / psutil.cpu_count()


@linux
def test_only_processors_that_the_process_may_use_count(monkeypatch):
    busy = psutil.cpu_times()._replace(user=900.0, idle=0.0, steal=90.0)
    calm = busy._replace(user=7.0, steal=1.0)
    everything_else = (
        sum(calm[1:]) - calm.idle - calm.iowait - calm.guest - calm.guest_nice
    )
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [busy, calm, busy])
    monkeypatch.setattr(psutil, "cpu_count", lambda: 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1})

    reading = read_host(ProcessorTime())

    assert reading.stolen_s == 1.0
    assert reading.busy_s == pytest.approx(7.0 + everything_else - 1.0)


def test_a_machine_that_offers_nothing_is_unknown(tmp_path):
    reading = read_host(ProcessorTime(tmp_path), tmp_path)

    assert reading.ran_s is not None
    assert reading.waited_s is None
    assert reading.throttled_s is None
    assert reading.memory_stalled_s is None
    assert reading.major_faults is None
    assert reading.thermal_throttles is None
