"""Lists of rows that needn't fit into memory, with sorting and rearranging.

Listing and packing a corpus use them for everything that grows with the number of
utterances. Beyond a few megabytes rows go to nameless files in the caller's folder,
where there must be room for a split anyway. The system removes these files when the
process ends, even if it is killed.
"""

import heapq
import itertools
import json
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

Row = Sequence[Any]

# Of a list, before it goes to a file: a few thousand utterances are never written.
IN_MEMORY_BYTES = 8 << 20
_ROWS_AT_ONCE = 100_000  # rows, of some 500 bytes each, to sort in memory
_MOST_FILES = 256  # far below 1024, the usual limit of a process


class Rows:
    """Rows of JSON values in the order in which they were appended.

    Iterating yields them as lists. Don't append while you iterate, as both use the
    file's one position.
    """

    def __init__(self, folder: Path, in_memory_bytes: int = IN_MEMORY_BYTES):
        self._file = tempfile.SpooledTemporaryFile(in_memory_bytes, dir=folder)  # noqa: SIM115
        self._count = 0

    def append(self, row: Row) -> None:
        self._file.write(encoded(row))
        self._count += 1

    def extend(self, rows: Iterable[Row]) -> "Rows":
        """Appends rows and returns the list, so that it can be made and filled at once."""
        for row in rows:
            self.append(row)

        return self

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[Any]]:
        self._file.seek(0)
        return map(decoded, self._file)

    def close(self) -> None:
        self._file.close()

    def __del__(self) -> None:
        self.close()


def encoded(row: Row) -> bytes:
    """Returns a value as a line of JSON."""
    try:
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a lone surrogate, from a file name that isn't valid UTF-8
        return json.dumps(row).encode() + b"\n"


def decoded(line: bytes) -> Any:
    """Returns the value of a line that `encoded` made."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        # A lone surrogate, which orjson refuses.
        return json.loads(line)


def in_order(
    rows: Iterable[Row],
    key: Callable[[Row], Any],
    folder: Path,
    at_once: int = _ROWS_AT_ONCE,
) -> Iterator[Row]:
    """Yields rows sorted by ``key``, with at most ``at_once`` of them in memory.

    This is a merge sort: sorted runs go to files in ``folder`` and are then merged.
    Rows with equal keys keep their order.
    """
    rows = iter(rows)
    runs: list[Rows] = []

    while run := sorted(itertools.islice(rows, at_once), key=key):
        if not runs and len(run) < at_once:
            yield from run
            return

        runs.append(Rows(folder).extend(run))
        del run
        if len(runs) == _MOST_FILES:
            # Merged early, or the process would have too many open files.
            runs = [Rows(folder).extend(heapq.merge(*runs, key=key))]

    yield from heapq.merge(*runs, key=key)


def in_places(
    rows: Iterable[Row],
    places: Iterable[int],
    count: int,
    folder: Path,
    at_once=_ROWS_AT_ONCE,
) -> Iterator[Row]:
    """Yields rows in the order of ``places``.

    Rows are distributed to files by ranges of places, and each file is then sorted in
    memory.

    Args:
        rows: any number of them, in any order.
        places: a permutation of ``range(count)``, one per row.
        count: number of rows.
        folder: for the files.
        at_once: the most rows in memory.
    """
    at_once = max(at_once, math.ceil(count / _MOST_FILES))
    files = math.ceil(count / at_once)
    parts = [Rows(folder, IN_MEMORY_BYTES // files) for _ in range(files)]

    for row, place in zip(rows, places, strict=True):
        parts[place // at_once].append((place, row))

    for part in parts:
        for _, row in sorted(part, key=lambda placed: placed[0]):
            yield row
        part.close()
