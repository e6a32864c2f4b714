"""``tfasr doctor``: what this machine is, and whether its clocks can be trusted."""

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfasr._version import __version__
from tfasr.display.table import JSON, WRITERS, Column, Table, formats, table_of, to_text
from tfasr.errors import RunError, imported, is_measure_only
from tfasr.kit.files import write_whole
from tfasr.kit.process import ChildError, Correspondence, call
from tfasr.telemetry.compiled import missing_extensions
from tfasr.telemetry.energy import POWERCAP, rapl_access
from tfasr.telemetry.host import TakenNow, taken_now
from tfasr.telemetry.machine import (
    ROOT,
    available_bytes,
    describe_host,
    describe_processor,
    version,
)
from tfasr.telemetry.system import describe_gpus, nvidia_devices
from tfasr.tta.published.results import PublishedSource, published

if TYPE_CHECKING:
    from tfasr.training.memory import BufferNeed

EXAMPLE = "doctor --out system.json"

# What tables show for a value that this machine doesn't tell.
_UNKNOWN = "n/a"

# Share of the processors above which what others take distorts measured times; a
# study's `most_taken` is the same.
BUSY = 0.1

# Packages without which nothing can be prepared, trained or evaluated.
_TRAINING = ("tensorflow", "keras", "soundfile", "soxr")

# Packages of pip's extras, and what each is for.
_NVML = "nvidia-ml-py"
OPTIONAL = {
    _NVML: "GPU utilisation and energy",
    "espeakng-loader": "the demo's synthetic speech",
    "kenlm": "word beam search with a KenLM model",
    "tensorflow-io": "--audio_reader tfio",
}

# Packages without which nothing can be measured.
_MEASURING = ("numpy", "scipy", "jiwer", "psutil")

# Why the compiled decoder is missing in tfasr-measure, which is no fault.
_NOT_BUILT = "not part of tfasr-measure"

# How long TensorFlow may take to find GPUs, in seconds; a broken driver takes forever.
_DRIVER_PATIENCE_S = 180


@dataclass(frozen=True)
class Examination:
    """A machine's properties; None means unknown.

    Dictionaries come from the functions ``describe_...`` of `tfasr.telemetry`'s
    modules.

    Attributes:
        processor: its model, cores, instruction sets and frequency governors.
        host: memory, limits, load, networks and operating system.
        gpus: what NVML says about each.
        gpu_problem: why no GPU is usable, or "".
        gpus_on_bus: NVIDIA devices on the PCI bus, whether or not NVML sees them.
        software: versions of Python and of packages, by their names.
        decoder_problem: why the compiled decoder doesn't load, or None.
        taken: what others take of the machine at this moment.
        rapl: a sentence on whether the processors' energy can be read.
        tensorflow: from `probe_tensorflow`; None unless requested.
    """

    processor: dict[str, Any]
    host: dict[str, Any]
    gpus: list[dict[str, Any]]
    gpu_problem: str
    gpus_on_bus: int
    software: dict[str, Any]
    decoder_problem: str | None
    taken: TakenNow
    rapl: str
    tensorflow: dict[str, Any] | None


def examine(*, tensorflow: bool = False, root: Path = ROOT) -> Examination:
    """Examines this machine, which takes about a second.

    Args:
        tensorflow: whether to import TensorFlow, in another process.
        root: the folder with ``proc``, ``sys`` and ``etc``.
    """
    gpus, problem = describe_gpus()
    if is_measure_only():
        packages = _MEASURING
        optional = (_NVML,)
        decoder_problem = _NOT_BUILT
    else:
        packages = (*_TRAINING, *_MEASURING)
        optional = tuple(OPTIONAL)
        decoder_problem = missing_extensions().get("word beam search")

    view = None
    if tensorflow:
        view = probe_tensorflow()

    return Examination(
        processor=describe_processor(root),
        host=describe_host(root),
        gpus=gpus,
        gpu_problem=problem,
        gpus_on_bus=nvidia_devices(root),
        software={
            "python": sys.version.split()[0],
            "packages": {"tfasr": __version__}
            | {name: version(name) for name in packages},
            "optional": {name: version(name) for name in optional},
        },
        decoder_problem=decoder_problem,
        taken=taken_now(),
        rapl=rapl_access(root / POWERCAP.relative_to("/")),
        tensorflow=view,
    )


