"""The numeric precisions by name, and what each can be used for."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tfasr.config import require
from tfasr.registry import Registry


@dataclass(frozen=True)
class Precision:
    """A numeric precision.

    Attributes:
        label: what tables and figures call it.
        dtype: of its matrix products.
        trains: whether it is a dtype policy of Keras that models are trained in.
        litert: whether LiteRT runs it, for inference alone.
    """

    label: str
    dtype: str
    trains: bool = False
    litert: bool = False


PRECISIONS: Registry[Precision] = Registry("precision")
"""All precisions, by the names used in configs and flags. Those for training are Keras's."""

PRECISIONS.register("float32", Precision("float32", "float32", trains=True))
PRECISIONS.register("mixed_bfloat16", Precision("bfloat16", "bfloat16", trains=True))
PRECISIONS.register("mixed_float16", Precision("float16", "float16", trains=True))
PRECISIONS.register("float64", Precision("float64", "float64"))
PRECISIONS.register("litert_float32", Precision("LiteRT float32", "float32", litert=True))
PRECISIONS.register("int8", Precision("LiteRT int8", "int8", litert=True))


def trained() -> tuple[str, ...]:
    """Returns the names of the precisions in which models can be trained."""
    return tuple(name for name, precision in PRECISIONS.items() if precision.trains)


def multiplied() -> tuple[str, ...]:
    """Returns the names of the precisions in which matrix products are timed."""
    return tuple(name for name, precision in PRECISIONS.items() if not precision.litert)


def swept() -> tuple[str, ...]:
    """Returns the names of the precisions in which a model can run, by Keras or by LiteRT."""
    of = PRECISIONS.items()
    return tuple(name for name, precision in of if precision.trains or precision.litert)


def require_precision(config: Any, field: str, names: Iterable[str]) -> None:
    """Raises ValueError unless a config's field holds one or more of such names."""
    known, value = tuple(names), getattr(config, field)
    given = (value,) if isinstance(value, str) else value
    require(all(name in known for name in given), config, field, f"of {', '.join(known)}")
