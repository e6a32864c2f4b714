"""A machine in the words of MLPerf Training's ``systems/*.json``."""

from collections.abc import Iterable
from typing import Any

from tfasr.telemetry.examination import Examination

UNKNOWN = ""
NONE = "n/a"


def system_description(
    machine: Examination, *, submitter: str = "", system_name: str = ""
) -> dict[str, Any]:
    """Returns a system description: text by MLPerf's names.

    What is not known is "", what does not exist "n/a"; nothing is "0". Division, status, storage
    and cooling are for the submitter to fill in.

    Source: mlperf_logging's system_desc_checker (github.com/mlcommons/logging).
    """
    processor, host = machine.processor, machine.host
    sockets, cores = processor["sockets"], processor["cores"]
    return {
        "submitter": submitter,
        "division": UNKNOWN,
        "status": UNKNOWN,
        "system_name": system_name,
        "number_of_nodes": "1",
        "host_processors_per_node": _number(sockets),
        "host_processor_model_name": processor["model"] or UNKNOWN,
        "host_processor_core_count": _number(cores // sockets if cores and sockets else None),
        "host_processor_vcpu_count": _number(processor["threads"]),
        "host_processor_frequency": _number(processor["max_mhz"], " MHz"),
        "host_processor_caches": UNKNOWN,
        "host_processor_interconnect": UNKNOWN,
        "host_memory_capacity": gibibytes(host["memory_bytes"]) or UNKNOWN,
        "host_storage_type": UNKNOWN,
        "host_storage_capacity": UNKNOWN,
        "host_networking": "; ".join(map(network, host["networks"])),
        "host_networking_topology": UNKNOWN,
        "host_memory_configuration": UNKNOWN,
        **_accelerators(machine),
        "cooling": UNKNOWN,
        "hw_notes": _hardware_notes(machine),
        "framework": _framework(machine),
        "other_software_stack": _stack(machine),
        "operating_system": host["operating_system"],
        "sw_notes": f"container: {host['container']}" if host["container"] else UNKNOWN,
    }


def gibibytes(size: int | None) -> str:
    """Returns a size of memory in words; "" where it is not known."""
    return "" if size is None else f"{size / 2**30:.3g} GiB"


def network(interface: dict[str, Any]) -> str:
    """Returns an interface in words."""
    speed = interface["mbit_per_s"]
    told = "speed n/a" if speed is None else f"{speed / 1000:g} Gbit/s"
    return f"{interface['name']} {told} ({interface['state'] or 'state n/a'})"


def pcie(gpu: dict[str, Any], prefix: str = "") -> str:
    """Returns a GPU's PCIe link in words, or with ``prefix="max_"`` what it could be."""
    link = gpu["pcie"]
    generation, width = link[f"{prefix}generation"], link[f"{prefix}width"]
    if generation is None or width is None:
        return ""
    return f"PCIe Gen{generation} x{width}"


def _accelerators(machine: Examination) -> dict[str, str]:
    gpus = machine.gpus
    absent = UNKNOWN if machine.gpus_on_bus else NONE
    links = {gpu["nvlinks"] for gpu in gpus} - {None}
    return {
        "accelerators_per_node": str(len(gpus)) if gpus else absent,
        "accelerator_model_name": _each(gpu["name"] for gpu in gpus) if gpus else absent,
        # The maximum: a link's generation falls while a GPU idles.
        "accelerator_host_interconnect": _each(pcie(gpu, "max_") for gpu in gpus),
        "accelerator_frequency": UNKNOWN,
        "accelerator_on-chip_memories": UNKNOWN,
        "accelerator_memory_configuration": UNKNOWN,
        "accelerator_memory_capacity": (
            _each(gibibytes(gpu["memory_bytes"]) for gpu in gpus) if gpus else absent
        ),
        "accelerator_interconnect": f"NVLink x{max(links)}" if any(links) else UNKNOWN,
        "accelerator_interconnect_topology": UNKNOWN,
    }


def _each(values: Iterable[str | None]) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value))


def _hardware_notes(machine: Examination) -> str:
    processor, host = machine.processor, machine.host
    notes = [
        _told("instructions", ", ".join(processor["instructions"])),
        _told("NUMA nodes", processor["numa_nodes"]),
        _told("governor", ", ".join(processor["governors"])),
        _told("virtual machine", "yes" if processor["virtual"] else None),
        _told("processors by control group", host["cpu_limit"]),
        _told("memory by control group", gibibytes(host["memory_limit_bytes"])),
    ]
    return "; ".join(filter(None, notes))


def _told(name: str, value: object) -> str:
    return f"{name}: {value}" if value else ""


def _framework(machine: Examination) -> str:
    packages = machine.software["packages"]
    known = [("TensorFlow", packages["tensorflow"]), ("Keras", packages["keras"])]
    return ", ".join(f"{name} {version}" for name, version in known if version)


def _stack(machine: Examination) -> dict[str, str]:
    stack = {"python": machine.software["python"], "kernel": machine.host["kernel"]}
    stack |= machine.software["packages"] | machine.software["optional"]
    for name in ("tensorflow", "keras"):
        stack.pop(name)
    stack["nvidia_driver"] = _each(gpu["driver"] for gpu in machine.gpus)
    built = machine.tensorflow or {}
    stack["cuda"], stack["cudnn"] = built.get("cuda"), built.get("cudnn")
    return {name: version for name, version in stack.items() if version}


def _number(value: int | None, unit: str = "") -> str:
    return f"{value}{unit}" if value else UNKNOWN
