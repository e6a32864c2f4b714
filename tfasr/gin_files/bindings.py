"""From gin files to configs: the only place where gin's global state is touched."""

import re
from typing import Any

import gin

from tfasr.errors import UsageError
from tfasr.gin_files.preset import Line

_LINE = re.compile(r"line (\d+)")


def parse(text: str, lines: list[Line], skip_unknown: bool = False) -> None:
    """Gives gin a text; an error names the line of the file that it came from.

    Raises:
        UsageError: for what is no gin, or a name that nothing has registered.
    """
    try:
        gin.parse_config(text, skip_unknown=skip_unknown)
    except (ValueError, SyntaxError, AttributeError) as error:
        message = str(error).split("\n")[0]
        number = getattr(error, "lineno", None)
        found = _LINE.findall(str(error))
        number = int(found[-1]) if found else number
        where = _place(lines[number - 1]) if number and number <= len(lines) else "the gin file"
        raise UsageError(f"{where}: {message}. Names are those of tfasr's configs.") from error


def binds(cls: type) -> bool:
    """Returns whether some parsed line binds a parameter of a config class."""
    bound = gin.config._CONFIG  # noqa: SLF001 - no public way
    return any(selector.split(".")[-1] == cls.__name__ for _, selector in bound)


def make(cls: type, lines: list[Line]) -> Any:
    """Makes a config with gin's bindings, or says which line it dislikes."""
    try:
        return gin.get_configurable(cls)()
    except (TypeError, ValueError) as error:
        message = str(error).split("\n")[0].replace(repr(gin.REQUIRED), "nothing, bind it")
        named = re.match(rf"{cls.__name__}\.(\w+)", message)
        raise UsageError(f"{binding_place(lines, cls.__name__, named)}{message}") from error


def refuse_unused(lines: list[Line]) -> None:
    """Raises UsageError for a binding that nothing has used since it was parsed."""
    given, used = gin.config._CONFIG, gin.config._OPERATIVE_CONFIG  # noqa: SLF001 - no public way
    for (scope, selector), parameters in given.items():
        known = used.get((scope, selector), {})
        for parameter in parameters:
            if parameter not in known and not selector.startswith("gin."):
                name = selector.split(".")[-1]
                place = binding_place(lines, name, re.match(r"(\w+)", parameter))
                raise UsageError(
                    f"{place}{name}.{parameter} is bound but nothing uses it. Remove the line, or "
                    f"make the experiment use {name}."
                )


def binding_place(lines: list[Line], class_name: str, parameter: re.Match | None) -> str:
    """Returns "file:line: " of a name's last binding, or nothing if it cannot be told."""
    if not parameter:
        return ""
    pattern = re.compile(rf"^\s*([\w./]*[./])?{class_name}\.{parameter[1]}\s*=")
    places = [_place(line) for line in lines if pattern.match(line.text)]
    return f"{places[-1]}: " if places else ""


def _place(line: Line) -> str:
    return f"{line.path}:{line.number}"
