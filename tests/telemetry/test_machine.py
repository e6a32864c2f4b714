"""Machines as the kernel and NVML show them: made folders and a made library."""

import json
import logging
import os
import subprocess
import sys
import time
import types

import pytest

from tfasr.commands.doctor import advice, description, examine
from tfasr.errors import RunError
from tfasr.telemetry.compiled import (
    missing_extensions,
    require_extensions,
    warn_of_missing_extensions,
)
from tfasr.telemetry.host import TakenNow
from tfasr.telemetry.machine import describe_host, describe_processor, process_age_s
from tfasr.telemetry.system import describe_gpus, describe_system, nvidia_devices

# Compiled parts that are missing are told, booked and refused by benchmarks.


@pytest.fixture
def unloadable_layers(monkeypatch):
    """The compiled layers can't be imported."""
    if sys.platform == "win32":
        pytest.skip("has no compiled layers")

    monkeypatch.setitem(sys.modules, "tfasr.layers._recurrent_core", None)


def test_a_part_that_does_not_load_is_told_with_the_command_that_builds_it(
    unloadable_layers, caplog
):
    with caplog.at_level(logging.WARNING):
        assert warn_of_missing_extensions() == ["recurrent layers"]

    assert "pip install --editable ." in caplog.text


def test_a_part_that_does_not_load_is_named(unloadable_layers):
    assert list(missing_extensions()) == ["recurrent layers"]


def test_a_benchmark_refuses_to_start_without_a_part(unloadable_layers):
    with pytest.raises(RunError, match="pip install --editable"):
        require_extensions()


def test_nothing_is_said_where_all_load(caplog):
    pytest.importorskip("tfasr.layers._recurrent_core")
    pytest.importorskip("tfasr.decoding._word_beam_core")

    assert warn_of_missing_extensions() == []
    require_extensions()
    assert not caplog.records


PRINT_INSTRUCTION_SET = """
import json
from tfasr.telemetry.compiled import layers_instruction_set
from tfasr.errors import RunError
try:
    print(json.dumps(layers_instruction_set()))
except RunError as error:
    print(json.dumps(str(error)))
"""


def output_of(program: str, instruction_set: str | None):
    """The JSON that a new process prints whose environment names the instruction set."""
    environment = os.environ.copy()
    environment.pop("TFASR_INSTRUCTION_SET", None)
    if instruction_set is not None:
        environment["TFASR_INSTRUCTION_SET"] = instruction_set

    finished = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(finished.stdout)


def test_the_environment_names_the_instruction_set_of_the_compiled_layers():
    core = pytest.importorskip("tfasr.layers._recurrent_core")
    best = core.instruction_sets()[0]

    unforced = {"name": best, "forced": False}

    assert output_of(PRINT_INSTRUCTION_SET, None) == unforced
    assert output_of(PRINT_INSTRUCTION_SET, "") | {"forced": False} == unforced
    assert output_of(PRINT_INSTRUCTION_SET, "portable") == {
        "name": "portable",
        "forced": True,
    }


def test_an_unknown_instruction_set_is_refused_with_the_known_ones():
    pytest.importorskip("tfasr.layers._recurrent_core")

    refusal = output_of(PRINT_INSTRUCTION_SET, "abacus")

    assert refusal.startswith(
        "The environment variable TFASR_INSTRUCTION_SET must be one of"
    )
    assert refusal.endswith("portable, emulated_amx. Received: abacus")


PRINT_SPEEDUP = """
import json
from tfasr.telemetry.compiled import bfloat16_speedup, layers_instruction_set
print(json.dumps([bfloat16_speedup(), layers_instruction_set()]))
"""


def test_bfloat16_is_timed_only_where_the_instruction_set_multiplies_it():
    core = pytest.importorskip("tfasr.layers._recurrent_core")
    for name in core.instruction_sets():
        speedup, facts = output_of(PRINT_SPEEDUP, name)

        expected = {"name": name, "forced": True}
        if name in ("amx", "avx512bf16"):
            expected["bfloat16_speedup"] = speedup
            assert 0.1 < speedup < 100
        else:
            assert speedup is None

        assert facts == expected


