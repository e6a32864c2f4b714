"""From gin files to configs: the only place where gin's global state is touched.

`read_gin` parses files and flags into statements that know their file and line. `fill`
binds them, builds configs with `make`, and finds bindings that nothing used. gin itself
accepts a misspelled name and ignores an unused binding; here both are errors with a
place and a suggestion, since an ignored setting would make a measurement something else
than its file says.
"""

import inspect
import logging
import re
import tokenize
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, Generic, TypeVar

import gin
from gin import config_parser

from tfasr.errors import UsageError, did_you_mean, nearest
from tfasr.kit.files import read_bytes
from tfasr.kit.registry import load_plugin

log = logging.getLogger("tfasr")

# The "file" of bindings that were given as flags.
COMMAND_LINE = "--gin_binding"

# What an error shows instead of a value that has to be bound.
UNBOUND = "nothing, bind it"

# Where to look for a name that is like none of the known ones.
_LISTS = (
    "tfasr settings lists what can be bound; "
    "--import MODULE adds modules of yours that have more."
)

# How comments on bindings without effect begin, in the run's copy of its gin files.
DROPPED = "# dropped, "
_DROPPED = f"{DROPPED}because later bindings leave it unused: "

# The parameters of classes and functions, by name; None for any.
Names = Mapping[str, Collection[str] | None]

# Limit for a gin file, 4 MiB; the longest ones have some 10 kB.
_MOST_BYTES = 4 << 20

# How many dropped bindings a message lists.
_NAMED = 6

# What a caller of `fill` builds of the bindings.
_Configs = TypeVar("_Configs")

# Control characters but tab and line feed, and what Python takes for ends of lines:
# gin's line numbers would differ from an editor's.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]")

# A binding within a block, which lacks the name of the class.
_PARAMETER_ALONE = re.compile(r"\w+\s*=")


@dataclass(frozen=True)
class GinLine:
    """A line of a gin file, or a binding on the command line.

    Attributes:
        path: the file, or `COMMAND_LINE`.
        number: the line's in its file, or the binding's on the command line, from 1.
        text: without the line's end.
        source: the higher, the later gin applies the line: after those of included and of
            earlier files; the command line comes last.
    """

    path: Path | str
    number: int
    text: str
    source: tuple[int, int] = (0, 0)

    @property
    def place(self) -> str:
        """The file and line, for errors."""
        return f"{self.path}:{self.number}"


@dataclass(frozen=True)
class Reference:
    """A value that gin looks up by its name: ``@name``, ``@name()`` or ``%name``.

    Attributes:
        name: without its sign.
        kind: "function", "call" or "macro".
    """

    name: str
    kind: str

    def __repr__(self) -> str:
        """Returns the reference as gin files have it."""
        written_as = {"function": "@{}", "call": "@{}()", "macro": "%{}"}
        return written_as[self.kind].format(self.name)


@dataclass(frozen=True)
class Statement:
    """A binding, an import, an include, or the head of a block.

    Attributes:
        kind: "binding", "import", "include" or "block" (its head).
        lines: those that it takes.
        text: as gin reads it; a binding in a block gets the block's name.
        selector: the imported module, the included file, or the bound class or macro.
        scope: such as "sys1" in ``sys1/ExperimentConfig.gin_files``.
        parameter: "" for a macro.
        value: has a `Reference` in place of each @name and %name.
        in_block: whether a binding is within a block.
    """

    kind: str
    lines: tuple[GinLine, ...]
    text: str
    selector: str
    scope: str = ""
    parameter: str = ""
    value: Any = None
    in_block: bool = False

    @property
    def name(self) -> str:
        """The bound name with its scope, such as "TrainingConfig.epochs"."""
        scoped = "/".join(filter(None, (self.scope, self.selector)))
        return ".".join(filter(None, (scoped, self.parameter)))

    @property
    def place(self) -> str:
        """The file and first line, for errors."""
        return self.lines[0].place

    @property
    def source(self) -> tuple[int, int]:
        """When gin applies the statement, see `GinLine.source`."""
        return self.lines[0].source


