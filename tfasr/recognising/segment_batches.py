"""Segments of many recordings through the model in batches of similar length."""

import dataclasses
import itertools
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Full, Queue
from typing import Any

import numpy as np

from tfasr.recognising.pauses import Segment
from tfasr.recognising.results import Word
from tfasr.recognising.segment_model import SegmentModel

# Batches' worth of segments among which those of similar length are found. The first ones are
# fewer, so that the model does not wait until so many have been read.
_BATCHES_SORTED = (1, 2, 4)
_READ_AHEAD = 32
_END = object()
_NOTHING = np.zeros(0, np.float32)
# A segment's batch at the model, and its row there; None of one too short to be heard.
_Place = tuple[Future, int] | None


def recognised_in_batches(
    model: SegmentModel, segments: Iterable[tuple[Any, Segment]], batch_size: int
) -> Iterator[tuple[Any, list[Word]]]:
    """Yields each segment's words, in the order of the segments.

    Reading and features run in a thread of their own, decoding in another, while batches go
    through the model, as many at once as it can use; at most some hundred segments are in memory.

    Args:
        model: hears and decodes them.
        segments: each with a key that comes back with its words.
        batch_size: segments in one batch.

    Raises:
        Exception: whatever ``segments`` raises, once what came before it has been yielded.
    """
    stages = _Stages(model, batch_size)
    try:
        waiting: list[tuple[list[Any], list[_Place]]] = []
        for group in _groups(_read_ahead(model, segments), batch_size):
            waiting.append(stages.begin(group))
            if len(waiting) > 1:  # while this group goes through the model, the next is read
                yield from _finished(*waiting.pop(0))
        for keys, places in waiting:
            yield from _finished(keys, places)
    finally:
        stages.close()


def _read_ahead(model: SegmentModel, segments: Iterable) -> Iterator[tuple]:
    """Yields key, segment and features; an error takes its turn behind what was read before it."""
    queue: Queue = Queue(_READ_AHEAD)
    stopped = threading.Event()

    def put(item: Any) -> bool:
        while not stopped.is_set():
            try:
                queue.put(item, timeout=0.1)
            except Full:  # see whether anyone still wants it
                continue
            return True
        return False

    def read() -> None:
        try:
            for key, segment in segments:
                # The samples have done their work, and take more room than the features.
                heard = dataclasses.replace(segment, samples=_NOTHING)
                if not put((key, heard, model.features(segment))):
                    return
            put(_END)
        except BaseException as error:  # noqa: BLE001 - raised where the segments are wanted
            put(error)

    thread = threading.Thread(target=read, name="reader", daemon=True)
    thread.start()
    try:
        while (item := queue.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join(timeout=1.0)  # it may wait for a pipe that nobody writes to


def _groups(items: Iterator[tuple], batch_size: int) -> Iterator[list[tuple]]:
    """Yields lists of a few batches; the last before an error is still yielded."""
    sizes = itertools.chain(_BATCHES_SORTED, itertools.repeat(_BATCHES_SORTED[-1]))
    size = batch_size * next(sizes)
    group: list[tuple] = []
    failure = None
    while True:
        try:
            group.append(next(items))
        except StopIteration:
            break
        except Exception as error:  # noqa: BLE001 - raised below
            failure = error
            break
        if len(group) == size:
            yield group
            group, size = [], batch_size * next(sizes)
    if group:
        yield group
    if failure is not None:
        raise failure


class _Stages:
    """The threads in which batches go through the model, and the one in which they are decoded."""

    def __init__(self, model: SegmentModel, batch_size: int):
        self._model = model
        self._batch_size = batch_size
        self._hearing = ThreadPoolExecutor(model.batches_at_once, thread_name_prefix="model")
        self._decoding = ThreadPoolExecutor(1, thread_name_prefix="decoder")

    def begin(self, group: list[tuple]) -> tuple[list[Any], list[_Place]]:
        """Hands a group's batches to the model; returns keys and where the words will be."""
        spec = self._model.spec
        heard = [n for n, item in enumerate(group) if spec.output_frames(len(item[2]))]
        # The longest first: the threads then end at about the same time.
        heard.sort(key=lambda n: len(group[n][2]), reverse=True)
        places: list[_Place] = [None] * len(group)
        share = -(-len(heard) // self._model.batches_at_once)
        size = max(min(self._batch_size, share), 1)
        for start in range(0, len(heard), size):
            numbers = heard[start : start + size]
            future = self._hearing.submit(self._hear, [group[n] for n in numbers])
            for row, n in enumerate(numbers):
                places[n] = (future, row)
        return [item[0] for item in group], places

    def _hear(self, batch: list[tuple]) -> Future:
        log_probs, frames = self._model.log_probs([features for _, _, features in batch])
        segments = [segment for _, segment, _ in batch]
        return self._decoding.submit(self._model.words, segments, log_probs, frames)

    def close(self) -> None:
        """Waits for what goes on; what has not begun is left out."""
        for executor in (self._hearing, self._decoding):
            executor.shutdown(cancel_futures=True)


def _finished(keys: list[Any], places: list[_Place]) -> Iterator[tuple[Any, list[Word]]]:
    for key, place in zip(keys, places, strict=True):
        yield key, place[0].result().result()[place[1]] if place is not None else []
