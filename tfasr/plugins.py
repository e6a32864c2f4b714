"""Plug-ins: modules of the user's own that register a model, a corpus, a figure and so on.

Importing a plug-in runs its code. That happens where a command line says ``--import`` or a gin
file that is given to it says ``import``, and nowhere else: no run folder and no description of a
machine can ask for it.
"""

import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

from tfasr.errors import UsageError

_loaded: dict[str, ModuleType] = {}


def load_plugin(name: str, *, asked_at: str = "--import") -> ModuleType:
    """Imports a plug-in, once.

    Args:
        name: a module, looked for in the working directory too, or the path of a ``.py`` file.
        asked_at: what asks for it, for messages.

    Raises:
        UsageError: if there is no such module, or it cannot be imported; it names file and line.
    """
    if name in _loaded:
        return _loaded[name]
    _loaded[name] = _file(Path(name), asked_at) if name.endswith(".py") else _module(name, asked_at)
    return _loaded[name]


def loaded_plugins() -> list[str]:
    """Returns the names of all plug-ins of this process, as `load_plugin` was given them."""
    return list(_loaded)


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
            return module  # known by another name
    # A name that no other module has, and that is the same in every process.
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
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
    """Returns the error of a plug-in whose code raises one, with the place in the plug-in."""
    if isinstance(error, UsageError):  # a registry's, which names file and line
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
        "mend it or leave it out."
    )


def _of_user(file: str) -> bool:
    """Says whether a file is neither Python's, nor an installed package's, nor tfasr's own."""
    others = [
        *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
        str(Path(__file__).parent),
    ]
    return not file.startswith("<") and not any(map(Path(file).is_relative_to, others))
