"""From gin files to configs: the only place where gin's global state is touched."""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Generic, TypeVar

import gin

from tfasr.errors import UsageError
from tfasr.gin_files.preset import COMMAND_LINE, Line
from tfasr.gin_files.statements import Statement, statements
from tfasr.plugins import load_plugin

_Configs = TypeVar("_Configs")
UNBOUND = "nothing, bind it"
_DROPPED = "# dropped, since what comes after it leaves it unused: "

log = logging.getLogger("tfasr")


@dataclass(frozen=True)
class Filled(Generic[_Configs]):
    """Configs with the bindings of gin files.

    Attributes:
        configs: what was built.
        given: the lines as they were read, those without effect as comments.
        operative: every value in use, as gin.
    """

    configs: _Configs
    given: str
    operative: str


def fill(
    lines: Sequence[Line], build: Callable[[], _Configs], *, imports: bool = True
) -> Filled[_Configs]:
    """Builds configs under the bindings of gin files, and leaves no trace in gin.

    A binding that nothing uses is refused, as it is hardly what was meant. One case is no
    mistake: a preset's binding that is used until a later file or the command line binds something
    else, such as the learning rate of another optimizer. It is dropped, and the log says so.

    Args:
        lines: of `read_gin`.
        build: makes the configs, by `make`.
        imports: whether a file may import modules, and so run their code.

    Raises:
        UsageError: for what is no gin, an unknown name, a wrong value, a module that cannot be
            imported or a binding without use. It names file and line.
    """
    parsed = statements(lines)
    _import(parsed, imports)
    configs, unused, operative = _build(parsed, build)
    dropped = _dropped(unused, parsed, build)
    if dropped:
        listed = ", ".join(f"{statement.name} ({statement.place})" for statement in dropped)
        log.info("Dropped, since later bindings leave them unused: %s", listed)
    return Filled(configs, _given(lines, parsed, dropped), operative)


def peek(cls: type, lines: Sequence[Line]) -> Any:
    """Returns one config of gin files whose other names need not be known yet.

    Raises:
        UsageError: see `fill`.
    """
    parsed = statements(lines)
    _import(parsed, True)
    gin.clear_config()
    try:
        _parse(parsed, skip_unknown=True)
        return make(cls, lines)
    finally:
        gin.clear_config()


def binds(cls: type) -> bool:
    """Returns whether some binding that is in force names a config class."""
    return cls.__name__ in bound_names()


def bound_names() -> set[str]:
    """Returns the names of the classes and functions that the bindings in force name."""
    bound = gin.config._CONFIG  # noqa: SLF001 - no public way
    return {selector.split(".")[-1] for _, selector in bound}


def make(cls: type, lines: Iterable[Line], *, scope: str = "") -> Any:
    """Makes a config with the bindings in force, or says which line it dislikes.

    Args:
        cls: the config's class.
        lines: of `read_gin`.
        scope: whose bindings go before those without a scope: "sys1" of ``sys1/Class.name = 1``.
    """
    try:
        with gin.config_scope(scope or None):
            return gin.get_configurable(cls)()
    except (TypeError, ValueError) as error:
        message = str(error).split("\n")[0].replace(repr(gin.REQUIRED), UNBOUND)
        named = re.match(rf"{cls.__name__}\.(\w+)", message)
        place = binding_place(lines, cls.__name__, named[1], scope=scope) if named else ""
        raise UsageError(f"{place}{message}") from error


def binding_place(
    lines: Iterable[Line], class_name: str, parameter: str, *, scope: str = ""
) -> str:
    """Returns "file:line: " of a parameter's last binding, or nothing if there is none.

    Args:
        lines: of `read_gin`.
        class_name: of a config.
        parameter: its field.
        scope: whose bindings are looked for first.
    """
    bindings = [statement for statement in statements(lines) if statement.kind == "binding"]
    for before in [rf"{re.escape(scope)}/([\w.]*\.)?"] * bool(scope) + [r"([\w./]*[./])?"]:
        pattern = re.compile(rf"{before}{class_name}\.{parameter}")
        found = [statement for statement in bindings if pattern.fullmatch(statement.name)]
        if found:
            return f"{found[-1].place}: "
    return ""


