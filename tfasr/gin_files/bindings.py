"""From gin files to configs: the only place where gin's global state is touched."""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Generic, TypeVar

import gin

from tfasr.errors import UsageError
from tfasr.gin_files.preset import COMMAND_LINE, GinText, Reference, Statement
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
    text: GinText, build: Callable[[GinText], _Configs], *, imports: bool = True
) -> Filled[_Configs]:
    """Builds configs under the bindings of gin files, and leaves no trace in gin.

    A binding that nothing uses is refused, as it is hardly what was meant. One case is no
    mistake: a preset's binding that is used until a later file or the command line binds something
    else, such as the learning rate of another optimizer. It is dropped, and the log says so.

    Args:
        build: makes the configs, by `make`, of the text in force, which may lack later files.
        imports: whether a file may import modules, and so run their code.

    Raises:
        UsageError: for an unknown name, a wrong value, a module that cannot be imported or a
            binding without use. It names file and line.
    """
    _import(text, imports)
    configs, unused, operative = _build(text, build)
    dropped = _dropped(unused, text, build)
    if dropped:
        listed = ", ".join(f"{statement.name} ({statement.place})" for statement in dropped)
        log.info("Dropped, since later bindings leave them unused: %s", listed)
    return Filled(configs, _given(text, dropped), operative)


def peek(cls: type, text: GinText) -> Any:
    """Returns one config of gin files whose other names need not be known yet.

    Raises:
        UsageError: see `fill`.
    """
    _import(text, True)
    gin.clear_config()
    try:
        of_class = [s for s in text.bindings if not s.parameter or _class_of(s) == cls.__name__]
        _bind(of_class, skip_unknown=True)
        return make(cls, text)
    finally:
        gin.clear_config()


def bound_names(text: GinText) -> set[str]:
    """Returns the names of the classes and functions that are bound; "macro" for macros."""
    return {_class_of(statement) for statement in text.bindings}


def bound_scopes(cls: type, text: GinText) -> list[str]:
    """Returns the scopes in which a config class is bound, "" left out."""
    scopes = [s.scope for s in text.bindings if s.scope and _class_of(s) == cls.__name__]
    return list(dict.fromkeys(scopes))


def make(cls: type, text: GinText, *, scope: str = "") -> Any:
    """Makes a config with the bindings in force, or says which line it dislikes.

    Args:
        scope: whose bindings go before those without a scope: "sys1" of ``sys1/Class.name = 1``.
    """
    try:
        with gin.config_scope(scope or None):
            return gin.get_configurable(cls)()
    except (TypeError, ValueError) as error:
        message = str(error).split("\n")[0].replace(repr(gin.REQUIRED), UNBOUND)
        named = re.match(rf"{cls.__name__}\.(\w+)", message)
        place = binding_place(text, cls.__name__, named[1], scope=scope) if named else ""
        raise UsageError(f"{place}{message}") from error


def binding_place(text: GinText, class_name: str, parameter: str, *, scope: str = "") -> str:
    """Returns "file:line: " of a parameter's last binding, or nothing if there is none."""
    of_all = [s for s in text.bindings if s.parameter == parameter and _class_of(s) == class_name]
    of_scope = [s for s in of_all if scope and s.scope == scope]
    return "".join(f"{statement.place}: " for statement in (of_scope or of_all)[-1:])


def _class_of(statement: Statement) -> str:
    return statement.selector.split(".")[-1] if statement.parameter else "macro"


def _import(text: GinText, allowed: bool) -> None:
    for statement in text.statements:
        if statement.kind != "import":
            continue
        if not allowed:
            raise UsageError(
                f"{statement.place}: this file must only describe a machine, and imports a module, "
                f"which would run its code. Received: {statement.text.strip()!r}. Remove the line."
            )
        load_plugin(statement.selector, asked_at=statement.place)


def _bind(bindings: Iterable[Statement], *, skip_unknown: bool = False) -> None:
    known = gin.config.ParserDelegate(skip_unknown)
    for statement in bindings:
        scoped = (statement.scope, statement.selector, statement.parameter)
        macro = (statement.name, "gin.macro", "value")
        try:
            value = _looked_up(statement.value, known)
            gin.bind_parameter(scoped if statement.parameter else macro, value)
        except (ValueError, SyntaxError, AttributeError, TypeError) as error:
            message = str(error).split("\n")[0].rstrip(".")
            raise UsageError(
                f"{statement.place}: {message}. Names are those of tfasr's configs and of modules "
                "of your own that --import names."
            ) from error


def _looked_up(value: Any, known: gin.config.ParserDelegate) -> Any:
    if isinstance(value, Reference):
        if value.kind == "macro":
            return known.macro(value.name)
        return known.configurable_reference(value.name, value.kind == "call")
    if isinstance(value, dict):
        return {_looked_up(k, known): _looked_up(v, known) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_looked_up(item, known) for item in value)
    return value


def _build(
    text: GinText, build: Callable[[GinText], _Configs]
) -> tuple[_Configs, list[Statement], str]:
    gin.clear_config()
    try:
        _bind(text.bindings)
        configs = build(text)
        return configs, _unused(text), gin.operative_config_str()
    finally:
        gin.clear_config()


def _unused(text: GinText) -> list[Statement]:
    used = gin.config._OPERATIVE_CONFIG  # noqa: SLF001 - no public way
    last = {statement.name: statement for statement in text.bindings if statement.parameter}
    unused = []
    for statement in last.values():
        bound = (statement.scope, statement.selector, statement.parameter)
        complete = gin.config.ParsedBindingKey.parse(bound).complete_selector
        if not any(
            statement.parameter in values
            for (scope, selector), values in used.items()
            if selector == complete and f"{scope}/".startswith(f"{statement.scope}/".lstrip("/"))
        ):
            unused.append(statement)
    return unused


def _dropped(
    unused: Sequence[Statement], text: GinText, build: Callable[[GinText], Any]
) -> list[Statement]:
    # What something used before a later file came is dropped; the rest is refused.
    waiting = list(unused)
    for source in sorted({statement.source for statement in text.statements})[:-1]:
        if not any(statement.source <= source for statement in waiting):
            continue
        until = tuple(statement for statement in text.statements if statement.source <= source)
        try:
            _, idle, _ = _build(replace(text, statements=until), build)
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


def _given(text: GinText, dropped: Sequence[Statement]) -> str:
    without = {line for statement in dropped for line in statement.lines}
    for index, head in enumerate(text.statements):
        if head.kind == "block":
            block = takewhile(lambda statement: statement.in_block, text.statements[index + 1 :])
            if all(statement in dropped for statement in block):  # an empty block is no gin
                without |= set(head.lines)
    texts = (
        _DROPPED + line.text.replace("\n", f"\n{_DROPPED}") if line in without else line.text
        for line in text.lines
    )
    return "\n".join(texts) + "\n"
