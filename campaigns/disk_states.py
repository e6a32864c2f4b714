"""A model of file systems: what a power loss may leave on a disk after a list of operations.

There are two models of when changes of names (new, renamed or removed files) reach the
disk:

- "journalled": in the order in which they were made, through a journal (ext4, XFS).
  Syncing a folder writes all changes up to the last one in it, including earlier ones
  in other folders.
- "reordered": each change that no sync of its folder has covered has reached the disk
  or not, independently of the others.

In both, data written before a sync of its file is on the disk. Of data written later,
the disk may hold none, all, the first few writes, these and part of the next, or all
with some sectors zeroed, as if the length had reached the disk before the data. A file
never gets data of other files.

Source: Pillai et al., "All file systems are not created equal", OSDI 2014, section 3
(states of writes torn, dropped and reordered between syncs).
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from campaigns.operations import Operation

MODELS = ("journalled", "reordered")
_SECTOR_BYTES = 512
_FOLDER = -1


@dataclass
class _File:
    durable: bytes = b""
    pending: list[Operation] = field(default_factory=list)


@dataclass
class _NameChange:
    kind: str
    path: str
    other: str
    file: int
    durable: bool = False


State = dict[str, bytes | None]
"""Content by path; None for a folder."""


class Disk:
    """A disk to which operations are applied, one after the other.

    Args:
        tree: what it holds durably before the first operation.
    """

    def __init__(self, tree: State):
        self._files = [
            _File(content) for content in tree.values() if content is not None
        ]
        numbers = iter(range(len(self._files)))
        self._base = {
            p: _FOLDER if c is None else next(numbers) for p, c in tree.items()
        }
        self._now = dict(self._base)
        self._changes: list[_NameChange] = []

    def do(self, operation: Operation) -> None:
        """Applies an operation; `crash` decides how much of it has reached the disk."""
        path = operation.path
        kind = operation.kind
        if kind in ("write", "truncate"):
            self._files[self._now[path]].pending.append(operation)
        elif kind == "sync":
            self._sync(path)
        else:
            self._change(kind, path, operation.other)

    def _sync(self, path: str) -> None:
        number = self._now.get(path) if path else _FOLDER
        if number is None:
            return  # it is gone
        if number != _FOLDER:
            file = self._files[number]
            file.durable = _applied(file.durable, file.pending)
            file.pending = []
            return

        for change in self._changes:
            if path in (_parent(change.path), _parent(change.other or change.path)):
                change.durable = True

    def _change(self, kind: str, path: str, other: str) -> None:
        if kind == "create":
            self._files.append(_File())
            number = len(self._files) - 1
        else:
            number = _FOLDER if kind == "mkdir" else self._now[path]

        change = _NameChange(kind, path, other, number)
        self._changes.append(change)
        _rename_in(self._now, change)

    def now(self) -> State:
        """Returns what a process sees: all that was done."""
        contents = [_applied(file.durable, file.pending) for file in self._files]
        return self._state(self._now, contents)

    def crash(self, chance: random.Random, model: str) -> State:
        """Returns what a power loss at this moment may leave.

        Args:
            chance: chooses among the states.
            model: one of `MODELS`.
        """
        names = dict(self._base)
        durable = [change.durable for change in self._changes]
        if model == "journalled":
            least = max(
                (n + 1 for n, covered in enumerate(durable) if covered), default=0
            )
            kept = chance.randint(least, len(durable))
            there = [number < kept for number in range(len(durable))]
        else:
            there = [covered or chance.random() < 0.5 for covered in durable]

        for change, kept in zip(self._changes, there, strict=True):
            if kept:
                _rename_in(names, change)

        contents = [_torn(file, chance) for file in self._files]
        return self._state(names, contents)

    def _state(self, names: dict[str, int], contents: list[bytes]) -> State:
        def reachable(path: str) -> bool:
            parent = _parent(path)
            return parent == "" or (names.get(parent) == _FOLDER and reachable(parent))

        return {
            path: None if number == _FOLDER else contents[number]
            for path, number in sorted(names.items())
            if reachable(path)
        }


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _rename_in(names: dict[str, int], change: _NameChange) -> None:
    if change.kind in ("create", "mkdir"):
        names[change.path] = change.file
    elif change.kind in ("unlink", "rmdir"):
        names.pop(change.path, None)
    elif change.kind == "link":
        names[change.other] = change.file
    # Renaming one of a file's two names over the other does nothing.
    elif names.get(change.other) != change.file:
        names[change.other] = change.file
        if names.get(change.path) == change.file:
            del names[change.path]


def _applied(content: bytes, operations: list[Operation]) -> bytes:
    result = bytearray(content)
    for operation in operations:
        if operation.kind == "truncate":
            del result[operation.size :]
            result.extend(bytes(operation.size - len(result)))
            continue

        result.extend(bytes(max(0, operation.offset - len(result))))
        result[operation.offset : operation.offset + len(operation.data)] = (
            operation.data
        )

    return bytes(result)


def _torn(file: _File, chance: random.Random) -> bytes:
    """Returns what a power loss may leave of a file's content."""
    pending = file.pending
    if pending:
        way = chance.choice(("nothing", "all", "first", "torn", "zeros"))
    else:
        way = "nothing"

    if way == "nothing":
        return file.durable
    if way in ("all", "zeros"):
        kept = len(pending)
    else:
        kept = chance.randrange(len(pending) + 1)

    content = _applied(file.durable, pending[:kept])
    if way == "torn" and kept < len(pending) and pending[kept].kind == "write":
        last = pending[kept]
        count = chance.randint(0, len(last.data))
        half = Operation("write", last.path, offset=last.offset, data=last.data[:count])
        content = _applied(content, [half])

    if way == "zeros":
        content = _with_zeros(content, min(len(file.durable), _least(pending)), chance)
    return content


def _least(pending: list[Operation]) -> int:
    """Returns how many of a file's first bytes no pending truncation removes."""
    return min((one.size for one in pending if one.kind == "truncate"), default=1 << 62)


def _with_zeros(content: bytes, durable: int, chance: random.Random) -> bytes:
    result = bytearray(content)
    for begin in range(durable - durable % _SECTOR_BYTES, len(result), _SECTOR_BYTES):
        first = max(begin, durable)
        end = min(begin + _SECTOR_BYTES, len(result))
        if chance.random() < 0.3:
            result[first:end] = bytes(end - first)

    return bytes(result)


def read_state(folder: Path) -> State:
    """Returns what a folder holds, by paths relative to it."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def write_state(state: State, folder: Path) -> None:
    """Writes a state into a new folder."""
    folder.mkdir(parents=True)
    for path, content in state.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


def relative(operations: list[Operation], folder: Path) -> Iterator[Operation]:
    """Yields the operations within a folder with relative paths; the folder's own path
    is "".
    """
    root = f"{folder}/"
    for one in operations:
        if one.path == str(folder):
            yield Operation(one.kind, "")
        elif one.path.startswith(root):
            other = one.other.removeprefix(root)
            yield Operation(
                one.kind,
                one.path.removeprefix(root),
                other,
                one.offset,
                one.data,
                one.size,
            )
