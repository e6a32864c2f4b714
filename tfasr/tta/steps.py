"""The training steps that count, as columns of numbers."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np


class Steps:
    """The steps of a run without those of lost work, in the order of their events.

    Args:
        indices: of their events.
        places: of each step among its session's steps, from 0.
        values: what the ledger says of each; no dictionary says nothing.
        at_us: the run's clock at the end of each.
    """

    def __init__(
        self,
        indices: Sequence[int],
        places: Sequence[int],
        values: Sequence[Any],
        at_us: Sequence[int],
    ):
        self.indices = list(indices)
        self.places = np.array(places, dtype=int)
        self.at_us = np.array(at_us, dtype=np.int64)
        self._values = [value if isinstance(value, dict) else {} for value in values]
        self._columns: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.indices)

    def column(self, name: str) -> np.ndarray:
        """Returns a number for each step, NaN where the ledger has none."""
        if name not in self._columns:
            self._columns[name] = numbers([value.get(name) for value in self._values])
        return self._columns[name]

    def amounts(self, name: str) -> np.ndarray:
        """Returns an amount for each step, 0 where the ledger has no finite one of at least 0."""
        values = self.column(name)
        usable = np.isfinite(values) & (values >= 0)
        return values if usable.all() else np.where(usable, values, 0.0)

    def states(self, name: str) -> bool:
        """Whether any step says something of that name: logs of other makers know less."""
        return any(name in value for value in self._values)

    @cached_property
    def compiled(self) -> np.ndarray:
        """Whether each step traced a new shape."""
        return self.amounts("compile_s") > 0


def numbers(values: list[Any]) -> np.ndarray:
    """Returns values as floats; NaN for what is no number, and for one beyond all floats."""
    if not set(map(type, values)) <= {int, float}:
        values = [value if type(value) in (int, float) else math.nan for value in values]
    try:
        return np.array(values, dtype=float)
    except OverflowError:  # an integer beyond all floats
        return np.array([_float(value) for value in values])


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.nan
