"""Measures what recording the machine costs a training, in pairs of equal work.

    python benchmarks/host_cost.py            # about 11 minutes on a quiet machine

A program does steps of 50 ms on all processors, in blocks of ten seconds. In each pair
of blocks one is recorded into ``host.csv`` and one isn't; which of them comes first
alternates. One look a second costs far less than blocks differ by chance, so these
blocks are looked at 50 times a second, and a fiftieth of what that cost is the cost of
one: the median over the pairs, with a 95 % interval. The second line is the processor
time of one look.
"""

import argparse
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is imported

import numpy as np

from tfasr.kit.process import usable_cores
from tfasr.telemetry.host import HostSampler, ProcessorTime, read_host
from tfasr.tta.ranks import end_of_interval

STEP_S = 0.05
LOOKS_PER_S = 50  # in recorded blocks
BLOCK_S = 10.0
LOOKS = 200


def step(threads: ThreadPoolExecutor, processors: int, matrix: np.ndarray) -> None:
    """Multiplies matrices on all processors.

    One product is one call of compiled code, as a training's step is, which needs no
    Python meanwhile.
    """
    list(threads.map(np.matmul, [matrix] * processors, [matrix] * processors))


def calibrated(threads: ThreadPoolExecutor, processors: int) -> np.ndarray:
    """Returns a matrix whose product with itself takes about `STEP_S`."""
    size = 200
    while True:
        matrix = np.ones((size, size), np.float32)
        step(threads, processors, matrix)
        began_s = time.perf_counter()
        step(threads, processors, matrix)

        if time.perf_counter() - began_s > 0.9 * STEP_S:
            return matrix

        size += 50


def block_s(
    threads: ThreadPoolExecutor, processors: int, matrix: np.ndarray, *, recorded: bool
) -> float:
    """Returns the seconds of one block of steps."""
    steps = round(BLOCK_S / STEP_S)
    with tempfile.TemporaryDirectory() as folder:
        if not recorded:
            return _timed(threads, processors, matrix, steps)

        with HostSampler(Path(folder), 0, every_s=1 / LOOKS_PER_S):
            return _timed(threads, processors, matrix, steps)


def _timed(
    threads: ThreadPoolExecutor, processors: int, matrix: np.ndarray, steps: int
) -> float:
    began_s = time.perf_counter()
    for _ in range(steps):
        step(threads, processors, matrix)

    return time.perf_counter() - began_s


def median_interval(values: list[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the median that the signed-rank test gives."""
    ordered = np.sort(np.array(values))
    one, other = np.triu_indices(len(ordered))
    averages = np.sort((ordered[one] + ordered[other]) / 2)
    end = end_of_interval("pairs", len(values), len(values), 0.95)

    return float(averages[end - 1]), float(averages[-end])


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30)
    arguments = parser.parse_args()

    processors = usable_cores()
    costs = []

    with ThreadPoolExecutor(processors) as threads:
        matrix = calibrated(threads, processors)
        for pair in range(arguments.pairs):
            seconds = {}
            for recorded in (pair % 2 == 0, pair % 2 == 1):
                seconds[recorded] = block_s(
                    threads, processors, matrix, recorded=recorded
                )

            costs.append((seconds[True] / seconds[False] - 1) / LOOKS_PER_S)

        counter = ProcessorTime()
        began_s = time.thread_time()
        for _ in range(LOOKS):
            read_host(counter)

        look_s = (time.thread_time() - began_s) / LOOKS

    low, high = median_interval(costs)
    print(
        f"A look a second makes steps of {1000 * STEP_S:.0f} ms "
        f"{100 * statistics.median(costs):+.3f} % longer "
        f"(95 % interval {100 * low:+.3f} to {100 * high:+.3f} %, {len(costs)} pairs)."
    )
    print(
        f"One look takes {1000 * look_s:.2f} ms of a processor, once a second: "
        f"{100 * look_s / processors:.3f} % of {processors} processors."
    )


if __name__ == "__main__":
    main()
