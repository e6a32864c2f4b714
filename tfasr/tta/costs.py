"""What a time to accuracy costs: hours times price, plus electricity if paid separately.

`load_hardware` reads a machine's prices, `cost_of` applies them to some time and its
measured energy, and `relative_cost` compares two machines.
"""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError
from tfasr.kit import gin
from tfasr.kit.config import config_class, require
from tfasr.kit.files import MOST_JSON_BYTES, read_bytes
from tfasr.tta.energy import JOULES_PER_KWH, EnergyUse

HOURS_PER_YEAR = 365.25 * 24
_POSITIVE = (
    "price_usd_per_hour", "purchase_price_usd", "gpus_price_usd", "cpus_price_usd",
    "amortisation_years", "power_w", "num_hosts", "num_devices",
)  # fmt: skip

# What a message says instead of gin's words about a price that is bound to nothing.
_UNBOUND = "nothing: bind it, or pass --price_usd_per_hour"


@config_class
class HardwareConfig:
    """A machine's price. All prices are for the whole machine; None means unknown.

    Attributes:
        name: the machine's name in reports.
        price_usd_per_hour: rent for all hosts and devices together.
        purchase_price_usd: the price of a machine that is not rented. Without
            ``amortisation_years`` it gives price ratios of machines, but no dollars per
            hour.
        gpus_price_usd: the accelerators' share of the purchase price.
        cpus_price_usd: the processors' share of the purchase price.
        amortisation_years: years over which the purchase is written off.
        utilisation: the share of those years in which the machine works, 0 to 1.
        electricity_usd_per_kwh: price of electricity; None if the machine's price
            includes it.
        power_w: nominal power of the whole machine, for an estimate (labelled as such)
            if no counter measured the energy.
        num_hosts: computers.
        num_devices: accelerators of all hosts together.
        source: where the figures come from.
    """

    name: str = ""
    price_usd_per_hour: float | None = None
    purchase_price_usd: float | None = None
    gpus_price_usd: float | None = None
    cpus_price_usd: float | None = None
    amortisation_years: float | None = None
    utilisation: float = 1.0
    electricity_usd_per_kwh: float | None = None
    power_w: float | None = None
    num_hosts: int | None = None
    num_devices: int | None = None
    source: str = ""

    def check(self) -> None:
        for field in _POSITIVE:
            value = getattr(self, field)
            positive = value is None or (math.isfinite(value) and value > 0)
            require(positive, self, field, "greater than 0, or None if unknown")

        require(
            0 < self.utilisation <= 1,
            self,
            "utilisation",
            "greater than 0 and at most 1",
        )
        rate = self.electricity_usd_per_kwh
        fits = rate is None or (math.isfinite(rate) and rate >= 0)
        require(fits, self, "electricity_usd_per_kwh", "at least 0, or None")
        if self.amortisation_years is not None:
            require(
                self.price_usd_per_hour is None,
                self,
                "price_usd_per_hour",
                "None if amortisation_years is given: a machine is rented or written off",
            )
            require(
                self.purchase_price_usd is not None,
                self,
                "amortisation_years",
                "given with the purchase_price_usd, which is written off over them",
            )

    @property
    def hourly_usd(self) -> float | None:
        """Price of an hour without electricity, or None if unknown.

        A machine that was bought is written off over the hours in which it works.
        """
        if self.amortisation_years is None:
            return self.price_usd_per_hour

        hours = self.amortisation_years * HOURS_PER_YEAR * self.utilisation
        return self.purchase_price_usd / hours


@dataclass(frozen=True)
class Cost:
    """The cost of some time on a machine; None means unknown."""

    charged_s: float
    hourly_usd: float | None
    machine_usd: float | None  # without electricity
    kwh: float | None  # measured or estimated

    # "measured", "at least" if some seconds are unknown, or "estimate" from the nominal
    # power; it holds for ``electricity_usd`` and what they add to ``usd``, too.
    kwh_is: str | None

    electricity_usd: float | None  # None also if the machine's price includes it
    usd: float | None  # machine and electricity together
    price_hours: float | None  # hours times purchase price in USD, for comparisons


def cost_of(
    hardware: HardwareConfig | None, charged_s: float, energy: EnergyUse | None
) -> Cost:
    """Computes what some time on a machine costs.

    Args:
        hardware: the machine's prices, if known.
        charged_s: the time in seconds.
        energy: what was measured in it, if anything.
    """
    hardware = hardware or HardwareConfig()
    hours = charged_s / 3600
    kwh, kwh_is = _kwh(hardware, hours, energy)

    electricity_usd = None
    if kwh is not None and hardware.electricity_usd_per_kwh is not None:
        electricity_usd = hardware.electricity_usd_per_kwh * kwh

    # Without electricity, which may be included in the rent.
    machine_usd = None
    if hardware.hourly_usd is not None:
        machine_usd = hardware.hourly_usd * hours

    # If electricity costs extra and is unknown, the total is unknown.
    usd = machine_usd
    if usd is not None and hardware.electricity_usd_per_kwh is not None:
        usd = None
        if electricity_usd is not None:
            usd = machine_usd + electricity_usd

    price_hours = None
    if hardware.purchase_price_usd is not None:
        price_hours = hardware.purchase_price_usd * hours

    return Cost(
        charged_s=charged_s,
        hourly_usd=hardware.hourly_usd,
        machine_usd=machine_usd,
        kwh=kwh,
        kwh_is=kwh_is,
        electricity_usd=electricity_usd,
        usd=usd,
        price_hours=price_hours,
    )


