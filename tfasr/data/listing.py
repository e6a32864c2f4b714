"""What a corpus lists, judged line by line, and sorted, in memory that does not grow with it.

The audio headers that were read are noted in ``prepare-listing.jsonl`` in the split's folder until
its index is written: whoever is interrupted, or is refused for too many bad utterances, reads no
header twice whose file has not changed.
"""

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.corpora.manifest import TOO_LONG, fault
from tfasr.corpora.reading.assembly import (
    Entry,
    Judged,
    ListedSplit,
    duplicate,
    judge,
    rejection_order,
)
from tfasr.corpora.utterance import CorpusSplit, Rejection, Utterance
from tfasr.data.packing import Packing
from tfasr.data.rows import Row, Rows, decoded, encoded, in_order
from tfasr.data.split_folder import LISTING_FILE
from tfasr.durable import PARTIAL_SUFFIX

_CHUNK = 512
_CHUNKS_AT_ONCE = 32
# Of the time that a chunk takes, below which it was waiting.
_LEAST_COMPUTED = 0.2
# Chunks until another one tells whether that still is so.
_AHEAD = 256


@dataclass(frozen=True)
class Rules:
    """What decides which utterances are kept.

    Attributes:
        packing: its alphabet and its model's output frames.
        max_duration_s: longer ones are left out.
    """

    packing: Packing
    max_duration_s: float = math.inf

    def fault(self, utterance: Utterance) -> Rejection | None:
        """Returns why an utterance is left out, or None."""
        return fault(
            utterance,
            self.packing.alphabet,
            output_frames=self.packing.output_frames,
            max_duration_s=self.max_duration_s,
        )


@dataclass(frozen=True)
class Selection:
    """The utterances kept, those left out on purpose, and those that are bad.

    Attributes:
        kept: rows of `kept_row`, sorted by id.
        too_long: left out because the experiment cuts at a duration; they are not faults. Rows of
            a rejection's id, reason and detail, as of the next two.
        unusable: faults of the corpus, sorted by id, reason and detail.
        unfit: faults of utterances with the alphabet or the model, sorted by id.
    """

    kept: Rows
    too_long: Rows
    unusable: Rows
    unfit: Rows

    @property
    def bad(self) -> int:
        """How many are bad."""
        return len(self.unusable) + len(self.unfit)


def kept_row(utterance: Utterance, size: int, changed_ns: int) -> list[Any]:
    """Returns an utterance with its audio file's size in bytes and time of change."""
    path = str(utterance.audio_path)
    return [
        *(utterance.id, path, utterance.duration_s, utterance.text, utterance.speaker),
        *(size, changed_ns),
    ]


def utterance_of(row: Row) -> Utterance:
    """Returns the utterance of a `kept_row`."""
    return Utterance(row[0], Path(row[1]), row[2], row[3], row[4])


def rejection_row(rejection: Rejection) -> list[str]:
    """Returns a rejection as a row."""
    return [rejection.id, rejection.reason, rejection.detail]


def select(
    corpus: CorpusSplit,
    rules: Rules,
    folder: Path,
    threads: Executor,
    on_listed: Callable[[int], None] = lambda entries: None,
) -> Selection:
    """Sorts a corpus split into what is kept, too long, and bad.

    Args:
        corpus: what a corpus reader found.
        rules: what is kept.
        folder: the split's, where the work is noted and rows go that do not fit into memory.
        threads: read the audio headers.
        on_listed: called with how many entries were judged, now and then.
    """
    selection = Selection(Rows(folder), Rows(folder), Rows(folder), Rows(folder))
    if isinstance(corpus, ListedSplit):
        judged = _judged(corpus.items(), rules, folder / LISTING_FILE, threads, on_listed)
        rows = in_order(judged, lambda row: (row[0], row[1]), folder)
        for _, group in itertools.groupby(rows, key=lambda row: row[0]):
            _file_group(list(group), selection)
        return selection
    for utterance in sorted(corpus.utterances, key=lambda utterance: utterance.id):
        status = utterance.audio_path.stat()
        judged = Judged(None, utterance, status.st_size, status.st_mtime_ns)
        _file(_row(0, judged, rules), selection)
    for rejection in sorted(corpus.rejections, key=rejection_order):
        selection.unusable.append(rejection_row(rejection))
    return selection


# A row of what was judged: id, number in the corpus's order, where it is listed ("" where a
# duplicate means nothing), its path, what it is, and its own row.
_KEPT, _TOO_LONG, _UNUSABLE, _UNFIT = range(4)


def _row(number: int, judged: Judged, rules: Rules) -> list[Any]:
    entry, found = judged.entry, judged.found
    kind = _UNUSABLE
    if isinstance(found, Utterance):
        rejection = rules.fault(found)
        if rejection is None:
            kind = _KEPT
        else:
            kind = _TOO_LONG if rejection.reason == TOO_LONG else _UNFIT
            found = rejection
    row = (
        kept_row(found, judged.bytes, judged.changed_ns)
        if isinstance(found, Utterance)
        else rejection_row(found)
    )
    origin, path = ("", "") if entry is None else (entry.origin, str(entry.audio_path))
    return [found.id, number, origin, path, kind, row]


