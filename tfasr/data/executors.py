"""Has shards made by any `concurrent.futures.Executor`, such as a Dask cluster's."""

import asyncio
import concurrent.futures
import contextlib
import errno
import itertools
import json
import logging
import pickle
import platform
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
import tensorflow as tf

from tfasr._version import __version__
from tfasr.corpora.utterance import Utterance
from tfasr.data.manifest import file_sha256
from tfasr.data.packing import Packing, write_part
from tfasr.data.split_folder import plan_key, shard_name
from tfasr.errors import RunError, UsageError
from tfasr.kit.files import PARTIAL_SUFFIX, write_whole
from tfasr.kit.registry import load_plugin, loaded_plugins

# Enough for some hundred workers that take seconds a task, and little memory.
AT_ONCE = 512
_CONNECT_WITHIN_S = 10
_REMEDY = "Start one with dask scheduler, and workers with dask worker ADDRESS."
# Network file systems may show a new file or name a minute late.
_PLAN_SEEN_WITHIN_S = 60.0
_ASK_AGAIN_S = 0.5

log = logging.getLogger("tfasr")


def software() -> dict[str, str]:
    """Returns the versions of the software that decides a shard's bytes."""
    return {
        "tfasr": __version__,
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
        "soxr": soxr.__version__,
        "libsndfile": soundfile.__libsndfile_version__,
        "processor": platform.machine(),
    }


def exported(value: Any) -> bytes:
    """Returns a value that `imported` reads in another process, with the plug-ins it needs."""
    return pickle.dumps((loaded_plugins(), software(), pickle.dumps(value)))


def imported(content: bytes) -> Any:
    """Returns the value that `exported` pickled; RunError if the software here differs."""
    plugins, wanted, value = pickle.loads(content)
    here = software()
    other = [
        f"{name} {here[name]} for {wanted[name]}" for name in here if here[name] != wanted[name]
    ]
    if other:
        raise RunError(
            "Every worker must run the software of the process that prepares, or shards would "
            f"depend on who made them. The worker on {socket.gethostname()} has "
            f"{', '.join(other)}: install the same, and run tfasr prepare again; it resumes."
        )
    for plugin in plugins:
        load_plugin(plugin)
    return pickle.loads(value)


def completed(
    executor: Executor,
    function: Callable[..., Any],
    tasks: Iterable[tuple[Any, ...]],
    at_once: int = AT_ONCE,
) -> Iterator[Any]:
    """Yields what ``function(*task)`` returns for every task, as soon as each is done.

    At most ``at_once`` tasks are submitted and not yet done, which bounds the memory. When it ends
    early, tasks that have not begun are cancelled; none is waited for.
    """
    tasks = iter(tasks)
    running: set[Future] = set()
    try:
        while True:
            for task in itertools.islice(tasks, at_once - len(running)):
                running.add(_submitted(executor, function, task))
            if not running:
                return
            done, running = concurrent.futures.wait(running, return_when="FIRST_COMPLETED")
            while done:  # no name stays for a failed future: see _result
                yield _result(done.pop())
    finally:
        for future in running:
            future.cancel()


def _submitted(executor: Executor, function: Callable[..., Any], task: tuple[Any, ...]) -> Future:
    try:
        return executor.submit(function, *task)
    except RuntimeError as error:  # it was shut down, or is broken
        raise _lost(error) from error


def _result(future: Future) -> Any:
    try:
        return future.result()
    except (concurrent.futures.CancelledError, concurrent.futures.BrokenExecutor) as error:
        raise _lost(error) from error
    except Exception as error:
        # Dask's KilledWorker, for one: a task at which several workers died.
        if type(error).__module__.partition(".")[0] == "distributed":
            raise _lost(error) from error
        raise
    finally:
        # Its error knows this frame: a circle would keep what the task had open, such as a file
        # on a full disk.
        del future


