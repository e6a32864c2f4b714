"""Reading the lines of a corpus's text files one by one, so that a bad one spoils no other."""

from collections.abc import Iterator
from pathlib import Path

from tfasr.corpora.reading.assembly import MALFORMED_LINE
from tfasr.corpora.utterance import Rejection
from tfasr.errors import UsageError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class MalformedLineError(ValueError):
    """A line that is not what its file's format says; the message is what is wrong with it."""


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file that are not blank, with their numbers from 1.

    Lines end at line feeds alone: the other separators of Unicode may stand in a transcript. No
    more of the file is held than a line.

    Raises:
        UsageError: if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
                if content.strip():
                    yield number, content.rstrip(b"\n").rstrip(b"\r")
    except OSError as error:
        raise UsageError(f"A corpus's list must be a readable file. Received: {error}.") from error


def decode_line(line: bytes) -> str:
    """Returns a line's text.

    Raises:
        MalformedLineError: if the line is not UTF-8.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedLineError(f"it is not UTF-8: {error}") from error


def malformed(path: Path, number: int, error: MalformedLineError) -> Rejection:
    """Returns the rejection of a line; its id is the file's name and the line's number."""
    return Rejection(f"{path.name}:{number}", MALFORMED_LINE, f"{path}, line {number}: {error}")
