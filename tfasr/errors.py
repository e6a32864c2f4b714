"""Two kinds of error, with different exit codes, and messages for users.

Nearly all modules import this one, so it imports little itself. The command line prints
an error of these kinds in one line; anything else is a defect and gets a traceback.
"""

import contextlib
import errno
import re
import resource
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


class UsageError(ValueError):
    """The request is wrong: a flag, preset, folder or value.

    Attributes:
        exit_code: of the command line.
    """

    exit_code = 2


class RunError(RuntimeError):
    """The request was right but the work failed, as on a full disk.

    Files that were finished before stay.

    Attributes:
        exit_code: of the command line; a subclass may have another one.
    """

    exit_code = 1


@contextlib.contextmanager
def wrong_values_are_wrong_use() -> Iterator[None]:
    """Turns a TypeError or ValueError of the block into a UsageError.

    It is for blocks that make configs of a user's values.
    """
    try:
        yield
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


# Characters that move a terminal's cursor, colour it or reverse its text.
_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"

# What `printable` escapes in any text, and in what must be one line.
_UNPRINTABLE = re.compile(f"[{_CONTROLS}]")
_BREAKING = re.compile(f"[{_CONTROLS}\t\n\u2028\u2029]")


def stderr_console(**options: Any) -> "Console":
    """Returns a rich console that writes colours past `tfasr.cli.Terminal`.

    While rich updates a line, it replaces ``sys.stderr``, and it can't find the
    terminal itself.

    Args:
        options: those of `rich.console.Console`.
    """
    # Imported here: few commands need it.
    from rich.console import Console

    return Console(file=getattr(sys.stderr, "rich_proxied_file", sys.stderr), **options)


def printable(text: str, *, one_line: bool = False) -> str:
    """Escapes what a terminal would execute.

    Args:
        text: of a file or a file's name, which anyone may have written.
        one_line: whether to escape line breaks and tabs too.
    """
    unwanted = _UNPRINTABLE
    if one_line:
        unwanted = _BREAKING

    return unwanted.sub(lambda match: ascii(match[0])[1:-1], text)


# The least ratio of difflib for similar words: "epoch" resembles "epochs", "fast"
# doesn't resemble "format".
_ALIKE = 0.7


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the most similar known name, ignoring case and dashes, or None.

    >>> nearest("--Epoch", ["epochs", "seed"])
    'epochs'

    Args:
        name: what a user wrote.
        known: what it may mean.
    """
    # Imported here: most commands need no advice.
    import difflib

    plain = {_plain(word): word for word in known}
    near = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=_ALIKE)

    if not near:
        return None

    return plain[near[0]]


def _plain(name: str) -> str:
    """Returns a name as `nearest` compares it.

    >>> _plain("--Batch-size")
    'batch_size'
    """
    return name.lower().strip("-@").replace("-", "_")


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Returns " Did you mean X?", or ``otherwise`` if no known name is similar.

    It begins with a space, as it is the last part of a message.

    >>> did_you_mean("cunet", ["conformer", "unet"], "See the list.")
    ' Did you mean unet?'
    """
    near = nearest(name, known)
    if near:
        return f" Did you mean {near}?"
    if otherwise:
        return f" {otherwise}"

    return ""


def received_path(
    name: str | Path, others: Iterable[str] = (), otherwise: str = "Correct the path."
) -> str:
    """Returns "Received: ..." for a path that can't be used.

    Args:
        name: the path.
        others: words that the flag takes instead of a path, such as "best".
        otherwise: what to do about a missing path if nothing around it is similar.
    """
    path = Path(name)
    if path.is_dir():
        return f"Received: {name}, which is a folder that can't be used here."
    if path.exists():
        return f"Received: {name}, which is a file that can't be used here."

    around = {}
    if path.parent.is_dir():
        around = {each.name: str(each) for each in path.parent.iterdir()}

    near = nearest(path.name, [*around, *others])
    if near:
        otherwise = f"Did you mean {around.get(near, near)}?"

    return f"Received: {name}, which does not exist. {otherwise}"


