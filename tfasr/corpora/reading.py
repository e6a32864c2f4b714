"""Makes a `CorpusSplit` from a corpus's lists, with the checks that all corpora share."""

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
    """An utterance as listed by a corpus, before it is checked."""

    id: str
    audio_path: Path
    text: str  # the transcript as written in the corpus
    speaker: str  # "" if unknown
    origin: str  # place of the transcript, for messages ("dev.tsv, line 7")


@dataclass(frozen=True)
class Judged:
    entry: Entry | None  # None if the corpus's reader rejected it
    result: Utterance | Rejection
    bytes: int = 0  # size of the audio file
    changed_ns: int = 0  # time of the file's last change, in ns since 1970


class ListedSplit(CorpusSplit):
    """A split whose audio headers are read only when needed.

    `utterances` and `rejections` read all of them and keep the results in memory. `tfasr prepare`
    instead reads `items`, which can be iterated over once, in the corpus's order.
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

    ``source`` names what was read, for messages. ``entries`` are in the corpus's order; if several
    have the same id, all but the first are rejected. They may be a generator, so that only a few
    are in memory at a time. ``rejections`` are those of the corpus's reader, which may also be
    among the entries. Raises UsageError if there are no entries and no rejections.
    """
    items = itertools.chain(rejections, entries)
    first = next(items, None)
    if first is None:
        raise UsageError(f"A split must hold at least one utterance. Found none in {source}.")
    return ListedSplit(source, itertools.chain([first], items))


def header_readers() -> int:
    """Returns how many threads read audio headers: many, because they mostly wait for the disk."""
    return max(_MIN_HEADER_READERS, os.cpu_count() or 1)


def duplicate(entry: Entry, first: str) -> Rejection:
    """Returns a rejection of an entry whose id is already listed at the place ``first``."""
    detail = f"{entry.origin} ({entry.audio_path}); first in {first}"
    return Rejection(entry.id, DUPLICATE_ID, detail)


def rejection_row(rejection: Rejection) -> tuple[str, str, str]:
    return rejection.id, rejection.reason, rejection.detail


def judge(
    entry: Entry,
    known: tuple[int, int, float] | None = None,
    normalise: Callable[[str], str] = normalise,
) -> Judged:
    """Checks an entry; reads the header again only if ``known`` has another size or time."""
    text = normalise(entry.text)
    if not text:
        detail = f"{entry.origin} ({entry.audio_path})"
        return Judged(entry, Rejection(entry.id, EMPTY_TRANSCRIPT, detail))
    try:
        status = os.stat(entry.audio_path)  # noqa: PTH116 - one system call; Path would need two
        is_file = stat.S_ISREG(status.st_mode)
    except (OSError, ValueError):  # missing, or an impossible name
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
    """Returns a corpus folder's absolute path; UsageError, with ``expected``, if it's unfit."""
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
    """Yields each folder from ``folder`` down with its files, sorted; none twice through links."""

    def fail(error: OSError) -> None:
        raise UsageError(f"Every folder of a corpus must be readable. Received: {error}.")

    entered: set[tuple[int, int]] = set()
    for root, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        status = Path(root).stat()
        identity = (status.st_dev, status.st_ino)
        if identity in entered:  # a link to a folder above, or to one visited before
            folders.clear()
            continue
        entered.add(identity)
        folders.sort()
        yield Path(root), [Path(root, name) for name in sorted(names)]


class MalformedLineError(ValueError):
    """A line that breaks its file's format; the message says how."""


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the number (from 1) and content of lines that aren't blank; line feeds end them."""
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
    """Yields each line's place and ``parse``'s result, or a rejection if the line is malformed."""
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