def _lost(error: BaseException) -> RunError:
    cause = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}".removesuffix(": ")
    return RunError(
        f"The executor must do every task. It gave up with {cause}. Finished shards are kept: see "
        "why its workers ended (their memory, most often), and run tfasr prepare again; it resumes."
    )


async def _shake_hands(address: str) -> None:
    # Dask's client waits for a silent port's greeting without end.
    from distributed.comm import connect

    comm = await asyncio.wait_for(connect(address, _CONNECT_WITHIN_S), _CONNECT_WITHIN_S)
    comm.abort()


@contextlib.contextmanager
def cluster_executor(address: str) -> Iterator[Executor]:
    """Connects to a Dask cluster during the block; Dask gives a lost worker's tasks to others."""
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError(
            "--scheduler needs Dask distributed, which is not installed: "
            f"pip install 'tfasr[cluster]'. ({error})"
        ) from error
    logger = logging.getLogger("distributed")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # the error of a failed connection is enough
    try:
        with ThreadPoolExecutor(1) as thread:  # a notebook's thread has a loop of its own
            thread.submit(asyncio.run, _shake_hands(address)).result()
        client = Client(address, timeout=_CONNECT_WITHIN_S)
    except Exception as error:  # what another program answers can raise anything
        raise UsageError(
            "--scheduler must be the address of a Dask scheduler that runs, such as "
            f"tcp://host:8786. Received: {address}, where none answers "
            f"({type(error).__name__}). {_REMEDY}"
        ) from error
    finally:
        logger.setLevel(level)
    with client:
        if threads := client.nthreads():
            total = sum(threads.values())
            log.info("%s: %d workers, %d threads.", address, len(threads), total)
        else:
            log.warning("%s has no workers: the shards wait for one. %s", address, _REMEDY)
        yield client.get_executor(pure=False)


@dataclass(frozen=True)
class ShardPlan:
    """What the tasks of one split have in common."""

    folder: Path  # the split's, absolute
    split: str  # begins the shards' names
    packing: Packing
    key: str  # of the folder's plan; a task of an older plan is refused


def finish_shard_elsewhere(plan: bytes, number: int, part: Sequence[Utterance]) -> dict[str, Any]:
    """`finish_shard` on another host; RunError if it lacks the folder, audio or software."""
    shard_plan: ShardPlan = imported(plan)
    _check_seen(shard_plan, part)
    with room_in(shard_plan.folder):
        return finish_shard(shard_plan, number, part, unique=f"-{uuid.uuid4().hex[:16]}")


def finish_shard(
    plan: ShardPlan, number: int, part: Sequence[Utterance], unique: str = ""
) -> dict[str, Any]:
    """Writes one shard and its sidecar, or returns the sidecar of an earlier call."""
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
    """Returns a finished shard's sidecar; None if either is missing or damaged."""
    try:
        sidecar = json.loads(sidecar_path.read_text(encoding="utf-8"))
        return sidecar if sidecar["sha256"] == file_sha256(shard_path) else None
    except (FileNotFoundError, ValueError, TypeError, KeyError):  # 0.1.0 noted no hash
        return None


@contextlib.contextmanager
def room_in(folder: Path) -> Iterator[None]:
    """Turns what a full disk raises into a RunError with a remedy."""
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
    worker = f"The worker on {socket.gethostname()}"
    again = "mount it there, and run tfasr prepare again; it resumes."
    deadline = time.monotonic() + _PLAN_SEEN_WITHIN_S
    while (key := plan_key(plan.folder)) != plan.key:
        if time.monotonic() > deadline:
            cause = "does not see it" if key is None else "finds another plan in it"
            seen = f"Every worker must see {plan.folder} under this path."
            raise RunError(f"{seen} {worker} {cause}: {again}")
        time.sleep(_ASK_AGAIN_S)
    unseen = [u.audio_path for u in part if not u.audio_path.exists()]
    if unseen:
        seen = "Every worker must see the corpus under the same path."
        raise RunError(f"{seen} {worker} has no {unseen[0]}: {again}")
