"""Makes a `CorpusSplit` from a corpus's lists, with the checks that all corpora share.

A corpus's reader parses its lists to `Listed` rows (`parsed_lines`), which `entries_of`
and `assemble` turn into a split. Nothing is read of the audio until someone asks for
it: `judge` then looks at each header once. Whatever can't be used becomes a `Rejection`
with its place, and never ends the reading, because corpora of millions of files always
have faults.
"""

import dataclasses
import functools
import itertools
import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from tfasr.alphabet import normalise
from tfasr.corpora.audio_header import audio_duration_s
from tfasr.corpora.utterance import CorpusSplit, Rejection, Segment, Utterance
from tfasr.errors import UsageError, received_path
from tfasr.kit.process import usable_cores
from tfasr.kit.text import encoded_lines

# Reasons of rejections, by which they are counted.
TRANSCRIPT_WITHOUT_AUDIO = "transcript without audio"
AUDIO_WITHOUT_TRANSCRIPT = "audio without transcript"
DUPLICATE_ID = "duplicate id"
EMPTY_TRANSCRIPT = "empty transcript"
UNREADABLE_AUDIO = "unreadable audio"
OUTSIDE_RECORDING = "segment outside its recording"
MALFORMED_LINE = "malformed line"

# A split's name in other corpora's folders and files; the first that exists counts.
SPLIT_NAMES = {
    "train": ("train",),
    "validation": ("validation", "valid", "dev"),
    "test": ("test",),
}

# The fewest threads that read headers.
_MIN_HEADER_READERS = 8

# How many names of a folder's content a message shows.
_NAMES_SHOWN = 12

# By how many seconds a segment may end after its recording: times are rounded.
MOST_OUTSIDE_S = 0.1

# How many recordings' durations are remembered while their segments are listed.
_RECORDINGS = 4096

_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True)
class ListedUtterance:
    """An utterance as listed by a corpus, before it is checked.

    Attributes:
        id: by which the corpus names it.
        audio_path: where its audio should be.
        text: the transcript as written in the corpus.
        speaker: "" if unknown.
        origin: place of the transcript, for messages ("dev.tsv, line 7").
        segment: which part of the file; None: all of it.
        stated_s: the list's duration, for lists whose utterances are as long as it
            says: if the file is longer, the rest isn't part of the utterance. 0 if the
            list doesn't say.
    """

    id: str
    audio_path: Path
    text: str
    speaker: str
    origin: str
    segment: Segment | None = None
    stated_s: float = 0.0


@dataclass(frozen=True)
class Judged:
    """An entry of a list after its file was looked at.

    Attributes:
        entry: None if the corpus's reader rejected it.
        result: the usable utterance, or why it can't be used.
        recording_s: duration of the audio file, if it was read.
        bytes: size of the audio file.
        changed_ns: time of the file's last change, in ns since 1970.
    """

    entry: ListedUtterance | None
    result: Utterance | Rejection
    recording_s: float | None = None
    bytes: int = 0
    changed_ns: int = 0


class ListedSplit(CorpusSplit):
    """A split whose audio headers are read only when needed.

    `utterances` and `rejections` read all of them and keep the results in memory.
    `tfasr prepare` instead reads `items`, which can be iterated over once, in the
    corpus's order.
    """

    def __init__(self, source: str, items: Iterator[ListedUtterance | Rejection]):
        self.source = source
        self._items = items

    def items(self) -> Iterator[ListedUtterance | Rejection]:
        """Returns all entries, in the corpus's order; only the first call gets them."""
        return self._items

    @property
    def utterances(self) -> list[Utterance]:
        """The usable utterances, sorted by id."""
        return self._read[0]

    @property
    def rejections(self) -> list[Rejection]:
        """What can't be used, sorted."""
        return self._read[1]

    @functools.cached_property
    def _read(self) -> tuple[list[Utterance], list[Rejection]]:
        """What `utterances` and `rejections` return."""
        # By id: the first entry with an id counts.
        listed: dict[str, ListedUtterance] = {}
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
        utterances.sort(key=lambda utterance: utterance.id)
        rejected += [result for result in results if isinstance(result, Rejection)]
        rejected.sort(key=rejection_row)

        return utterances, rejected


def assemble(
    source: str,
    entries: Iterable[ListedUtterance | Rejection],
    rejections: Iterable[Rejection] = (),
) -> CorpusSplit:
    """Returns a split in which every entry is either an utterance or a rejection.

    Args:
        source: names what was read, for messages.
        entries: in the corpus's order; if several have the same id, all but the first
            are rejected. They may be a generator, so that only a few are in memory at a
            time.
        rejections: those of the corpus's reader, which may also be among the entries.

    Raises:
        UsageError: if there are no entries and no rejections.
    """
    items = itertools.chain(rejections, entries)
    first = next(items, None)
    if first is None:
        raise UsageError(
            f"A split must hold at least one utterance. Found none in {source}."
        )

    return ListedSplit(source, itertools.chain([first], items))


