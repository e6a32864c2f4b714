"""What the processors are, according to the Linux kernel; None for what it does not tell."""

import platform
from pathlib import Path
from typing import Any

ROOT = Path("/")
_INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI",
    "avx512_bf16": "AVX-512 bf16",
    "amx_tile": "AMX",
    "amx_bf16": "AMX bf16",
    "asimd": "NEON",
    "sve": "SVE",
    "bf16": "bf16",
}


def describe_processor(root: Path = ROOT) -> dict[str, Any]:
    """Returns the processors of this computer as JSON values.

    Args:
        root: the folder that holds ``proc`` and ``sys``.

    Returns:
        "model"; "sockets", "cores" and "threads" of the computer; "instructions" of interest;
        "virtual", whether a hypervisor shows itself; "numa_nodes"; "governors" of the clock
        frequency; "max_mhz".
    """
    blocks = _cpuinfo(root / "proc" / "cpuinfo")
    first = blocks[0] if blocks else {}
    flags = (first.get("flags") or first.get("Features") or "").split()
    located = [block for block in blocks if "physical id" in block and "core id" in block]
    whole = bool(blocks) and len(located) == len(blocks)
    cpus = root / "sys" / "devices" / "system" / "cpu"
    nodes = list((root / "sys" / "devices" / "system" / "node").glob("node[0-9]*"))
    governors = {text(path) for path in cpus.glob("cpu[0-9]*/cpufreq/scaling_governor")}
    khz = text(cpus / "cpu0" / "cpufreq" / "cpuinfo_max_freq")
    return {
        "model": first.get("model name") or platform.processor() or None,
        "sockets": len({block["physical id"] for block in located}) if whole else None,
        "cores": len({(b["physical id"], b["core id"]) for b in located}) if whole else None,
        "threads": len(blocks) or None,
        "instructions": [name for flag, name in _INSTRUCTIONS.items() if flag in flags],
        "virtual": "hypervisor" in flags if flags else None,
        "numa_nodes": len(nodes) or None,
        "governors": sorted(governors - {""}),
        "max_mhz": int(khz) // 1000 if khz.isdigit() else None,
    }


def text(path: Path) -> str:
    """Returns a small file's text without the space around it; "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _cpuinfo(path: Path) -> list[dict[str, str]]:
    blocks = []
    for block in text(path).split("\n\n"):
        pairs = [line.partition(":") for line in block.splitlines() if ":" in line]
        found = {key.strip(): value.strip() for key, _, value in pairs}
        if "processor" in found:
            blocks.append(found)
    return blocks
