"""Every change that a process makes to its files, seen one by one before it is made.

`observed` replaces what Python and tfasr change files with (``open``, the functions of
``os``, the writer of TFRecord files) by versions that show each change to an observer,
which makes it, breaks it, delays it or ends the process there. What is written in C++
is shown as it lies in the file when that is closed. `campaigns.power_loss` plays all
changes back and compares with the folder that the process left: a change that went past
this module would be seen there.
"""

import builtins
import errno
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BLOCK_BYTES = 1 << 14
_real_open = io.open
_real_os_open = os.open
_real_truncate = os.truncate


@dataclass(frozen=True)
class Operation:
    """One change to the files.

    Attributes:
        kind: "create" (an empty file), "write", "truncate", "sync" (of a file or a
            folder), "rename", "link", "unlink", "mkdir" or "rmdir".
        path: what is changed, absolute.
        other: the new name, of a rename or link.
        offset: where a write begins.
        data: what is written.
        size: what a file is truncated to.
    """

    kind: str
    path: str
    other: str = ""
    offset: int = 0
    data: bytes = b""
    size: int = 0

    def __str__(self) -> str:
        name = Path(self.other or self.path).name
        return f"{self.kind} {name}"


class Observer:
    """Meets every operation; this one makes it. Operations come one at a time."""

    def meet(self, operation: Operation, perform: Callable[..., Any]) -> Any:
        """Makes an operation and returns what it returns.

        Args:
            operation: what is to be changed.
            perform: makes it; of a write, ``perform(count)`` makes the first bytes of
                it alone.
        """
        return perform()


class Counter(Observer):
    """Counts the operations."""

    def __init__(self) -> None:
        self.count = 0

    def meet(self, operation: Operation, perform: Callable[..., Any]) -> Any:
        """Counts, and makes the operation."""
        self.count += 1
        return perform()