def header_readers() -> int:
    """Returns how many threads read audio headers.

    Many, because they mostly wait for the disk.
    """
    return max(_MIN_HEADER_READERS, usable_cores())


def duplicate(entry: ListedUtterance, first: str) -> Rejection:
    """Returns a rejection of an entry whose id is listed before.

    Args:
        entry: the later one.
        first: the place of the earlier one.
    """
    detail = f"{entry.origin} ({entry.audio_path}); first in {first}"
    return Rejection(entry.id, DUPLICATE_ID, detail)


def rejection_row(rejection: Rejection) -> tuple[str, str, str]:
    """Returns a rejection as a row, by which rejections are sorted."""
    return rejection.id, rejection.reason, rejection.detail


def judge(
    entry: ListedUtterance,
    known: tuple[int, int, float] | None = None,
    normalise: Callable[[str], str] = normalise,
) -> Judged:
    """Checks an entry, and reads its audio file's header.

    The header alone is read, which takes milliseconds; a file that is cut short later
    is found when its samples are.

    Args:
        entry: of a corpus's list.
        known: the file's size, time of change in ns, and seconds when it was last read.
            If the first two are the same, the header isn't read again.
        normalise: the transcript.
    """
    # File names may not be valid Unicode.
    if not entry.id.isascii():
        id_ = entry.id.encode(errors="backslashreplace").decode()
        entry = dataclasses.replace(entry, id=id_)

    text = normalise(entry.text)
    if not text:
        detail = f"{entry.origin} ({entry.audio_path})"
        return Judged(entry, Rejection(entry.id, EMPTY_TRANSCRIPT, detail))

    try:
        status = os.stat(entry.audio_path)  # noqa: PTH116 - one system call; Path would need two
        is_file = stat.S_ISREG(status.st_mode)
    # It is missing, or its name is impossible.
    except (OSError, ValueError):
        is_file = False

    if not is_file:
        detail = f"{entry.origin}: {entry.audio_path} does not exist"
        return Judged(entry, Rejection(entry.id, TRANSCRIPT_WITHOUT_AUDIO, detail))

    try:
        if known is not None and known[:2] == (status.st_size, status.st_mtime_ns):
            # The file is the one whose header was read before.
            recording_s = known[2]
        elif entry.segment is None:
            recording_s = audio_duration_s(entry.audio_path)
        else:
            recording_s = _recording_s(
                entry.audio_path, status.st_size, status.st_mtime_ns
            )

        if recording_s <= 0:
            raise ValueError(
                f"An audio file must hold audio. {entry.audio_path} is empty."
            )
    except ValueError as error:
        rejection = Rejection(entry.id, UNREADABLE_AUDIO, f"{entry.origin}: {error}")
        return Judged(entry, rejection)

    file = (recording_s, status.st_size, status.st_mtime_ns)
    duration_s = recording_s
    segment = entry.segment

    if 0 < entry.stated_s < recording_s - MOST_OUTSIDE_S:
        # The list says where the utterance ends.
        segment = Segment(0.0, entry.stated_s)

    if segment is not None:
        begin_s = segment.begin_s
        end_s = segment.end_s
        if end_s is None:
            end_s = recording_s

        if begin_s >= recording_s or end_s > recording_s + MOST_OUTSIDE_S:
            times = f"{begin_s:.3f} to {end_s:.3f} s of {entry.audio_path}"
            detail = f"{entry.origin}: {times}, which lasts {recording_s:.3f} s"
            return Judged(entry, Rejection(entry.id, OUTSIDE_RECORDING, detail), *file)

        duration_s = min(end_s, recording_s) - begin_s

    utterance = Utterance(
        entry.id,
        entry.audio_path,
        duration_s,
        text,
        entry.speaker,
        segment,
    )

    return Judged(entry, utterance, *file)


@functools.lru_cache(_RECORDINGS)
def _recording_s(path: Path, size: int, changed_ns: int) -> float:
    """Returns a recording's seconds, remembered for its other segments.

    Args:
        path: the file.
        size: in bytes; with ``changed_ns`` it shows whether the file is the same.
        changed_ns: when it was last changed.
    """
    return audio_duration_s(path)


