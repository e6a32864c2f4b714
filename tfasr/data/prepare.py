"""Packs a corpus split into shards on all cores, resumably, deterministically and atomically."""

import contextlib
import functools
import hashlib
import json
import math
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tfasr.cores import usable_cores
from tfasr.corpora.manifest import Selection, write_dropped
from tfasr.corpora.utterance import Rejection, Utterance
from tfasr.data.executors import AT_ONCE, completed
from tfasr.data.packing import Packing, content_hash, resume_key
from tfasr.data.shard_index import INDEX_FILE, MANIFEST_FILE, sealed
from tfasr.data.shard_task import (
    ShardPlan,
    exported_plan,
    finish_shard,
    finish_shard_elsewhere,
    room_in,
)
from tfasr.data.shards import FeatureSums
from tfasr.data.split_folder import (
    DROPPED_FILE,
    keep_only_plan,
    own_split_folder,
    remove_unfinished,
    shard_name,
)
from tfasr.durable import write_whole
from tfasr.errors import RunError

_LISTED = 20


def pack_split(
    selection: Selection,
    split: str,
    shard_dir: Path,
    packing: Packing,
    *,
    max_bad_fraction: float = 0.01,
    num_workers: int | None = None,
    executor: Executor | None = None,
    on_progress: Callable[[int, int], None] = lambda utterances, total: None,
) -> dict[str, Any]:
    """Writes a split's shards, manifest, list of dropped utterances and, last, its index.

    Shards that an interrupted call finished are kept; a different plan in the same folder makes
    all anew. Threads suffice for all cores: decoding, features and compression leave the
    interpreter's lock.

    Args:
        selection: what to pack, and what was already left out.
        split: names the folder and the files.
        shard_dir: parent of the split's folder.
        packing: how.
        max_bad_fraction: largest share of bad utterances among all but the too long ones.
        num_workers: threads; all cores by default.
        executor: does the work instead of threads of this process; its workers must see the
            corpus and ``shard_dir`` under the same paths.
        on_progress: called with (utterances done, utterances in all) after every shard.

    Returns:
        The index.

    Raises:
        UsageError: if the split's folder holds files that are not tfasr's, or another process
            prepares it.
        RunError: if too many utterances are bad, the disk is full, or the executor or one of its
            workers cannot do the work. Finished shards are kept.
    """
    folder = (shard_dir / split).absolute()
    with room_in(folder), own_split_folder(folder):
        pack = functools.partial(_pack, selection, split, folder, packing, max_bad_fraction)
        if executor is not None:
            return pack(executor, on_progress)
        with _threads(num_workers or usable_cores()) as pool:
            return pack(pool, on_progress)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[Executor]:
    """A pool that waits for what its threads are writing, and for nothing else."""
    with ThreadPoolExecutor(count) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _pack(
    selection: Selection,
    split: str,
    folder: Path,
    packing: Packing,
    max_bad_fraction: float,
    executor: Executor,
    on_progress: Callable[[int, int], None],
) -> dict[str, Any]:
    order = list(selection.kept)
    # Shuffled once, so that a shuffle buffer of a few shards meets all speakers.
    random.Random(split).shuffle(order)
    size = packing.shards.utterances_per_shard
    parts = [order[begin : begin + size] for begin in range(0, len(order), size)]
    plan = ShardPlan(folder, split, packing, resume_key(packing, order))
    keep_only_plan(folder, split, plan.key, len(parts))
    sidecars = {}
    done = 0
    for sidecar in _finished(executor, plan, parts):
        sidecars[sidecar["file"]] = sidecar
        done += len(sidecar["utterances"]) + len(sidecar["bad"])
        on_progress(done, len(order))
    remove_unfinished(folder, split)
    sidecars = [sidecars[f"{shard_name(split, number)}.tfrecord"] for number in range(len(parts))]
    bad = selection.bad + [Rejection(**fault) for s in sidecars for fault in s["bad"]]
    write_dropped(folder / DROPPED_FILE, selection.too_long, bad)
    _refuse_too_many(bad, len(selection.kept) + len(selection.bad), max_bad_fraction, folder)
    parts_hashes = "".join(sidecar["records_sha256"] for sidecar in sidecars)
    content = hashlib.sha256((content_hash(packing, order) + parts_hashes).encode()).hexdigest()
    return _write_index(folder, split, content, packing, sidecars, selection, bad)


def _finished(
    executor: Executor, plan: ShardPlan, parts: list[list[Utterance]]
) -> Iterator[dict[str, Any]]:
    """Yields the shards' sidecars as they are done."""
    if isinstance(executor, ThreadPoolExecutor):
        work = functools.partial(finish_shard, plan)
    else:
        work = functools.partial(finish_shard_elsewhere, exported_plan(plan))
    yield from completed(executor, work, enumerate(parts), AT_ONCE)


def _refuse_too_many(
    bad: list[Rejection], total: int, max_bad_fraction: float, folder: Path
) -> None:
    if not total:
        raise RunError(f"{folder} would be empty: no utterance was found, or all are too long.")
    # Divided, because 0.29 * 100 is less than 29.
    if len(bad) / total <= max_bad_fraction and len(bad) < total:
        return
    listed = "\n".join(f"  {r.id}: {r.reason} ({r.detail})" for r in bad[:_LISTED])
    more = f"\n  ... and {len(bad) - _LISTED} more" if len(bad) > _LISTED else ""
    needed = math.ceil(1000 * len(bad) / total) / 1000
    remedy = f"Mend them, or accept the loss with --max_bad_fraction {needed:g}"
    if len(bad) == total:
        remedy = "Mend them: a split must hold at least one good utterance"
    raise RunError(
        f"At most {max_bad_fraction:.2%} of the utterances may be bad. Received: {len(bad)} of "
        f"{total} ({len(bad) / total:.2%}):\n{listed}{more}\n"
        f"All are listed in {folder / DROPPED_FILE}. {remedy}; finished shards are kept."
    )


def _write_index(
    folder: Path,
    split: str,
    content: str,
    packing: Packing,
    sidecars: list[dict[str, Any]],
    selection: Selection,
    bad: list[Rejection],
) -> dict[str, Any]:
    utterances = [utterance for sidecar in sidecars for utterance in sidecar["utterances"]]
    index = {
        "split": split,
        "content_hash": content,
        **packing.content(),
        "utterances": len(utterances),
        "duration_s": round(sum(u["duration_s"] for u in utterances), 3),
        "frames": sum(u["frames"] for u in utterances),
        "too_long": len(selection.too_long),
        "bad": len(bad),
        "feature_sums": FeatureSums.merged([s["feature_sums"] for s in sidecars]).to_json(),
        "shards": [
            {
                "file": s["file"],
                "bytes": s["bytes"],
                "utterances": len(s["utterances"]),
                "sha256": s["sha256"],
            }
            for s in sidecars
        ],
    }
    lines = (json.dumps(utterance, ensure_ascii=False) + "\n" for utterance in utterances)
    manifest = "".join(lines).encode()
    index = sealed({**index, "manifest_sha256": hashlib.sha256(manifest).hexdigest()})
    write_whole(folder / MANIFEST_FILE, manifest)
    write_whole(folder / INDEX_FILE, json.dumps(index, indent=1) + "\n")
    return index