# The message of a process without memory.
_NO_MEMORY = (
    "The memory that this process may use is full. Finished files are kept: try a "
    "smaller PipelineConfig.global_batch_size, or raise the limit (ulimit -v), and run "
    "the command again; train continues with --resume."
)

# The disk or the user's share of it is full.
_FULL = (errno.ENOSPC, errno.EDQUOT)

# What to do about an error of the operating system.
_CAUSES = {
    errno.EACCES: (
        "this user may not read or write it: change its permissions, or choose another"
    ),
    errno.EPERM: (
        "this user may not change it: change its permissions, or choose another"
    ),
    errno.EROFS: "its file system is read-only: choose another",
    errno.EEXIST: "it exists already and isn't a folder: choose another",
    errno.ENOTDIR: "a part of its path is a file, not a folder: choose another",
    errno.EISDIR: "it is a folder, but a file is needed: choose another",
    errno.ENOENT: "it does not exist",
    errno.ENAMETOOLONG: "its name is too long: choose another",
    errno.ELOOP: "its links form a circle: correct one of them",
    errno.EIO: "the device does not read or write: look at the system's log (dmesg)",
    errno.EFBIG: "it may not grow further: raise the limit (ulimit -f)",
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n)",
}

# Those of them of which the machine is the cause, not the named file.
_OF_MACHINE = (errno.EIO, errno.EMFILE, errno.EFBIG)


def explained(error: OSError) -> tuple[str, int]:
    """Returns a message for an error of the operating system, and the exit code.

    The code is 1 if the machine is the cause, 2 if the named file is.

    >>> explained(OSError(errno.EROFS, "Read-only", "a.txt"))[1]
    2
    """
    if error.errno in _FULL:
        where = ""
        if error.filename:
            where = f" that holds {error.filename}"

        return (
            f"The disk{where} is full ({error.strerror}). Finished files are kept: "
            "free some space, and run the command again; train continues with "
            "--resume.",
            1,
        )

    if error.errno == errno.ENOMEM:
        return _NO_MEMORY, 1

    # Other errors are explained well enough by the system.
    if error.filename is None or error.errno not in _CAUSES:
        return str(error), 1

    status = 2
    if error.errno in _OF_MACHINE:
        status = 1

    return (
        f"{error.filename} cannot be used: {_CAUSES[error.errno]} ({error.strerror}).",
        status,
    )


# Messages of Python and the system's loader when memory is full.
_MEMORY_MESSAGES = (
    "can't start new thread",
    "failed to map segment",
    "annot allocate memory",
)

# With less than this left, 256 MiB, any error may be one of memory.
_NEAR_BYTES = 256 * 2**20

# 64 MiB, more than a thread's stack; no command that needs TensorFlow works with less.
_THREAD_BYTES = 64 * 2**20

# How many characters of an error a message quotes.
_QUOTED = 300


def out_of_memory(error: BaseException) -> str | None:
    """Returns a message if memory is full or nearly full, else None.

    Any error can follow from full memory, also one that names something else.

    Args:
        error: any that was raised.
    """
    of_system = isinstance(error, RuntimeError | ImportError | OSError)
    named = of_system and any(words in str(error) for words in _MEMORY_MESSAGES)
    if named or isinstance(error, MemoryError):
        return _NO_MEMORY

    spare_bytes = _address_space_left("VmPeak:")
    if spare_bytes is None or spare_bytes > _NEAR_BYTES:
        return None

    reason = " ".join(str(error).split())[:_QUOTED]

    return f"{_NO_MEMORY} ({type(error).__name__}: {reason})"


def check_memory() -> None:
    """Raises MemoryError if too little address space is left to start threads.

    Python waits forever for a thread that finds no memory for its first steps.
    """
    spare_bytes = _address_space_left("VmSize:")
    if spare_bytes is not None and spare_bytes < _THREAD_BYTES:
        raise MemoryError


