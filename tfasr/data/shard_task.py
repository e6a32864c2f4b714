"""The work on one shard: in this process, or wherever an executor has it done.

Elsewhere, a task may be done twice at once: a cluster gives a shard to another worker when it has
lost sight of one that still works. So each writes under a name of its own and then renames; the
content is the same, whoever comes last.
"""

import contextlib
import errno
import json
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfasr.corpora.utterance import Utterance
from tfasr.data.elsewhere import imported
from tfasr.data.packing import Packing, write_part
from tfasr.data.shard_index import file_sha256
from tfasr.data.split_folder import plan_key, shard_name
from tfasr.durable import PARTIAL_SUFFIX, write_whole
from tfasr.errors import RunError

# Network file systems may show a new file or name a minute late.
_PLAN_SEEN_WITHIN_S = 60.0
_ASK_AGAIN_S = 0.5


@dataclass(frozen=True)
class ShardPlan:
    """What the tasks of one split have in common.

    Attributes:
        folder: the split's, absolute.
        split: begins the shards' names.
        packing: what decides the shards' bytes.
        key: of the folder's plan; a task of an older plan is refused.
    """

    folder: Path
    split: str
    packing: Packing
    key: str


def finish_shard(plan: ShardPlan, number: int, part: Sequence[Utterance]) -> dict[str, Any]:
    """Writes one shard and its sidecar, or returns the sidecar of an earlier call."""
    return _finish(plan, number, part, unique="")


def finish_shard_elsewhere(plan: bytes, number: int, part: Sequence[Utterance]) -> dict[str, Any]:
    """Does `finish_shard` in another process, perhaps on another host.

    Raises:
        RunError: if this worker does not see the folder or the audio, runs other software, has no
            room, or works for a plan that was replaced.
        UsageError: if a plug-in is not here.
    """
    shard_plan: ShardPlan = imported(plan)
    _check_seen(shard_plan, part)
    with room_in(shard_plan.folder):
        return _finish(shard_plan, number, part, unique=f"-{uuid.uuid4().hex[:16]}")


def _finish(plan: ShardPlan, number: int, part: Sequence[Utterance], unique: str) -> dict[str, Any]:
    shard_path = plan.folder / f"{shard_name(plan.split, number)}.tfrecord"
    sidecar_path = shard_path.with_suffix(".json")
    sidecar = finished_sidecar(shard_path, sidecar_path)
    if sidecar is None:
        position = number * plan.packing.shards.utterances_per_shard
        partial = shard_path.with_suffix(PARTIAL_SUFFIX + unique)
        sidecar = write_part(shard_path, plan.packing, position, part, partial)
        partial = sidecar_path.with_name(sidecar_path.name + PARTIAL_SUFFIX + unique)
        write_whole(sidecar_path, json.dumps(sidecar), partial)
    return sidecar


def finished_sidecar(shard_path: Path, sidecar_path: Path) -> dict[str, Any] | None:
    """Returns what lies beside a finished shard; None where either is missing or damaged."""
    try:
        sidecar = json.loads(sidecar_path.read_text(encoding="utf-8"))
        whole = sidecar["sha256"] == file_sha256(shard_path)
    except (FileNotFoundError, ValueError, TypeError, KeyError):  # 0.1.0 noted no hash
        return None
    return sidecar if whole else None


@contextlib.contextmanager
def room_in(folder: Path) -> Iterator[None]:
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


def _check_seen(plan: ShardPlan, part: Sequence[Utterance]) -> None:
    # Absent audio would pass for a fault of the corpus.
    host = socket.gethostname()
    deadline = time.monotonic() + _PLAN_SEEN_WITHIN_S
    while (found := plan_key(plan.folder)) != plan.key:
        if time.monotonic() > deadline:
            cause = "does not see it" if found is None else "finds another plan in it"
            raise RunError(
                f"Every worker must see {plan.folder} under this path. The worker on {host} "
                f"{cause}: mount it there, and run tfasr prepare again; it resumes."
            )
        time.sleep(_ASK_AGAIN_S)
    unseen = [u.audio_path for u in part if not u.audio_path.exists()]
    if unseen:
        raise RunError(
            f"Every worker must see the corpus under the same path. The worker on {host} has no "
            f"{unseen[0]}: mount it there, and run tfasr prepare again; it resumes."
        )
