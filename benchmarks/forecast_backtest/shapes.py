"""Simulated error curves of known shapes: each system draws its shape, each run its noise."""

import math

import numpy as np

SYSTEMS, RUNS = 40, 3
# A run's targets are what its curve without noise is worth after these shares of the run.
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
    start, depth = rng.uniform(0.3, 0.8), rng.uniform(0.2, 0.6)
    way = np.clip((number / number[-1] - start) / (1 - start), 0.0, 1.0)
    return plateau(number, rng) * (1 - depth * (1 - np.cos(math.pi * way)) / 2)


def cliff(number: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Near 100 % for a time, then a fall and a tail, as of transducers and attention."""
    edge, width = rng.uniform(0.15, 0.6) * number[-1], rng.uniform(0.5, 4.0)
    after = np.maximum(number - edge, 0.0) / width
    before = 1 - rng.uniform(0.0, 0.1) * np.minimum(number / edge, 1.0)
    floor = rng.uniform(0.0, 0.08)
    return floor + (rng.uniform(0.9, 1.0) * before - floor) / (1 + after) ** rng.uniform(0.6, 1.3)


def two_falls(number: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A first fall to what guessing frequent words is worth, then a cliff."""
    level, pace = rng.uniform(0.5, 0.8), rng.uniform(1.0, 5.0)
    return (level + (1 - level) * np.exp(-(number - 1) / pace)) * cliff(number, rng)


SHAPES = {
    "power law": power_law,
    "plateau": plateau,
    "annealed": annealed,
    "cliff": cliff,
    "two falls": two_falls,
}


def simulated(shape: str, rng: np.random.Generator) -> tuple[list[np.ndarray], list[float]]:
    """Returns the values of a system's runs, and the targets for all of them."""
    number = np.arange(1.0, rng.integers(20, 101))
    clean, noise = SHAPES[shape](number, rng), rng.uniform(0.003, 0.05)
    targets = [float(clean[round(share * number.size) - 1]) for share in TARGETS_AT]
    runs = [clean * np.exp(noise * rng.standard_normal(number.size)) for _ in range(RUNS)]
    return runs, targets
