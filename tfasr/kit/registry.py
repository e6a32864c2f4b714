"""Names for built-in classes and functions, and for those that users' modules register.

A `Registry` maps a name in a gin file or a flag to an object, such as "adam" to an
optimizer. Built-in objects are imported when they are first used, so that a command
that needs none of them starts quickly. A plug-in is a user's module that registers
objects; ``--import`` loads it, and a run states which ones it was trained with
(docs/extending.md).
"""

import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import json
import logging
import sys
import sysconfig
import traceback
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar, overload

from tfasr.errors import RunError, UsageError, imported, received_path
from tfasr.kit.files import PLUGINS_FILE, read_object, write_whole

_Thing = TypeVar("_Thing")

# tfasr's own folder: what is registered from elsewhere is a user's.
_PACKAGE = str(Path(__file__).parents[1])

# A plug-in's file becomes a module with this prefix and the file's name.
FILE_MODULE = "tfasr_plugin_"

# All registries of this process that are still in use.
_registries: "list[weakref.ref[Registry]]" = []

# The plug-ins that were loaded, by the value of ``--import``.
_loaded: dict[str, ModuleType] = {}

# Pairs of run and plug-in already logged as not needed, so each is logged only once.
_mentioned: set[tuple[str | Path, str]] = set()

log = logging.getLogger("tfasr")


@dataclass(frozen=True)
class Registered:
    """Where a name was registered.

    Attributes:
        name: the registered name.
        module: registers the name when imported; for a built-in object, its module.
        file: where it was registered, or where the built-in name is listed.
        line: the line in that file.
        attribute: a built-in object's name in its module.
    """

    name: str
    module: str
    file: str
    line: int
    attribute: str | None = None

    @property
    def place(self) -> str:
        """The file and line, for errors."""
        return f"{self.file}:{self.line}"


class Registry(Mapping[str, _Thing], Generic[_Thing]):
    """A mapping from names to objects, in the order of registration.

    A user's module registers an object where it is defined::

        @MODELS.register("my_model")
        class MyModelConfig: ...

    It is then found by its name, and so are built-in objects::

        MODELS["my_model"]
        MODELS["conformer"]  # imports its module

    Args:
        kind: a noun for messages, such as "model".
        built_in: maps names to "module:attribute", which is imported when first used.
        check: a function that raises TypeError or ValueError for an invalid object.
        then: a function called with name and object after a registration.
        plural: of ``kind``; default: ``kind`` with an "s".
    """

    def __init__(
        self,
        kind: str,
        built_in: Mapping[str, str] | None = None,
        *,
        check: Callable[[Any], None] | None = None,
        then: Callable[[str, Any], None] | None = None,
        plural: str | None = None,
    ):
        self.kind = kind
        self.plural = plural or f"{kind}s"
        self._check = check
        self._then = then
        self._entries: dict[str, Registered] = {}
        self._things: dict[str, _Thing] = {}
        _registries.append(weakref.ref(self))
        file, line, _ = _caller()

        for name, target in (built_in or {}).items():
            module, _, attribute = target.partition(":")
            self._add(Registered(name, module, file, line, attribute))

    @overload
    def register(self, name: str) -> Callable[[_Thing], _Thing]: ...

    @overload
    def register(self, name: str, thing: _Thing) -> _Thing: ...

    def register(self, name, thing=None):
        """Registers an object, or returns a decorator that registers what is below it.

        In an interactive session, a name may be registered again.

        Args:
            name: one word, by which gin files and flags name the object.
            thing: the object; None for a decorator.

        Raises:
            UsageError: if the name is taken (with both places) or isn't one word, or if
                the check fails.
        """
        file, line, module = _caller()

        def add(thing: _Thing) -> _Thing:
            """Registers the object, unless another one has its name."""
            entry = Registered(name, module, file, line)
            previous = self._entries.get(name)
            if previous is not None and not _again(previous, entry):
                raise UsageError(
                    f"{entry.place}: the name {name!r} is taken. Received: a second "
                    f"{self.kind} of this name, after that of {previous.place}. Choose "
                    "another name."
                )

            self._checked(entry, thing)
            self._add(entry)
            self._things[name] = thing
            if self._then is not None:
                self._then(name, thing)

            return thing

        if thing is None:
            return add

        return add(thing)

    def entry(self, name: str) -> Registered:
        """Returns where a name was registered, without importing the object.

        Raises:
            UsageError: if the name is unknown; it lists those that are known.
        """
        if name not in self._entries:
            raise UsageError(
                f"There is no {self.kind} {name!r}. Known {self.plural}: "
                f"{self.listed()}. To use one from your own module, import it: "
                "--import my_lab.my_module."
            )

        return self._entries[name]

    def name_of(self, thing: _Thing) -> str | None:
        """Returns the registered name of an object, or None."""
        # A built-in object that the registry hasn't imported yet is known by where it
        # is defined.
        defined_at = (
            getattr(thing, "__module__", None),
            getattr(thing, "__name__", None),
        )
        for name, entry in self._entries.items():
            if name in self._things:
                if self._things[name] is thing:
                    return name
            elif (entry.module, entry.attribute) == defined_at:
                return name

        return None

    def call(
        self, name: str, *arguments: Any, passes: tuple[type[Exception], ...] = ()
    ) -> Any:
        """Calls a registered function or class, and returns its result.

        A user's exception becomes a RunError of one line, which names the user's file.

        Args:
            name: the registered name.
            arguments: of the call.
            passes: types of errors that are raised as they are, as tfasr's own are.

        Raises:
            RunError: if a plug-in's function fails.
        """
        entry = self.entry(name)
        thing = self[name]

        try:
            return thing(*arguments)
        except (UsageError, RunError, *passes):
            raise
        except (Exception, SystemExit) as error:
            if Path(entry.file).is_relative_to(_PACKAGE):
                raise

            place, cause = blamed(error)
            raise RunError(
                f"{place}: the {self.kind} {name!r} failed: {cause}."
            ) from error

    def listed(self) -> str:
        """Returns all names in one line, for messages."""
        return ", ".join(self._entries)

    def __getitem__(self, name: str) -> _Thing:
        """Returns an object; imports a built-in one that wasn't used before."""
        entry = self.entry(name)
        if name not in self._things:
            module = imported(entry.module, f"The {self.kind} {name!r}")
            thing = getattr(module, entry.attribute)
            self._checked(entry, thing)
            self._things[name] = thing

        return self._things[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Returns an object, or ``default`` if the name is unknown.

        `Mapping.get` would raise the UsageError of an unknown name.
        """
        if name not in self:
            return default

        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Registry({self.kind!r}: {self.listed()})"

    def _add(self, entry: Registered) -> None:
        """Adds an entry whose name can be written on a command line."""
        if not entry.name or entry.name.split() != [entry.name]:
            raise UsageError(
                f"{entry.place}: the name of a {self.kind} must be one word. Received: "
                f"{entry.name!r}."
            )

        self._entries[entry.name] = entry

    def _checked(self, entry: Registered, thing: _Thing) -> None:
        """Raises UsageError, with the place, if an object can't be used."""
        if self._check is None:
            return

        try:
            self._check(thing)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{entry.place}: the {self.kind} {entry.name!r} can't be used: {error}"
            ) from error


