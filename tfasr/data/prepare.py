"""Packs one split of a corpus into shards on all cores.

This is where a corpus becomes data. A call lists and judges the utterances (`select`),
shuffles them (`packing_order`), hands the shards to threads or other workers
(`tfasr.data.packing`), and writes the manifest and index of what they made.

It is resumable: listing and finished shards of an interrupted call are used again. It
is deterministic: the same corpus and settings give the same bytes, on any number of
workers. It is atomic: a folder has an index only if everything in it is complete. And
it takes constant memory, as lists of millions of utterances are kept in files.
"""

import ast
import contextlib
import functools
import hashlib
import itertools
import json
import logging
import math
import random
import tempfile
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tfasr.alphabet import normalise
from tfasr.corpora.manifests import OUTSIDE, TOO_LONG, fault
from tfasr.corpora.reading import (
    Judged,
    ListedSplit,
    ListedUtterance,
    duplicate,
    header_readers,
    judge,
    rejection_row,
)
from tfasr.corpora.utterance import CorpusSplit, Rejection, Segment, Utterance
from tfasr.data.manifest import PackedIndex
from tfasr.data.packing import (
    DROPPED_FILE,
    LISTING_FILE,
    Packing,
    ShardPlan,
    completed,
    exported,
    finish_shard,
    finish_shard_elsewhere,
    keep_only_plan,
    own_split_folder,
    remove_unfinished,
    room_in,
    shard_name,
)
from tfasr.data.rows import (
    IN_MEMORY_BYTES,
    Row,
    Rows,
    decoded,
    encoded,
    in_order,
    in_places,
)
from tfasr.errors import RunError, UsageError
from tfasr.kit.files import PARTIAL_SUFFIX, new_file, whole_file
from tfasr.kit.process import usable_cores

WhyNot = Callable[[Utterance], Rejection | None]
Normalise = Callable[[str], str]
# Entries to judge in one task, and tasks waiting at once: enough for the threads that
# read headers, without holding a large part of the list in memory.
_CHUNK = 512
_CHUNKS_AT_ONCE = 32
# If judging a chunk computes for a smaller share of its time, use threads.
_LEAST_COMPUTED = 0.2
_AHEAD = 256  # chunks judged in threads before this share is measured again
_BLOCK_BYTES = 1 << 20  # of a file to hash
_PLACES_AT_ONCE = 100_000  # Python integers, which need 9 times the array's memory
# If characters outside the alphabet exclude a larger share, the alphabet is the wrong
# one, and packing the rest would be a waste of time.
_FEW_FOREIGN = 0.2
_LISTED = 20  # bad utterances in a message

log = logging.getLogger("tfasr")


@dataclass(frozen=True)
class Selection:
    """What becomes of a corpus's utterances; all lists may be too large for memory."""

    kept: Rows  # of `kept_row`, sorted by id
    # These contain `rejection_row`, sorted by id, reason and detail:
    too_long: Rows  # left out on purpose
    unusable: Rows  # because of the corpus
    unfit: Rows  # because of the alphabet or the model

    @property
    def bad(self) -> int:
        """Number of utterances that count as faults; those that are too long don't."""
        return len(self.unusable) + len(self.unfit)

    def is_of_another_alphabet(self) -> bool:
        """Whether most of what is lost is lost to characters outside the alphabet.

        That is, more than 20 % of the utterances.
        """
        most = _FEW_FOREIGN * (len(self.kept) + self.bad)
        return (
            len(self.unfit) > most
            and sum(row[1] == OUTSIDE for row in self.unfit) > most
        )


def kept_row(utterance: Utterance, size: int, changed_ns: int) -> list[Any]:
    """Returns an utterance's row in lists.

    It has the utterance's fields, its audio file's size in bytes and time of last
    change in ns, by which a changed corpus is noticed.
    """
    segment = utterance.segment
    return [
        utterance.id,
        str(utterance.audio_path),
        utterance.duration_s,
        utterance.text,
        utterance.speaker,
        None if segment is None else [segment.begin_s, segment.end_s, segment.channel],
        size,
        changed_ns,
    ]


