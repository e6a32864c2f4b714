"""Values as JSON and back with their types: dataclasses, tuples, paths, functions by their name."""

import dataclasses
import importlib
import inspect
import numbers
from pathlib import Path
from typing import Any

_TYPE = "$type"


def to_typed_json(value: Any) -> Any:
    """Returns JSON values from which `from_typed_json` makes an equal value of the same types.

    Args:
        value: numbers (NumPy's become Python's), text, None, paths, dataclasses, classes and
            functions that can be imported, and lists, tuples and dicts of such.

    Raises:
        TypeError: for anything else.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Path):
        return {_TYPE: "path", "text": str(value)}
    if isinstance(value, list):
        return [to_typed_json(item) for item in value]
    if isinstance(value, tuple):
        return {_TYPE: "tuple", "items": [to_typed_json(item) for item in value]}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and _TYPE not in value:
            return {key: to_typed_json(item) for key, item in value.items()}
        return {_TYPE: "dict", "items": [to_typed_json(list(item)) for item in value.items()]}
    if inspect.isclass(value) or inspect.isroutine(value):
        return {_TYPE: "name", "name": name_of(value)}
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        values = {name: to_typed_json(getattr(value, name)) for name in fields}
        return {_TYPE: "dataclass", "class": name_of(type(value)), "fields": values}
    raise TypeError(
        "What a process is told or answers must be made of numbers, text, paths, dataclasses, "
        f"lists, tuples and dicts. Received: {value!r}."
    )


def from_typed_json(content: Any) -> Any:
    """Returns the value that `to_typed_json` was given; imports the modules of its classes."""
    if isinstance(content, list):
        return [from_typed_json(item) for item in content]
    if not isinstance(content, dict):
        return content
    kind = content.get(_TYPE)
    if kind is None:
        return {key: from_typed_json(item) for key, item in content.items()}
    if kind == "path":
        return Path(content["text"])
    if kind == "tuple":
        return tuple(from_typed_json(content["items"]))
    if kind == "dict":
        return dict(from_typed_json(content["items"]))
    if kind == "name":
        return named(content["name"])
    return named(content["class"])(**from_typed_json(content["fields"]))


def name_of(thing: Any) -> str:
    """Returns the "module:name" by which `named` finds a class or function.

    Raises:
        TypeError: if it cannot be imported, such as a lambda or a script's own function.
    """
    name = f"{getattr(thing, '__module__', None)}:{getattr(thing, '__qualname__', None)}"
    try:
        found = named(name)
    except (ImportError, AttributeError):
        found = None
    if found is not thing or name.startswith("__main__:"):
        raise TypeError(
            "What another process is to use must be written at the top level of a module that can "
            f"be imported. Received: {thing!r}."
        )
    return name


def named(name: str) -> Any:
    """Imports and returns what "module:name" stands for."""
    module, _, path = name.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