def _file(row: Row, selection: Selection) -> None:
    groups = (selection.kept, selection.too_long, selection.unusable, selection.unfit)
    groups[row[4]].append(row[5])


def _file_group(group: list[Row], selection: Selection) -> None:
    """Puts the rows of one id where they belong: of several entries the first one counts."""
    if len(group) == 1:
        _file(group[0], selection)
        return
    first = None
    unusable = []
    for row in group:
        if row[2] and first is not None:
            entry = Entry(row[0], Path(row[3]), "", "", row[2])
            unusable.append(duplicate(entry, first))
            continue
        if row[2]:
            first = row[2]
        if row[4] == _UNUSABLE:
            unusable.append(Rejection(*row[5]))
        else:
            _file(row, selection)
    for rejection in sorted(unusable, key=rejection_order):
        selection.unusable.append(rejection_row(rejection))


def _judged(
    items: Iterator[Entry | Rejection],
    rules: Rules,
    log_path: Path,
    threads: Executor,
    on_listed: Callable[[int], None],
) -> Iterator[Row]:
    """Yields a row for each item, in the corpus's order."""
    count = 0
    with _Headers(log_path) as headers:
        for notes, rows in _chunks(items, rules, headers, threads):
            headers.note(notes)
            yield from rows
            count += len(rows)
            on_listed(count)


def _chunks(
    items: Iterator[Entry | Rejection], rules: Rules, headers: "_Headers", threads: Executor
) -> Iterator[tuple[list[list[Any]], list[Row]]]:
    """Yields what `_judge_chunk` returns of the items.

    When a chunk has mostly waited, for a file server or a slow disk, threads judge the next ones
    ahead. Where headers come at once, threads would only wait for each other.
    """
    waiting: deque[Future] = deque()
    ahead = 0
    for first in itertools.count(step=_CHUNK):
        chunk = list(itertools.islice(items, _CHUNK))
        known = [headers.known(item) for item in chunk]
        if chunk and ahead:
            waiting.append(threads.submit(_judge_chunk, first, chunk, known, rules))
            ahead -= 1
        elif chunk:
            began_s, computed_s = time.perf_counter(), time.thread_time()
            waiting.append(Future())
            waiting[-1].set_result(_judge_chunk(first, chunk, known, rules))
            computed_s = time.thread_time() - computed_s
            if computed_s < _LEAST_COMPUTED * (time.perf_counter() - began_s):
                ahead = _AHEAD
        while waiting and (not chunk or not ahead or len(waiting) > _CHUNKS_AT_ONCE):
            yield waiting.popleft().result()
        if not chunk:
            return


def _judge_chunk(
    first: int,
    chunk: list[Entry | Rejection],
    known: list[tuple[int, int, float] | None],
    rules: Rules,
) -> tuple[list[list[Any]], list[Row]]:
    """Returns what is to be noted of the headers, and a row for each item."""
    notes, rows = [], []
    for number, (item, before) in enumerate(zip(chunk, known, strict=True), start=first):
        if isinstance(item, Rejection):
            judged = Judged(None, item)
        else:
            judged = judge(item, before)
            seconds = getattr(judged.found, "duration_s", None)
            notes.append([str(item.audio_path), judged.bytes, judged.changed_ns, seconds])
        rows.append(_row(number, judged, rules))
    return notes, rows


class _Headers:
    """What is known of audio headers, in the order in which the corpus lists the files.

    What an earlier call noted is read in step with the list as far as the two agree, while all is
    noted anew; only then the new notes take the old ones' place.
    """

    def __init__(self, path: Path):
        self._path = path
        self._partial = path.with_name(path.name + PARTIAL_SUFFIX)

    def __enter__(self) -> "_Headers":
        self._old = self._path.open("rb") if self._path.is_file() else None
        self._new = self._partial.open("wb")
        if self._old is None:
            self._partial.replace(self._path)
        return self

    def __exit__(self, kind: type | None, *_) -> None:
        self._new.close()
        if self._old is None:
            return
        if kind is None:  # the list has become shorter
            self._drop_old()
        else:
            self._old.close()
            self._partial.unlink(missing_ok=True)

    def known(self, item: Entry | Rejection) -> tuple[int, int, float] | None:
        """Returns size, time of change and seconds of an entry's audio, as noted before."""
        if self._old is None or isinstance(item, Rejection):
            return None
        try:
            path, size, changed_ns, seconds = decoded(self._old.readline())
        except (ValueError, TypeError):  # its end, or a line that a kill has cut
            path = None
        if path != str(item.audio_path):
            self._drop_old()
            return None
        return (size, changed_ns, seconds) if isinstance(seconds, float) else None

    def note(self, rows: list[list[Any]]) -> None:
        """Notes path, size, time of change and seconds (None of what is unreadable)."""
        self._new.writelines(map(encoded, rows))

    def _drop_old(self) -> None:
        self._old.close()
        self._old = None
        self._partial.replace(self._path)