def utterance_of(row: Row) -> Utterance:
    """Returns the utterance of a row that `kept_row` made."""
    segment = None if row[5] is None else Segment(*row[5])
    return Utterance(row[0], Path(row[1]), row[2], row[3], row[4], segment)


def select(
    corpus: CorpusSplit,
    why_not: WhyNot,
    folder: Path,
    threads: Executor,
    on_listed: Callable[[int], None] = lambda entries: None,
    normalise: Normalise = normalise,
) -> Selection:
    """Divides a corpus split into utterances to keep, too long ones, and bad ones.

    Args:
        corpus: its lists are read once, from start to end.
        why_not: returns why an utterance is left out, or None.
        folder: the split's, for lists that don't fit into memory.
        threads: read audio headers if that takes waiting.
        on_listed: gets the number of entries judged so far.
        normalise: a transcript, before it is judged.
    """
    selection = Selection(Rows(folder), Rows(folder), Rows(folder), Rows(folder))
    if isinstance(corpus, ListedSplit):
        rules = (why_not, normalise)
        judged = _judged(
            corpus.items(),
            rules,
            folder / LISTING_FILE,
            threads,
            on_listed,
        )
        # By id, and entries with the same id in the corpus's order.
        rows = in_order(judged, lambda row: (row[0], row[1]), folder)
        for _, group in itertools.groupby(rows, key=lambda row: row[0]):
            _file_group(list(group), selection)

        return selection

    for utterance in sorted(corpus.utterances, key=lambda utterance: utterance.id):
        status = utterance.audio_path.stat()
        utterance = replace(utterance, text=normalise(utterance.text))
        file = (utterance.duration_s, status.st_size, status.st_mtime_ns)
        judged = Judged(None, utterance, *file)
        _file(_row(0, judged, why_not), selection)

    selection.unusable.extend(sorted(map(rejection_row, corpus.rejections)))

    return selection


# A judged item is a row that can be sorted and written to a file: its id, number in the
# corpus's order, place in the corpus's list ("" for rejections by the corpus's reader),
# audio path, one of these kinds, and `kept_row` or `rejection_row`.
_KEPT, _TOO_LONG, _UNUSABLE, _UNFIT = range(4)


def _row(number: int, judged: Judged, why_not: WhyNot) -> list[Any]:
    """Returns a judged entry's row, after asking ``why_not`` if it is an utterance."""
    entry = judged.entry
    result = judged.result
    kind = _UNUSABLE
    if isinstance(result, Utterance):
        rejection = why_not(result)
        if rejection is None:
            kind = _KEPT
            row = kept_row(result, judged.bytes, judged.changed_ns)
        else:
            kind = _TOO_LONG if rejection.reason == TOO_LONG else _UNFIT
            row = rejection_row(rejection)
    else:
        row = rejection_row(result)

    if entry is None:
        return [result.id, number, "", "", kind, row]

    return [result.id, number, entry.origin, str(entry.audio_path), kind, row]


def _file(row: Row, selection: Selection) -> None:
    """Appends a judged row to the list of its kind."""
    groups = (selection.kept, selection.too_long, selection.unusable, selection.unfit)
    groups[row[4]].append(row[5])


def _file_group(group: list[Row], selection: Selection) -> None:
    """Files all entries with one id: the first counts, and the others are duplicates."""
    if len(group) == 1:
        _file(group[0], selection)
        return

    first = None
    unusable = []
    for row in group:
        if row[2] and first is not None:
            entry = ListedUtterance(row[0], Path(row[3]), "", "", row[2])
            unusable.append(rejection_row(duplicate(entry, first)))
            continue

        first = row[2] or first
        if row[4] == _UNUSABLE:
            unusable.append(tuple(row[5]))
        else:
            _file(row, selection)

    selection.unusable.extend(sorted(unusable))


