"""``tfasr settings``: what gin can bind, or what a preset sets, with type and meaning.

Settings are read from source files, because importing these would load TensorFlow.
"""

import argparse
import ast
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import repeat, takewhile
from pathlib import Path
from typing import Any, Literal

from tfasr.errors import UsageError, did_you_mean
from tfasr.kit.config import wrong_type
from tfasr.kit.gin import (
    check_names,
    find_preset,
    presets,
    read_gin,
    references,
    registered,
)
from tfasr.kit.registry import plugins

EXAMPLE = "settings TrainingConfig"

# tfasr's own folder.
_PACKAGE = Path(__file__).parents[1]

# Where settings are defined. Those that most people bind come first.
_FOLDERS = ("training", "data", "models", "decoding", "tta", "studies", "bench")

# Keras's folders of optimizers, and their base classes, which nobody binds.
_OPTIMIZERS = ("optimizers", "optimizers/schedules")
_BASES = ("Optimizer", "OptimizerMap", "LearningRateSchedule")

# What gin itself defines; None for any parameter.
_BY_GIN = {"macro": None, "constant": None, "singleton": None, "REQUIRED": None}

# How many columns of a line a binding takes, before its comment.
_WIDTH = 52

# How Keras's descriptions of parameters begin: "A float, defaults to ...".
_KERAS_TYPE = re.compile(
    r"^(A (Python|scalar|float)|Boolean|String|Float|Int).*?\.( |$)"
)

# The names that annotations of settings use, in addition to built-in ones.
_TYPES = {"Literal": Literal, "Callable": Callable, "Any": Any}


@dataclass(frozen=True)
class Setting:
    """A parameter that gin can bind.

    Attributes:
        name: with its class, such as "TrainingConfig.epochs".
        type: as written in Python; "" if unknown.
        default: as gin reads it; "" for a setting that must be bound.
        meaning: its documentation in one line; "" if undocumented.
    """

    name: str
    type: str
    default: str
    meaning: str

    def line(self, width: int = 0, value: str | None = None) -> str:
        """Returns a line of gin with the first sentence of the meaning as a comment.

        >>> Setting("A.rate", "float", "0.1", "Share of zeros. See B.").line()
        'A.rate = 0.1  # float: Share of zeros'

        Args:
            width: columns of the binding.
            value: what a preset sets; None shows the default and the type.
        """
        binding = f"{self.name} = {value or self.default or '...'}"

        kind = ""
        if value is None:
            kind = self.type
        elif self.default not in ("", value):
            kind = f"instead of {self.default}"

        meaning = _KERAS_TYPE.sub("", self.meaning)
        first = re.split(r"(?<=[^.\d])\. |; ", meaning)[0].rstrip(".")
        comment = ": ".join(filter(None, (kind, first)))

        return f"{binding:<{width}}  # {comment}".rstrip(" #")


@dataclass(frozen=True)
class Group:
    """A config class, an optimizer or a function that gin knows.

    Attributes:
        meaning: the first line of its docstring.
        settings: its fields or parameters, in the order of the source.
    """

    meaning: str
    settings: tuple[Setting, ...]


@functools.cache
def own_settings(files: tuple[Path, ...] = ()) -> dict[str, Group]:
    """Returns the groups defined in tfasr and in plug-ins' ``files``, by name.

    A group is a class or function that is decorated for gin; see `_group`.
    """
    inside = [
        path
        for folder in _FOLDERS
        for path in sorted((_PACKAGE / folder).rglob("*.py"))
    ]

    groups: dict[str, Group] = {}
    for path in (*inside, *files):
        source = path.read_text(encoding="utf-8")
        # Parsing all files would take longer than most commands.
        if "\n@config_class" not in source and "\n@gin.register" not in source:
            continue

        body = ast.parse(source).body
        constants = {**_imported_constants(body, source), **_constants(body)}
        for node in body:
            decorators = map(ast.unparse, getattr(node, "decorator_list", ()))
            if {"config_class", "gin.register"}.intersection(decorators):
                groups[node.name] = _group(node, source.splitlines(), constants)

    return groups


def _constants(body: list[ast.stmt]) -> dict[str, str]:
    """Returns the source text of a file's constants, by name.

    >>> _constants(ast.parse("RATE = 0.1").body)
    {'RATE': '0.1'}
    """
    return {
        ast.unparse(node.targets[0]): ast.unparse(node.value)
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }


def _imported_constants(body: list[ast.stmt], source: str) -> dict[str, str]:
    """Returns those constants of other files of tfasr that are defaults in this one.

    Files are parsed and not imported, since many of them would load TensorFlow.

    Args:
        body: the statements of the file.
        source: its text.
    """
    constants = {}
    for node in body:
        if not isinstance(node, ast.ImportFrom) or not node.module.startswith("tfasr."):
            continue

        names = [alias.name for alias in node.names if alias.name.isupper()]
        defaults = [name for name in names if re.search(rf" = {name}\b", source)]
        file = _PACKAGE.parent / f"{node.module.replace('.', '/')}.py"
        # A package, which is no file, has no such constants.
        if not defaults or not file.is_file():
            continue

        others = _constants(ast.parse(file.read_text(encoding="utf-8")).body)
        constants.update({name: others[name] for name in defaults if name in others})

    return constants


@functools.cache
def optimizers() -> dict[str, Group]:
    """Returns Keras's optimizers and schedules, or {} if Keras's files aren't found.

    The lists of a public folder, such as ``keras/optimizers/__init__.py``, name the
    private file of each class.
    """
    spec = find_spec("keras")
    if spec is None:
        return {}

    groups = {}
    folder = Path(spec.submodule_search_locations[0])
    imports = r"from keras\.(src\.\S+) import \(?\s*\w+ as ([A-Z]\w+)"

    for public in _OPTIMIZERS:
        path = folder / public / "__init__.py"
        if not path.is_file():
            continue

        for module, name in re.findall(imports, path.read_text(encoding="utf-8")):
            source = folder / f"{module.replace('.', '/')}.py"
            for node in ast.parse(source.read_text(encoding="utf-8")).body:
                if getattr(node, "name", "") == name not in _BASES:
                    groups[name] = _group(node, [], {})

    return groups


def _group(node: ast.ClassDef, lines: list[str], constants: dict[str, str]) -> Group:
    """Returns the settings of a class or function from its source.

    Args:
        node: the class or function.
        lines: of its file, for comments on fields; [] to ignore them.
        constants: values of the file's constants, which defaults may name.
    """
    doc = ast.get_docstring(node) or ""

    # The entries of the docstring's section, as "name: meaning".
    section = re.search(r"^(?:Attributes|Args):\n((?:(?: .*)?\n)+)", f"{doc}\n", re.M)
    meanings = {}
    if section:
        entries = re.split(r"^ {4}(\w+): ", section[1], flags=re.M)[1:]
        meanings = dict(zip(entries[::2], map(_one_line, entries[1::2]), strict=True))

    settings = []
    for name, kind, default, comment in _fields(node, lines):
        if default in constants:
            default = constants[default]
        # gin refers to a function as @name; numbers, texts and tuples begin otherwise.
        elif re.fullmatch("[a-z]\\w+", default):
            default = f"@{default}"

        settings.append(
            Setting(
                name=f"{node.name}.{name}",
                type=kind,
                default=default,
                meaning=meanings.get(name) or comment,
            )
        )

    return Group(doc.split("\n")[0], tuple(settings))