@dataclass(frozen=True)
class GinText:
    """Gin files and the command line's bindings, with includes expanded in place."""

    lines: tuple[GinLine, ...]
    statements: tuple[Statement, ...]

    @property
    def bindings(self) -> list[Statement]:
        """The bindings among the statements."""
        return [
            statement for statement in self.statements if statement.kind == "binding"
        ]


def presets_folder() -> Path:
    """Returns the folder of the presets: in a wheel, or in the source tree."""
    package = Path(__file__).parents[1]
    in_wheel = package / "presets"
    if in_wheel.is_dir():
        return in_wheel

    return package.parent / "gin"


def find_preset(name: str) -> Path:
    """Returns the absolute path of a gin file, given its path or a preset's name.

    A file of the user's wins over a preset of the same name.

    Args:
        name: such as "my/recipe.gin", "fast/an4.gin" or "fast/an4".

    Raises:
        UsageError: suggests the preset with the most similar name.
    """
    folder = presets_folder()
    for candidate in (Path(name), folder / name, folder / f"{name}.gin"):
        if candidate.is_file():
            return candidate.resolve()

    names = [preset.removesuffix(".gin") for preset in presets()]
    remedy = did_you_mean(
        name.removesuffix(".gin"), names, "tfasr presets lists all presets."
    )
    raise UsageError(
        f"--gin_file must be a file or a preset. Received: {name!r}.{remedy}"
    )


def presets() -> dict[str, Path]:
    """Returns the presets by their names for --gin_file, quick recipes first."""
    folder = presets_folder()
    order = ["fast", ".", "train", "models", "data"]
    order += ["hardware", "study", "track", "bench"]

    def rank(path: Path) -> tuple[int, str]:
        """Returns the place of a preset in the list, by its folder, then its name."""
        return order.index(str(path.parent)), path.name

    names = (path.relative_to(folder) for path in folder.rglob("*.gin"))
    return {name.as_posix(): folder / name for name in sorted(names, key=rank)}


def read_gin(files: Sequence[str], bindings: Sequence[str] = ()) -> GinText:
    """Reads gin files and the command line's bindings.

    Includes are looked up in the file's folder, then among the presets. Included files
    must not include others, and no two may bind the same name: gin would silently use
    the last binding.

    Args:
        files: paths or presets, in the order in which gin applies them.
        bindings: lines of gin, which come last.

    Raises:
        UsageError: names file and line of what can't be read.
    """
    texts = [
        _with_includes(find_preset(file), number) for number, file in enumerate(files)
    ]
    # Flags come after all files.
    last = (len(files) + 1, 0)

    for number, binding in enumerate(bindings, 1):
        line = GinLine(COMMAND_LINE, number, binding, last)
        texts.append(GinText((line,), tuple(parse([line]))))

    lines = chain.from_iterable(text.lines for text in texts)
    statements = chain.from_iterable(text.statements for text in texts)

    return GinText(tuple(lines), tuple(statements))


def statements(files: Sequence[str], bindings: Sequence[str] = ()) -> list[str]:
    """Returns the statements that `read_gin` reads, as gin reads them.

    Two recipes with equal statements are the same.
    """
    return [statement.text for statement in read_gin(files, bindings).statements]


def read_evidence(path: Path) -> GinText:
    """Reads a gin file that is checked; it may not read other files or run code.

    It belongs to a run or a track that anyone may have made.

    Raises:
        UsageError: if it includes a file or imports a module.
    """
    lines = _lines(path, (0, 0))
    statements = parse(lines)

    for statement in statements:
        if statement.kind in ("import", "include"):
            raise UsageError(
                f"{statement.place}: a file to be checked must hold only bindings. "
                f"Received: {statement.text.strip()!r}."
            )

    return GinText(tuple(lines), tuple(statements))