def probe_tensorflow() -> dict[str, Any]:
    """Returns `tensorflow_view`, computed in another process, or {"problem": text}.

    A driver may hang or crash the process that loads it.
    """
    with contextlib.closing(
        Correspondence(tensorflow_view, task="TensorFlow")
    ) as child:
        try:
            return child.next_answer(_DRIVER_PATIENCE_S)
        except TimeoutError as error:
            return {"problem": str(error)}
        except ChildError as error:
            last = error.messages.splitlines()[-1]
            return {"problem": f"{last} (exit status {error.exit_code})"}


def tensorflow_view() -> dict[str, Any]:
    """Returns TensorFlow's version and devices, and the CUDA that it was built for.

    The versions of CUDA and cuDNN are None for a TensorFlow without GPUs.
    """
    import tensorflow as tf

    built = tf.sysconfig.get_build_info()
    devices = [device.name for device in tf.config.list_physical_devices()]

    return {
        "version": tf.__version__,
        "devices": devices,
        "cuda": built.get("cuda_version"),
        "cudnn": built.get("cudnn_version"),
    }


def advice(machine: Examination) -> list[str]:
    """Returns a sentence for each thing to fix, with how to fix it."""
    return [*_clock_advice(machine), *_gpu_advice(machine), *_software_advice(machine)]


def _clock_advice(machine: Examination) -> Iterator[str]:
    """Yields what would distort measured times."""
    host = machine.host
    processor = machine.processor
    threads = host["usable_threads"] or processor["threads"]
    taken = machine.taken

    if taken.others > BUSY:
        yield (
            f"Other programs use {taken.others:.0%} of the processors and would "
            "distort measured times. Find them with top and end them, or wait "
            "(docs/quiet_machine.md)."
        )

    if taken.stolen is not None and taken.stolen > BUSY:
        yield (
            f"Other virtual machines take {taken.stolen:.0%} of the processors (steal) "
            "and would distort measured times. Wait, or rent a machine with dedicated "
            "processors."
        )

    if taken.throttled is not None and taken.throttled > BUSY:
        yield (
            f"A control group's quota holds back {taken.throttled:.0%} of the "
            "processors at this moment. Raise the limit, or pin to fewer processors."
        )

    # Other governors change the frequency while something is measured.
    slow = [name for name in processor["governors"] if name != "performance"]
    if slow:
        yield (
            f"The clock frequency is managed by {', '.join(slow)}. For steady times: "
            "cpupower frequency-set -g performance"
        )

    limit = host["cpu_limit"]
    if limit is not None and threads and limit < threads:
        yield (
            f"The control group allows {limit:g} processors' time for {threads} "
            "threads, so threads will be throttled. Raise the limit, or pin to fewer "
            "processors."
        )

    if processor["virtual"]:
        yield "This is a virtual machine: others may be using its processors."
    if "not readable" in machine.rapl:
        yield f"The processors' energy is {machine.rapl}"


def _gpu_advice(machine: Examination) -> Iterator[str]:
    """Yields what keeps GPUs from being used, or from being used fully."""
    if not machine.gpus and machine.gpus_on_bus:
        devices = f"NVIDIA devices ({machine.gpus_on_bus})"
        yield f"{devices} are installed but not usable: {machine.gpu_problem}"

    for index, gpu in enumerate(machine.gpus):
        width = gpu["pcie"]["width"]
        most = gpu["pcie"]["max_width"]
        if width is not None and most is not None and width < most:
            yield (
                f"GPU {index} has {width} of {most} PCIe lanes: check its "
                "slot. (An idle GPU may lower its PCIe generation, but not its lanes.)"
            )


