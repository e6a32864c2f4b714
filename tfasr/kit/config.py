"""Config classes: frozen dataclasses with checked types, whose fields gin can bind.

Every setting that decides a measurement is a field of such a class. A class checks its
values when it is made, so code that gets a config need not check them again. How gin
files become configs is in `tfasr.kit.gin`.

At the end are the precisions of training and inference, a setting that several configs
have in common.
"""

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

# The most layers of a model: they share 1000 seeds.
MOST_LAYERS = 128

# How many characters of a wrong value a message shows.
_SHOWN = 500


def _matches(value: Any, annotation: Any) -> bool:
    """Whether a value is of an annotated type.

    A float may be given as an int, and a tuple as a list, as gin and JSON do; a bool is
    never a number.

    >>> _matches(5, float), _matches(True, int), _matches([1, 2], tuple[int, ...])
    (True, False, True)
    """
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
    """Returns a message if a setting's value is not of its type, else None.

    >>> wrong_type("TrainingConfig.epochs", "5", int)
    "TrainingConfig.epochs must be int. Received: '5'."

    Args:
        name: the setting's, for the message.
        value: its value.
        annotation: the type, such as ``tuple[str, ...]`` or ``Literal["a", "b"]``.
    """
    if _matches(value, annotation):
        return None

    # "int" reads better than "<class 'int'>", but "tuple" says less than
    # "tuple[str, ...]".
    wanted = annotation
    if "[" not in str(annotation):
        wanted = getattr(annotation, "__name__", annotation)

    return f"{name} must be {wanted}. Received: {value!r}."


def _is_small(value: Any) -> bool:
    """Whether all whole numbers in a value fit into 64 bits.

    TensorFlow and readers of JSON need that; Python's own numbers have no limit.
    """
    if isinstance(value, tuple | list):
        return all(map(_is_small, value))

    return not isinstance(value, int) or -(2**63) <= value < 2**63


def _tuples(value: Any) -> Any:
    """Returns a value with all lists in it as tuples, so that configs can be hashed."""
    if isinstance(value, tuple | list):
        return tuple(map(_tuples, value))

    return value


def _check_types(self) -> None:
    """Checks a new config: types, sizes, then its own method ``check``.

    Raises:
        TypeError: for a value of another type.
        ValueError: for any other wrong value.
    """
    annotations = typing.get_type_hints(type(self))
    for field in dataclasses.fields(self):
        value = getattr(self, field.name)
        annotation = annotations[field.name]
        message = wrong_type(f"{type(self).__name__}.{field.name}", value, annotation)
        if message:
            raise TypeError(message)

        require(_is_small(value), self, field.name, "within 64 bits")

        # 8000 and 8000.0 must give the same JSON, because it is hashed.
        if annotation is float:
            value = float(value)

        # The class is frozen: this is the only way to set a field.
        object.__setattr__(self, field.name, _tuples(value))

    getattr(self, "check", lambda: None)()


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config_class(cls: _Class) -> _Class:
    """Makes a class a frozen, keyword-only dataclass that gin can bind by its name.

    gin's bindings don't affect instances made in Python, only those of `tfasr.kit.gin`.
    Types are checked (TypeError); a method ``check`` may raise ValueError for invalid
    values::

        @config_class
        class DropoutConfig:
            rate: float = 0.1

            def check(self) -> None:
                require(0 <= self.rate < 1, self, "rate", "at least 0 and below 1")
    """
    cls.__post_init__ = _check_types
    return gin.register(dataclasses.dataclass(frozen=True, kw_only=True)(cls))


def require(holds: bool, config: Any, field: str, rule: str) -> None:
    """Raises ValueError unless a rule holds; it names field, rule and value.

    The message reads "TrainingConfig.epochs must be at least 1. Received: 0."

    Args:
        holds: whether the rule holds.
        config: has the field.
        field: its name.
        rule: what the value must be, such as "at least 1".
    """
    if not holds:
        received = f"{getattr(config, field)!r}"[:_SHOWN]
        raise ValueError(
            f"{type(config).__name__}.{field} must be {rule}. Received: {received}."
        )


def require_numbers(config: Any, *names: str, zero: bool = False) -> None:
    """Raises ValueError unless numbers are positive, or 0 if ``zero``.

    Args:
        config: has the fields.
        names: of fields, each a number or a tuple of numbers.
        zero: whether 0 is allowed.
    """
    rule = "positive"
    if zero:
        rule = "at least 0"

    def valid(value: Any) -> bool:
        """Whether a number, or each number of a tuple, follows the rule."""
        if isinstance(value, tuple):
            return all(map(valid, value))

        return value > 0 or (zero and value == 0)

    for name in names:
        require(valid(getattr(config, name)), config, name, rule)


def require_within(config: Any, fewest: int, **most: int) -> None:
    """Raises ValueError unless whole numbers are within limits.

    Args:
        config: has the fields.
        fewest: the least value of all fields, 0 or 1.
        most: the largest value of each, by its name.
    """
    least = "at least 0"
    if fewest:
        least = "positive"

    for field, value in most.items():
        holds = fewest <= getattr(config, field) <= value
        require(holds, config, field, f"{least}, and at most {value}")


def to_json(config: Any) -> dict[str, Any]:
    """Returns a config's fields as JSON values, with functions as their names.

    Configs within it become dictionaries, and tuples become lists.
    """

    def plain(value: Any) -> Any:
        """Returns a field's value as JSON has it."""
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
    """A precision of training or inference.

    Attributes:
        label: shown in tables and figures.
        dtype: the type of numbers in matrix products.
        trains: whether Keras can train with it, as a dtype policy.
        litert: whether LiteRT runs it, for inference only.
    """

    label: str
    dtype: str
    trains: bool = False
    litert: bool = False


# All precisions, by the names that gin and Keras have for them.
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
    """Returns the names of the precisions with which Keras can train."""
    return tuple(name for name, precision in PRECISIONS.items() if precision.trains)


def multiplied() -> tuple[str, ...]:
    """Returns the names of the precisions whose matrix products can be timed."""
    return tuple(name for name, precision in PRECISIONS.items() if not precision.litert)


def swept() -> tuple[str, ...]:
    """Returns the names of the precisions that ``tfasr bench`` can compare."""
    return tuple(
        name for name, known in PRECISIONS.items() if known.trains or known.litert
    )


def require_precision(config: Any, field: str, names: Iterable[str]) -> None:
    """Raises ValueError unless a field has known precisions.

    Args:
        config: has the field.
        field: its name; its value is one precision or a tuple of them.
        names: the allowed precisions, such as those of `trained`.
    """
    allowed = tuple(names)
    chosen = getattr(config, field)
    if isinstance(chosen, str):
        chosen = (chosen,)

    known = all(name in allowed for name in chosen)
    require(known, config, field, f"of {', '.join(allowed)}")