def put(root, path, content):
    """Writes a file of one line below `root`, with its folders."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(content + "\n")


@pytest.fixture
def server(tmp_path):
    """Two sockets of two cores of two threads, in a control group of three processors."""
    blocks = [
        f"processor\t: {thread}\nmodel name\t: Xeon X\nphysical id\t: {thread // 4}\n"
        f"core id\t\t: {thread // 2 % 2}\nflags\t\t: sse avx2 avx512f amx_tile"
        for thread in range(8)
    ]
    put(tmp_path, "proc/cpuinfo", "\n\n".join(blocks))
    put(tmp_path, "proc/self/cgroup", "0::/jobs/mine")
    put(tmp_path, "proc/1/cgroup", "0::/kubepods/pod1")
    group = "sys/fs/cgroup/jobs"
    put(tmp_path, f"{group}/cpu.max", "300000 100000")
    put(tmp_path, f"{group}/mine/cpu.max", "max 100000")
    put(tmp_path, f"{group}/mine/memory.max", str(4 << 30))

    for node in (0, 1):
        put(tmp_path, f"sys/devices/system/node/node{node}/cpulist", "0-3")

    for cpu in range(8):
        folder = f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        put(tmp_path, f"{folder}/scaling_governor", "powersave")
        put(tmp_path, f"{folder}/cpuinfo_max_freq", "3500000")

    put(tmp_path, "sys/class/net/eth0/speed", "25000")
    put(tmp_path, "sys/class/net/eth0/operstate", "up")
    put(tmp_path, "sys/class/net/eth1/speed", "-1")
    put(tmp_path, "sys/class/net/lo/speed", "1")
    put(tmp_path, "sys/class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)")
    put(tmp_path, "sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE")
    put(tmp_path, "sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de")
    put(tmp_path, "sys/bus/pci/devices/0000:01:00.0/class", "0x030200")
    put(tmp_path, "sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de")
    put(tmp_path, "sys/bus/pci/devices/0000:01:00.1/class", "0x040300")
    put(tmp_path, "etc/os-release", 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"')

    return tmp_path


def made_nvml(monkeypatch, *, count=2, width=8):
    """NVML with GPUs that answer some questions, one of them in bytes as older ones do."""

    def refuse(*_):
        raise RuntimeError("Not Supported")

    answers = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": count,
        "nvmlSystemGetDriverVersion": b"550.54",
        "nvmlDeviceGetName": "H100",
        "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(total=80 << 30),
        "nvmlDeviceGetCurrPcieLinkGeneration": 1,
        "nvmlDeviceGetCurrPcieLinkWidth": width,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetPowerUsage": 90_000,
    }
    module = types.ModuleType("pynvml")
    for name, answer in answers.items():
        setattr(module, name, lambda *_, answer=answer: answer)

    module.nvmlDeviceGetHandleByIndex = lambda index: index
    module.nvmlDeviceGetTotalEnergyConsumption = refuse
    module.nvmlDeviceGetNvLinkState = lambda _, link: 1 if link < 4 else refuse()
    monkeypatch.setitem(sys.modules, "pynvml", module)


def test_processors_are_counted_by_socket_core_and_thread(server):
    found = describe_processor(server)

    assert (found["sockets"], found["cores"], found["threads"]) == (2, 4, 8)
    assert found["model"] == "Xeon X"
    assert found["numa_nodes"] == 2
    assert found["max_mhz"] == 3500
    assert found["instructions"] == ["AVX2", "AVX-512", "AMX"]
    assert (found["governors"], found["virtual"]) == (["powersave"], False)


def test_a_kernel_that_tells_nothing_leaves_everything_unknown(tmp_path):
    found = describe_processor(tmp_path)
    for name in ("sockets", "cores", "threads", "numa_nodes", "virtual", "max_mhz"):
        assert found[name] is None, name

    host = describe_host(tmp_path)

    assert host["cpu_limit"] is None
    assert host["memory_limit_bytes"] is None
    assert host["container"] is None
    assert host["networks"] == []


def test_processors_without_sockets_are_counted_by_thread(tmp_path):
    found = describe_processor(tmp_path)

    # As many virtual machines show their processors.
    put(
        tmp_path,
        "proc/cpuinfo",
        "processor\t: 0\nBogoMIPS\t: 50\nFeatures\t: asimd sve",
    )
    found = describe_processor(tmp_path)

    assert (found["sockets"], found["cores"], found["threads"]) == (None, None, 1)
    assert found["instructions"] == ["NEON", "SVE"]


def test_the_tightest_limit_of_all_control_groups_holds(server):
    host = describe_host(server)

    assert host["cpu_limit"] == 3
    assert host["memory_limit_bytes"] == 4 << 30
    assert host["container"] == "kubepods"
    assert host["operating_system"] == "Ubuntu 24.04.1 LTS"


def test_limits_of_the_first_version_of_control_groups(tmp_path):
    put(tmp_path, "proc/self/cgroup", "4:memory:/job\n1:cpu,cpuacct:/job")
    put(tmp_path, "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "150000")
    put(tmp_path, "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000")
    put(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", str((1 << 63) - 4096))
    put(tmp_path, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", str(1 << 30))

    host = describe_host(tmp_path)

    assert host["cpu_limit"] == 1.5
    assert host["memory_limit_bytes"] == 1 << 30


def test_networks_tell_their_speed_or_none(server):
    assert describe_host(server)["networks"] == [
        {"name": "eth0", "state": "up", "mbit_per_s": 25000},
        {"name": "eth1", "state": None, "mbit_per_s": None},
        {"name": "mlx5_0:1", "state": "active", "mbit_per_s": 200000},
    ]


def test_gpus_tell_what_they_can(monkeypatch):
    made_nvml(monkeypatch)
    gpus, problem = describe_gpus()

    assert (len(gpus), problem) == (2, "")
    assert gpus[0] == {
        "name": "H100",
        "memory_bytes": 80 << 30,
        "driver": "550.54",
        "pcie": {"generation": 1, "width": 8, "max_generation": 5, "max_width": 16},
        "nvlinks": 4,
        "energy": "power",
    }


def test_without_nvml_the_devices_are_counted_and_the_package_is_named(
    monkeypatch, server
):
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert describe_gpus() == (
        [],
        "nvidia-ml-py is not installed: pip install 'tfasr[gpu]'",
    )
    assert nvidia_devices(server) == 1


def test_an_nvml_that_does_not_start_says_why(monkeypatch):
    def refuse():
        raise RuntimeError("Driver Not Loaded")

    broken = types.ModuleType("pynvml")
    broken.nvmlInit = refuse
    monkeypatch.setitem(sys.modules, "pynvml", broken)

    assert describe_gpus() == ([], "NVML does not start: Driver Not Loaded")


def test_a_description_has_all_that_was_found(monkeypatch, server):
    made_nvml(monkeypatch)
    found = json.loads(json.dumps(description(examine(root=server))))
    processor = found["processor"]

    assert (processor["sockets"], processor["cores"], processor["threads"]) == (2, 4, 8)
    assert "AMX" in processor["instructions"]
    assert found["accelerators_per_node"] == 2
    assert found["gpus"][0]["name"] == "H100"
    assert found["gpus"][0]["driver"] == "550.54"
    assert "mlx5_0:1" in {network["name"] for network in found["host"]["networks"]}


def test_what_is_not_known_of_a_machine_is_null(monkeypatch, tmp_path_factory):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    empty = description(examine(root=tmp_path_factory.mktemp("empty")))

    assert empty["accelerators_per_node"] is None
    assert empty["processor"]["sockets"] is None


def test_advice_names_what_makes_clocks_dishonest(monkeypatch, server):
    made_nvml(monkeypatch)
    monkeypatch.setattr(
        "tfasr.commands.doctor.taken_now", lambda: TakenNow(0.3, 0.5, 0.2)
    )

    text = "\n".join(advice(examine(root=server)))

    assert "Other programs use 50% of the processors" in text
    assert "Other virtual machines take 30%" in text
    assert "quota holds back 20%" in text
    assert "powersave" in text
    assert "GPU 0 has 8 of 16 PCIe lanes" in text
    assert "This is a virtual machine" not in text


def test_an_idle_machine_gets_no_advice_on_load(monkeypatch, server):
    text = "\n".join(advice(examine(root=server)))

    monkeypatch.setattr(
        "tfasr.commands.doctor.taken_now", lambda: TakenNow(None, 0.02, None)
    )
    made_nvml(monkeypatch, width=16)
    text = "\n".join(advice(examine(root=server)))

    assert "processors (steal)" not in text
    assert "Other programs" not in text
    assert "quota holds" not in text
    assert "PCIe" not in text


def test_unusable_gpus_are_advised_on(monkeypatch, server):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    text = "\n".join(advice(examine(root=server)))

    assert "NVIDIA devices (1) are installed but not usable: nvidia-ml-py" in text


def test_a_run_records_its_machine(monkeypatch):
    made_nvml(monkeypatch)
    found = describe_system()

    assert found["gpus"] == ["H100", "H100"]
    assert found["gpu_details"][0]["pcie"]["max_width"] == 16
    assert found["processor"] in (found["processor_details"]["model"], "n/a")
    assert found["surroundings"]["memory_bytes"] == found["memory_bytes"]


def test_a_process_knows_what_it_took_before_it_asked():
    script = (
        "import time; time.sleep(0.3); from tfasr.telemetry.machine import process_age_s; "
        "print(process_age_s())"
    )

    began = time.monotonic()
    finished = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )

    # No earlier than the sleep allows, no more than the whole took; a tick of the clock
    # is 10 ms.
    assert 0.3 - 0.02 <= float(finished.stdout) <= time.monotonic() - began + 0.02


def test_the_age_grows_with_the_clock():
    first = process_age_s()

    assert process_age_s() >= first > 0
