"""Seconds to sort random numbers: a workload of your own.

tfasr bench --import examples/own_workload.py --gin_file sorting.gin

where sorting.gin says: BenchConfig.workload = 'sorting'
"""

import statistics
import time

import numpy as np

from tfasr.bench.workload import WORKLOADS, Context, Result, Workload
from tfasr.display.table import Table
from tfasr.kit.config import config_class, require


@config_class
class SortingConfig:
    """What is sorted.

    Attributes:
        count: numbers.
        rounds: how often it is timed, after one round that is not.
    """

    count: int = 1_000_000
    rounds: int = 5

    def check(self) -> None:
        """Raises ValueError for a count or rounds below 1."""
        for name in ("count", "rounds"):
            require(getattr(self, name) > 0, self, name, "at least 1")


def run(config: SortingConfig, context: Context) -> Result:
    """Times the sort; tfasr bench calls this in a separate process."""
    numbers = np.random.default_rng(1).random(round(config.count * context.fraction))
    seconds = []
    for _ in range(config.rounds + 1):
        began = time.perf_counter()
        np.sort(numbers)
        seconds.append(time.perf_counter() - began)

    median_s = statistics.median(seconds[1:])
    table = Table(
        "Sorting", ["Numbers", "ms"], [[str(len(numbers)), f"{1000 * median_s:.2f}"]]
    )
    return Result(
        [table], {"count": len(numbers), "median_s": median_s}, warmup_steps=1
    )


WORKLOADS.register("sorting", Workload(run, (SortingConfig,), backends=("tensorflow",)))