def _judged(
    items: Iterator[ListedUtterance | Rejection],
    rules: tuple[WhyNot, Normalise],
    log_path: Path,
    threads: Executor,
    on_listed: Callable[[int], None],
) -> Iterator[Row]:
    """Yields the rows of all items, in their order.

    Args:
        items: of a corpus's list.
        rules: why an utterance is left out, and how transcripts are normalised.
        log_path: the file of `_Headers`.
        threads: judge chunks ahead if reading headers takes waiting.
        on_listed: gets the number of entries judged so far.
    """
    # If judging a chunk mostly waits for a file server or a slow disk, threads judge
    # the next chunks. If headers are read without delay, threads would only wait for
    # Python's lock.
    waiting: deque[Future] = deque()
    count = ahead = 0

    with _Headers(log_path) as headers:
        for first in itertools.count(step=_CHUNK):
            chunk = list(itertools.islice(items, _CHUNK))
            known_headers = [headers.known(item) for item in chunk]
            if chunk and ahead:
                waiting.append(
                    threads.submit(_judge_chunk, first, chunk, known_headers, *rules)
                )
                ahead -= 1
            elif chunk:
                # Judges in this thread, and measures whether that
                # computes or waits.
                began_s = time.perf_counter()
                computed_s = time.thread_time()
                waiting.append(Future())
                waiting[-1].set_result(
                    _judge_chunk(first, chunk, known_headers, *rules)
                )
                computed_s = time.thread_time() - computed_s
                if computed_s < _LEAST_COMPUTED * (time.perf_counter() - began_s):
                    ahead = _AHEAD

            while waiting and (
                not chunk or not ahead or len(waiting) > _CHUNKS_AT_ONCE
            ):
                notes, rows = waiting.popleft().result()
                headers.note(notes)
                yield from rows
                count += len(rows)
                on_listed(count)

            if not chunk:
                return


def _judge_chunk(
    first: int,
    chunk: list[ListedUtterance | Rejection],
    known: list[tuple[int, int, float] | None],
    why_not: WhyNot,
    normalise: Normalise,
) -> tuple[list[list[Any]], list[Row]]:
    """Judges consecutive entries, of which ``known`` has the headers, if they are known.

    Returns:
        What to note of the audio headers, and the entries' rows.
    """
    notes = []
    rows = []

    for number, (item, before) in enumerate(zip(chunk, known, strict=True), first):
        if isinstance(item, Rejection):
            judged = Judged(None, item)
        else:
            judged = judge(item, before, normalise)
            path = str(item.audio_path)
            notes.append([path, judged.bytes, judged.changed_ns, judged.recording_s])

        rows.append(_row(number, judged, why_not))

    return notes, rows


class _Headers:
    """A file of the durations that audio headers state, in the order of the corpus's list.

    Opening millions of audio files takes hours on a file server; this file saves that
    after an interruption. It is used from its start until it differs from the corpus.
    All entries are written to a new file, which then replaces the old one.
    """

    def __init__(self, path: Path):
        self._path = path
        self._partial = path.with_name(path.name + PARTIAL_SUFFIX)

    def __enter__(self) -> "_Headers":
        self._old = self._path.open("rb") if self._path.is_file() else None
        # Written while the old one is read.
        self._new = new_file(self._partial)
        if self._old is None:
            self._partial.replace(self._path)

        return self

    def __exit__(self, kind: type | None, *_) -> None:
        self._new.close()
        if self._old is None:
            return

        if kind is None:  # the corpus's list has become shorter
            self._drop_old()
        else:
            self._old.close()
            self._partial.unlink(missing_ok=True)

    def known(self, item: ListedUtterance | Rejection) -> tuple[int, int, float] | None:
        """Returns an entry's size, time of change and seconds.

        None if no earlier call wrote them. The first difference from the corpus ends
        the use of the old file, since all that follows is shifted.
        """
        if self._old is None or isinstance(item, Rejection):
            return None

        try:
            path, size, changed_ns, seconds = decoded(self._old.readline())
        except (ValueError, TypeError):
            # The file's end, or a line that a killed process cut.
            path = None

        if path != str(item.audio_path):
            self._drop_old()
            return None

        return (size, changed_ns, seconds) if isinstance(seconds, float) else None

    def note(self, rows: list[list[Any]]) -> None:
        """Writes rows of path, size, time of change and seconds (None if unreadable)."""
        self._new.writelines(map(encoded, rows))

    def _drop_old(self) -> None:
        """Ends the use of the old file, which the new one replaces."""
        self._old.close()
        self._old = None
        self._partial.replace(self._path)