def parse(lines: Sequence[GinLine]) -> list[Statement]:
    """Returns the statements of one text in order.

    gin's own parser reads them; what it says about places is turned into lines of
    files, also for a text that comes from several flags.

    Raises:
        UsageError: names file and line of what gin can't parse.
    """
    texts = [text for line in lines for text in line.text.split("\n")]
    # A flag may hold several lines.
    at = [line for line in lines for _ in line.text.split("\n")]

    parsed = []
    next_line = 1

    try:
        parser = config_parser.ConfigParser("\n".join(texts) + "\n", _References())
        while (statement := parser.parse_statement()) is not None:
            next_line = parser.current_token.start[0]
            parsed.append((statement, next_line))
    except (
        SyntaxError,
        tokenize.TokenError,
        ValueError,
        TypeError,
        RecursionError,
    ) as error:
        place = _place(error, texts, at, next_line)
        raise UsageError(
            f"{place}: {_what(error)}. A binding looks like TrainingConfig.epochs = 5, "
            "or TrainingConfig.optimizer = @Adam."
        ) from error

    # Statements take the lines up to the next one's, but no more than gin has read.
    starts = [statement.location.line_num for statement, _ in parsed]
    # gin reads all lines of a block before it returns the block's first statement.
    following = [*starts[1:], len(texts) + 1]
    ends = [min(end, start) for (_, end), start in zip(parsed, following, strict=False)]

    return [
        _statement(statement, texts[start - 1 : end - 1], at[start - 1 : end - 1])
        for (statement, _), start, end in zip(parsed, starts, ends, strict=True)
    ]


def _with_includes(path: Path, number: int) -> GinText:
    """Reads a file with the files that it includes in place of its includes.

    Args:
        path: the file.
        number: its place among the files; the later, the later gin applies it.
    """
    lines = _lines(path, (number + 1, 0))

    statements = []
    leaves: dict[str, GinText] = {}
    bound: dict[str, GinLine] = {}
    included: dict[GinLine, GinText] = {}

    for statement in parse(lines):
        if statement.kind != "include":
            statements.append(statement)
            continue

        if statement.selector not in leaves:
            leaves[statement.selector] = _leaf(statement, (number, len(leaves) + 1))

        leaf = leaves[statement.selector]
        included[statement.lines[0]] = leaf

        for binding in leaf.bindings:
            line = binding.lines[0]
            other = bound.setdefault(binding.name, line)
            if other.path != line.path:
                raise UsageError(
                    f"Included presets must not bind a name twice. {line.place} binds "
                    f"{binding.name}, which {other.place} does too. Bind it in the "
                    "experiment's own file instead."
                )

        statements += leaf.statements

    texts = [included[line].lines if line in included else (line,) for line in lines]

    return GinText(tuple(chain.from_iterable(texts)), tuple(statements))


def _leaf(include: Statement, source: tuple[int, int]) -> GinText:
    """Reads an included file, which must not include others.

    A second level would hide from a reader of the experiment's file what it sets.

    Args:
        include: the statement that names it.
        source: when gin applies its lines.
    """
    by = include.lines[0]
    candidates = [
        by.path.parent / include.selector,
        presets_folder() / include.selector,
    ]
    path = next((path for path in candidates if path.is_file()), None)

    if path is None:
        raise UsageError(
            f"An included file must exist. {by.place} includes {include.selector!r}; "
            f"looked for {' and '.join(map(str, candidates))}."
        )

    lines = _lines(path, source)
    statements = parse(lines)
    nested = [statement for statement in statements if statement.kind == "include"]

    if nested:
        raise UsageError(
            f"An included file must not include others. {nested[0].place} does, and is "
            f"included by {by.place}."
        )

    return GinText(tuple(lines), tuple(statements))


def _lines(path: Path, source: tuple[int, int]) -> list[GinLine]:
    """Reads a file's lines.

    Args:
        path: the file.
        source: when gin applies its lines, see `GinLine.source`.

    Raises:
        UsageError: for anything but a small text file in UTF-8.
    """
    try:
        content = read_bytes(path, _MOST_BYTES)
    except UsageError as error:
        raise UsageError(f"A gin file must be a small text file. {error}") from None
    except OSError as error:
        raise UsageError(
            f"A gin file must be readable. Received: {path} ({error})."
        ) from error

    try:
        # Some editors start a file with a byte order mark.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{path}:{number}: a gin file must be text in UTF-8. Received: the byte "
            f"0x{content[error.start]:02x}. Save the file as UTF-8, or name another "
            "one."
        ) from error

    texts = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    lines = [
        GinLine(path, number, line, source)
        for number, line in enumerate(texts, start=1)
    ]

    for line in lines:
        strange = _CONTROL.search(line.text)
        if strange:
            raise UsageError(
                f"{line.place}: a gin file must be text. Received: the control "
                f"character {strange[0]!r}. Is this a gin file?"
            )

    return lines


