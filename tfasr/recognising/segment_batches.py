"""Segments of many recordings through the model in batches of similar length."""

import dataclasses
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Full, Queue
from typing import Any

import numpy as np

from tfasr.recognising.pauses import Segment
from tfasr.recognising.results import Word
from tfasr.recognising.segment_model import SegmentModel

# Batches' worth of segments among which those of similar length are found.
_BATCHES_SORTED = 4
_READ_AHEAD = 32
_END = object()
_NOTHING = np.zeros(0, np.float32)
# A segment's batch at the decoder, and its row there; None of one too short to be heard.
_Place = tuple[Future, int] | None


def recognised_in_batches(
    model: SegmentModel, segments: Iterable[tuple[Any, Segment]], batch_size: int
) -> Iterator[tuple[Any, list[Word]]]:
    """Yields each segment's words, in the order of the segments.

    Reading and features run in a thread of their own, decoding in another, while batches go
    through the model; at most some hundred segments are in memory.

    Args:
        model: hears and decodes them.
        segments: each with a key that comes back with its words.
        batch_size: segments in one batch.

    Raises:
        Exception: whatever ``segments`` raises, once what came before it has been yielded.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="decoder") as decoder:
        waiting: list[tuple[list[Any], list[_Place]]] = []
        for group in _groups(_read_ahead(model, segments), batch_size * _BATCHES_SORTED):
            waiting.append(_started(model, group, batch_size, decoder))
            if len(waiting) > 1:  # while this group is decoded, the next goes through the model
                yield from _finished(*waiting.pop(0))
        for keys, futures in waiting:
            yield from _finished(keys, futures)


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


def _groups(items: Iterator[tuple], size: int) -> Iterator[list[tuple]]:
    """Yields lists of up to ``size`` items; the last before an error is still yielded."""
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
            group = []
    if group:
        yield group
    if failure is not None:
        raise failure


def _started(
    model: SegmentModel, group: list[tuple], batch_size: int, decoder: ThreadPoolExecutor
) -> tuple[list[Any], list[_Place]]:
    """Runs a group's batches, hands them to the decoder, and says where the words will be."""
    spec = model.spec
    heard = [n for n, item in enumerate(group) if spec.output_frames(len(item[2]))]
    heard.sort(key=lambda n: len(group[n][2]))
    places: list[_Place] = [None] * len(group)
    for start in range(0, len(heard), batch_size):
        numbers = heard[start : start + batch_size]
        log_probs, frames = model.log_probs([group[n][2] for n in numbers])
        segments = [group[n][1] for n in numbers]
        future = decoder.submit(model.words, segments, log_probs, frames)
        for row, n in enumerate(numbers):
            places[n] = (future, row)
    return [item[0] for item in group], places


def _finished(keys: list[Any], places: list[_Place]) -> Iterator[tuple[Any, list[Word]]]:
    for key, place in zip(keys, places, strict=True):
        yield key, place[0].result()[place[1]] if place is not None else []
