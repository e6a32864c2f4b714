"""Reading the lines of a corpus's text files one by one, so that a bad one spoils no other."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from tfasr.corpora.reading.assembly import MALFORMED_LINE
from tfasr.corpora.utterance import Rejection
from tfasr.errors import UsageError

_Parsed = TypeVar("_Parsed")
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


def parsed_lines(
    path: Path, parse: Callable[[str], _Parsed], lines: Iterable[tuple[int, bytes]] | None = None
) -> Iterator[tuple[str, _Parsed | Rejection]]:
    """Yields where each line stands and what ``parse`` makes of it, or why it makes nothing.

    Args:
        parse: given a line's text, may raise a MalformedLineError.
        lines: of `numbered_lines`, if some were read already.
    """
    for number, line in numbered_lines(path) if lines is None else lines:
        place = f"{path}, line {number}"
        try:
            yield place, parse(line.decode("utf-8"))
            continue
        except UnicodeDecodeError as error:
            cause = f"it is not UTF-8: {error}"
        except MalformedLineError as error:
            cause = str(error)
        yield place, Rejection(f"{path.name}:{number}", MALFORMED_LINE, f"{place}: {cause}")
