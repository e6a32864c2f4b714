import hashlib
import itertools
import logging
import resource
import sys
import time
import types

import numpy as np
import pytest

from tfasr.telemetry import energy
from tfasr.telemetry.energy import (
    EnergySampler,
    gpu_counters,
    rapl_access,
    rapl_counters,
    rapl_zones,
)
from tfasr.telemetry.samplers import SampleFile, UtilisationSampler
from tfasr.tta.energy import read_samples
from tfasr.tta.run import load_run


def zone(root, folder, name, microjoules, limit=262_143_328_850):
    """Makes an energy counter of the kernel, which starts anew above `limit` microjoules."""
    path = root / folder
    path.mkdir(parents=True)
    (path / "name").write_text(name + "\n")
    (path / "energy_uj").write_text(f"{microjoules}\n")
    (path / "max_energy_range_uj").write_text(f"{limit}\n")

    return path


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch):
    """The machine that runs the tests may have some."""
    monkeypatch.setitem(sys.modules, "pynvml", None)


@pytest.fixture
def powercap(tmp_path, monkeypatch):
    """A server of two sockets, as the kernel shows it, with samples only at start and end."""
    root = tmp_path / "powercap"
    monkeypatch.setattr(energy, "POWERCAP", root)
    monkeypatch.setattr(energy, "ENERGY_INTERVAL_S", 3600)
    zone(root, "intel-rapl:0", "package-0", 5_000_000)
    zone(root, "intel-rapl:0:0", "core", 1)
    zone(root, "intel-rapl:0:1", "dram", 2_500_000, limit=65_712_999_613)
    zone(root, "intel-rapl:1", "package-1", 6_000_000)
    zone(root, "intel-rapl:2", "psys", 9_000_000)
    zone(root, "intel-rapl-mmio:0", "package-0", 5_000_000)
    (root / "intel-rapl").mkdir()

    return root


def fake_nvml():
    """A library of GPUs: one with an energy counter, one with power alone, one with
    neither.
    """
    millijoules = itertools.count(1000, 500)

    def energy(handle):
        if handle:
            raise RuntimeError("Not Supported")

        return next(millijoules)

    def power(handle):
        if handle == 2:
            raise RuntimeError("Not Supported")

        return 100_000

    module = types.ModuleType("pynvml")
    module.nvmlInit = module.nvmlShutdown = lambda: None
    module.nvmlDeviceGetCount = lambda: 3
    module.nvmlDeviceGetHandleByIndex = lambda index: index
    module.nvmlDeviceGetTotalEnergyConsumption = energy
    module.nvmlDeviceGetPowerUsage = power

    return module


def test_packages_and_memories_count_and_nothing_twice(powercap):
    counters = {one.name: one for one in rapl_counters(powercap)}

    assert sorted(counters) == ["package-0", "package-0/dram", "package-1"]


def test_counters_are_read_in_joules(powercap):
    counters = {one.name: one for one in rapl_counters(powercap)}

    assert counters["package-0"].read() == 5
    assert counters["package-0/dram"].read() == 2.5
    assert counters["package-0/dram"].range_joules == pytest.approx(65712.999613)


def test_readable_counters_are_named(powercap):
    assert rapl_access(powercap) == "readable: package-0, package-0/dram, package-1"


def test_without_a_counter_there_is_no_access(tmp_path):
    assert rapl_zones(tmp_path / "nowhere") == {}
    assert rapl_access(tmp_path / "nowhere").startswith("n/a")


def test_without_a_counter_no_samples_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "POWERCAP", tmp_path / "nowhere")

    with EnergySampler(tmp_path, 0):
        pass

    assert not (tmp_path / "energy.csv").exists()


@pytest.mark.parametrize("damage", ["empty", "missing", "refused"])
def test_a_counter_that_cannot_be_read_is_named_with_the_remedy(powercap, damage):
    path = powercap / "intel-rapl:1" / "energy_uj"
    path.write_text("")
    if damage != "empty":
        path.unlink()

    if damage == "refused":  # refused to root too, whom no permission stops
        path.mkdir()

    assert [one.name for one in rapl_counters(powercap)] == [
        "package-0",
        "package-0/dram",
    ]
    assert "not readable: package-1" in rapl_access(powercap)
    assert "chmod a+r" in rapl_access(powercap)


def test_gpus_tell_energy_or_else_power():
    first, second = gpu_counters(fake_nvml())

    assert (first.name, second.name) == ("gpu0", "gpu1-power")
    assert first.range_joules is None

    before = first.read()
    assert first.read() == pytest.approx(before + 0.5)


def test_power_is_integrated_where_a_gpu_tells_no_energy():
    first, second = gpu_counters(fake_nvml())

    began = second.read()
    then = time.monotonic()

    while time.monotonic() - then < 0.05:
        pass

    used = second.read() - began

    assert 100 * 0.05 <= used <= 100 * (time.monotonic() - then + 1)


def test_without_nvml_no_gpu_is_counted():
    assert gpu_counters(None) == []