def bound_scopes(cls: type) -> list[str]:
    """Returns the scopes in which the bindings in force name a config class, "" left out."""
    bound = gin.config._CONFIG  # noqa: SLF001 - no public way
    found = [scope for scope, selector in bound if selector.split(".")[-1] == cls.__name__]
    return [scope for scope in dict.fromkeys(found) if scope]


def _import(parsed: Iterable[Statement], allowed: bool) -> None:
    """Imports the modules that files name, before any binding needs the names they register."""
    for statement in parsed:
        if statement.kind != "import":
            continue
        if not allowed:
            raise UsageError(
                f"{statement.place}: this file must only describe a machine, and imports a module, "
                f"which would run its code. Received: {statement.text.strip()!r}. Remove the line."
            )
        load_plugin(statement.name, asked_at=statement.place)


def _parse(parsed: Iterable[Statement], *, skip_unknown: bool = False) -> None:
    for statement in parsed:
        if statement.kind != "binding":
            continue
        try:
            gin.parse_config(statement.text, skip_unknown=skip_unknown)
        except (ValueError, SyntaxError, AttributeError, TypeError) as error:
            message = str(error).split("\n")[0].rstrip(".")
            raise UsageError(
                f"{statement.place}: {message}. Names are those of tfasr's configs and of modules "
                "of your own that --import names."
            ) from error


def _build(
    parsed: Sequence[Statement], build: Callable[[], _Configs]
) -> tuple[_Configs, list[Statement], str]:
    """Returns configs, the bindings that they do not use, and all values that they do."""
    gin.clear_config()
    try:
        _parse(parsed)
        configs = build()
        return configs, _unused(parsed), gin.operative_config_str()
    finally:
        gin.clear_config()


def _unused(parsed: Iterable[Statement]) -> list[Statement]:
    given, used = gin.config._CONFIG, gin.config._OPERATIVE_CONFIG  # noqa: SLF001 - no public way
    last = {statement.name: statement for statement in parsed if statement.kind == "binding"}
    found = []
    for name, statement in last.items():
        selector, _, parameter = name.rpartition(".")
        scope, _, selector = selector.rpartition("/")
        for bound_scope, complete in given:
            same = complete == selector or complete.endswith(f".{selector}")
            bound = bound_scope == scope and same and parameter in given[bound_scope, complete]
            if bound and not any(
                parameter in values
                for (scope_in_use, of), values in used.items()
                if of == complete and _holds_in(bound_scope, scope_in_use)
            ):
                found.append(statement)
    return found


def _holds_in(bound_scope: str, scope: str) -> bool:
    """Whether a binding of one scope reaches what is made in another."""
    return not bound_scope or scope == bound_scope or scope.startswith(f"{bound_scope}/")


def _dropped(
    unused: Sequence[Statement], parsed: Sequence[Statement], build: Callable[[], Any]
) -> list[Statement]:
    """Returns the unused bindings that something used before a later file came; refuses others."""
    last = max((statement.source for statement in parsed), default=0)
    waiting = list(unused)
    for source in range(last):
        if not any(statement.source <= source for statement in waiting):
            continue
        until = [statement for statement in parsed if statement.source <= source]
        try:
            _, idle, _ = _build(until, build)
        except UsageError:  # a file that is not complete without the later ones
            continue
        waiting = [s for s in waiting if s.source > source or s in idle]
    if waiting:
        statement = waiting[0]
        name = statement.name.rpartition(".")[0]
        remedy = "binding" if statement.lines[0].path == COMMAND_LINE else "line"
        raise UsageError(
            f"{statement.place}: {statement.name} is bound but nothing uses it. Remove the "
            f"{remedy}, or make the experiment use {name}."
        )
    return [s for s in unused if s not in waiting]


def _given(lines: Sequence[Line], parsed: Sequence[Statement], dropped: Sequence[Statement]) -> str:
    """Returns lines as a text that gin reads to the same configs."""
    without = {line for statement in dropped for line in statement.lines}
    for index, head in enumerate(parsed):
        if head.kind == "block":
            block = list(takewhile(lambda statement: statement.in_block, parsed[index + 1 :]))
            if all(statement in dropped for statement in block):  # an empty block is no gin
                without |= set(head.lines)
    texts = (
        _DROPPED + line.text.replace("\n", f"\n{_DROPPED}") if line in without else line.text
        for line in lines
    )
    return "\n".join(texts) + "\n"