def _software_advice(machine: Examination) -> Iterator[str]:
    """Yields what is missing or doesn't load."""
    if machine.decoder_problem not in (None, _NOT_BUILT):
        yield (
            f"The compiled decoder does not load: {machine.decoder_problem}. Install "
            "tfasr again, with a C++ compiler."
        )

    packages = machine.software["packages"]
    missing = [name for name, version in packages.items() if version is None]
    of_training = [name for name in missing if name in _TRAINING]
    if of_training:
        yield (
            f"Without {', '.join(of_training)} tfasr can't prepare data, train or "
            "evaluate; reports, the recorder, scoring and decoding work "
            "(docs/light_install.md)."
        )

    if len(missing) > len(of_training):
        others = [name for name in missing if name not in _TRAINING]
        yield f"Missing packages: {', '.join(others)}. Install tfasr again."

    if machine.gpus and machine.software["optional"][_NVML] is None:
        yield f"{_NVML} is not installed, so there is no {OPTIONAL[_NVML]}."

    problem = (machine.tensorflow or {}).get("problem")
    if problem:
        yield f"TensorFlow does not load: {problem}"


def _taken(taken: TakenNow) -> str:
    """Describes how much others take of the machine now, for the table."""
    stolen = _UNKNOWN
    if taken.stolen is not None:
        stolen = f"{taken.stolen:.0%}"

    return f"other programs {taken.others:.0%}, other virtual machines (steal) {stolen}"


def description(machine: Examination) -> dict[str, Any]:
    """Returns the content of ``--out``, as JSON values.

    ``--hardware`` of other commands reads a part of it. Its first keys are those of
    MLPerf's system descriptions.
    """
    return {
        "system_name": "",  # readers then take the file's name
        "number_of_nodes": 1,
        "accelerators_per_node": len(machine.gpus) or None,
        **dataclasses.asdict(machine),
    }


def gibibytes(size: int | None) -> str:
    """Returns a size in bytes as text in GiB; "" if unknown.

    >>> gibibytes(16 * 2**30)
    '16 GiB'
    """
    if size is None:
        return ""

    return f"{size / 2**30:.3g} GiB"


def network(interface: dict[str, Any]) -> str:
    """Returns a network's name, speed and state, such as "eth0 10 Gbit/s (up)"."""
    speed = "speed n/a"
    if interface["mbit_per_s"] is not None:
        speed = f"{interface['mbit_per_s'] / 1000:g} Gbit/s"

    return f"{interface['name']} {speed} ({interface['state'] or 'state n/a'})"


def pcie(gpu: dict[str, Any], prefix: str = "") -> str:
    """Describes a GPU's PCIe link, such as "PCIe Gen4 x16"; "" if unknown.

    Args:
        gpu: one of `describe_gpus`.
        prefix: "max_" for the link's maximum.
    """
    link = gpu["pcie"]
    generation = link[f"{prefix}generation"]
    width = link[f"{prefix}width"]
    if generation is None or width is None:
        return ""

    return f"PCIe Gen{generation} x{width}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what to examine in addition, and where to write it."""
    add = parser.add_argument
    add("--format", choices=formats(), default="table", help="default: %(default)s")
    add("--out", metavar="FILE", help="also write a description (system.json)")
    add(
        "--measure",
        action="store_true",
        help="also measure its speed, a minute; --out keeps it",
    )
    add(
        "--tensorflow",
        action="store_true",
        help="also import TensorFlow, in a separate process",
    )
    add(
        "--beside",
        choices=["paper"],
        help="also list published machines, after this one",
    )

    add(
        "--gin_file",
        action="append",
        default=[],
        help="also check that its prefetched batches fit; repeatable",
    )
    add("--gin_binding", action="append", default=[], help="repeatable")


