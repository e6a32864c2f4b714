"""What a machine costs: the description that turns hours and joules into money."""

import math

from tfasr.config import config_class, require

HOURS_PER_YEAR = 365.25 * 24
_POSITIVE = (
    "price_usd_per_hour",
    "purchase_price_usd",
    "gpus_price_usd",
    "cpus_price_usd",
    "amortisation_years",
    "relative_price",
    "power_w",
    "num_hosts",
    "num_devices",
)


@config_class
class HardwareConfig:
    """A machine's price; None is what is not known. All prices are of the whole machine.

    Attributes:
        name: how reports call the machine.
        price_usd_per_hour: rent, all hosts and devices together.
        purchase_price_usd: what was paid for it, instead of rent. Without the years of its use it
            gives the relation of two machines' prices, and no dollars for an hour.
        gpus_price_usd: the accelerators' part of the purchase.
        cpus_price_usd: the processors' part of the purchase.
        amortisation_years: years over which the purchase is written off.
        utilisation: the share of those years in which the machine works, 0 to 1.
        relative_price: price as a multiple of a study's cheapest machine, where only that is
            known; it gives relative costs and no dollars.
        electricity_usd_per_kwh: what electricity costs beside; None where the price includes it.
        power_w: nominal power of the whole machine. An estimate, used and labelled as one, where
            no counter has measured the energy.
        num_hosts: computers.
        num_devices: accelerators, of all hosts together.
        source: where the figures come from.
    """

    name: str = ""
    price_usd_per_hour: float | None = None
    purchase_price_usd: float | None = None
    gpus_price_usd: float | None = None
    cpus_price_usd: float | None = None
    amortisation_years: float | None = None
    utilisation: float = 1.0
    relative_price: float | None = None
    electricity_usd_per_kwh: float | None = None
    power_w: float | None = None
    num_hosts: int | None = None
    num_devices: int | None = None
    source: str = ""

    def check(self) -> None:
        """Raises ValueError for prices that make no sense together or at all."""
        for field in _POSITIVE:
            value = getattr(self, field)
            positive = value is None or (math.isfinite(value) and value > 0)
            require(positive, self, field, "greater than 0, or None where it is not known")
        require(0 < self.utilisation <= 1, self, "utilisation", "greater than 0 and at most 1")
        rate = self.electricity_usd_per_kwh
        fits = rate is None or (math.isfinite(rate) and rate >= 0)
        require(fits, self, "electricity_usd_per_kwh", "at least 0, or None")
        if self.price_usd_per_hour is not None and self.amortisation_years is not None:
            raise ValueError(
                "HardwareConfig.price_usd_per_hour and HardwareConfig.amortisation_years must not "
                "both be given: a machine is rented or written off. Received: "
                f"{self.price_usd_per_hour} USD per hour and {self.amortisation_years} years."
            )
        if self.purchase_price_usd is None and self.amortisation_years is not None:
            raise ValueError(
                "HardwareConfig.amortisation_years must come with the purchase_price_usd, "
                f"which is written off over them. Received: {self.amortisation_years} years alone."
            )

    @property
    def hourly_usd(self) -> float | None:
        """What an hour of use costs without electricity, or None where no price is known."""
        if self.amortisation_years is None:
            return self.price_usd_per_hour
        hours = self.amortisation_years * HOURS_PER_YEAR * self.utilisation
        return self.purchase_price_usd / hours