class KillAt(Counter):
    """Ends the process by SIGKILL at one operation.

    Args:
        number: of the operation, from 1.
        moment: "before" it, "within" it (a write stops half-way), or "after" it.
        say: gets what the operation was.
    """

    def __init__(
        self, number: int, moment: str, say: Callable[[str], None] = lambda text: None
    ):
        super().__init__()
        self._number = number
        self._moment = moment
        self._say = say

    def meet(self, operation: Operation, perform: Callable[..., Any]) -> Any:
        """Makes the operation, or kills."""
        self.count += 1
        if self.count != self._number:
            return perform()
        self._say(str(operation))
        if self._moment == "within" and len(operation.data) > 1:
            perform(len(operation.data) // 2)
        elif self._moment == "after":
            perform()

        return os.kill(os.getpid(), signal.SIGKILL)


class FailAt(Counter):
    """Lets operations fail as the operating system would.

    Args:
        number: of the first that fails, from 1.
        code: the error's number.
        kinds: which operations can fail so.
        lasting: whether all further ones fail too, as on a full disk.
        below: only what lies in this folder fails.

    Attributes:
        firsts: for each place in the code that makes such operations, the number of its
            first.
    """

    def __init__(
        self,
        number: int,
        code: int,
        kinds: frozenset[str],
        *,
        lasting: bool,
        below: str,
    ):
        super().__init__()
        self._number = number
        self._code = code
        self._kinds = kinds
        self._lasting = lasting
        self._below = below
        self.failed: str | None = None
        self.firsts: dict[tuple[object, ...], int] = {}

    def meet(self, operation: Operation, perform: Callable[..., Any]) -> Any:
        """Makes the operation, or raises OSError."""
        if operation.kind not in self._kinds or not operation.path.startswith(
            self._below
        ):
            return perform()

        there = os.path.lexists(operation.path)
        if there == (operation.kind == "mkdir") and operation.kind in (
            "mkdir",
            "unlink",
        ):
            # There is nothing to do, which the operating system says first.
            return perform()

        self.count += 1
        frames = traceback.walk_stack(None)
        place = (operation.kind, *((frame.f_code, line) for frame, line in frames))
        self.firsts.setdefault(place, self.count)
        if self._lasting:
            due = self.count >= self._number
        else:
            due = self.count == self._number

        if not due:
            return perform()
        if self.failed is None:
            self.failed = str(operation)
            if len(operation.data) > 1:
                self.count -= 1
                return perform(len(operation.data) // 2)  # what still finds room

        # Of a descriptor, no name is known.
        named = operation.kind not in ("write", "sync")
        raise OSError(
            self._code, os.strerror(self._code), *([operation.path] if named else [])
        )


class Recorder(Observer):
    """Keeps all operations."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def meet(self, operation: Operation, perform: Callable[..., Any]) -> Any:
        """Makes the operation and keeps it."""
        result = perform()
        self.operations.append(operation)
        return result


class _Gate:
    """Shows operations to the observer one after the other; those within another one pass."""

    def __init__(self, observer: Observer):
        self._observer = observer
        self._mutex = threading.RLock()
        self._inside = threading.local()

    def __call__(self, operation: Operation, perform: Callable[..., Any]) -> Any:
        if getattr(self._inside, "now", False) or _is_no_file(operation.path):
            return perform()
        with self._mutex:
            self._inside.now = True
            try:
                return self._observer.meet(operation, perform)
            finally:
                self._inside.now = False


def _is_no_file(path: str) -> bool:
    device = path.startswith(("/proc/", "/dev/", "/sys/")) and not path.startswith(
        "/dev/shm/"
    )
    return device or not path.startswith("/")


def _absolute(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - links are to stay


def _path_of(descriptor: int) -> str:
    """Returns where an open file lies now; of one that is gone, nothing that is a path."""
    path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
    return "deleted" if path.endswith(" (deleted)") else path


def observed(observer: Observer) -> None:
    """Shows every change that this process makes from now on to an observer; there is
    no way back.

    Args:
        observer: meets them.
    """
    gate = _Gate(observer)
    _observe_files(gate)
    _observe_names(gate)
    if "tensorflow" in sys.modules:
        _observe_records(gate)


def _observe_files(gate: _Gate) -> None:
    class File(io.FileIO):
        """A file whose writes are shown."""

        def write(self, data: Any) -> int:
            content = bytes(data)
            at_end = "a" in self.mode
            offset = os.fstat(self.fileno()).st_size if at_end else self.tell()
            operation = Operation(
                "write", _path_of(self.fileno()), offset=offset, data=content
            )

            def perform(count: int = len(content)) -> int:
                return super(File, self).write(content[:count])

            return gate(operation, perform)

        def truncate(self, size: int | None = None) -> int:
            size = self.tell() if size is None else size
            operation = Operation("truncate", _path_of(self.fileno()), size=size)
            return gate(operation, lambda *_: super(File, self).truncate(size))

    def opened(
        file,
        mode="r",
        buffering=-1,
        encoding=None,
        errors=None,
        newline=None,
        *more,
        **options,
    ):
        writing = isinstance(file, str | os.PathLike) and set(mode) & set("wax+")
        if not writing or more or options or _is_no_file(_absolute(file)):
            return _real_open(
                file, mode, buffering, encoding, errors, newline, *more, **options
            )

        raw = _created(
            gate, file, mode, lambda: File(file, mode.replace("b", "").replace("t", ""))
        )
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return buffered
        return io.TextIOWrapper(buffered, encoding or "locale", errors, newline)

    def opened_descriptor(path, flags, mode=0o777, *, dir_fd=None):
        def perform(*_):
            return _real_os_open(path, flags, mode, dir_fd=dir_fd)

        kind = "w" if flags & os.O_TRUNC else "a"
        return _created(gate, path, kind, perform) if flags & os.O_CREAT else perform()

    builtins.open = io.open = opened
    os.open = opened_descriptor


def _created(gate: _Gate, file: Any, mode: str, perform: Callable[..., Any]) -> Any:
    """Opens a file for writing, which may create or empty it."""
    path = _absolute(file)
    if not os.path.exists(path):  # noqa: PTH110
        return gate(Operation("create", path), lambda *_: perform())
    if "w" in mode and os.path.getsize(path):  # noqa: PTH202
        return gate(Operation("truncate", path), lambda *_: perform())
    return perform()


def _observe_names(gate: _Gate) -> None:
    def replace(name: str, describe: Callable[..., Operation]) -> None:
        real = getattr(os, name)

        def shown(*arguments: Any, **options: Any) -> Any:
            return gate(describe(*arguments), lambda *_: real(*arguments, **options))

        setattr(os, name, shown)

    def truncated(path: Any, size: int) -> Operation:
        where = _path_of(path) if isinstance(path, int) else _absolute(path)
        return Operation("truncate", where, size=size)

    for name in ("fsync", "fdatasync"):
        replace(
            name, lambda descriptor: Operation("sync", _path_of(_number(descriptor)))
        )

    for name in ("truncate", "ftruncate"):
        replace(name, truncated)
    for name in ("rename", "replace"):
        replace(
            name,
            lambda old, new, *_: Operation("rename", _absolute(old), _absolute(new)),
        )

    replace(
        "link", lambda old, new, *_: Operation("link", _absolute(old), _absolute(new))
    )
    for name in ("unlink", "remove"):
        replace(name, lambda path, *_: Operation("unlink", _absolute(path)))
    for name in ("mkdir", "rmdir"):
        replace(name, lambda path, *_, kind=name: Operation(kind, _absolute(path)))


def _number(file: Any) -> int:
    return file if isinstance(file, int) else file.fileno()


def _observe_records(gate: _Gate) -> None:
    import tensorflow as tf

    real_writer = tf.io.TFRecordWriter

    class Writer:
        """A writer of TFRecord files whose file is shown when it is whole."""

        def __init__(self, path: str, options: Any):
            self._path = path
            self._shown = _absolute(path)
            self._open = _as_tensorflow(
                lambda: gate(
                    Operation("create", self._shown),
                    lambda *_: real_writer(path, options),
                )
            )

        def __enter__(self) -> "Writer":
            return self

        def __exit__(self, *_: Any) -> None:
            self.close()

        def write(self, record: bytes) -> None:
            self._open.write(record)

        def close(self) -> None:
            self._open.close()
            content = Path(self._path).read_bytes()
            _real_truncate(self._path, 0)
            _as_tensorflow(lambda: self._show(content))

        def _show(self, content: bytes) -> None:
            for offset in range(0, len(content), _BLOCK_BYTES):
                block = content[offset : offset + _BLOCK_BYTES]
                while block:
                    written = self._show_block(offset, block)
                    offset = offset + written
                    block = block[written:]

        def _show_block(self, offset: int, block: bytes) -> int:
            def perform(count: int = len(block)) -> int:
                with _real_open(self._path, "ab") as file:
                    return file.write(block[:count])

            return gate(
                Operation("write", self._shown, offset=offset, data=block), perform
            )

    tf.io.TFRecordWriter = Writer


def _as_tensorflow(act: Callable[[], Any]) -> Any:
    """Raises what TensorFlow raises where a file's change fails."""
    import tensorflow as tf

    kinds = {
        errno.ENOSPC: tf.errors.ResourceExhaustedError,
        errno.EROFS: tf.errors.PermissionDeniedError,
    }
    try:
        return act()
    except OSError as error:
        kind = kinds.get(error.errno, tf.errors.UnknownError)
        raise kind(None, None, f"{error.filename or ''}; {error.strerror}") from None