def run(args: argparse.Namespace) -> int:
    """Prints what the machine is and what to fix; returns the exit code.

    Raises:
        RunError: if the prefetched batches of ``--gin_file`` don't fit into memory,
            after everything is printed.
    """
    examination = examine(tensorflow=args.tensorflow)

    buffer = None
    if args.gin_file or args.gin_binding:
        settings = imported("tfasr.commands.settings", "--gin_file")
        settings.check_gin(args.gin_file, args.gin_binding)
        memory = imported("tfasr.training.memory", "--gin_file")
        # In a separate process: reading a configuration imports TensorFlow.
        buffer = call(
            memory.buffer_of_preset,
            args.gin_file,
            args.gin_binding,
            show_messages=False,
        )

    described = description(examination)

    measured = None
    if args.measure:
        machine = imported("tfasr.estimates.machine", "--measure")
        values = call(machine.measured_here, show_messages=False)
        measured = machine.Machine(**values)
        described[machine.KEY] = measured.to_json()

    text = json.dumps(described, indent=1, ensure_ascii=False) + "\n"
    if args.out is not None:
        try:
            write_whole(args.out, text)
        except OSError as error:
            raise RunError(
                f"The description can't be written to {args.out}: {error}. Choose "
                "another --out."
            ) from error

    machines = []
    if args.beside:
        machines = [machines_table(examination, published(args.beside))]

    rows = [list(row) for row in _rows(examination, buffer)]
    if measured is not None:
        rows += [list(row) for row in measured.rows()]

    if args.format == "table":
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:{width}}  {value}" for name, value in rows]
        to_fix = [f"- {line}" for line in advice(examination)]
        lines.append("")
        lines += to_fix or ["Nothing to fix."]
        text = "\n".join(lines) + "\n"
        if machines:
            text += f"\n{to_text(machines)}"

    # In JSON, the text is what --out gets.
    elif args.format != JSON:
        table = Table("This machine", ["part", "found"], rows, advice(examination))
        text = WRITERS.call(args.format, [table, *machines])

    sys.stdout.write(text)
    if buffer is not None:
        refusal = buffer.refusal(available_bytes())
        if refusal:
            raise RunError(refusal)

    return 0


def machines_table(examination: Examination, source: PublishedSource) -> Table:
    """Returns a table of this machine and of a publication's machines.

    Args:
        examination: of this machine.
        source: the publication.
    """
    processor = examination.processor
    host = examination.host
    gpus = examination.gpus
    names = [f"{gpu['name']}, {gibibytes(gpu['memory_bytes'])}" for gpu in gpus]
    links = [pcie(gpu, "max_") or _UNKNOWN for gpu in gpus]

    # Publications state memory in units of 10^9 bytes.
    memory_gb = None
    if host["memory_bytes"] is not None:
        memory_gb = host["memory_bytes"] / 1e9

    this = {
        "machine": "this machine",
        "processor": processor["model"],
        "sockets": processor["sockets"],
        "cores": processor["cores"],
        "threads": processor["threads"],
        "memory_gb": memory_gb,
        "gpus": "; ".join(names) or None,
        "links": "; ".join(links) or None,
    }

    table = next(table for table in source.tables.values() if table.kind == "machines")
    headings = dict.fromkeys(table.rows[0], _shown) | {"memory_gb": "{:.3g}".format}
    columns = [
        Column(
            name.replace("_gb", "\nGB"),
            name,
            lambda row, name=name: row.get(name),
            text,
        )
        for name, text in headings.items()
    ]
    notes = [f"{source.name} ({source.source}), {table.conditions}", *table.notes]

    return table_of(f"{table.what}: {table.name}", columns, [this, *table.rows], notes)


def _rows(
    examination: Examination, buffer: "BufferNeed | None"
) -> list[tuple[str, str]]:
    """Returns names and values of everything that was found, for the table.

    Args:
        examination: of this machine.
        buffer: what a preset's prefetched batches need; None if no preset was given.
    """
    rows = [*_machine(examination), *_devices(examination), *_software(examination)]
    if buffer is not None:
        rows.append(
            ("buffer", f"{buffer}; {available_bytes() / 2**30:.2f} GiB are available")
        )

    return rows


