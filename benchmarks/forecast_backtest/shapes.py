"""Simulated error curves: each system draws its shape, and each run its noise."""

import math

import numpy as np

SYSTEMS = 40
RUNS = 3
# A run's targets are what its curve without noise is worth after these shares of the
# run.
TARGETS_AT = (0.3, 0.5, 0.7, 0.9)


def power_law(number: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A power law that goes on falling."""
    return rng.uniform(0.5, 1.0) * number ** -rng.uniform(0.3, 1.0)


def plateau(number: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A power law that comes down to a floor."""
    floor = rng.uniform(0.03, 0.25)
    return floor + (rng.uniform(0.6, 1.0) - floor) * number ** -rng.uniform(0.5, 1.5)


def annealed(number: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A power law with a floor, under a learning rate that falls late, by a cosine."""
    start = rng.uniform(0.3, 0.8)
    depth = rng.uniform(0.2, 0.6)
    way = np.clip((number / number[-1] - start) / (1 - start), 0.0, 1.0)

    return plateau(number, rng) * (1 - depth * (1 - np.cos(math.pi * way)) / 2)


def cliff(number: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Near 100 % for a time, then a fall and a tail, as of transducers and attention."""
    edge = rng.uniform(0.15, 0.6) * number[-1]
    width = rng.uniform(0.5, 4.0)
    after = np.maximum(number - edge, 0.0) / width
    before = 1 - rng.uniform(0.0, 0.1) * np.minimum(number / edge, 1.0)
    floor = rng.uniform(0.0, 0.08)

    return floor + (rng.uniform(0.9, 1.0) * before - floor) / (
        1 + after
    ) ** rng.uniform(0.6, 1.3)


def two_falls(number: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A first fall to what guessing frequent words is worth, then a cliff."""
    level = rng.uniform(0.5, 0.8)
    pace = rng.uniform(1.0, 5.0)
    return (level + (1 - level) * np.exp(-(number - 1) / pace)) * cliff(number, rng)


def floor(number: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An exponential that comes down to a floor."""
    return np.exp(-number / rng.uniform(5.0, 12.0)) + rng.uniform(0.04, 0.12)


def warm_up(number: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Nearly flat while the learning rate rises, then a fall."""
    edge = rng.uniform(0.15, 0.4) * number[-1]
    after = np.log1p(np.maximum(number - edge, 0.0) * 4 / edge)
    return np.exp(-0.1 * np.minimum(number / edge, 1.0) - rng.uniform(0.5, 1.1) * after)


def step_decay(number: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A power law under a learning rate that falls in three steps."""
    logs = -rng.uniform(0.3, 0.7) * np.log(number)
    for share in (0.33, 0.6, 0.85):
        after = np.maximum(number - share * number[-1], 0.0)
        logs -= rng.uniform(0.25, 0.6) * (1 - np.exp(-after / 1.5))

    return np.exp(logs)


def restarts(number: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A power law under a learning rate that is annealed by cosines and restarts (SGDR)."""
    cycle = rng.integers(6, 16)
    annealed_by = (1 - np.cos(math.pi * ((number - 1) % cycle) / cycle)) / 2
    return np.exp(
        -rng.uniform(0.5, 1.0) * np.log(number) - rng.uniform(0.2, 0.5) * annealed_by
    )


def longer_restarts(number: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """As `restarts`, with cycles that double."""
    logs = -rng.uniform(0.5, 1.0) * np.log(number)
    cycle = int(rng.integers(4, 8))
    begin = 0

    while begin < number.size:
        length = min(cycle, number.size - begin)
        logs[begin : begin + length] -= 0.175 * (
            1 - np.cos(math.pi * np.arange(length) / cycle)
        )
        begin = begin + cycle
        cycle = 2 * cycle

    return np.exp(logs)


def two_plateaus(number: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A power law with two sudden falls, as when layers are unfrozen."""
    first, second = sorted(rng.uniform(0.1, 0.7, 2) * number[-1])
    logs = -1.0 / (1 + np.exp(-(number - first) / 2)) - 1.2 / (
        1 + np.exp(-(number - second) / 2)
    )
    return np.exp(logs - 0.3 * np.log(number))


def divergence(number: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A power law that diverges once and recovers."""
    edge = rng.uniform(0.2, 0.7) * number[-1]
    after = np.exp(-np.maximum(number - edge, 0.0) / rng.uniform(3.0, 10.0))
    logs = -rng.uniform(0.5, 1.0) * np.log(number)

    return np.exp(logs + np.where(number >= edge, rng.uniform(0.7, 2.0) * after, 0.0))


SHAPES = {
    "power law": power_law,
    "plateau": plateau,
    "annealed": annealed,
    "cliff": cliff,
    "floor": floor,
    "warm-up": warm_up,
    "two falls": two_falls,
    "step decay": step_decay,
    "restarts": restarts,
    "longer restarts": longer_restarts,
    "two plateaus": two_plateaus,
    "divergence": divergence,
}


def simulated(
    shape: str, rng: np.random.Generator
) -> tuple[list[np.ndarray], list[float]]:
    """Returns the values of a system's runs, and the targets for all of them."""
    number = np.arange(1.0, rng.integers(20, 101))
    clean = SHAPES[shape](number, rng)
    noise = rng.uniform(0.003, 0.05)
    targets = [float(clean[round(share * number.size) - 1]) for share in TARGETS_AT]
    runs = [
        clean * np.exp(noise * rng.standard_normal(number.size)) for _ in range(RUNS)
    ]

    return runs, targets