@dataclass(frozen=True)
class PackingOrder:
    """The order in which a split's utterances are packed, and what identifies it."""

    kept: Rows  # of `kept_row`
    # A hash of the settings and of each utterance's id, text and file size, but not of
    # paths or times. The index's ``content_hash`` adds the hashes of the records.
    content_hash: str
    # A hash of this and of speakers, segments and times of change. Finished shards are
    # kept if it's the same.
    resume_key: str

    def parts(self, size: int) -> Iterator[list[Utterance]]:
        """Yields each shard's utterances, ``size`` of them (fewer in the last shard)."""
        rows = iter(self.kept)
        while part := [utterance_of(row) for row in itertools.islice(rows, size)]:
            yield part


def packing_order(
    kept: Rows,
    split: str,
    packing: Packing,
    folder: Path,
) -> PackingOrder:
    """Shuffles and hashes a split's utterances, so that each shard has many speakers.

    The order depends on the ids and the split's name only. Python's shuffle and an
    explicit seed make it the same on every machine.
    """
    content = hashlib.sha256(json.dumps(packing.content(), sort_keys=True).encode())
    mixed = Rows(folder)

    # Both hashes in one pass: what only the resume key has waits in a file.
    with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES, dir=folder) as also:
        for row in in_places(kept, _places(len(kept), split), len(kept), folder):
            id_, _, _, text, speaker, segment, size, changed_ns = row
            mixed.append(row)
            content.update(f"{id_}\0{text}\0{size}\n".encode(errors="backslashreplace"))
            also.write(
                f"{speaker}\0{changed_ns}\0{segment}\n".encode(
                    errors="backslashreplace"
                )
            )

        # The resume key covers the content, and what follows.
        key = hashlib.sha256(content.hexdigest().encode())
        also.seek(0)
        while block := also.read(_BLOCK_BYTES):
            key.update(block)

    return PackingOrder(mixed, content.hexdigest(), key.hexdigest())


def _places(count: int, split: str) -> Iterator[int]:
    """Yields the place of each utterance in a random order of ``count`` utterances.

    The order is an array, as a list of Python integers would be too large for memory.
    """
    order = array("I", range(count))
    random.Random(split).shuffle(order)
    places = np.empty(count, np.uint32)
    places[np.frombuffer(order, np.dtype(f"u{order.itemsize}"))] = np.arange(
        count, dtype=np.uint32
    )
    del order
    for begin in range(0, count, _PLACES_AT_ONCE):
        yield from places[begin : begin + _PLACES_AT_ONCE].tolist()