class _References(config_parser.ParserDelegate):
    """Keeps references as `Reference`, so that parsing looks nothing up."""

    def configurable_reference(self, scoped_configurable_name, evaluate):
        return Reference(scoped_configurable_name, "call" if evaluate else "function")

    def macro(self, scoped_configurable_name):
        return Reference(scoped_configurable_name, "macro")


def _statement(statement, texts: list[str], lines: list[GinLine]) -> Statement:
    """Returns one of gin's statements with its place and its text.

    Args:
        statement: what gin's parser returned.
        texts: the text of each of its lines.
        lines: the line of each text; several texts of a flag have the same one.
    """
    places = tuple(dict.fromkeys(lines))
    text = "\n".join(texts)
    if isinstance(statement, config_parser.ImportStatement):
        return Statement("import", places, text, statement.module)

    if isinstance(statement, config_parser.IncludeStatement):
        if len(texts) > 1 or places[0].path == COMMAND_LINE:
            raise UsageError(
                f"{places[0].place}: an include must stand alone in a line of a file, "
                f"as in: include 'models/paper.gin'. Received: {text!r}."
            )

        return Statement("include", places, text, statement.filename)

    head = Statement("block", places, text, statement.selector, statement.scope)
    if isinstance(statement, config_parser.BlockDeclaration):
        return head

    text = text.lstrip()
    parameter = statement.arg_name or ""

    # The head of its block names the class.
    in_block = bool(parameter and _PARAMETER_ALONE.match(text))
    if in_block:
        text = f"{head.name}.{text}"

    return replace(
        head,
        kind="binding",
        text=text,
        parameter=parameter,
        value=statement.value,
        in_block=in_block,
    )


def _what(error: Exception) -> str:
    """Describes the complaint of gin's parser in words of a user."""
    if isinstance(error, RecursionError):
        return "brackets are nested too deep"

    message = str(error.args[0] if error.args else error)
    message = message.split("\n")[0].strip().rstrip(".")
    if isinstance(error, tokenize.TokenError):
        return f"a bracket or a quotation mark is not closed ({message})"
    if message.startswith("malformed node"):
        return "a value must be a number, a text in quotation marks, a list, None or an @name"

    return message


def _place(
    error: Exception, texts: list[str], at: list[GinLine], next_line: int
) -> str:
    """Returns where a text can't be parsed: the error's line, or the next with code.

    Args:
        error: of gin's parser, which mostly knows the line.
        texts: the lines' texts.
        at: the line of each text.
        next_line: the first that the parser hasn't read, from 1.
    """
    number = getattr(error, "lineno", None)
    if number is None:
        number = next_line
        while number < len(texts) and not texts[number - 1].partition("#")[0].strip():
            number += 1

    return at[min(max(number, 1), len(at)) - 1].place


@dataclass(frozen=True)
class Filled(Generic[_Configs]):
    """What gin files make.

    Attributes:
        configs: what ``build`` returned.
        given: the lines as read; those without effect are commented out.
        operative: every value in use, in gin's syntax.
    """

    configs: _Configs
    given: str
    operative: str


def fill(
    text: GinText, build: Callable[[GinText], _Configs], *, imports: bool = True
) -> Filled[_Configs]:
    """Builds configs with the bindings of gin files; gin's state is empty afterwards.

    An unused binding is an error. But if a preset's binding was in use until a later
    file or the command line bound something else, such as another optimizer, it is only
    dropped and logged.

    Args:
        text: from `read_gin`.
        build: makes configs with `make`. It is called again, without later files, to
            find what was in use before them.
        imports: whether the files may import modules.

    Raises:
        UsageError: names file and line.
    """
    _import(text, imports)
    _check_macros(text.bindings)
    check_names(text.bindings, registered())
    configs, unused, operative = _build(text, build)
    dropped = _dropped(unused, text, build)

    if dropped:
        named = ", ".join(
            f"{statement.name} ({statement.place})" for statement in dropped[:_NAMED]
        )
        if len(dropped) > _NAMED:
            named += f", and {len(dropped) - _NAMED} more"

        log.info("Dropped, since later bindings leave them unused: %s", named)

    return Filled(configs, _given(text, dropped), operative)