def _fields(node: ast.AST, lines: list[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yields name, type, default and comment of each field or parameter.

    All are text; "" for what is missing. Of parameters, Keras states types only in
    words, and there are no comments.

    Args:
        node: a class, whose fields or ``__init__`` count, or a function.
        lines: of its file, for comments on fields; [] to ignore them.
    """
    items = [node]
    if isinstance(node, ast.ClassDef):
        items = node.body

    for item in items:
        if isinstance(item, ast.AnnAssign):
            default = ""
            if item.value:
                default = ast.unparse(item.value)

            yield (
                item.target.id,
                ast.unparse(item.annotation),
                default,
                _comment(item, lines),
            )
        elif isinstance(item, ast.FunctionDef) and (
            item is node or item.name == "__init__"
        ):
            # A method's first one is self.
            arguments = item.args.args[item is not node :]
            # Python keeps the defaults of the last parameters only.
            defaults = [ast.unparse(value) for value in item.args.defaults]
            missing = repeat("", len(arguments) - len(defaults))

            for argument, default in zip(arguments, (*missing, *defaults), strict=True):
                yield argument.arg, "", default, ""


def _comment(item: ast.AnnAssign, lines: list[str]) -> str:
    """Returns the comment behind a field, or that in the lines above it.

    Args:
        item: the field.
        lines: of its file. Python counts columns in bytes of UTF-8.
    """
    behind = lines[item.end_lineno - 1].encode()[item.end_col_offset :].decode().strip()
    before = map(str.strip, lines[item.lineno - 2 :: -1])
    above = takewhile(lambda line: line.startswith("#"), before)

    return _one_line(behind or " ".join(reversed([line[1:] for line in above])))


def _one_line(text: str) -> str:
    """Returns a text without line ends and signs of comments."""
    return " ".join(text.strip("# \n").split())


def known_settings() -> dict[str, Group]:
    """Returns all groups by name: Keras's, tfasr's and those of imported plug-ins.

    Files that define settings are parsed and not imported, as that loads TensorFlow.
    """
    files = tuple(Path(plugin.file) for plugin in plugins())
    return optimizers() | own_settings(files)


def check_gin(files: str | Sequence[str] | None, bindings: Sequence[str]) -> None:
    """Raises UsageError for a misspelt name or a wrong type, without TensorFlow.

    The same is checked again when gin binds the values; here it takes no seconds.

    Args:
        files: of ``--gin_file``; a command has one or several.
        bindings: of ``--gin_binding``.
    """
    if isinstance(files, str):
        files = [files]
    if not files and not bindings:
        return

    text = read_gin(files or (), bindings)
    groups = known_settings()
    types = {
        setting.name: setting.type
        for group in groups.values()
        for setting in group.settings
    }

    parameters = {
        name: {_parameter(setting) for setting in group.settings}
        for name, group in groups.items()
    }
    # A module that a file imports may add names; without Keras's files, Keras's are
    # unknown.
    imports = any(statement.kind == "import" for statement in text.statements)
    complete = not imports and "Adam" in groups
    check_names(text.bindings, parameters | registered() | _BY_GIN, complete=complete)

    for statement in text.bindings:
        # A binding with a scope, as in "sys1/HardwareConfig.name", has the same type.
        name = statement.name.rpartition("/")[2]
        # What a reference stands for is only known once gin has looked it up.
        if not types.get(name) or any(references(statement.value)):
            continue

        try:
            # Comes from source that runs anyway.
            annotation = eval(types[name], dict(_TYPES))
        # The type is defined in a plug-in.
        except NameError:
            continue

        message = wrong_type(name, statement.value, annotation)
        if message:
            raise UsageError(f"{statement.place}: {message}")


def _parameter(setting: Setting) -> str:
    """Returns a setting's name without its class."""
    return setting.name.partition(".")[2]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the names to show; they may be of groups, settings and presets."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME|PRESET",
        help="such as TrainingConfig, epochs, Adam or fast/an4; default: all settings",
    )


def run(arguments: argparse.Namespace) -> None:
    """Prints what can be bound, or the settings and presets that are named."""
    for name in arguments.names:
        print("\n".join(_shown(name)))

    if not arguments.names:
        for name, group in own_settings().items():
            print("\n".join(_of_group(name, group)))

        others = ", ".join(optimizers())
        print(f"Optimizers and schedules, by tfasr settings NAME: {others}")


def _shown(name: str) -> list[str]:
    """Returns the lines on a group, a setting, a parameter's name or a preset.

    Raises:
        UsageError: for another name; it suggests a similar one.
    """
    groups = known_settings()
    named = {group.lower(): group for group in groups}.get(name.lower())
    if named:
        return _of_group(named, groups[named])

    settings = {
        setting.name: setting for group in groups.values() for setting in group.settings
    }
    if name in settings:
        return [settings[name].line(), f"    {settings[name].meaning}"]

    # Several classes may have a parameter of this name.
    same = [each.line() for each in settings.values() if _parameter(each) == name]
    if same:
        return same

    try:
        path = find_preset(name)
    except UsageError as error:
        names = [*settings, *map(_parameter, settings.values()), *groups]
        names += [preset.removesuffix(".gin") for preset in presets()]
        meant = did_you_mean(
            name, names, "See the lists of tfasr settings and tfasr presets."
        )
        raise UsageError(
            f"NAME must be a setting or a preset. Received: {name!r}.{meant}"
        ) from error

    return _of_preset(path, settings)


def _of_preset(path: Path, settings: dict[str, Setting]) -> list[str]:
    """Returns a preset's lines: what it sets, and what that means.

    Args:
        path: the gin file.
        settings: all that are known, by name.
    """
    # Later bindings of a name replace earlier ones.
    last = {bound.name: bound.value for bound in read_gin([str(path)]).bindings}

    # The settings of an optimizer that a later line has replaced do nothing.
    unused = set()
    if "TrainingConfig.optimizer" in last:
        unused.update(optimizers())
        for value in last.values():
            unused.difference_update(
                reference.name.rpartition("/")[2] for reference in references(value)
            )

    lines = []
    for name, value in last.items():
        unscoped = name.rpartition("/")[2]
        if unscoped.partition(".")[0] in unused:
            continue

        setting = settings.get(unscoped, Setting("", "", "", ""))
        lines.append(replace(setting, name=name).line(_WIDTH, repr(value)))

    return lines


def _of_group(name: str, group: Group) -> list[str]:
    """Returns a group's lines: its meaning as a comment, and each setting."""
    return [
        f"# {name}: {group.meaning}",
        *(item.line(_WIDTH) for item in group.settings),
        "",
    ]
