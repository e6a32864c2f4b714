"""``tfasr doctor``: what this machine is, and whether its clocks can be trusted."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from tfasr.display.table import JSON, WRITERS, Column, Table, formats, table_of, to_text
from tfasr.errors import RunError
from tfasr.kit.files import write_whole
from tfasr.kit.process import call
from tfasr.telemetry.doctor import (
    OPTIONAL,
    Examination,
    advice,
    examine,
    gibibytes,
    network,
    pcie,
    system_description,
)
from tfasr.telemetry.machine import available_bytes
from tfasr.tta.published.results import PublishedSource, published

if TYPE_CHECKING:
    from tfasr.training.memory import BufferNeed

_UNKNOWN = "n/a"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--format", choices=formats(), default="table", help="default: %(default)s")
    add("--out", metavar="FILE", help="also write a description in MLPerf's format (system.json)")
    add("--system_name", default="", help="the machine's name in the description")
    add("--submitter", default="", help="the submitter's name in the description")
    add("--tensorflow", action="store_true", help="also import TensorFlow, in a separate process")
    add("--beside", choices=["paper"], help="also list published machines, after this one")
    gin = {"action": "append", "default": []}
    add("--gin_file", **gin, help="also check that its prefetched batches fit; repeatable")
    add("--gin_binding", **gin, help="repeatable")


def run(args: argparse.Namespace) -> int:
    examination = examine(tensorflow=args.tensorflow)
    buffer = None
    if args.gin_file or args.gin_binding:
        from tfasr.training.memory import buffer_of_preset

        # In a separate process: reading a configuration imports TensorFlow.
        buffer = call(buffer_of_preset, args.gin_file, args.gin_binding, show_messages=False)
    description = system_description(
        examination, submitter=args.submitter, system_name=args.system_name
    )
    text = json.dumps(description, indent=1, ensure_ascii=False) + "\n"
    if args.out is not None:
        try:
            write_whole(args.out, text)
        except OSError as error:
            raise RunError(
                f"The description can't be written to {args.out}: {error}. Choose another --out."
            ) from error
    machines = [machines_table(examination, published(args.beside))] if args.beside else []
    if args.format == "table":
        text = doctor_text(examination, buffer) + (machines and "\n" + to_text(machines) or "")
    elif args.format != JSON:
        rows = [list(row) for row in _rows(examination, buffer)]
        table = Table("This machine", ["part", "found"], rows, advice(examination))
        text = WRITERS.call(args.format, [table, *machines])
    sys.stdout.write(text)
    refusal = buffer and buffer.refusal(available_bytes())
    if refusal:
        raise RunError(refusal)
    return 0


def doctor_text(examination: Examination, buffer: "BufferNeed | None" = None) -> str:
    """Returns the findings as two columns, and advice below."""
    rows = _rows(examination, buffer)
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:{width}}  {value}" for name, value in rows]
    lines += ["", *([f"- {text}" for text in advice(examination)] or ["Nothing to fix."])]
    return "\n".join(lines) + "\n"


def machines_table(examination: Examination, source: PublishedSource) -> Table:
    """Returns this machine and the source's: processors, memory, devices and their links."""
    processor, host, gpus = examination.processor, examination.host, examination.gpus
    memory_bytes = host["memory_bytes"]
    this = {
        "machine": "this machine",
        "processor": processor["model"],
        **{name: processor[name] for name in ("sockets", "cores", "threads")},
        "memory_gb": None if memory_bytes is None else memory_bytes / 1e9,
        "gpus": "; ".join(f"{g['name']}, {gibibytes(g['memory_bytes'])}" for g in gpus) or None,
        "links": "; ".join(pcie(gpu, "max_") or _UNKNOWN for gpu in gpus) or None,
    }
    table = next(table for table in source.tables.values() if table.kind == "machines")
    headings = dict.fromkeys(table.rows[0], _shown) | {"memory_gb": "{:.3g}".format}
    columns = [
        Column(name.replace("_gb", "\nGB"), name, lambda row, name=name: row.get(name), text)
        for name, text in headings.items()
    ]
    notes = [f"{source.name} ({source.source}), {table.conditions}", *table.notes]
    return table_of(f"{table.what}: {table.name}", columns, [this, *table.rows], notes)


