"""What a machine should do by its specification: as given, or reckoned from its processor."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfasr.cores import usable_cores
from tfasr.telemetry.processor import ROOT, describe_processor, text

# Numbers of 32 bits in a vector, and units that multiply and add one each cycle.
_LANES = {"AVX-512": 16, "AVX2": 8, "NEON": 4}
_UNITS = 2
_OPERATIONS = 2  # a multiplication and an addition
# AMD's processors before Zen 5 work through a vector of 512 bits in halves.
_HALVES_BEFORE_FAMILY = 26


@dataclass(frozen=True)
class Specified:
    """The specification's ceilings.

    Attributes:
        flops_per_s: floating-point operations per second by precision, as far as it is known.
        bytes_per_s: of memory; None if it is not known.
        source: where the numbers come from, for readers.
    """

    flops_per_s: dict[str, float]
    bytes_per_s: float | None
    source: str


def specified(
    gflops: Sequence[tuple[str, float]], gigabytes_per_s: float, *, on_gpu: bool, root: Path = ROOT
) -> Specified:
    """Returns the specification's ceilings.

    Args:
        gflops: precisions and GFLOP/s, as a data sheet gives them; where there are none and no
            GPU, those of the processor are reckoned.
        gigabytes_per_s: of memory; 0 if it is not given.
        on_gpu: whether a GPU is measured, of which nothing can be reckoned here.
        root: the folder that holds ``proc`` and ``sys``.
    """
    bytes_per_s = 1e9 * gigabytes_per_s or None
    if gflops:
        rates = {precision: 1e9 * rate for precision, rate in gflops}
        return Specified(rates, bytes_per_s, "as given")
    if on_gpu:
        return Specified({}, bytes_per_s, "n/a: give RooflineConfig.specified_gflops")
    reckoned = _of_processor(root)
    if reckoned is None:
        return Specified({}, bytes_per_s, "n/a: the kernel tells no clock or no vectors")
    rate, source = reckoned
    return Specified({"float32": rate, "float64": rate / 2}, bytes_per_s, source)


def _of_processor(root: Path) -> tuple[float, str] | None:
    """Returns the operations per second in 32 bits of the usable cores, and how they come about."""
    found = describe_processor(root)
    lanes = max((_LANES.get(name, 0) for name in found["instructions"]), default=0)
    mhz = found["max_mhz"] or _shown_mhz(root)
    if not lanes or not mhz:
        return None
    vendor, family = _of_cpuinfo(root, "vendor_id"), _of_cpuinfo(root, "cpu family")
    if vendor == "AuthenticAMD" and family.isdigit() and int(family) < _HALVES_BEFORE_FAMILY:
        lanes = min(lanes, _LANES["AVX2"])
    cores = min(found["cores"] or usable_cores(), usable_cores())
    per_cycle = _OPERATIONS * _UNITS * lanes
    source = (
        f"reckoned: {cores} {'core' if cores == 1 else 'cores'} x {mhz / 1000:.4g} GHz x "
        f"{per_cycle} operations a cycle ({_UNITS} units that multiply and add {lanes} numbers of "
        "32 bits; half as many of 64)"
    )
    if not found["max_mhz"]:
        source += "; the clock is the one that the kernel shows, and a higher one may be reached"
    return cores * mhz * 1e6 * per_cycle, source


def _shown_mhz(root: Path) -> float | None:
    shown = _of_cpuinfo(root, "cpu MHz")
    return float(shown) if shown.replace(".", "", 1).isdigit() else None


def _of_cpuinfo(root: Path, key: str) -> str:
    """Returns what ``/proc/cpuinfo`` says first of a key, or ""."""
    for line in text(root / "proc" / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""