def relative_cost(first: Cost, other: Cost) -> float | None:
    """Returns a cost as a multiple of the first: of dollars, or else of hours times price.

    It is None if neither is known of both.

    Hours times purchase price can replace dollars if both machines are written off over
    equal times and used alike. It is our reading of the paper's price/performance ratio
    (section 1), for which it gives no formula; its prices are in Table 1.
    """
    for unit in ("usd", "price_hours"):
        amount = getattr(other, unit)
        reference = getattr(first, unit)
        if amount is not None and reference is not None and reference > 0:
            return amount / reference

    return None


def _kwh(
    hardware: HardwareConfig, hours: float, energy: EnergyUse | None
) -> tuple[float | None, str | None]:
    """Returns the energy of some hours, and which kind of number it is (`Cost.kwh_is`)."""
    if energy is not None:
        kind = "at least" if energy.total_unknown_s else "measured"
        return energy.total_joules / JOULES_PER_KWH, kind

    if hardware.power_w is not None:
        return hardware.power_w * hours / 1000, "estimate"

    return None, None


def load_hardware(
    name: str | Path, *, price_usd_per_hour: float | None = None
) -> HardwareConfig:
    """Reads a machine's description without TensorFlow.

    Args:
        name: a gin file that binds `HardwareConfig`, a preset of ``hardware/``, or a
            ``system.json`` of MLPerf or ``tfasr doctor``, which may also hold fields of
            `HardwareConfig`.
        price_usd_per_hour: replaces the description's.

    Raises:
        UsageError: naming the file, if it can't be read.
    """
    path = _find(str(name))
    price: dict[str, float] = {}
    if price_usd_per_hour is not None:
        price["price_usd_per_hour"] = price_usd_per_hour

    try:
        if path.suffix == ".json":
            hardware = _from_json(path, price)
        else:
            hardware = _from_gin(path, price)
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        message = str(error).split("\n")[0]
        raise UsageError(f"{path} must describe a machine: {message}") from error

    if price:
        source = "; ".join(filter(None, (hardware.source, "rent as given by hand")))
        hardware = dataclasses.replace(hardware, source=source)

    return hardware


def _find(name: str) -> Path:
    """Returns the file of a machine: as named, or a preset with or without its suffix."""
    presets = gin.presets_folder()
    shipped = (
        presets / "hardware" / name,
        presets / "hardware" / f"{name}.gin",
        presets / name,
    )
    for candidate in (Path(name), *shipped):
        if candidate.is_file():
            return candidate.resolve()

    names = sorted(path.stem for path in (presets / "hardware").glob("*.gin"))
    raise UsageError(
        "--hardware must be a gin file, a system.json or a preset. Received: "
        f"{name!r}. Presets: {', '.join(names)}"
    )


def _from_gin(path: Path, price: dict[str, float]) -> HardwareConfig:
    """Reads a gin file that binds `HardwareConfig`.

    Args:
        path: the file.
        price: values that replace the file's, by field.
    """
    prices = [f"HardwareConfig.{field} = {value!r}" for field, value in price.items()]

    def build(lines: gin.GinText) -> HardwareConfig:
        if gin.bound_names(lines) != {"HardwareConfig"}:
            raise UsageError(
                f"{path} must describe a machine and bind HardwareConfig alone. "
                f"Received: {sorted(gin.bound_names(lines))}."
            )

        try:
            return gin.make(HardwareConfig, lines)
        except UsageError as error:
            # --price_usd_per_hour is read as a --gin_binding, but the message must not
            # say so.
            message = (
                str(error)
                .removeprefix(f"{gin.COMMAND_LINE}:1: ")
                .replace(gin.UNBOUND, _UNBOUND)
            )
            raise UsageError(f"{path} must describe a machine: {message}") from error

    # A description may come from anyone, so reading it must not run code.
    return gin.fill(gin.read_gin([str(path)], prices), build, imports=False).configs


def _from_json(path: Path, price: dict[str, float]) -> HardwareConfig:
    """Reads MLPerf's description of a system, with fields of `HardwareConfig` added.

    Args:
        path: the file.
        price: values that replace the file's, by field.

    Source: MLPerf's system_desc_id.json (github.com/mlcommons/policies).
    """
    content = json.loads(read_bytes(path, MOST_JSON_BYTES))
    if not isinstance(content, dict) or "system_name" not in content:
        raise ValueError("a system description must be an object with a system_name.")

    hosts = _count(content.get("number_of_nodes"))
    devices = _count(content.get("accelerators_per_node"))
    if devices is not None:
        devices *= hosts or 1

    values: dict[str, Any] = {
        "name": str(content["system_name"] or path.stem),
        "num_hosts": hosts,
        "num_devices": devices,
        "source": path.name,
    }
    fields = {field.name for field in dataclasses.fields(HardwareConfig)}
    for name in content:
        if ("price" in name or "cost" in name) and name not in fields:
            raise ValueError(
                "a price must name its currency, as price_usd_per_hour does; tfasr "
                f"converts none. Received: {name}."
            )

    values |= {name: value for name, value in content.items() if name in fields}
    return HardwareConfig(**{**values, **price})


def _count(value: object) -> int | None:
    """Returns a number of things, which MLPerf writes as text; None unless it is one."""
    text = str(value).strip()
    if not text.isdigit():
        return None

    return int(text) or None
