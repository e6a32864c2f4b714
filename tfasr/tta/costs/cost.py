"""What a time to accuracy costs: hours times price, and electricity where it is paid separately."""

from dataclasses import dataclass

from tfasr.tta.costs.energy import JOULES_PER_KWH, EnergyUse
from tfasr.tta.costs.hardware import HardwareConfig


@dataclass(frozen=True)
class Cost:
    """The cost of a stretch of time on a machine; None is what is not known.

    Attributes:
        hourly_usd: what an hour of the machine costs without electricity.
        machine_usd: ``hourly_usd * charged_s / 3600``.
        kwh: energy, measured or estimated.
        kwh_is: "measured"; "at least", where some of the time is unknown; "estimate", from the
            machine's nominal power; None where there is none.
        electricity_usd: ``kwh`` times its price; None also where electricity is not paid beside.
        usd: machine and electricity together.
        price_hours: hours times the machine's purchase price in USD, to compare with others'.
        relative_units: hours times the machine's relative price, to compare with others'.
    """

    charged_s: float
    hourly_usd: float | None
    machine_usd: float | None
    kwh: float | None
    kwh_is: str | None
    electricity_usd: float | None
    usd: float | None
    price_hours: float | None
    relative_units: float | None


def cost_of(hardware: HardwareConfig | None, charged_s: float, energy: EnergyUse | None) -> Cost:
    """Returns what a stretch of time costs.

    Args:
        energy: what was measured in them, None where nothing was.
    """
    hardware = hardware or HardwareConfig()
    hours = charged_s / 3600
    hourly, rate = hardware.hourly_usd, hardware.electricity_usd_per_kwh
    machine = None if hourly is None else hourly * hours
    kwh, kwh_is = _kwh(hardware, hours, energy)
    electricity = None if rate is None or kwh is None else rate * kwh
    # Electricity that is paid but not known leaves the whole unknown, not cheaper.
    known = machine is not None and (rate is None or electricity is not None)
    share, price = hardware.relative_price, hardware.purchase_price_usd
    return Cost(
        charged_s=charged_s,
        hourly_usd=hourly,
        machine_usd=machine,
        kwh=kwh,
        kwh_is=kwh_is,
        electricity_usd=electricity,
        usd=machine + (electricity or 0) if known else None,
        price_hours=None if price is None else price * hours,
        relative_units=None if share is None else share * hours,
    )


def relative_cost(first: Cost, other: Cost) -> float | None:
    """Returns a cost as a multiple of the first: of dollars, else of hours times price.

    Purchase prices without years of use, and relative prices, stand for dollars where the machines
    are written off and used alike: the relation of time to price that the paper discusses.

    Source: the paper, section 6 and Table 1.
    """
    for own, reference in (
        (other.usd, first.usd),
        (other.price_hours, first.price_hours),
        (other.relative_units, first.relative_units),
    ):
        if own is not None and reference is not None and reference > 0:
            return own / reference
    return None


def _kwh(
    hardware: HardwareConfig, hours: float, energy: EnergyUse | None
) -> tuple[float | None, str | None]:
    if energy is not None:
        sure = energy.total_unknown_s == 0
        return energy.total_joules / JOULES_PER_KWH, "measured" if sure else "at least"
    if hardware.power_w is not None:
        return hardware.power_w * hours / 1000, "estimate"
    return None, None
