"""Packs a corpus split into shards on all cores, resumably, deterministically and atomically."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson

from tfasr.corpora.manifests import fault
from tfasr.corpora.reading import header_readers
from tfasr.corpora.utterance import CorpusSplit
from tfasr.data.executors import (
    ShardPlan,
    completed,
    exported,
    finish_shard,
    finish_shard_elsewhere,
    room_in,
)
from tfasr.data.listing import Dropped, packing_order, select, utterance_of
from tfasr.data.manifest import PackedIndex
from tfasr.data.packing import Packing
from tfasr.data.rows import Rows
from tfasr.data.split_folder import (
    DROPPED_FILE,
    LISTING_FILE,
    keep_only_plan,
    own_split_folder,
    remove_unfinished,
    shard_name,
)
from tfasr.errors import UsageError
from tfasr.kit.process import usable_cores


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

    Shards that an interrupted call finished are kept; a different plan in the same folder makes all
    anew. Threads keep all cores busy, as decoding, features and compression release the
    interpreter's lock. Memory grows by some 60 bytes an utterance. ``max_duration_s`` is by default
    that of ``packing.shards``; ``max_bad_fraction`` is a share of all but the too long utterances.
    A given ``executor`` does the work instead of threads. ``on_listed`` gets the number of judged
    entries, now and then, and ``on_progress`` the utterances done and in all, after every shard.
    Errors are those of `tfasr.data.prepare_corpus.prepare`.
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
        kept = selection.kept
        if packing.copies is not None:
            kept = packing.copies.rows(kept, folder, lambda row: why_not(utterance_of(row)))
        num_kept = len(kept)
        order = packing_order(kept, split, packing, folder)
        size = packing.shards.utterances_per_shard
        shards = -(-num_kept // size)
        plan = ShardPlan(folder, split, packing, order.resume_key)
        try:
            keep_only_plan(folder, split, plan.key, shards)
        except UsageError:  # a folder that is refused is left as it was
            (folder / LISTING_FILE).unlink(missing_ok=True)
            raise
        if selection.is_of_another_alphabet():  # then nothing is packed in vain
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
        paths = (folder / f"{shard_name(split, number)}.json" for number in range(shards))
        packed = PackedIndex(folder, (orjson.loads(path.read_bytes()) for path in paths))
        dropped = Dropped(selection, packed.unpacked)
        manifest_sha256 = packed.write_manifest()
        dropped.write(folder / DROPPED_FILE)
        dropped.refuse_too_many(num_kept, max_bad_fraction, folder / DROPPED_FILE)
        content = packing.content()
        index = packed.write_index(split, content, order.content_hash, dropped, manifest_sha256)
        (folder / LISTING_FILE).unlink(missing_ok=True)
        return index


@contextlib.contextmanager
def _threads(count: int) -> Iterator[Executor]:
    with ThreadPoolExecutor(count) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