def _address_space_left(size: str) -> int | None:
    """Returns the bytes between this process's size and its limit; None without one.

    Args:
        size: "VmSize:" for the size now, "VmPeak:" for the largest so far.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None

    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return limit - 1024 * int(status.partition(size)[2].split()[0])
    except (OSError, ValueError, IndexError):
        return None


def is_measure_only() -> bool:
    """Whether only tfasr-measure is installed, which is tfasr without training.

    docs/light_install.md says what it contains.
    """
    return not Path(__file__).with_name("training").joinpath("train.py").is_file()


def extra(name: str) -> str:
    """Returns the words that follow ``pip install`` to get an extra.

    An extra of tfasr-measure has the same name in tfasr.

    Args:
        name: the extra's, such as "gpu".
    """
    if is_measure_only():
        return f"'tfasr-measure[{name}]'"

    return f"'tfasr[{name}]'"


# The packages that tfasr imports, and what pip calls them.
_PACKAGES = {
    "absl": "absl-py",
    "cryptography": "cryptography",
    "gin": "gin-config",
    "grpc": "grpcio",
    "jiwer": "jiwer",
    "keras": "keras",
    "numpy": "numpy",
    "psutil": "psutil",
    "regex": "regex",
    "rich": "rich",
    "scipy": "scipy",
    "soundfile": "soundfile",
    "soxr": "soxr",
    "tensorflow": "tensorflow",
    "vl_convert": "vl-convert-python",
}

# The packages of tfasr that are extras of tfasr-measure, and the extras' names.
_EXTRAS = {"absl-py": "flagfile", "vl-convert-python": "figures"}


def needed(package: str, what: str) -> ModuleType:
    """Returns a package's module; the error for a missing one says what to do.

    Args:
        package: the module's name, one of `_PACKAGES`.
        what: needs it, for the error.
    """
    # Looked up first, as TensorFlow warns about imports in the functions that it
    # traces.
    return sys.modules.get(package) or imported(package, what)


def imported(module: str, what: str) -> ModuleType:
    """Imports a module; the error for a package that it lacks says what to do.

    Args:
        module: its dotted name.
        what: needs it, such as "--history".

    Raises:
        ModuleNotFoundError: with a message for users if tfasr knows the package.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        message = lacking(error, what)
        if message is None:
            raise

        raise ModuleNotFoundError(message, name=error.name) from error


@contextlib.contextmanager
def optional_package(package: str, what: str, install: str) -> Iterator[None]:
    """Turns an ImportError of the block into a UsageError that says what to install.

    Args:
        package: the missing one, for readers.
        what: needs it, such as "tfasr serve".
        install: the arguments of ``pip install``.
    """
    try:
        yield
    except ImportError as error:
        raise UsageError(
            f"{what} needs {package}, which is not installed ({error}): pip install "
            f"{install}."
        ) from error


def lacking(error: ImportError, what: str) -> str | None:
    """Returns a line on how to install a missing package; None for other errors.

    Args:
        error: of an import.
        what: needs the package, such as "tfasr.train".
    """
    if isinstance(error.__cause__, ModuleNotFoundError):
        # It names the package already.
        return str(error)

    module = error.name or ""
    if module.startswith("tfasr.") and is_measure_only():
        return f"{what} needs more than tfasr-measure: pip install tfasr."

    package = _PACKAGES.get(module.partition(".")[0])
    if package is None:
        return None

    if is_measure_only():
        wanted = package
        if package in _EXTRAS:
            wanted = extra(_EXTRAS[package])

        return f"{what} needs {package}, which is not installed: pip install {wanted}."

    return (
        f"{what} needs {package}, which is not installed: pip install {package}, or "
        "pip install tfasr for everything. docs/light_install.md lists what works "
        "without it."
    )
