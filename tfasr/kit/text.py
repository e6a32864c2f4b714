"""Reads text files line by line, whatever editor or compressor wrote them.

Manifests, lexicons and texts of language models come from users and from strangers; all
of them are read here, so that each wrong file is one error with path, line and remedy.
"""

import codecs
import contextlib
import functools
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tfasr.errors import UsageError
from tfasr.kit.files import opened

# The first bytes of a file that gzip wrote (RFC 1952, section 2.3.1).
_GZIP = b"\x1f\x8b"

# The most bytes of a line, 1 MiB; a transcript of a day of speech is shorter.
_LONGEST_LINE = 1 << 20

# The first bytes of a text that Windows' editors saved as "Unicode".
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def text_lines(
    path: str | Path, remedy: str = "", *, most_bytes: int | None = None
) -> Iterator[str]:
    """Yields the lines of a UTF-8 text file, without their ends.

    Args:
        path: the file.
        remedy: what to do about a file that can't be read.
        most_bytes: the limit for a file from somebody else, see `encoded_lines`.

    Raises:
        UsageError: with the path, the line and the ``remedy``, if the file can't be
            read or isn't UTF-8.
    """
    lines = encoded_lines(path, remedy, most_bytes=most_bytes)
    for number, line in enumerate(lines, start=1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(
                f"A text file must be UTF-8. Received: {path}, whose line {number} is not "
                f"({error.reason} at byte {error.start}). {remedy}".rstrip()
            ) from None


def encoded_lines(
    path: str | Path, remedy: str = "", *, most_bytes: int | None = None
) -> Iterator[bytes]:
    """Yields the lines of a text file as bytes, without their ends, also if not UTF-8.

    Only a line feed ends a line, with or without a carriage return before it. (Python's
    `str.splitlines` also splits at U+2028, U+0085 and others, which occur within
    texts.) A byte-order mark is no part of the first line. UTF-16 is recognised by its
    mark and converted to UTF-8; gzip is recognised by the file's first bytes, whatever
    its name.

    Args:
        path: the file.
        remedy: what to do about a file that can't be read.
        most_bytes: the limit for a file from somebody else: it must be a regular file,
            and have no more bytes than that, also once it is decompressed. None trusts
            the file.

    Raises:
        UsageError: with the path and the ``remedy``, if the file can't be read or has a
            line of over 1 MiB.
    """
    read_bytes = 0
    try:
        with _open(path, most_bytes) as file:
            if file.peek(len(_GZIP)).startswith(_GZIP):
                file = io.BufferedReader(gzip.GzipFile(fileobj=file))

            # A compressed file may be a thousand times longer than its size on disk.
            for line in _as_utf_8(file):
                read_bytes += len(line)
                if len(line) > _LONGEST_LINE:
                    raise OSError(
                        f"one of its lines has more than {_LONGEST_LINE} bytes"
                    )

                if most_bytes is not None and read_bytes > most_bytes:
                    raise OSError(
                        f"it has more than {most_bytes} bytes once decompressed"
                    )

                yield line.removesuffix(b"\n").removesuffix(b"\r")
    except (OSError, EOFError, UnicodeError, UsageError, zlib.error) as error:
        cause = getattr(error, "strerror", None) or error
        raise UsageError(
            f"A readable text file is needed. Received: {path}, which cannot be read ({cause}). "
            f"{remedy}".rstrip()
        ) from error


def _open(
    path: str | Path, most_bytes: int | None
) -> contextlib.AbstractContextManager[IO[bytes]]:
    """Opens a user's own file of any kind, or a stranger's within a limit."""
    if most_bytes is None:
        return Path(path).open("rb")

    return opened(path, most_bytes)


def _as_utf_8(file: io.BufferedReader) -> Iterator[bytes]:
    """Yields lines of at most 1 MiB and a byte, with their ends, as UTF-8."""
    longest = _LONGEST_LINE + 1
    beginning = file.peek(len(codecs.BOM_UTF8))
    if beginning.startswith(_UTF_16):
        with io.TextIOWrapper(file, encoding="utf-16", newline="\n") as text:
            for line in iter(functools.partial(text.readline, longest), ""):
                yield line.encode("utf-8")

        return

    if beginning.startswith(codecs.BOM_UTF8):
        file.read(len(codecs.BOM_UTF8))

    yield from iter(functools.partial(file.readline, longest), b"")
