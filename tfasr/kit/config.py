"""Config classes: frozen dataclasses with checked types, whose fields gin can bind."""

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import gin

from tfasr.kit.registry import Registry

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform  # in typing from Python 3.11 on
else:

    def dataclass_transform(**_):
        """Does nothing: only type checkers need the real one."""
        return lambda decorator: decorator


_Class = TypeVar("_Class", bound=type)
MOST_LAYERS = 128  # most in a model, as its layers share 1000 seeds
_SHOWN = 500  # characters shown of a wrong value


def _matches(value: Any, annotation: Any) -> bool:
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if annotation is Any:
        return True
    if origin is typing.Literal:
        return value in arguments
    if origin in (typing.Union, types.UnionType):
        return any(_matches(value, argument) for argument in arguments)
    if annotation in (int, float):
        return isinstance(value, int | annotation) and not isinstance(value, bool)
    if annotation is None or annotation is type(None):
        return value is None
    if Callable in (annotation, origin):
        return callable(value)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        if arguments[-1] is Ellipsis:
            return all(_matches(item, arguments[0]) for item in value)
        return len(value) == len(arguments) and all(map(_matches, value, arguments))

    return isinstance(value, annotation)


def wrong_type(name: str, value: Any, annotation: Any) -> str | None:
    """Returns a message if a setting's value is not of its type, else None."""
    if _matches(value, annotation):
        return None
    wanted = getattr(annotation, "__name__", None)
    wanted = wanted if wanted and "[" not in str(annotation) else annotation
    return f"{name} must be {wanted}. Received: {value!r}."


def _is_small(value: Any) -> bool:
    """Whether whole numbers fit into 64 bits, as TensorFlow and readers of JSON need."""
    if isinstance(value, tuple | list):
        return all(map(_is_small, value))
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, tuple | list) else value


def _check_types(self) -> None:
    annotations = typing.get_type_hints(type(self))
    for field in dataclasses.fields(self):
        value = getattr(self, field.name)
        annotation = annotations[field.name]
        if message := wrong_type(
            f"{type(self).__name__}.{field.name}", value, annotation
        ):
            raise TypeError(message)
        require(_is_small(value), self, field.name, "within 64 bits")
        # 8000 and 8000.0 must give the same JSON, because it is hashed.
        value = float(value) if annotation is float else _tuples(value)
        object.__setattr__(self, field.name, value)

    getattr(self, "check", lambda: None)()


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config_class(cls: _Class) -> _Class:
    """Makes a class a frozen, keyword-only dataclass that gin can bind by its name.

    gin's bindings don't affect instances made in Python, only those of `tfasr.kit.gin`.
    Types are checked (TypeError); a method ``check`` may raise ValueError for invalid
    values.
    """
    cls.__post_init__ = _check_types
    return gin.register(dataclasses.dataclass(frozen=True, kw_only=True)(cls))


def require(holds: bool, config: Any, field: str, rule: str) -> None:
    """Raises ValueError naming a config's field, the rule it breaks and its value."""
    if not holds:
        received = f"{getattr(config, field)!r}"[:_SHOWN]
        raise ValueError(
            f"{type(config).__name__}.{field} must be {rule}. Received: {received}."
        )


def require_numbers(config: Any, *names: str, zero: bool = False) -> None:
    """Raises ValueError unless all numbers of each field are positive, or 0 if ``zero``."""

    def valid(value: Any) -> bool:
        if isinstance(value, tuple):
            return all(map(valid, value))
        return value > 0 or (zero and value == 0)

    for name in names:
        rule = "at least 0" if zero else "positive"
        require(valid(getattr(config, name)), config, name, rule)


def require_within(config: Any, fewest: int, **most: int) -> None:
    """Raises ValueError unless each field named in ``most`` is from ``fewest`` to its
    value.
    """
    for field, value in most.items():
        rule = f"{'positive' if fewest else 'at least 0'}, and at most {value}"
        require(fewest <= getattr(config, field) <= value, config, field, rule)


def to_json(config: Any) -> dict[str, Any]:
    """Returns a config's fields as JSON values, with functions as their names."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, tuple | list):
            return [plain(item) for item in value]
        if callable(value):
            return getattr(value, "__name__", repr(value))
        return value

    return plain(dataclasses.asdict(config))


@dataclass(frozen=True)
class Precision:
    label: str  # shown in tables and figures
    dtype: str  # type of numbers in matrix products
    trains: bool = False  # whether Keras can train with it, as a dtype policy
    litert: bool = False  # whether LiteRT runs it, for inference only


PRECISIONS: Registry[Precision] = Registry("precision")
PRECISIONS.register("float32", Precision("float32", "float32", trains=True))
PRECISIONS.register("mixed_bfloat16", Precision("bfloat16", "bfloat16", trains=True))
PRECISIONS.register("mixed_float16", Precision("float16", "float16", trains=True))
PRECISIONS.register("float64", Precision("float64", "float64"))
PRECISIONS.register(
    "litert_float32", Precision("LiteRT float32", "float32", litert=True)
)
PRECISIONS.register("int8", Precision("LiteRT int8", "int8", litert=True))


def trained() -> tuple[str, ...]:
    return tuple(name for name, precision in PRECISIONS.items() if precision.trains)


def multiplied() -> tuple[str, ...]:
    return tuple(name for name, precision in PRECISIONS.items() if not precision.litert)


def swept() -> tuple[str, ...]:
    return tuple(
        name for name, known in PRECISIONS.items() if known.trains or known.litert
    )


def require_precision(config: Any, field: str, names: Iterable[str]) -> None:
    """Raises ValueError unless a config's field is one of the names, or a tuple of them."""
    known = tuple(names)
    value = getattr(config, field)
    chosen = (value,) if isinstance(value, str) else value
    require(
        all(name in known for name in chosen), config, field, f"of {', '.join(known)}"
    )
