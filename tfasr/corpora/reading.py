"""Turns what a corpus lists into a `CorpusSplit`, with the checks that all corpora share."""

import functools
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tfasr.alphabet import normalise
from tfasr.corpora.audio_header import audio_duration_s
from tfasr.corpora.utterance import CorpusSplit, Rejection, Utterance
from tfasr.errors import UsageError, received_path

TRANSCRIPT_WITHOUT_AUDIO = "transcript without audio"
AUDIO_WITHOUT_TRANSCRIPT = "audio without transcript"
DUPLICATE_ID = "duplicate id"
EMPTY_TRANSCRIPT = "empty transcript"
UNREADABLE_AUDIO = "unreadable audio"
MALFORMED_LINE = "malformed line"

_MIN_HEADER_READERS = 8
_NAMES_SHOWN = 12
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True)
class Entry:
    """What a corpus lists as an utterance, before anything is checked."""

    id: str
    audio_path: Path
    text: str  # the transcript as it is written in the corpus
    speaker: str  # "" where unknown
    origin: str  # where a person finds the transcript ("dev.tsv, line 7")


@dataclass(frozen=True)
class Judged:
    entry: Entry | None  # None for a rejection by the corpus's reader
    result: Utterance | Rejection
    bytes: int = 0  # size of the audio file
    changed_ns: int = 0  # time of the file's last change, since 1970


class ListedSplit(CorpusSplit):
    """A split whose audio headers are read when they are needed.

    `utterances` and `rejections` read all of them and hold the result; `tfasr prepare` streams
    `items`, once, in the corpus's order.
    """

    def __init__(self, source: str, items: Iterator[Entry | Rejection]):
        self.source = source
        self._items = items

    def items(self) -> Iterator[Entry | Rejection]:
        return self._items

    @property
    def utterances(self) -> list[Utterance]:
        return self._read[0]

    @property
    def rejections(self) -> list[Rejection]:
        return self._read[1]

    @functools.cached_property
    def _read(self) -> tuple[list[Utterance], list[Rejection]]:
        listed: dict[str, Entry] = {}
        rejected = []
        for item in self._items:
            if isinstance(item, Rejection):
                rejected.append(item)
                continue
            first = listed.setdefault(item.id, item)
            if first is not item:
                rejected.append(duplicate(item, first.origin))
        with ThreadPoolExecutor(header_readers()) as threads:
            results = [judged.result for judged in threads.map(judge, listed.values())]
        utterances = [result for result in results if isinstance(result, Utterance)]
        rejected += [result for result in results if isinstance(result, Rejection)]
        return sorted(utterances, key=lambda u: u.id), sorted(rejected, key=rejection_row)


def assemble(
    source: str, entries: Iterable[Entry | Rejection], rejections: Iterable[Rejection] = ()
) -> CorpusSplit:
    """Returns a split in which every entry is either an utterance or a rejection, sorted by id.

    ``source`` names what was read, for messages. ``entries`` are in the corpus's order: of several
    with the same id, all but the first are rejected. A generator is read as needed, so that only a
    few are in memory at a time. ``rejections`` are what the corpus's reader itself left out; they
    may be among the entries. Raises UsageError if there are neither.
    """
    items = itertools.chain(rejections, entries)
    first = next(items, None)
    if first is None:
        raise UsageError(f"A split must hold at least one utterance. Found none in {source}.")
    return ListedSplit(source, itertools.chain([first], items))


def header_readers() -> int:
    """Returns how many threads read audio headers: more than cores, as they mostly wait."""
    return max(_MIN_HEADER_READERS, os.cpu_count() or 1)


def duplicate(entry: Entry, first: str) -> Rejection:
    """Returns the rejection of an entry whose id was ``first`` listed elsewhere."""
    detail = f"{entry.origin} ({entry.audio_path}); first in {first}"
    return Rejection(entry.id, DUPLICATE_ID, detail)


def rejection_row(rejection: Rejection) -> tuple[str, str, str]:
    return rejection.id, rejection.reason, rejection.detail


def judge(
    entry: Entry,
    known: tuple[int, int, float] | None = None,
    normalise: Callable[[str], str] = normalise,
) -> Judged:
    """Checks an entry; audio that still has the ``known`` size and time is not read again."""
    text = normalise(entry.text)
    if not text:
        detail = f"{entry.origin} ({entry.audio_path})"
        return Judged(entry, Rejection(entry.id, EMPTY_TRANSCRIPT, detail))
    try:
        status = os.stat(entry.audio_path)  # noqa: PTH116 - one call where Path has two
        is_file = stat.S_ISREG(status.st_mode)
    except (OSError, ValueError):  # missing, or not a possible name
        is_file = False
    if not is_file:
        detail = f"{entry.origin}: {entry.audio_path} does not exist"
        return Judged(entry, Rejection(entry.id, TRANSCRIPT_WITHOUT_AUDIO, detail))
    if known is not None and known[:2] == (status.st_size, status.st_mtime_ns):
        duration_s = known[2]
    else:
        try:
            duration_s = audio_duration_s(entry.audio_path)
            if duration_s <= 0:
                raise ValueError(f"An audio file must hold audio. {entry.audio_path} is empty.")
        except ValueError as error:
            rejection = Rejection(entry.id, UNREADABLE_AUDIO, f"{entry.origin}: {error}")
            return Judged(entry, rejection)
    utterance = Utterance(entry.id, entry.audio_path, duration_s, text, entry.speaker)
    return Judged(entry, utterance, status.st_size, status.st_mtime_ns)


def require_folder(path: str | Path, expected: str) -> Path:
    """Returns the absolute path of a corpus folder, or raises UsageError with ``expected``."""
    folder = Path(path).absolute()
    try:
        is_folder = folder.is_dir()
        if is_folder:
            os.scandir(folder).close()
    except OSError as error:
        raise UsageError(
            f"--corpus_dir must be readable. Received: {folder}: {error.strerror}."
        ) from None
    if not is_folder:
        raise UsageError(f"--corpus_dir must be {expected}. {received_path(folder)}")
    return folder


def found_in(folder: Path) -> str:
    """Returns the names in a folder, for a message; folders end in a slash."""
    names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return (", ".join(names[:_NAMES_SHOWN]) + more) or "nothing"


def subfolders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())


def walk(folder: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Yields every folder from ``folder`` down with its files, sorted; links are followed once."""

    def fail(error: OSError) -> None:
        raise UsageError(f"Every folder of a corpus must be readable. Received: {error}.")

    entered: set[tuple[int, int]] = set()
    for root, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        status = Path(root).stat()
        identity = (status.st_dev, status.st_ino)
        if identity in entered:  # a link to a folder above it, or to one seen before
            folders.clear()
            continue
        entered.add(identity)
        folders.sort()
        yield Path(root), [Path(root, name) for name in sorted(names)]


class MalformedLineError(ValueError):
    """A line that breaks its file's format; the message is the fault."""


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the numbers (from 1) and contents of lines that aren't blank; line feeds end lines."""
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
    """Yields each line's place and what ``parse`` returns, or a rejection of a malformed line."""
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