def peek(cls: type, text: GinText) -> Any:
    """Returns one config of gin files, before all classes are registered.

    A cluster's settings, for instance, are needed before TensorFlow is loaded. Bindings
    of names that nothing has defined yet are skipped.

    Args:
        cls: a class of `config_class`.
        text: from `read_gin`.
    """
    _import(text, True)
    _check_macros(text.bindings)
    gin.clear_config()

    try:
        wanted = ("macro", cls.__name__)
        of_class = [s for s in text.bindings if _class_of(s) in wanted]
        _bind(of_class, skip_unknown=True)
        return make(cls, text)
    finally:
        gin.clear_config()


def bound_names(text: GinText) -> set[str]:
    """Returns the bound classes and functions, and "macro" if macros are bound."""
    return {_class_of(statement) for statement in text.bindings}


def bound_scopes(cls: type, text: GinText) -> list[str]:
    """Returns the scopes in which a config class is bound, without ""."""
    scopes = [
        s.scope for s in text.bindings if s.scope and _class_of(s) == cls.__name__
    ]
    return list(dict.fromkeys(scopes))


def make(cls: type, text: GinText, *, scope: str = "") -> Any:
    """Makes a config with gin's bindings.

    Args:
        cls: a class of `config_class`.
        text: where the bindings are, for errors.
        scope: its bindings take precedence.

    Raises:
        UsageError: names the line of the wrong value.
    """
    try:
        with gin.config_scope(scope or None):
            return gin.get_configurable(cls)()
    except (TypeError, ValueError) as error:
        message = str(error).split("\n")[0].replace(repr(gin.REQUIRED), UNBOUND)
        named = re.match(rf"{cls.__name__}\.(\w+)", message)
        place = ""
        if named:
            place = binding_place(text, cls.__name__, named[1], scope=scope)

        raise UsageError(f"{place}{message}") from error


def binding_place(
    text: GinText, class_name: str, parameter: str, *, scope: str = ""
) -> str:
    """Returns "file:line: " of a parameter's last binding, or "" if it is not bound.

    Args:
        text: where the bindings are.
        class_name: of the config.
        parameter: its field.
        scope: whose bindings take precedence; "" for none.
    """
    of_all = [
        s
        for s in text.bindings
        if s.parameter == parameter and _class_of(s) == class_name
    ]
    of_scope = [s for s in of_all if scope and s.scope == scope]
    bound = of_scope or of_all
    if not bound:
        return ""

    return f"{bound[-1].place}: "


def _class_of(statement: Statement) -> str:
    """Returns the class or function that a binding is for; "macro" for a macro."""
    if not statement.parameter:
        return "macro"

    return statement.selector.split(".")[-1]


def _import(text: GinText, allowed: bool) -> None:
    """Imports the modules that the files name; a UsageError unless ``allowed``."""
    for statement in text.statements:
        if statement.kind != "import":
            continue

        if not allowed:
            raise UsageError(
                f"{statement.place}: this file must only describe a machine, and "
                "imports a module, which would run its code. Received: "
                f"{statement.text.strip()!r}. Remove the line."
            )

        load_plugin(statement.selector, asked_at=statement.place)


def _check_macros(bindings: Iterable[Statement]) -> None:
    """Raises UsageError for a macro that nothing uses, or that needs itself."""
    macros = {s.name: s for s in bindings if not s.parameter}
    used = set().union(*(_macros_in(s.value) for s in bindings))

    for name in macros.keys() - used:
        raise UsageError(
            f"{macros[name].place}: {name} is bound but nothing uses it. Name its "
            "class, as in TrainingConfig.epochs = 5, or remove the line."
        )

    # Macros that need no other ones are removed until only circles are left, which gin
    # would never finish looking up.
    needs = {name: _macros_in(macro.value) for name, macro in macros.items()}
    while ends := [name for name, others in needs.items() if not others & needs.keys()]:
        for name in ends:
            del needs[name]

    for name, others in needs.items():
        raise UsageError(
            f"{macros[name].place}: a macro must not refer to itself. Received: "
            f"{name}, which needs {', '.join(sorted(others))}. Set one of them to a "
            "value."
        )


