"""Plug-ins: modules of the user's own that register a model, a corpus, a figure and so on.

Importing a plug-in runs its code. That happens only for ``--import`` on the command line and for
``import`` in a gin file that is given to it: nothing in a run folder or in the description of a
machine is ever imported. A run records which plug-ins it was trained with, so that an evaluation
without them can say which to import.
"""

import dataclasses
import hashlib
import importlib
import importlib.util
import json
import logging
import sys
import sysconfig
import traceback
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tfasr.checked_files import read_object
from tfasr.durable import write_whole
from tfasr.errors import UsageError
from tfasr.registry import entries_of_plugins
from tfasr.run_files import PLUGINS_FILE

# Begins the name of the module that a plug-in's file becomes; the file's own name follows.
FILE_MODULE = "tfasr_plugin_"

_loaded: dict[str, ModuleType] = {}
# Runs and their plug-ins that were said not to be needed, so that it is said once.
_mentioned: set[tuple[str | Path, str]] = set()

log = logging.getLogger("tfasr")


@dataclass(frozen=True)
class Plugin:
    """A module outside tfasr that this process has loaded, or that a run was trained with.

    Attributes:
        name: the value of ``--import`` that loads it: a module, or the path of a file.
        file: the path of its code.
        sha256: of that file, to see whether the plug-in has changed since.
        registers: the names it registers, by kind, such as {"model": ["my_model"]}.
    """

    name: str
    file: str
    sha256: str
    registers: dict[str, list[str]]

    def described(self) -> str:
        """Returns the plug-in's name and what it registers, for a message."""
        parts = [f"{kind} {', '.join(names)}" for kind, names in self.registers.items()]
        return f"{self.name} (it registers {'; '.join(parts)})" if parts else self.name


def load_plugin(name: str, *, asked_at: str = "--import") -> ModuleType:
    """Imports a plug-in, once.

    Args:
        name: a module, looked for in the working directory too, or the path of a ``.py`` file.
        asked_at: the flag, or file and line, that names the plug-in, for messages.

    Raises:
        UsageError: if there is no such module, or it cannot be imported; it names file and line.
    """
    if name in _loaded:
        return _loaded[name]
    _loaded[name] = _file(Path(name), asked_at) if name.endswith(".py") else _module(name, asked_at)
    return _loaded[name]


def plugins() -> list[Plugin]:
    """Returns this process's plug-ins: modules loaded as such, and others that registered names."""
    names = {str(module.__file__): name for name, module in _loaded.items()}
    registers: dict[str, dict[str, list[str]]] = {file: {} for file in names}
    for kind, entry in entries_of_plugins():
        names.setdefault(entry.file, entry.module)
        registers.setdefault(entry.file, {}).setdefault(kind, []).append(entry.name)
    return [
        Plugin(_portable(name), file, _digest(file), registers[file])
        for file, name in names.items()
        # A script that calls tfasr, or a notebook, cannot be imported by another process.
        if name != "__main__" and Path(file).is_file()
    ]


def loaded_plugins() -> list[str]:
    """Returns the names by which a child process can load the same plug-ins with `load_plugin`."""
    return [plugin.name for plugin in plugins()]


def record_plugins(run_dir: Path) -> None:
    """Writes ``plugins.json`` into a run's folder; no file without plug-ins."""
    in_use = [dataclasses.asdict(plugin) for plugin in plugins()]
    if in_use:
        write_whole(run_dir / PLUGINS_FILE, json.dumps({"plugins": in_use}, indent=1) + "\n")


def require_plugins(run_dir: str | Path, kinds: Collection[str] | None = None) -> None:
    """Checks that a run's plug-ins are loaded. It loads none: a run folder must run no code.

    Args:
        kinds: which kinds of plug-ins must be loaded, such as "model"; None for all. A missing
            one of another kind is only logged.

    Raises:
        UsageError: if one is missing; it says how to import it.
    """
    path = Path(run_dir) / PLUGINS_FILE
    if not path.exists():
        return
    content = read_object(path, "It only lists what to --import; remove it to go on without.")
    loaded = plugins()
    for plugin in _recorded(content.get("plugins")):
        same = [own for own in loaded if plugin.name == own.name or plugin.sha256 == own.sha256]
        if not same:
            if kinds is None or not plugin.registers.keys().isdisjoint(kinds):
                raise UsageError(
                    f"{run_dir} was trained with the plug-in {plugin.described()}, which is not "
                    f"imported. Add --import {plugin.name}, if you trust its code."
                )
            if (run_dir, plugin.name) not in _mentioned:
                _mentioned.add((run_dir, plugin.name))
                log.info(
                    "%s was trained with the plug-in %s; it is not needed here.",
                    run_dir,
                    plugin.name,
                )
        elif plugin.sha256 not in [own.sha256 for own in same]:
            log.warning("The plug-in %s has changed since %s was trained.", plugin.name, run_dir)


def _recorded(content: Any) -> list[Plugin]:
    try:
        return [Plugin(**values) for values in content]
    except TypeError:
        return []


def _portable(name: str) -> str:
    return str(Path(name).resolve()) if name.endswith(".py") else name


def _digest(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _module(name: str, asked_at: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, so that it hides no other module
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _unusable(name, asked_at, error) from error
        raise UsageError(
            f"{asked_at}: a plug-in must be a module that Python finds, or a .py file. Received: "
            f"{name!r}, and there is no module {error.name!r} here ({here}), among the installed "
            "packages or on PYTHONPATH."
        ) from error
    except (Exception, SystemExit) as error:
        raise _unusable(name, asked_at, error) from error


def _file(path: Path, asked_at: str) -> ModuleType:
    if not path.is_file():
        raise UsageError(
            f"{asked_at}: a plug-in must be a module or an existing .py file. Received: {path}."
        )
    path = path.resolve()
    for module in [*sys.modules.values()]:
        if getattr(module, "__file__", None) == str(path) and module.__name__ != "__main__":
            return module  # already imported under another name
    # A name that no other module has. It must be the same in every process and for every place of
    # the file, because experiment.json holds it.
    name = f"{FILE_MODULE}{path.stem}"
    if name in sys.modules:
        raise UsageError(
            f"{asked_at}: the files of plug-ins must have different names. Received: {path} and "
            f"{sys.modules[name].__file__}. Rename one."
        )
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    try:
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _unusable(str(path), asked_at, error) from error
    return module


def _unusable(name: str, asked_at: str, error: BaseException) -> UsageError:
    if isinstance(error, UsageError):  # from a registry: it names file and line already
        return UsageError(str(error))
    message = str(error).split("\n")[0]
    if isinstance(error, SyntaxError):
        place, message = f"{error.filename}:{error.lineno}", error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if _of_user(frame.filename)]
        place = f"{(own or frames)[-1].filename}:{(own or frames)[-1].lineno}"
    said = f"{type(error).__name__}: {message}".rstrip(": .")
    return UsageError(
        f"{place}: a plug-in must be importable. Received: {said}. {asked_at} asks for {name!r}; "
        "correct it or leave it out."
    )


def _of_user(file: str) -> bool:
    others = [
        *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
        str(Path(__file__).parent),
    ]
    return not file.startswith("<") and not any(map(Path(file).is_relative_to, others))
