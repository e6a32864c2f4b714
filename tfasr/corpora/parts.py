"""Stretches of a file that a decoder reads as separate files.

The modules for formats return a `Layout` of a file whose header is wrong;
`tfasr.corpora.audio_header` opens each of its parts as a `PartFile`. So nothing is
copied, and corpora are never written to.
"""

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

# ``read(position, count)`` returns at most ``count`` bytes of a file.
Read = Callable[[int, int], bytes]


class UnsoundError(ValueError):
    """Audio that can't be read to its end; the message says why, but not in which file."""


@dataclass(frozen=True)
class Part:
    """A file for a decoder: ``header``, then the bytes of each window of another file.

    Attributes:
        header: what replaces the other file's header.
        windows: pairs of positions in the other file, of the first byte and after the
            last one.
        frames: how many samples per channel were counted in the windows; None if not
            counted.
        tolerance: by how many samples a decoder's count may differ from ``frames``.
    """

    header: bytes
    windows: tuple[tuple[int, int], ...]
    frames: int | None = None
    tolerance: int = 0


@dataclass(frozen=True)
class Layout:
    """What a file holds whose header is wrong or missing, or to which others were joined.

    Attributes:
        parts: what a decoder reads, one after the other.
        remark: how the header differs from the content; "" if the header is merely
            incomplete.
    """

    parts: tuple[Part, ...]
    remark: str


class PartFile(io.RawIOBase):
    """Reads a `Part` of an open file, without moving that file's position.

    Args:
        file: the file on disk.
        part: what of it is read.
    """

    def __init__(self, file: BinaryIO, part: Part):
        self._descriptor = file.fileno()
        self._header = part.header
        self._windows = part.windows
        self._position = 0
        self._size = len(part.header) + sum(
            stop - start for start, stop in part.windows
        )

    def readable(self) -> bool:
        """Returns True: libsndfile may read it."""
        return True

    def seekable(self) -> bool:
        """Returns True: libsndfile may seek in it."""
        return True

    def tell(self) -> int:
        """Returns the position, in bytes from the part's beginning."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the position, as io.RawIOBase does; also beyond the end."""
        origins = {
            os.SEEK_SET: 0,
            os.SEEK_CUR: self._position,
            os.SEEK_END: self._size,
        }
        self._position = max(origins[whence] + offset, 0)

        return self._position

    def readinto(self, buffer: bytearray) -> int:
        """Fills a buffer from the position on; returns how many bytes that were."""
        view = memoryview(buffer).cast("B")
        filled = 0

        # Libsndfile takes a short read for the end of the file.
        while filled < len(view):
            piece = self._next(len(view) - filled)
            if not piece:
                break

            view[filled : filled + len(piece)] = piece
            filled += len(piece)
            self._position += len(piece)

        return filled

    def _next(self, count: int) -> bytes:
        """Returns some bytes at the position: at most ``count``, none at the end."""
        within = self._position
        if within < len(self._header):
            return self._header[within : within + count]

        within -= len(self._header)
        for start, stop in self._windows:
            if within < stop - start:
                return os.pread(
                    self._descriptor, min(count, stop - start - within), start + within
                )

            within -= stop - start

        return b""