@dataclass(frozen=True)
class Dropped:
    """All utterances of a split that were left out, and why."""

    selection: Selection
    unpacked: Rows  # of `rejection_row`: utterances that failed while packing

    @property
    def too_long(self) -> int:
        """Number of utterances that were left out on purpose."""
        return len(self.selection.too_long)

    @property
    def bad(self) -> int:
        """Number of utterances that count against ``max_bad_fraction``."""
        return self.selection.bad + len(self.unpacked)

    def write(self, path: Path) -> None:
        """Writes ``dropped.json``: counts by reason, then every utterance left out.

        It is written row by row, as there may be too many for memory.
        """
        reasons = Counter({TOO_LONG: self.too_long} if self.too_long else {})
        reasons.update(reason for _, reason, _ in self._bad_rows())
        head = {"too_long": self.too_long, "bad": self.bad}
        head |= {"reasons": dict(reasons.most_common()), "utterances": []}
        begun = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("]\n}")

        with whole_file(path) as file:
            file.write(begun.encode(errors="backslashreplace"))
            # Before the first utterance; a comma before all others.
            between = "\n"
            for row in itertools.chain(self.selection.too_long, self._bad_rows()):
                rejection = dict(zip(("id", "reason", "detail"), row, strict=True))
                text = json.dumps(rejection, indent=1, ensure_ascii=False)
                indented = between + "  " + text.replace("\n", "\n  ")
                file.write(indented.encode(errors="backslashreplace"))
                between = ",\n"

            file.write(b"]\n}\n" if between == "\n" else b"\n ]\n}\n")

    def refuse_too_many(
        self,
        num_kept: int,
        max_bad_fraction: float,
        path: Path,
    ) -> None:
        """Raises RunError if no utterance is good, or too many are bad.

        Args:
            num_kept: utterances that were selected, with copies; long ones don't count.
            max_bad_fraction: the largest share of bad utterances.
            path: of ``dropped.json``, for the message.
        """
        total = num_kept + self.selection.bad
        bad = self.bad
        if not total:
            raise RunError(
                f"{path.parent} would be empty: no utterance was found, or all are too long."
            )

        # Compares a quotient, because 0.29 * 100 is less than 29 in floating point.
        if bad / total <= max_bad_fraction and bad < total:
            return

        # Of possibly millions.
        first = itertools.islice(self._bad_rows(), _LISTED)
        listed = "\n".join(
            f"  {id_}: {reason} ({detail})" for id_, reason, detail in first
        )
        more = f"\n  ... and {bad - _LISTED} more" if bad > _LISTED else ""
        needed = math.ceil(1000 * bad / total) / 1000
        remedy = f"Correct them, or accept the loss with --max_bad_fraction {needed:g}"
        if bad == total:
            remedy = "Correct them: a split must hold at least one good utterance"

        foreign: Counter[str] = Counter()
        for _, reason, detail in self._bad_rows():
            if reason == OUTSIDE:
                # The detail begins with the characters as a list, see
                # `tfasr.corpora.manifests.fault`.
                foreign.update(ast.literal_eval(detail.partition("] in ")[0] + "]"))

        if foreign:
            common = ", ".join(f"{c!r} in {n}" for c, n in foreign.most_common(_LISTED))
            remedy = (
                f"Utterances with characters outside the alphabet: {common}. Take the alphabet "
                f"from the text with --alphabet auto, or map characters with --mapping. {remedy}"
            )

        raise RunError(
            f"At most {max_bad_fraction:.2%} of the utterances may be bad. Received: {bad} of "
            f"{total} ({bad / total:.2%}):\n{listed}{more}\n"
            f"All are listed in {path}. {remedy}; finished shards are kept."
        )

    def _bad_rows(self) -> Iterator[list[Any]]:
        """Yields `rejection_row` of all utterances that count as faults."""
        return itertools.chain(
            self.selection.unusable, self.selection.unfit, self.unpacked
        )