def _macros_in(value: Any) -> set[str]:
    """Returns the names of the macros in a value."""
    return {r.name for r in references(value) if r.kind == "macro"}


def _bind(bindings: Iterable[Statement], *, skip_unknown: bool = False) -> None:
    """Binds names in gin's global state.

    Args:
        bindings: in the order in which gin applies them.
        skip_unknown: whether to leave out what refers to an unknown name.

    Raises:
        UsageError: names the line of a binding that gin doesn't accept.
    """
    delegate = gin.config.ParserDelegate(skip_unknown)

    for statement in bindings:
        # gin keeps macros as values of a function of its own.
        key = (statement.name, "gin.macro", "value")
        if statement.parameter:
            key = (statement.scope, statement.selector, statement.parameter)

        try:
            gin.bind_parameter(key, _looked_up(statement.value, delegate))
        except (ValueError, SyntaxError, AttributeError, TypeError) as error:
            message = str(error).split("\n")[0].rstrip(".")
            raise UsageError(f"{statement.place}: {message}. {_LISTS}") from error


def registered() -> dict[str, set[str] | None]:
    """Returns the parameters of everything gin knows, by the last part of its name.

    None means that a function takes any parameter.
    """
    names: dict[str, set[str] | None] = {}
    for selector, configurable in gin.config._REGISTRY.items():  # noqa: SLF001 - no public way
        parameters = inspect.signature(configurable.wrapped).parameters.values()
        takes_any = any(p.kind == p.VAR_KEYWORD for p in parameters)
        name = selector.rpartition(".")[2]
        # Two modules may have functions of one name.
        earlier = names.get(name, set())
        any_of_both = takes_any or earlier is None
        names[name] = None if any_of_both else earlier | {p.name for p in parameters}

    return names


def check_names(
    bindings: Iterable[Statement], known: Names, *, complete: bool = True
) -> None:
    """Raises UsageError for the first name that is unknown; it suggests a similar one.

    Args:
        bindings: of files and flags.
        known: parameters by class.
        complete: whether ``known`` has all classes. If not, only parameters of known
            classes are checked.
    """
    bindings = list(bindings)
    macros = {statement.name for statement in bindings if not statement.parameter}
    used = set().union(*(_macros_in(s.value) for s in bindings))

    for statement in bindings:
        for reference in references(statement.value):
            name = re.split(r"[./]", reference.name)[-1]
            if reference.kind != "macro":
                if complete and name not in known:
                    raise _unknown(statement, "@", name, known)
            elif reference.name not in macros and reference.name != "gin.REQUIRED":
                raise _unknown(
                    statement, "%", reference.name, macros, "Bind it, or correct it."
                )

        name = _class_of(statement)
        parameter = statement.parameter
        if not parameter and statement.name not in used:
            # In a file it may be a macro for other files; on the command line, it lacks
            # a class.
            if statement.lines[0].path == COMMAND_LINE:
                _check_has_class(statement, known)
        elif parameter and name not in known and complete:
            raise _unknown(statement, "", statement.selector, known)
        elif parameter and parameter not in (known.get(name) or (parameter,)):
            raise _unknown(statement, f"{name}.", parameter, known[name])


def _check_has_class(flag: Statement, known: Names) -> None:
    """Raises UsageError if a macro looks like a parameter whose class is missing."""
    for group, parameters in known.items():
        near = nearest(flag.name, parameters or ())
        if near:
            remedy = f"Did you mean {group}.{near}?"
            raise _unknown(flag, "", flag.name, (), remedy)