def _again(previous: Registered, entry: Registered) -> bool:
    """Whether the same code registers a name again.

    A module may be imported again, and a notebook's cell run again.
    """
    interactive = previous.module == entry.module == "__main__"
    return interactive or previous.place == entry.place


def _caller() -> tuple[str, int, str]:
    """Returns file, line and module of the code that called this module."""
    frame = inspect.currentframe()
    while frame.f_code.co_filename == __file__:
        frame = frame.f_back

    return frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", "")


@dataclass(frozen=True)
class Plugin:
    """A module outside tfasr that this process loaded, or that trained a run.

    Attributes:
        name: the value of ``--import``: a module, or the path of a file.
        file: the module's file.
        sha256: of that file.
        registers: names by kind, such as {"model": ["my_model"]}.
    """

    name: str
    file: str
    sha256: str
    registers: dict[str, list[str]]

    def described(self) -> str:
        """Returns the plug-in's name and what it registers, for messages."""
        parts = [f"{kind} {', '.join(names)}" for kind, names in self.registers.items()]
        if not parts:
            return self.name

        return f"{self.name} (it registers {'; '.join(parts)})"


def load_plugin(name: str, *, asked_at: str = "--import") -> ModuleType:
    """Imports a plug-in, once.

    A module of the working directory is found too, as Python would find it.

    Args:
        name: a module, or the path of a ``.py`` file.
        asked_at: the flag or line that names it, for messages.

    Raises:
        UsageError: with file and line, if the module doesn't exist or can't be imported.
    """
    if name not in _loaded:
        load = _module
        if name.endswith(".py"):
            load = _file

        try:
            _loaded[name] = load(name, asked_at)
        # A registry's own error names file and line already.
        except (KeyboardInterrupt, UsageError):
            raise
        # A module may even call `sys.exit`.
        except BaseException as error:
            place, cause = blamed(error)
            raise UsageError(
                f"{place}: a plug-in must be importable. Received: {cause}. {asked_at} "
                f"names {name!r}; correct it or leave it out."
            ) from error

    return _loaded[name]


def plugins() -> list[Plugin]:
    """Returns this process's plug-ins.

    These are the modules that were loaded as such, and others that have registered
    names, such as a script that calls tfasr. Only those whose file another process can
    load count.
    """
    names = {str(module.__file__): name for name, module in _loaded.items()}
    registers: dict[str, dict[str, list[str]]] = {file: {} for file in names}

    for registry in filter(None, (reference() for reference in _registries)):
        for entry in registry._entries.values():
            if not Path(entry.file).is_relative_to(_PACKAGE):
                names.setdefault(entry.file, entry.module)
                kinds = registers.setdefault(entry.file, {})
                kinds.setdefault(registry.kind, []).append(entry.name)

    usable = []
    for file, name in names.items():
        # Another process can't import a script that calls tfasr, or a notebook.
        if name == "__main__" or not Path(file).is_file():
            continue

        if name.endswith(".py"):
            name = str(Path(name).resolve())

        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        usable.append(Plugin(name, file, digest, registers[file]))

    return usable