def require_folder(path: str | Path, expected: str) -> Path:
    """Returns a corpus folder's absolute path.

    Raises:
        UsageError: saying what is ``expected``, if it isn't a readable folder.
    """
    folder = Path(path).absolute()
    try:
        is_folder = folder.is_dir()
        # This fails if the folder can't be listed, which `is_dir` doesn't show.
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
    """Returns the names in a folder, for a message; folders end in a slash.

    The first 12 are listed, and the number of others.
    """
    names = []
    for entry in folder.iterdir():
        name = entry.name
        if entry.is_dir():
            name += "/"

        names.append(name)

    names.sort()
    shown = ", ".join(names[:_NAMES_SHOWN]) or "nothing"
    if len(names) > _NAMES_SHOWN:
        shown += f" and {len(names) - _NAMES_SHOWN} more"

    return shown


def subfolders(folder: Path) -> list[str]:
    """Returns the names of the folders in a folder, sorted."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())


def walk(folder: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Yields each folder from ``folder`` down with its files, sorted.

    Links are followed, but no folder is visited twice.
    """

    def fail(error: OSError) -> None:
        """Raises an error, where `os.walk` would leave the folder out."""
        raise UsageError(
            f"Every folder of a corpus must be readable. Received: {error}."
        )

    entered: set[tuple[int, int]] = set()
    # Corpora often consist of links to other disks.
    for root, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        status = Path(root).stat()
        identity = (status.st_dev, status.st_ino)
        # A link to a folder above, or to one visited before.
        if identity in entered:
            folders.clear()
            continue

        entered.add(identity)
        folders.sort()
        yield Path(root), [Path(root, name) for name in sorted(names)]


class MalformedLineError(ValueError):
    """A line that breaks its file's format; the message says how."""


class Listed(NamedTuple):
    """What a line of a list says; see `ListedUtterance`."""

    id: str
    audio_path: Path
    text: str
    speaker: str
    segment: Segment | None = None
    stated_s: float = 0.0


def entries_of(
    parsed: Iterable[tuple[str, Listed | Rejection]],
) -> Iterator[ListedUtterance | Rejection]:
    """Turns parsed lines, with their places, into entries; rejections pass."""
    for origin, row in parsed:
        if isinstance(row, Rejection):
            yield row
            continue

        id_, path, text, speaker, segment, stated_s = row
        yield ListedUtterance(id_, path, text, speaker, origin, segment, stated_s)


def segment_of(
    begin_s: float,
    end_s: float | None,
    channel: int | None = None,
) -> Segment:
    """Returns a segment of a list.

    Args:
        begin_s: from the recording's start.
        end_s: None for the recording's end.
        channel: from 0; None for the mean of all.

    Raises:
        MalformedLineError: if its times or channel are impossible.
    """
    try:
        return Segment(begin_s, end_s, channel)
    except ValueError as error:
        raise MalformedLineError(str(error)) from None


def seconds_of(text: str, name: str) -> float:
    """Parses seconds.

    Args:
        text: the number.
        name: what it is, for the error.

    Raises:
        MalformedLineError: if it isn't a finite number, 0 or more.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan

    if not 0 <= seconds < math.inf:
        raise MalformedLineError(
            f"{name} must be a number, not below 0; received {text!r}"
        )

    return seconds


def channel_of(text: str) -> int | None:
    """Parses a channel from 0; None if the text is empty.

    Raises:
        MalformedLineError: if it isn't a number.
    """
    channel = text.strip()
    if channel and not channel.isdecimal():
        raise MalformedLineError(
            f"channel must be a number from 0, or empty; received {channel!r}"
        )

    if not channel:
        return None

    return int(channel)


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the number (from 1) and content of lines that aren't blank.

    They are bytes, so that one line in a wrong encoding costs only that line.
    """
    for number, line in enumerate(
        encoded_lines(path, "It is a corpus's list."), start=1
    ):
        if line and not line.isspace():
            yield number, line


def parsed_lines(
    path: Path,
    parse: Callable[[str], _Parsed],
    lines: Iterable[tuple[int, bytes]] | None = None,
) -> Iterator[tuple[str, _Parsed | Rejection]]:
    """Yields each line's place and what ``parse`` returns for it.

    Args:
        path: of the list.
        parse: raises MalformedLineError for a line that breaks the format, which is
            then rejected.
        lines: those of the list to parse; None for all.
    """
    if lines is None:
        lines = numbered_lines(path)

    for number, line in lines:
        place = f"{path}, line {number}"
        try:
            yield place, parse(line.decode("utf-8"))
            continue
        except UnicodeDecodeError as error:
            cause = f"it is not UTF-8: {error}"
        except MalformedLineError as error:
            cause = str(error)

        yield (
            place,
            Rejection(f"{path.name}:{number}", MALFORMED_LINE, f"{place}: {cause}"),
        )