def _unknown(
    statement: Statement,
    before: str,
    name: str,
    known: Iterable[str],
    remedy: str = _LISTS,
) -> UsageError:
    """Returns the error for an unknown name.

    Args:
        statement: has the name.
        before: what is before the name: "@", "%" or "TrainingConfig.".
        name: the unknown one.
        known: names to suggest one of.
        remedy: what to do if none of them is similar.
    """
    near = nearest(name, known)
    if near:
        remedy = f"Did you mean {before}{near}?"

    return UsageError(
        f"{statement.place}: there is no setting {before}{name}. {remedy}"
    )


def references(value: Any) -> Iterator[Reference]:
    """Yields all references in a value, also in lists, tuples and dicts."""
    if isinstance(value, Reference):
        yield value
    elif isinstance(value, dict):
        yield from references([*value.items()])
    elif isinstance(value, list | tuple):
        yield from chain.from_iterable(map(references, value))


def _looked_up(value: Any, known: gin.config.ParserDelegate) -> Any:
    """Returns a value with what gin knows in place of the references.

    Args:
        value: of a binding.
        known: gin's own delegate, which looks names up.
    """
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
    """Builds configs with gin's state, and clears it.

    Args:
        text: whose bindings gin gets.
        build: makes configs with `make`.

    Returns:
        The configs, the bindings that nothing used, and every value in use.
    """
    gin.clear_config()
    try:
        _bind(text.bindings)
        configs = build(text)
        return configs, _unused(text), gin.operative_config_str()
    finally:
        gin.clear_config()


def _unused(text: GinText) -> list[Statement]:
    """Returns the last binding of each name that gin didn't use."""
    used = gin.config._OPERATIVE_CONFIG  # noqa: SLF001 - no public way
    last = {
        statement.name: statement for statement in text.bindings if statement.parameter
    }

    unused = []
    for statement in last.values():
        bound = (statement.scope, statement.selector, statement.parameter)
        complete = gin.config.ParsedBindingKey.parse(bound).complete_selector
        # A binding with a scope is also used in scopes within it, one without in all.
        outer = f"{statement.scope}/".lstrip("/")
        if not any(
            statement.parameter in values
            for (scope, selector), values in used.items()
            if selector == complete and f"{scope}/".startswith(outer)
        ):
            unused.append(statement)

    return unused


def _dropped(
    unused: Sequence[Statement], text: GinText, build: Callable[[GinText], Any]
) -> list[Statement]:
    """Returns the unused bindings that were in use before a later file.

    To find them, the configs are built again with only the first file, then with the
    second one too, and so on.

    Args:
        unused: the bindings that nothing uses with all files.
        text: all files.
        build: makes configs with `make`.

    Raises:
        UsageError: for another one, which never had an effect.
    """
    waiting = list(unused)
    for source in sorted({statement.source for statement in text.statements})[:-1]:
        if not any(statement.source <= source for statement in waiting):
            continue

        until = tuple(
            statement for statement in text.statements if statement.source <= source
        )
        try:
            _, idle, _ = _build(replace(text, statements=until), build)
        # The earlier files don't work without the later ones.
        except UsageError:
            continue

        waiting = [s for s in waiting if s.source > source or s in idle]

    if waiting:
        statement = waiting[0]
        name = statement.name.rpartition(".")[0]
        remedy = "line"
        if statement.lines[0].path == COMMAND_LINE:
            remedy = "binding"

        raise UsageError(
            f"{statement.place}: {statement.name} is bound but nothing uses it. Remove "
            f"the {remedy}, or make the experiment use {name}."
        )

    return [s for s in unused if s not in waiting]


def _given(text: GinText, dropped: Sequence[Statement]) -> str:
    """Returns the lines as they were read, those of dropped bindings commented out.

    The run keeps them, so that whoever repeats it sees what its files say.
    """
    without = {line for statement in dropped for line in statement.lines}
    for index, head in enumerate(text.statements):
        if head.kind == "block":
            block = takewhile(
                lambda statement: statement.in_block, text.statements[index + 1 :]
            )
            # An empty block is not valid gin.
            if all(statement in dropped for statement in block):
                without |= set(head.lines)

    texts = []
    for line in text.lines:
        if line in without:
            texts.append(_DROPPED + line.text.replace("\n", f"\n{_DROPPED}"))
        else:
            texts.append(line.text)

    return "\n".join(texts) + "\n"