def loaded_plugins() -> list[str]:
    """Returns names by which a child process can load the same plug-ins."""
    return [plugin.name for plugin in plugins()]


def record_plugins(run_dir: Path) -> None:
    """Writes ``plugins.json`` into a run's folder if there are plug-ins."""
    in_use = [dataclasses.asdict(plugin) for plugin in plugins()]
    if in_use:
        write_whole(
            run_dir / PLUGINS_FILE, json.dumps({"plugins": in_use}, indent=1) + "\n"
        )


def require_plugins(run_dir: str | Path, kinds: Collection[str] | None = None) -> None:
    """Raises UsageError if one of a run's plug-ins is not loaded.

    Nothing is loaded, because a run folder must not run code.

    Args:
        run_dir: the run's folder.
        kinds: limits this to plug-ins that register objects of these kinds; others that
            are missing are only logged, once. None: all plug-ins.
    """
    path = Path(run_dir) / PLUGINS_FILE
    if not path.exists():
        return

    content = read_object(
        path, "It only lists plug-ins to --import; you can delete it."
    )
    loaded = plugins()

    try:
        recorded = [Plugin(**values) for values in content.get("plugins")]
    except TypeError:
        recorded = []

    for plugin in recorded:
        # It may have been moved, or changed.
        same = [p for p in loaded if plugin.name == p.name or plugin.sha256 == p.sha256]
        if same:
            if plugin.sha256 not in [other.sha256 for other in same]:
                log.warning(
                    "The plug-in %s has changed since %s was trained.",
                    plugin.name,
                    run_dir,
                )

            continue

        if kinds is None or not plugin.registers.keys().isdisjoint(kinds):
            raise UsageError(
                f"{run_dir} was trained with the plug-in {plugin.described()}, which "
                f"is not imported. Add --import {plugin.name} if you trust its code."
            )

        if (run_dir, plugin.name) not in _mentioned:
            _mentioned.add((run_dir, plugin.name))
            log.info(
                "%s was trained with the plug-in %s; it is not needed here.",
                run_dir,
                plugin.name,
            )


def _module(name: str, asked_at: str) -> ModuleType:
    """Imports a plug-in by its module's name, also from the working directory.

    Args:
        name: such as "my_lab.my_module".
        asked_at: what names it, for the error.

    Raises:
        UsageError: if there is no such module.
    """
    # At the end of the path, a folder hides no other module.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)

    importlib.invalidate_caches()

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The plug-in is there, but imports something that isn't.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise

        raise UsageError(
            f"{asked_at}: a plug-in must be an importable module or a .py file. "
            f"Received: {name!r}, but there is no module {error.name!r} here ({here}), "
            "among the installed packages or on PYTHONPATH."
        ) from error


def _file(file: str, asked_at: str) -> ModuleType:
    """Imports a plug-in by its file.

    Args:
        file: its path.
        asked_at: what names it, for the error.

    Raises:
        UsageError: if it doesn't exist, or another plug-in's file has its name.
    """
    path = Path(file)
    if not path.is_file():
        raise UsageError(
            f"{asked_at}: a plug-in must be a module or an existing .py file. "
            f"{received_path(path)}"
        )

    path = path.resolve()

    # It may be imported already, under another name.
    for module in [*sys.modules.values()]:
        same = getattr(module, "__file__", None) == str(path)
        if same and module.__name__ != "__main__":
            return module

    # The module's name doesn't depend on process or folder, because experiment.json
    # stores it.
    name = f"{FILE_MODULE}{path.stem}"
    if name in sys.modules:
        raise UsageError(
            f"{asked_at}: plug-in files must have different names. Received: {path} "
            f"and {sys.modules[name].__file__}. Rename one."
        )

    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module

    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise

    return module


def blamed(error: BaseException) -> tuple[str, str]:
    """Returns where a user's code raised an error, and the error, each in one line.

    That is the innermost line of the user's own code, or of any code if the user's
    isn't involved.

    Returns:
        The place, such as "plugin.py:12", and the error, such as "KeyError: 'a'".
    """
    message = str(error).split("\n")[0]
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}"
        message = error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        frame = [*frames, *(frame for frame in frames if _of_user(frame.filename))][-1]
        place = f"{frame.filename}:{frame.lineno}"

    return place, f"{type(error).__name__}: {message}".rstrip(": .")


def _of_user(file: str) -> bool:
    """Whether a file is neither Python's, nor an installed package's, nor tfasr's."""
    others = [
        *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
        Path(__file__).parent,
    ]
    return not file.startswith("<") and not any(map(Path(file).is_relative_to, others))