def _rows(examination: Examination, buffer: "BufferNeed | None") -> list[tuple[str, str]]:
    rows = [*_machine(examination), *_devices(examination), *_software(examination)]
    if buffer is not None:
        rows.append(("buffer", f"{buffer}; {available_bytes() / 2**30:.2f} GiB are available"))
    return rows


def _machine(examination: Examination) -> list[tuple[str, str]]:
    processor, host = examination.processor, examination.host
    counted = ((processor[name], name) for name in ("sockets", "cores", "threads"))
    shape = ", ".join(f"{_shown(count)} {name}" for count, name in counted)
    usable = f"{_shown(host['usable_threads'])} threads usable"
    limits = (
        f"{usable}; control group: {_shown(host['cpu_limit'])} processors, "
        f"{gibibytes(host['memory_limit_bytes']) or _UNKNOWN} memory"
    )
    virtual = {True: "virtual machine", False: "no virtual machine", None: "virtual machine n/a"}
    return [
        ("processor", f"{_shown(processor['model'])}: {shape}, {_shown(processor['numa_nodes'])} "
         "NUMA nodes"),
        ("instructions", ", ".join(processor["instructions"]) or _UNKNOWN),
        ("governor", ", ".join(processor["governors"]) or _UNKNOWN),
        ("memory", gibibytes(host["memory_bytes"]) or _UNKNOWN),
        ("limits", limits),
        ("load", _UNKNOWN if host["load"] is None else f"{host['load']:.2f} over a minute"),
        ("system", f"{host['operating_system']}, {host['kernel']}, "
         f"{virtual[processor['virtual']]}, container: {host['container'] or 'none seen'}"),
        ("network", "; ".join(map(network, host["networks"])) or _UNKNOWN),
    ]  # fmt: skip


def _devices(examination: Examination) -> list[tuple[str, str]]:
    rows = []
    for index, gpu in enumerate(examination.gpus):
        links = gpu["nvlinks"]
        facts = [
            _shown(gpu["name"]),
            gibibytes(gpu["memory_bytes"]) or "memory n/a",
            f"driver {_shown(gpu['driver'])}",
            f"{pcie(gpu) or 'PCIe n/a'} (at most {pcie(gpu, 'max_') or _UNKNOWN})",
            f"NVLinks: {_UNKNOWN if links is None else links}",
        ]
        rows.append((f"GPU {index}", ", ".join(facts)))
    if not examination.gpus:
        seen = f"{examination.gpus_on_bus or 'none'} seen on the PCI bus"
        rows.append(("GPUs", f"{seen}; {examination.gpu_problem or 'NVML sees none'}"))
    rows.append(("energy, processors", examination.rapl))
    energy_source = {"counter": "a counter of joules", "power": "power, to be integrated"}
    energy_source[None] = _UNKNOWN
    gpus = ", ".join(
        f"GPU {index} {energy_source[gpu['energy']]}" for index, gpu in enumerate(examination.gpus)
    )
    rows.append(("energy, GPUs", gpus or f"{_UNKNOWN}: {examination.gpu_problem or 'no GPUs'}"))
    return rows


def _software(examination: Examination) -> list[tuple[str, str]]:
    software, seen = examination.software, examination.tensorflow
    problem = examination.decoder_problem
    rows = [("Python", software["python"])]
    rows += [(name, version or "missing") for name, version in software["packages"].items()]
    rows.append(("compiled decoder", "loads" if problem is None else f"does not load: {problem}"))
    if seen is not None:
        view = f"does not load: {seen.get('problem')}"
        if "problem" not in seen:
            devices = ", ".join(seen["devices"]) or "no devices"
            cuda, cudnn = _shown(seen["cuda"]), _shown(seen["cudnn"])
            view = f"{devices}; built for CUDA {cuda}, cuDNN {cudnn}"
        rows.append(("TensorFlow's view", view))
    rows += [
        (name, f"{version or 'not installed'} ({OPTIONAL[name]})")
        for name, version in software["optional"].items()
    ]
    return rows


def _shown(value: object) -> str:
    return _UNKNOWN if value is None else f"{value:g}" if isinstance(value, float) else str(value)
