"""Descriptions of machines from files: gin presets and MLPerf's system descriptions."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError
from tfasr.gin_files.bindings import UNBOUND, bound_names, fill, make
from tfasr.gin_files.preset import COMMAND_LINE, GinText, presets_folder, read_gin
from tfasr.tta.costs.hardware import HardwareConfig

_UNBOUND = "nothing: bind it, or give --price_usd_per_hour"


def load_hardware(name: str | Path, *, price_usd_per_hour: float | None = None) -> HardwareConfig:
    """Reads a machine's description; without TensorFlow.

    Args:
        name: a gin file that binds `HardwareConfig`, a preset of ``hardware/`` by its name, or a
            ``system.json`` as of MLPerf or ``tfasr doctor``. MLPerf's states no price, but any
            field of `HardwareConfig` may stand in it.
        price_usd_per_hour: replaces the rent that the file states.

    Raises:
        UsageError: if there is no such file, or it makes no sense; it names the file.
    """
    path = _find(str(name))
    price = {} if price_usd_per_hour is None else {"price_usd_per_hour": price_usd_per_hour}
    try:
        found = _from_json(path, price) if path.suffix == ".json" else _from_gin(path, price)
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        message = str(error).split("\n")[0]
        raise UsageError(f"{path} must describe a machine: {message}") from error
    if price:
        source = "; ".join(filter(None, (found.source, "rent as given by hand")))
        found = dataclasses.replace(found, source=source)
    return found


def hardware_presets() -> list[str]:
    """Returns the names of the machines that came with tfasr."""
    return sorted(path.stem for path in (presets_folder() / "hardware").glob("*.gin"))


def _find(name: str) -> Path:
    presets = presets_folder()
    beside = (presets / "hardware" / name, presets / "hardware" / f"{name}.gin", presets / name)
    for candidate in (Path(name), *beside):
        if candidate.is_file():
            return candidate.resolve()
    raise UsageError(
        "--hardware must be a gin file, a system.json or a preset of a machine. Received: "
        f"{name!r}. Presets: {', '.join(hardware_presets())}"
    )


def _from_gin(path: Path, price: dict[str, float]) -> HardwareConfig:
    prices = [f"HardwareConfig.{field} = {value!r}" for field, value in price.items()]

    def build(lines: GinText) -> HardwareConfig:
        if bound_names(lines) != {"HardwareConfig"}:
            raise UsageError(
                f"{path} must describe a machine and bind HardwareConfig alone. Received: "
                f"{sorted(bound_names(lines))}."
            )
        try:
            return make(HardwareConfig, lines)
        except UsageError as error:
            # The price is no --gin_binding, though it is read as one.
            message = str(error).removeprefix(f"{COMMAND_LINE}:1: ").replace(UNBOUND, _UNBOUND)
            raise UsageError(f"{path} must describe a machine: {message}") from error

    # A description comes from anywhere: reading it must not run code.
    return fill(read_gin([str(path)], prices), build, imports=False).configs


def _from_json(path: Path, price: dict[str, float]) -> HardwareConfig:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or "system_name" not in content:
        raise ValueError("a system description must be an object with a system_name.")
    hosts = _count(content.get("number_of_nodes"))
    devices = _count(content.get("accelerators_per_node"))
    known: dict[str, Any] = {
        "name": str(content["system_name"] or path.stem),
        "num_hosts": hosts,
        "num_devices": None if devices is None else devices * (hosts or 1),
        "source": path.name,
    }
    fields = {field.name for field in dataclasses.fields(HardwareConfig)}
    known |= {name: value for name, value in content.items() if name in fields}
    return HardwareConfig(**{**known, **price})


def _count(value: object) -> int | None:
    """MLPerf writes numbers as text; what is no positive number is not known."""
    text = str(value).strip()
    return int(text) if text.isdigit() and int(text) > 0 else None
