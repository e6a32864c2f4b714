"""Which processes train a run together, and which of them this one is."""

import re
from dataclasses import dataclass

from tfasr.errors import UsageError

_ADDRESS = re.compile(r"(?P<host>[^\s:\[\]/]+):(?P<port>\d{1,5})")
_LARGEST_PORT = 65535


@dataclass(frozen=True)
class Cluster:
    """The workers of a run: processes that each train on a part of every batch.

    Attributes:
        addresses: ``host:port`` of each worker's TensorFlow server, in the order of their ranks.
        rank: which of them this process is; 0 is the chief, which writes the run.

    Raises:
        UsageError: if they describe no cluster.
    """

    addresses: tuple[str, ...]
    rank: int

    def __post_init__(self):
        if not self.addresses:
            raise UsageError("A cluster must have at least one worker. Received: no address.")
        for address in self.addresses:
            match = _ADDRESS.fullmatch(address)
            if match is None or not 0 < int(match["port"]) <= _LARGEST_PORT:
                raise UsageError(
                    "A worker's address must be HOST:PORT with a port of 1 to 65535. Received: "
                    f"{address!r} among {','.join(self.addresses)}."
                )
        twice = sorted({a for a in self.addresses if self.addresses.count(a) > 1})
        if twice:
            raise UsageError(
                "Each worker must have an address of its own. Received more than once: "
                f"{', '.join(twice)}. Give workers on one host different ports."
            )
        if not 0 <= self.rank < len(self.addresses):
            raise UsageError(
                f"A worker's rank must be 0 to {len(self.addresses) - 1}, one below the number of "
                f"addresses. Received: {self.rank} with {','.join(self.addresses)}."
            )

    @property
    def size(self) -> int:
        """How many workers there are."""
        return len(self.addresses)

    @property
    def local_rank(self) -> int:
        """How many workers of a lower rank are on this worker's host: it takes that GPU."""
        host = host_of(self.addresses[self.rank])
        return sum(host_of(address) == host for address in self.addresses[: self.rank])

    def name(self, rank: int) -> str:
        """Returns how messages call a worker, such as "worker 1 (node2:12345)"."""
        return f"worker {rank}{', the chief' if rank == 0 else ''} ({self.addresses[rank]})"


def host_of(address: str) -> str:
    """Returns the host of a ``host:port``."""
    return address.rpartition(":")[0]


def port_of(address: str) -> int:
    """Returns the port of a ``host:port``."""
    return int(address.rpartition(":")[2])
