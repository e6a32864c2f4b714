"""The utterances of a split that has too many of them to hold: columns of numbers, and lines."""

import bisect
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import orjson

from tfasr.data.shard_index import ShardedUtterance

_BLOCK_BYTES = 1 << 22
_LINE_BYTES = 1 << 16


class PackedUtterances(Sequence[ShardedUtterance]):
    """A manifest's utterances, read from its file when they are asked for.

    The file stays open: a folder that is prepared anew meanwhile leaves these as they are.

    Args:
        path: of a manifest that was found to be as it was written.
        columns: its columns, see `tfasr.data.columns`.

    Attributes:
        columns: the same.
    """

    def __init__(self, path: Path, columns: np.ndarray):
        self.columns = columns
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return len(self.columns)

    @overload
    def __getitem__(self, which: int) -> ShardedUtterance: ...

    @overload
    def __getitem__(self, which: slice) -> list[ShardedUtterance]: ...

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, slice):
            return [self[number] for number in range(*which.indices(len(self)))]
        offset = int(self.columns["offset"][which])
        line = b""
        while b"\n" not in line:
            block = os.pread(self._file, _LINE_BYTES, offset + len(line))
            if not block:
                break
            line += block
        return _utterance(line.partition(b"\n")[0])

    def __iter__(self) -> Iterator[ShardedUtterance]:
        for lines in self._lines():
            yield from map(_utterance, lines)

    def texts(self) -> Iterator[str]:
        """Yields the transcripts alone, in a third of the time that whole utterances take."""
        for lines in self._lines():
            for fields in orjson.loads(b"[%b]" % b",".join(lines)):
                yield fields["text"]

    def at(self, position: int) -> ShardedUtterance:
        """Returns the utterance of a position, which rises from line to line with gaps.

        Raises:
            KeyError: if there is none.
        """
        number = bisect.bisect_left(self, position, key=lambda utterance: utterance.position)
        if number == len(self) or self[number].position != position:
            raise KeyError(position)
        return self[number]

    def _lines(self) -> Iterator[list[bytes]]:
        """Yields the manifest's lines, some megabytes at a time."""
        offset, rest = 0, b""
        while block := os.pread(self._file, _BLOCK_BYTES, offset):
            offset += len(block)
            *lines, rest = (rest + block).split(b"\n")
            yield lines
        if rest:
            yield [rest]


def _utterance(line: bytes) -> ShardedUtterance:
    """Returns a line's utterance without the checks of a file that anyone may have written."""
    utterance = ShardedUtterance.__new__(ShardedUtterance)
    object.__setattr__(utterance, "__dict__", orjson.loads(line))
    return utterance