def _machine(examination: Examination) -> list[tuple[str, str]]:
    """Returns the rows on processors, memory, limits, load, system and networks."""
    processor = examination.processor
    host = examination.host
    shape = ", ".join(
        f"{_shown(processor[name])} {name}" for name in ("sockets", "cores", "threads")
    )
    usable = f"{_shown(host['usable_threads'])} threads usable"
    limits = (
        f"{usable}; control group: {_shown(host['cpu_limit'])} processors, "
        f"{gibibytes(host['memory_limit_bytes']) or _UNKNOWN} memory"
    )

    load = _UNKNOWN
    if host["load"] is not None:
        load = f"{host['load']:.2f} over a minute"

    virtual = {
        True: "virtual machine",
        False: "no virtual machine",
        None: "virtual machine n/a",
    }
    system = (
        f"{host['operating_system']}, {host['kernel']}, "
        f"{virtual[processor['virtual']]}, "
        f"container: {host['container'] or 'none seen'}"
    )
    nodes = f"{_shown(processor['numa_nodes'])} NUMA nodes"

    return [
        ("processor", f"{_shown(processor['model'])}: {shape}, {nodes}"),
        ("instructions", ", ".join(processor["instructions"]) or _UNKNOWN),
        ("governor", ", ".join(processor["governors"]) or _UNKNOWN),
        ("memory", gibibytes(host["memory_bytes"]) or _UNKNOWN),
        ("limits", limits),
        ("taken by others", _taken(examination.taken)),
        ("load", load),
        ("system", system),
        ("network", "; ".join(map(network, host["networks"])) or _UNKNOWN),
    ]


def _devices(examination: Examination) -> list[tuple[str, str]]:
    """Returns the rows on GPUs, and on energy counters."""
    rows = []

    for index, gpu in enumerate(examination.gpus):
        facts = [
            _shown(gpu["name"]),
            gibibytes(gpu["memory_bytes"]) or "memory n/a",
            f"driver {_shown(gpu['driver'])}",
            f"{pcie(gpu) or 'PCIe n/a'} (at most {pcie(gpu, 'max_') or _UNKNOWN})",
            f"NVLinks: {_shown(gpu['nvlinks'])}",
        ]
        rows.append((f"GPU {index}", ", ".join(facts)))

    if not examination.gpus:
        seen = f"{examination.gpus_on_bus or 'none'} seen on the PCI bus"
        rows.append(("GPUs", f"{seen}; {examination.gpu_problem or 'NVML sees none'}"))

    rows.append(("energy, processors", examination.rapl))

    energy_source = {
        "counter": "a counter of joules",
        "power": "power, to be integrated",
        None: _UNKNOWN,
    }
    energy = ", ".join(
        f"GPU {index} {energy_source[gpu['energy']]}"
        for index, gpu in enumerate(examination.gpus)
    )
    if not energy:
        energy = f"{_UNKNOWN}: {examination.gpu_problem or 'no GPUs'}"

    rows.append(("energy, GPUs", energy))

    return rows


def _software(examination: Examination) -> list[tuple[str, str]]:
    """Returns the rows on Python, packages, the compiled decoder and TensorFlow."""
    software = examination.software
    seen = examination.tensorflow
    problem = examination.decoder_problem
    if problem is None:
        decoder = "loads"
    elif problem == _NOT_BUILT:
        decoder = problem
    else:
        decoder = f"does not load: {problem}"

    rows = [("Python", software["python"])]
    rows += [
        (name, version or "missing") for name, version in software["packages"].items()
    ]
    rows.append(("compiled decoder", decoder))

    if seen is not None:
        if "problem" in seen:
            view = f"does not load: {seen['problem']}"
        else:
            devices = ", ".join(seen["devices"]) or "no devices"
            cuda = _shown(seen["cuda"])
            cudnn = _shown(seen["cudnn"])
            view = f"{devices}; built for CUDA {cuda}, cuDNN {cudnn}"

        rows.append(("TensorFlow's view", view))

    rows += [
        (name, f"{version or 'not installed'} ({OPTIONAL[name]})")
        for name, version in software["optional"].items()
    ]

    return rows


def _shown(value: object) -> str:
    """Returns a value for the table, "n/a" for None.

    >>> _shown(None), _shown(2.50), _shown(16)
    ('n/a', '2.5', '16')
    """
    if value is None:
        return _UNKNOWN

    if isinstance(value, float):
        return f"{value:g}"

    return str(value)
