"""The two kinds of failure, which exit the command line with different codes."""

import contextlib
import errno
import resource
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType


class UsageError(ValueError):
    """The request is wrong: a flag, preset, folder or value. The command line exits with 2."""


class RunError(RuntimeError):
    """The request was right and its work failed, such as by a full disk. Finished files are kept.

    Attributes:
        exit_code: of the command line.
    """

    exit_code = 1


@contextlib.contextmanager
def wrong_values_are_wrong_use() -> Iterator[None]:
    """Turns a TypeError or ValueError of a config, made of what a user gave, into a UsageError."""
    try:
        yield
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


_NO_MEMORY = (
    "The memory that this process may use is full. What was finished is kept: try a smaller "
    "PipelineConfig.global_batch_size, or raise the limit (ulimit -v), and run the command again; "
    "train goes on with --resume."
)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CAUSES = {
    errno.EACCES: "this user may not read or write it: change its permissions, or choose another",
    errno.EPERM: "this user may not change it: change its permissions, or choose another",
    errno.EROFS: "its file system is read-only: choose another",
    errno.EEXIST: "it is there already, and no folder: choose another",
    errno.ENOTDIR: "a part of its path is a file, no folder: choose another",
    errno.EISDIR: "it is a folder, where a file is needed: choose another",
    errno.ENOENT: "it does not exist",
    errno.ENAMETOOLONG: "its name is too long: choose another",
    errno.ELOOP: "its links lead in a circle",
    errno.EIO: "the device does not read or write: look at the system's log (dmesg)",
    errno.EFBIG: "it may not grow further: raise the limit (ulimit -f)",
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n)",
}


def explained(error: OSError) -> tuple[str, int]:
    """Returns a message for an error of the operating system, and the exit status.

    Args:
        error: what was raised, with or without the name of a file.

    Returns:
        A line that names the file and what to do; then 1 if the machine is the cause (a full disk,
        a broken device), 2 if the named file is.
    """
    if error.errno in _FULL:
        where = f" that holds {error.filename}" if error.filename else ""
        return (
            f"The disk{where} is full ({error.strerror}). What was finished is kept: free some "
            "space, and run the command again; train goes on with --resume.",
            1,
        )
    if error.errno == errno.ENOMEM:
        return _NO_MEMORY, 1
    if error.filename is None or error.errno not in _CAUSES:
        return str(error), 1
    status = 1 if error.errno in (errno.EIO, errno.EMFILE, errno.EFBIG) else 2
    return f"{error.filename} cannot be used: {_CAUSES[error.errno]} ({error.strerror}).", status


# What Python and the system's loader say of it in words alone.
_SAID_OF_MEMORY = ("can't start new thread", "failed to map segment", "annot allocate memory")
_NEAR_BYTES = 256 * 2**20


def out_of_memory(error: BaseException) -> str | None:
    """Returns what to tell of an error whose cause is a full memory; None if it has another.

    A process that comes near its limit of address space (``ulimit -v``) fails in many ways:
    TensorFlow, for one, may no longer know its own operations. There, any error counts.
    """
    told = isinstance(error, RuntimeError | ImportError | OSError) and any(
        words in str(error) for words in _SAID_OF_MEMORY
    )
    if isinstance(error, MemoryError) or told:
        return _NO_MEMORY
    left = _least_address_space_left()
    if left is None or left > _NEAR_BYTES:
        return None
    reason = " ".join(str(error).split())[:300]
    return f"{_NO_MEMORY} ({type(error).__name__}: {reason})"


def _least_address_space_left() -> int | None:
    """Returns the least that was ever left of this process's limit; None where that is unknown."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return limit - 1024 * int(status.partition("VmPeak:")[2].split()[0])
    except (OSError, ValueError, IndexError):
        return None


# What tfasr imports of others, with the names they are installed by.
_PACKAGES = {
    "absl": "absl-py",
    "gin": "gin-config",
    "vl_convert": "vl-convert-python",
    **{
        name: name
        for name in (
            *("tensorflow", "keras", "numpy", "jiwer", "soundfile", "soxr", "rich"),
            *("psutil", "scipy"),
        )
    },
}


def needed(package: str, what: str) -> ModuleType:
    """Imports a package that ``what`` needs; where it is missing, the error says what to do."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        message = lacking(error, what) or str(error)
        raise ModuleNotFoundError(message, name=error.name) from error


def lacking(error: ImportError, what: str) -> str | None:
    """Returns what to tell of a package that is not installed.

    Args:
        error: of the import.
        what: needs it, such as "tfasr.train".

    Returns:
        A line that names the package and what to do; None if it is none that tfasr needs.
    """
    if isinstance(error.__cause__, ModuleNotFoundError):
        return str(error)  # which said so already
    package = _PACKAGES.get((error.name or "").partition(".")[0])
    if package is None:
        return None
    return (
        f"{what} needs {package}, which is not installed: pip install {package}, or all that tfasr "
        "needs by pip install tfasr. docs/light_install.md says what works without it."
    )