def pack_split(
    corpus: CorpusSplit,
    split: str,
    shard_dir: Path,
    packing: Packing,
    *,
    max_duration_s: float | None = None,
    max_bad_fraction: float = 0.01,
    num_workers: int | None = None,
    executor: Executor | None = None,
    on_listed: Callable[[int], None] = lambda entries: None,
    on_progress: Callable[[int, int], None] = lambda utterances, total: None,
) -> dict[str, Any]:
    """Writes a split's shards, manifest, list of dropped utterances and, last, its index.

    Shards that an interrupted call finished are kept, unless the plan (settings,
    utterances and their files) has changed. Threads keep all cores busy, because
    decoding, features and compression release Python's lock. Memory grows by some 60
    bytes per utterance.

    Args:
        corpus: what to pack.
        split: its name, which seeds the shuffling.
        shard_dir: gets the split's folder.
        packing: settings that decide the shards' bytes.
        max_duration_s: the longest utterance; None for that of ``packing.shards``.
        max_bad_fraction: a share of the utterances that aren't too long.
        num_workers: threads; None for one per core.
        executor: does the work instead of threads.
        on_listed: gets the number of entries judged so far.
        on_progress: gets, after every shard, the number of finished and of all
            utterances.

    Returns:
        The index.

    Raises:
        UsageError, RunError: those of `tfasr.data.prepare_corpus.prepare`.
    """
    folder = (shard_dir / split).absolute()
    why_not = functools.partial(
        fault,
        alphabet=packing.alphabet,
        output_frames=packing.output_frames,
        max_duration_s=max_duration_s or packing.shards.max_duration_s or float("inf"),
    )

    with room_in(folder), own_split_folder(folder):
        with _threads(header_readers()) as threads:
            normalise = packing.alphabet.normalise
            selection = select(corpus, why_not, folder, threads, on_listed, normalise)

        chosen = selection.kept
        if packing.copies is not None:
            chosen = packing.copies.rows(
                chosen, folder, lambda row: why_not(utterance_of(row))
            )

        num_kept = len(chosen)
        order = packing_order(chosen, split, packing, folder)
        size = packing.shards.utterances_per_shard
        shards = math.ceil(num_kept / size)
        plan = ShardPlan(folder, split, packing, order.resume_key)
        try:
            keep_only_plan(folder, split, plan.key, shards)
        except UsageError:  # leaves a folder that it can't use as it was
            (folder / LISTING_FILE).unlink(missing_ok=True)
            raise

        # Reported before time is spent on packing.
        if selection.is_of_another_alphabet():
            before = Dropped(selection, Rows(folder))
            before.write(folder / DROPPED_FILE)
            before.refuse_too_many(num_kept, max_bad_fraction, folder / DROPPED_FILE)

        cores = _threads(num_workers or usable_cores())
        with cores if executor is None else contextlib.nullcontext(executor) as pool:
            done = 0
            if isinstance(pool, ThreadPoolExecutor):
                work = functools.partial(finish_shard, plan)
            else:
                work = functools.partial(finish_shard_elsewhere, exported(plan))

            for sidecar in completed(pool, work, enumerate(order.parts(size))):
                done += len(sidecar["utterances"]) + len(sidecar["bad"])
                on_progress(done, num_kept)

        remove_unfinished(folder, split)
        paths = (
            folder / f"{shard_name(split, number)}.json" for number in range(shards)
        )
        packed = PackedIndex(
            folder, (orjson.loads(path.read_bytes()) for path in paths)
        )
        dropped = Dropped(selection, packed.unpacked)
        manifest_sha256 = packed.write_manifest()
        dropped.write(folder / DROPPED_FILE)
        dropped.refuse_too_many(num_kept, max_bad_fraction, folder / DROPPED_FILE)
        content = packing.content()
        index = packed.write_index(
            split,
            content,
            order.content_hash,
            dropped,
            manifest_sha256,
        )
        _warn_of_remarks(folder, packed)
        (folder / LISTING_FILE).unlink(missing_ok=True)
        return index


def _warn_of_remarks(folder: Path, packed: PackedIndex) -> None:
    """Warns of utterances that were packed although something about their audio is odd."""
    for kind, count in packed.remarks.items():
        ids = packed.remarked[kind]
        log.warning(
            '%s: %d packed (%s%s): %s. Details are under "remarks" in the shards\' .json files.',
            folder,
            count,
            ", ".join(ids),
            ", ..." * (count > len(ids)),
            kind,
        )


@contextlib.contextmanager
def _threads(count: int) -> Iterator[Executor]:
    """Runs threads during the block; after an error, pending tasks are dropped."""
    with ThreadPoolExecutor(count) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
