"""Packs a corpus split into shards on all cores, resumably, deterministically and atomically."""

import contextlib
import errno
import functools
import hashlib
import json
import math
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfasr.corpora.manifest import Selection, write_dropped
from tfasr.corpora.utterance import Rejection, Utterance
from tfasr.data.packing import Packing, content_hash, resume_key, write_part
from tfasr.data.shard_index import INDEX_FILE, MANIFEST_FILE, file_sha256, sealed
from tfasr.data.shards import FeatureSums
from tfasr.data.split_folder import (
    DROPPED_FILE,
    keep_only_plan,
    own_split_folder,
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
        on_progress: called with (utterances done, utterances in all) after every shard.

    Returns:
        The index.

    Raises:
        UsageError: if the split's folder holds files that are not tfasr's, or another process
            prepares it.
        RunError: if too many utterances are bad or the disk is full. Finished shards are kept.
    """
    folder = shard_dir / split
    with _room_in(folder), own_split_folder(folder):
        return _pack(selection, split, folder, packing, max_bad_fraction, num_workers, on_progress)


@contextlib.contextmanager
def _room_in(folder: Path) -> Iterator[None]:
    """Turns what a full disk raises into a RunError that says what to do."""
    try:
        yield
    except (OSError, tf.errors.ResourceExhaustedError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise RunError(
            f"{folder} must have room for the shards. The disk is full: {error}. Finished shards "
            "are kept: free some space and run tfasr prepare again; it resumes."
        ) from error


def _pack(
    selection: Selection,
    split: str,
    folder: Path,
    packing: Packing,
    max_bad_fraction: float,
    num_workers: int | None,
    on_progress: Callable[[int, int], None],
) -> dict[str, Any]:
    order = list(selection.kept)
    # Shuffled once, so that a shuffle buffer of a few shards meets all speakers.
    random.Random(split).shuffle(order)
    size = packing.shards.utterances_per_shard
    parts = [order[begin : begin + size] for begin in range(0, len(order), size)]
    keep_only_plan(folder, split, resume_key(packing, order), len(parts))
    write = functools.partial(_finish_part, folder, split, packing)
    done = 0
    sidecars = []
    with ThreadPoolExecutor(num_workers or os.cpu_count()) as pool:
        try:
            for part, sidecar in zip(parts, pool.map(write, range(len(parts)), parts), strict=True):
                sidecars.append(sidecar)
                done += len(part)
                on_progress(done, len(order))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    bad = selection.bad + [Rejection(**fault) for s in sidecars for fault in s["bad"]]
    write_dropped(folder / DROPPED_FILE, selection.too_long, bad)
    _refuse_too_many(bad, len(selection.kept) + len(selection.bad), max_bad_fraction, folder)
    parts_hashes = "".join(sidecar["records_sha256"] for sidecar in sidecars)
    content = hashlib.sha256((content_hash(packing, order) + parts_hashes).encode()).hexdigest()
    return _write_index(folder, split, content, packing, sidecars, selection, bad)


def _finish_part(
    folder: Path, split: str, packing: Packing, number: int, part: list[Utterance]
) -> dict[str, Any]:
    """Writes one shard and its sidecar, or returns the sidecar of an earlier call."""
    shard_path = folder / f"{shard_name(split, number)}.tfrecord"
    sidecar_path = shard_path.with_suffix(".json")
    sidecar = _finished_sidecar(shard_path, sidecar_path)
    if sidecar is None:
        position = number * packing.shards.utterances_per_shard
        sidecar = write_part(shard_path, packing, position, part)
        write_whole(sidecar_path, json.dumps(sidecar))
    return sidecar


def _finished_sidecar(shard_path: Path, sidecar_path: Path) -> dict[str, Any] | None:
    """Returns what lies beside a finished shard; None where either is missing or damaged."""
    try:
        sidecar = json.loads(sidecar_path.read_text(encoding="utf-8"))
        whole = sidecar["sha256"] == file_sha256(shard_path)
    except (FileNotFoundError, ValueError, TypeError, KeyError):  # 0.1.0 noted no hash
        return None
    return sidecar if whole else None


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