def test_samples_enclose_the_session_and_resumed_runs_append(powercap, tmp_path):
    package = powercap / "intel-rapl:0" / "energy_uj"
    for session in (0, 1):
        before = time.monotonic(), time.time() * 1000
        with EnergySampler(tmp_path, session):
            package.write_text(f"{(session + 7) * 1_000_000}\n")

        own = [
            sample
            for sample in read_samples(tmp_path)
            if sample.session == session and sample.counter == "package-0"
        ]

        assert len(own) == 2
        assert own[-1].joules == session + 7
        assert own[-1].range_joules == pytest.approx(262143.32885)
        assert (
            before[0] - 1e-6
            <= own[0].mono_s
            <= own[1].mono_s
            <= time.monotonic() + 1e-6
        )
        assert (
            before[1] - 1 <= own[0].time_ms <= own[1].time_ms <= time.time() * 1000 + 1
        )

    text = (tmp_path / "energy.csv").read_text()
    assert text.count("time_ms") == 1


def test_it_keeps_sampling_and_every_look_reaches_the_disk(
    powercap, tmp_path, monkeypatch
):
    monkeypatch.setattr(energy, "ENERGY_INTERVAL_S", 0.001)
    with EnergySampler(tmp_path, 0):
        deadline = time.monotonic() + 20
        while len(read_samples(tmp_path)) < 9 and time.monotonic() < deadline:
            time.sleep(0.005)

        assert len(read_samples(tmp_path)) >= 9


def test_a_cut_line_stays_alone_when_a_run_is_resumed(powercap, tmp_path):
    with EnergySampler(tmp_path, 0):
        pass

    path = tmp_path / "energy.csv"
    path.write_text(path.read_text()[:-9])
    whole = path.read_text().count("\n") - 1  # without the heading

    with EnergySampler(tmp_path, 1):
        pass

    result = read_samples(tmp_path)

    assert len(result) == whole + 6
    assert [one.session for one in result[-6:]] == [1] * 6


def test_a_counter_that_vanishes_ends_no_run(powercap, tmp_path):
    with EnergySampler(tmp_path, 0):
        (powercap / "intel-rapl:1" / "energy_uj").unlink()

    counters = [one.counter for one in read_samples(tmp_path)]

    assert counters.count("package-1") == 1
    assert counters.count("package-0") == 2


def test_gpus_are_sampled_in_addition_to_processors(powercap, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    with EnergySampler(tmp_path, 0):
        pass

    counters = {one.counter for one in read_samples(tmp_path)}

    assert {"gpu0", "gpu1-power", "package-0"} <= counters


# Files of samples as kills, older versions and full disks leave them.

COLUMNS = ("time_ms", "cpu_percent", "process_percent")


def written(path, *lines):
    """The text of a file of samples after the lines were added."""
    file = SampleFile(path, COLUMNS)
    for line in lines:
        file.add(*line)

    file.close()

    return path.read_text()


def test_the_heading_is_there_from_the_first_moment(tmp_path):
    path = tmp_path / "cpu.csv"
    file = SampleFile(path, COLUMNS)

    assert path.read_text() == "time_ms,cpu_percent,process_percent\n"

    file.close()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "time_ms,cpu_percent,process_percent\n7,8,9\n"),
        ("time_ms,cpu_perc", "time_ms,cpu_percent,process_percent\n7,8,9\n"),
        ("time_ms,cpu_percent\n1,2\n3,", "time_ms,cpu_percent\n1,2\n7,8\n"),
        ("1,2\n3,4\n5", "time_ms,cpu_percent\n1,2\n3,4\n7,8\n"),
        (
            "time_ms,cpu_percent,process_percent\n1,2,3\n",
            "time_ms,cpu_percent,process_percent\n1,2,3\n7,8,9\n",
        ),
    ],
)
def test_what_was_there_is_continued_with_its_own_columns(tmp_path, before, after):
    path = tmp_path / "cpu.csv"
    path.write_text(before)

    assert written(path, (7, 8, 9)) == after


def test_a_file_that_takes_no_more_ends_the_samples_with_one_word(tmp_path, caplog):
    file = SampleFile(tmp_path / "cpu.csv", COLUMNS)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))

    try:
        for number in range(5000):
            file.add(number, 1, 2)

        file.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert not file.works
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "cpu.csv gets no more samples" in caplog.text


def has_cpu_samples(run_dir):
    """Whether the run's sampler has written anything yet."""
    return load_run(run_dir).utilisation("cpu").get("time_ms", np.zeros(0)).size > 0


def test_the_process_is_told_from_the_machine(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"key": "session_start", "time_ms": 1}\n')
    with UtilisationSampler(tmp_path):
        latest = time.monotonic() + 60
        while not has_cpu_samples(tmp_path):
            assert time.monotonic() < latest

            # Without Python's lock, which the sampler needs.
            hashlib.sha256(bytes(2**24))

    samples = load_run(tmp_path).utilisation("cpu")

    assert list(samples) == list(COLUMNS)
    assert samples["process_percent"].max() > 0
    assert (samples["process_percent"] <= 100).all()
