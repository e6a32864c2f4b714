"""Reserves a split's folder and packs its shards with any executor.

This is the work that `tfasr.data.prepare` orders: `finish_shard` reads the audio of
some utterances, computes features and writes one shard. Threads here, processes, or
workers on other hosts do it; shards are the same bytes in all three.

``plan.json`` is written first and has the number of shards, from which the names of all
files follow. No other files are ever overwritten or removed.
"""

import concurrent.futures
import contextlib
import errno
import functools
import hashlib
import itertools
import json
import logging
import pickle
import platform
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
import tensorflow as tf

from tfasr._version import __version__
from tfasr.alphabet import Alphabet
from tfasr.corpora.manifests import TOO_LONG, ctc_frames_needed, length_fault
from tfasr.corpora.utterance import Rejection, Utterance
from tfasr.data.audio import OTHER_LENGTH, Recorded, read_segments
from tfasr.data.augmentation import Copies
from tfasr.data.features import FeatureConfig, compute_features
from tfasr.data.manifest import (
    COLUMNS_FILE,
    FORMAT,
    INDEX_FILE,
    MANIFEST_FILE,
    ShardedUtterance,
    file_sha256,
)
from tfasr.data.shards import FeatureSums, ShardConfig, encode_record, write_shard
from tfasr.errors import RunError, UsageError
from tfasr.kit.config import to_json
from tfasr.kit.files import (
    PARTIAL_SUFFIX,
    check_owned,
    locked,
    make_folder,
    sync_folder,
    write_whole,
)
from tfasr.kit.registry import load_plugin, loaded_plugins
from tfasr.kit.scheduler import Tls, scheduler_client
from tfasr.models.model import RecogniserConfig, frame_geometry, output_frames

PLAN_FILE = "plan.json"
DROPPED_FILE = "dropped.json"
# While a corpus is listed: what its audio headers state.
LISTING_FILE = "prepare-listing.jsonl"
_LOCK_FILE = "prepare.lock"
# Files that an interrupted call may leave in a folder without a plan.
_BEFORE_THE_PLAN = (_LOCK_FILE, LISTING_FILE, LISTING_FILE + PARTIAL_SUFFIX)
# Of a shard and its sidecar, complete or being written.
_SUFFIXES = (".tfrecord", ".json", PARTIAL_SUFFIX, ".json" + PARTIAL_SUFFIX)
_OF_A_SPLIT = (INDEX_FILE, MANIFEST_FILE, COLUMNS_FILE, DROPPED_FILE)
_LISTED = 8  # files in a message


def shard_name(split: str, number: int) -> str:
    """Returns the name of a shard's files without their suffix, such as "train-00007"."""
    return f"{split}-{number:05d}"


def check_split_folder(folder: Path) -> None:
    """Raises UsageError unless a folder is new, empty, or made by ``tfasr prepare``."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    # What an interrupted call leaves doesn't make a folder someone else's.
    names -= {*_BEFORE_THE_PLAN, PLAN_FILE + PARTIAL_SUFFIX}
    flag = "A split's folder in --shard_dir"
    claim = f"{PLAN_FILE} of tfasr prepare"
    check_owned(folder, flag, claim, names, owned=_plan(folder) is not None)


@contextlib.contextmanager
def own_split_folder(folder: Path) -> Iterator[None]:
    """Reserves a split's folder during the block.

    Raises:
        UsageError: if another process prepares the split, or the folder isn't tfasr's.
    """
    check_split_folder(folder)
    make_folder(folder)
    held = (
        f"Only one process may prepare a split. {folder} is being prepared by another one: wait "
        "for it, or choose another --shard_dir."
    )
    with locked(folder / _LOCK_FILE, held):
        check_split_folder(folder)
        yield


def keep_only_plan(folder: Path, split: str, key: str, shards: int) -> None:
    """Writes the plan, after removing what an older one made.

    The index goes in any case, as the split is incomplete until the new one is written.
    Shards are kept if the plan is the same, so that an interrupted call resumes.

    Args:
        folder: the split's.
        split: its name.
        key: a hash of everything that decides the shards' bytes.
        shards: how many there will be.

    Raises:
        UsageError: if the folder has files with a shard's name that no plan made.
    """
    plan = _plan(folder)
    if plan is not None:
        remove_unfinished(folder, split)

    names = [path.name for path in folder.iterdir()]
    listed = []
    if plan is not None:
        listed = [name for name in names if _is_shards(name, split, plan[1])]

    needed = {name for name in names if _is_shards(name, split, shards)}
    if plan is None:
        needed.update(name for name in names if name in _OF_A_SPLIT)
    if foreign := sorted(needed.difference(listed)):
        raise UsageError(
            f"{folder} must not hold files with a shard's name that aren't tfasr's. Received: "
            f"{', '.join(foreign[:_LISTED])}. Move them away."
        )

    (folder / INDEX_FILE).unlink(missing_ok=True)
    # Otherwise, after a power loss the old index may be there, with new shards.
    sync_folder(folder)
    if plan is None or plan[0] != key:
        for name in listed:
            (folder / name).unlink(missing_ok=True)

    write_whole(folder / PLAN_FILE, json.dumps({"key": key, "shards": shards}) + "\n")


def remove_unfinished(folder: Path, split: str) -> None:
    """Removes the files of killed workers, whose names end in 16 hexadecimal digits.

    Call it only while the folder is reserved and no worker writes.
    """
    name = rf"{re.escape(split)}-\d{{5,}}(\.json)?{re.escape(PARTIAL_SUFFIX)}-[0-9a-f]{{16}}"
    ours = re.compile(name)

    for path in folder.iterdir():
        if ours.fullmatch(path.name):
            path.unlink(missing_ok=True)


def plan_key(folder: Path) -> str | None:
    """Returns the key of a folder's plan; None without a plan."""
    plan = _plan(folder)
    return None if plan is None else plan[0]


def _is_shards(name: str, split: str, shards: int) -> bool:
    """Whether a file's name is that of one of the first ``shards`` shards of a split."""
    match = re.fullmatch(rf"{re.escape(split)}-(\d{{5,}})(\..+)", name)
    if match is None or match[2] not in _SUFFIXES:
        return False

    number = int(match[1])

    return number < shards and name.startswith(shard_name(split, number) + ".")


def _plan(folder: Path) -> tuple[str, int] | None:
    """Returns the plan's key and number of shards; None without a plan."""
    try:
        text = (folder / PLAN_FILE).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return None

    with contextlib.suppress(ValueError, TypeError, KeyError):
        plan = json.loads(text)
        if isinstance(plan["key"], str) and isinstance(plan["shards"], int):
            return plan["key"], plan["shards"]

    return None


@dataclass(frozen=True)
class Packing:
    """All settings that decide the bytes of a split's shards.

    The same for all splits of a call, except for the copies. It is pickled for workers
    on other hosts.
    """

    alphabet: Alphabet
    features: FeatureConfig
    shards: ShardConfig
    model: RecogniserConfig  # its output frames decide which utterances are too short
    audio_reader: str = "soundfile"
    copies: Copies | None = None  # noisy copies, and copies at other speeds

    def content(self) -> dict[str, Any]:
        """Returns these settings as JSON, for the index and the plan's key.

        The normalisation is left out, because shards don't depend on it.
        """
        features = to_json(self.features)
        del features["normalisation"]
        # Left out, so that hashes stay those of splits prepared before there
        # was a choice.
        if features["spectrum"] == "power":
            del features["spectrum"]

        content = {
            "format": FORMAT,
            "alphabet": self.alphabet.to_json(),
            "features": features,
            "packing": to_json(self.shards),
            "conv": frame_geometry(self.model),
            "audio_reader": self.audio_reader,
        }
        if self.copies is not None:
            content["noise"] = self.copies.content()

        return content

    def output_frames(self, duration_s: float) -> int:
        """Returns the output frames of so many seconds; below 1 if they are too short."""
        samples = round(duration_s * self.features.sample_rate_hz)
        frames = self.features.num_frames(samples)
        return output_frames(self.model, frames)


def write_part(
    shard_path: Path,
    packing: Packing,
    first_position: int,
    part: Sequence[Utterance],
    partial: Path | None = None,
) -> dict[str, Any]:
    """Writes one shard and returns its sidecar.

    Args:
        shard_path: where the shard goes once it is complete.
        packing: the settings.
        first_position: of the shard's first utterance in the split. Positions are those
            of the plan, so bad utterances leave gaps.
        part: the shard's utterances, in their order.
        partial: the name until then; None for the usual one. Workers that may do the
            same task at once need different names.

    Returns:
        JSON of the shard's size and hashes, feature sums, utterances, and of the
        utterances that could not be packed (``bad``) or are odd (``remarks``).
    """
    records = []
    utterances = []
    bad = []
    remarks = []
    sums = FeatureSums()
    recordings = _Recordings(packing, part)

    for number, utterance in enumerate(part):
        position = first_position + number
        recorded = recordings.read(number)
        packed = _pack_utterance(packing, utterance, position, recorded)
        if isinstance(packed, Rejection):
            bad.append(vars(packed))
            continue

        remarks += [[utterance.id, kind, detail] for kind, detail in recorded.remarks]
        del recorded  # so that its memory is used for the next one
        features, labels, utterance_sums, listed = packed
        records.append(encode_record(features, labels, position, listed.duration_s))
        sums.merge(utterance_sums)
        # Its fields are plain values, so that asdict's deep copies would only cost
        # time.
        utterances.append(dict(vars(listed)))

    write_shard(shard_path, records, packing.shards.compression, partial)

    return {
        "file": shard_path.name,
        "bytes": shard_path.stat().st_size,
        "sha256": file_sha256(shard_path),
        "records_sha256": hashlib.sha256(b"".join(records)).hexdigest(),
        "feature_sums": sums.to_json(),
        "utterances": utterances,
        "bad": bad,
        "remarks": remarks,
    }


class _Recordings:
    """Reads a shard's utterances.

    All segments of a file are read at once, so that it is opened and decoded only once.
    An utterance's samples are forgotten when they have been read.
    """

    def __init__(self, packing: Packing, part: Sequence[Utterance]):
        self._packing = packing
        self._part = part
        self._read: dict[int, Recorded | ValueError | OSError] = {}
        self._of_file: dict[Path, list[int]] = {}

        for number, utterance in enumerate(part):
            if utterance.segment is not None:
                self._of_file.setdefault(utterance.audio_path, []).append(number)

    def read(self, number: int) -> Recorded | ValueError | OSError:
        """Returns the recording of the utterance with this number, or the error."""
        if number not in self._read:
            path = self._part[number].audio_path
            numbers = self._of_file.get(path, [number])
            if self._part[number].segment is None:
                numbers = [number]

            segments = [self._part[other].segment for other in numbers]
            rate_hz = self._packing.features.sample_rate_hz
            results: list[Recorded | ValueError | OSError]
            try:
                results = read_segments(
                    path,
                    segments,
                    rate_hz,
                    self._packing.audio_reader,
                )
            except OSError as error:
                results = [error] * len(numbers)

            self._read.update(zip(numbers, results, strict=True))

        return self._read.pop(number)


def _pack_utterance(
    packing: Packing,
    utterance: Utterance,
    position: int,
    recorded: Recorded | ValueError | OSError,
) -> Rejection | tuple[np.ndarray, list[int], FeatureSums, ShardedUtterance]:
    """Computes what a shard and the manifest say of an utterance.

    Returns:
        features ``(frames, num_features)`` in the shards' type, labels, sums of the
        features and the manifest's line; or why the utterance can't be packed.
    """
    if not isinstance(recorded, Recorded):
        return Rejection(utterance.id, "unreadable audio", str(recorded))

    rate_hz = packing.features.sample_rate_hz
    samples = recorded.samples
    if packing.copies is not None:
        try:
            samples = packing.copies.changed(recorded.samples, utterance.id, rate_hz)
        except (ValueError, OSError) as error:
            return Rejection(utterance.id, "unreadable audio", str(error))

    # Of the copy, which plays at its own speed.
    duration_s = len(samples) / rate_hz
    longest_s = packing.shards.max_duration_s
    other_length = dict(recorded.remarks).get(OTHER_LENGTH)
    if other_length and 0 < longest_s < duration_s:
        detail = f"{duration_s:.2f} s > {longest_s:.2f} s: {other_length}"
        return Rejection(utterance.id, TOO_LONG, detail)

    # Checked again, because the duration in the header may differ from that of the
    # samples.
    fault = length_fault(utterance, packing.alphabet, packing.output_frames(duration_s))
    if fault is not None:
        return fault

    features = _features(packing, samples)
    sums = FeatureSums()
    sums.add(features)
    if not sums.finite:
        loudest = float(np.abs(samples).max())
        detail = (
            f"{utterance.audio_path}: samples up to {loudest:g}, where full scale is 1"
        )
        return Rejection(utterance.id, "features that are not finite numbers", detail)

    labels = packing.alphabet.encode(utterance.text)
    listed = ShardedUtterance(
        position=position,
        id=utterance.id,
        text=utterance.text,
        speaker=utterance.speaker,
        duration_s=round(duration_s, 4),
        frames=len(features),
        frames_needed=ctc_frames_needed(labels),
        # A copy has its recording's, for `overlap`.
        content=audio_hash(recorded.samples),
        recording=_recording_name(utterance),
    )

    return features, labels, sums, listed


def _recording_name(utterance: Utterance) -> str:
    """Returns a name that segments of one recording share, in all splits.

    "" if the utterance is a whole recording, whose audio hash says the same.
    """
    if utterance.segment is None or utterance.segment.is_whole:
        return ""

    path = utterance.audio_path
    return f"{path.parent.name}/{path.stem}"


def audio_hash(samples: np.ndarray) -> str:
    """Returns 16 hexadecimal digits of a hash of audio, float32 ``(samples,)``.

    Two utterances with the same hash have the same audio. It is that of 16-bit samples,
    so that it depends neither on the features nor on the file's lossless format.
    """
    scaled = samples * np.float32(32767)
    # In place, as arrays of this size are slow to allocate.
    np.rint(scaled, out=scaled)
    np.clip(scaled, -32767, 32767, out=scaled)

    return hashlib.sha256(scaled.astype("<i2")).hexdigest()[:16]


def _features(packing: Packing, samples: np.ndarray) -> np.ndarray:
    """Computes features ``(frames, num_features)`` in the type in which shards store them."""
    features = _feature_function(packing.features)(samples).numpy()
    # By NumPy, because on processors without half precision TensorFlow's oneDNN logs an
    # error.
    with np.errstate(over="ignore"):  # values too large for float16 become infinite
        return features.astype(packing.shards.dtype)


@functools.cache
def _feature_function(config: FeatureConfig) -> Callable[[np.ndarray], tf.Tensor]:
    """Returns a function that is traced once for all lengths, in each process."""
    return tf.function(
        lambda samples: compute_features(samples, config),
        input_signature=[tf.TensorSpec([None], tf.float32)],
    )


# Pending tasks: enough to keep some hundred workers busy, and few enough to fit into
# memory.
AT_ONCE = 512
_REMEDY = "Start workers with dask worker ADDRESS."
# On network file systems, other hosts may see a new file up to a minute late.
_PLAN_SEEN_WITHIN_S = 60.0
# Between two looks for the plan.
_ASK_AGAIN_S = 0.5

log = logging.getLogger("tfasr")


def software() -> dict[str, str]:
    """Returns the versions of the software on which a shard's bytes depend.

    Another processor architecture also rounds features differently.
    """
    return {
        "tfasr": __version__,
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
        "soxr": soxr.__version__,
        "libsndfile": soundfile.__libsndfile_version__,
        "processor": platform.machine(),
    }


def exported(value: Any) -> bytes:
    """Pickles a value for `imported` in another process.

    Plug-ins go along, because the value may be of a class that they register, and so do
    software versions, which must be the same there.
    """
    return pickle.dumps((loaded_plugins(), software(), pickle.dumps(value)))


def imported(content: bytes) -> Any:
    """Returns the value that `exported` pickled, after loading its plug-ins.

    Raises:
        RunError: if the software here differs.
    """
    plugins, wanted, value = pickle.loads(content)
    here = software()
    other = [
        f"{name} {here[name]} for {wanted[name]}"
        for name in here
        if here[name] != wanted[name]
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
    """Yields the result of ``function(*task)`` for every task, as soon as it is done.

    Args:
        executor: does the tasks.
        function: must be picklable for processes and other hosts.
        tasks: their arguments, taken as they are needed.
        at_once: the most pending tasks. If the caller stops early, they are cancelled.

    Raises:
        RunError: if the executor itself fails. An error of a task is raised as it is.
    """
    tasks = iter(tasks)
    running: set[Future] = set()
    try:
        while True:
            for task in itertools.islice(tasks, at_once - len(running)):
                try:
                    running.add(executor.submit(function, *task))
                except RuntimeError as error:
                    # The executor was shut down, or is broken.
                    raise _lost(error) from error

            if not running:
                return

            done, running = concurrent.futures.wait(
                running, return_when="FIRST_COMPLETED"
            )
            # Not a for loop, which would keep a reference to a failed future.
            while done:
                yield _result(done.pop())
    finally:
        for future in running:
            future.cancel()


def _result(future: Future) -> Any:
    """Returns a task's result; RunError instead of the errors by which executors give up."""
    try:
        return future.result()
    except (
        concurrent.futures.CancelledError,
        concurrent.futures.BrokenExecutor,
    ) as error:
        raise _lost(error) from error
    except Exception as error:
        # For example Dask's KilledWorker, if several workers died during the same task.
        if type(error).__module__.partition(".")[0] == "distributed":
            raise _lost(error) from error

        raise
    finally:
        # The future's error refers to this frame. A reference back would make a cycle
        # that keeps the task's files open, even on a full disk.
        del future


def _lost(error: BaseException) -> RunError:
    """Returns the error for an executor that can't go on."""
    message = " ".join(str(error).split())[:400]
    cause = f"{type(error).__name__}: {message}".removesuffix(": ")
    return RunError(
        f"The executor must do every task. It gave up with {cause}. Finished shards are kept. Find "
        "out why its workers ended (often too little memory), and run tfasr prepare again; it "
        "resumes."
    )


@contextlib.contextmanager
def cluster_executor(address: str, tls: Tls) -> Iterator[Executor]:
    """Connects to a Dask cluster during the block.

    Dask gives a lost worker's tasks to others. Without workers, the tasks wait.
    """
    with scheduler_client(address, tls) as client:
        if threads := client.nthreads():
            total = sum(threads.values())
            log.info("%s: %d workers, %d threads.", address, len(threads), total)
        else:
            log.warning(
                "%s has no workers: the shards wait for one. %s", address, _REMEDY
            )

        yield client.get_executor(pure=False)


@dataclass(frozen=True)
class ShardPlan:
    """What a worker must know to make any shard of a split."""

    folder: Path  # of the split, absolute
    split: str  # the shards' names begin with it
    packing: Packing
    key: str  # of the folder's plan; tasks of an older plan raise an error


def finish_shard_elsewhere(
    plan: bytes,
    number: int,
    part: Sequence[Utterance],
) -> dict[str, Any]:
    """Does what `finish_shard` does, on another host.

    Args:
        plan: a `ShardPlan` by `exported`.
        number: of the shard.
        part: its utterances.

    Raises:
        RunError: if the host lacks the folder, the audio or the same software.
    """
    shard_plan: ShardPlan = imported(plan)
    _check_seen(shard_plan, part)

    with room_in(shard_plan.folder):
        return finish_shard(
            shard_plan,
            number,
            part,
            unique=f"-{uuid.uuid4().hex[:16]}",
        )


def finish_shard(
    plan: ShardPlan,
    number: int,
    part: Sequence[Utterance],
    unique: str = "",
) -> dict[str, Any]:
    """Writes a shard and its sidecar, unless an earlier call has; returns the sidecar.

    ``unique`` is a suffix of the files while they are written. If two hosts do the same
    task, as Dask allows, they don't write into one file; the one that ends last wins.
    """
    shard_path = plan.folder / f"{shard_name(plan.split, number)}.tfrecord"
    sidecar_path = shard_path.with_suffix(".json")

    # Both are made anew if one is missing or damaged.
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError, KeyError):
        sidecar = json.loads(sidecar_path.read_text(encoding="utf-8"))
        if sidecar["sha256"] == file_sha256(shard_path):
            return sidecar

    position = number * plan.packing.shards.utterances_per_shard
    # The shard first: a sidecar without it would be taken for a finished shard's.
    partial = shard_path.with_suffix(PARTIAL_SUFFIX + unique)
    sidecar = write_part(shard_path, plan.packing, position, part, partial)
    partial = sidecar_path.with_name(sidecar_path.name + PARTIAL_SUFFIX + unique)
    write_whole(sidecar_path, json.dumps(sidecar), partial)

    return sidecar


@contextlib.contextmanager
def room_in(folder: Path) -> Iterator[None]:
    """Turns the errors of a full disk into a RunError with a remedy.

    An exceeded quota counts as a full disk; other errors pass.
    """
    try:
        yield
    except (OSError, tf.errors.ResourceExhaustedError) as error:
        if isinstance(error, OSError) and error.errno not in (
            errno.ENOSPC,
            errno.EDQUOT,
        ):
            raise

        raise RunError(
            f"{folder} must have room for the shards. The disk is full: {error}. Finished shards "
            "are kept: free some space and run tfasr prepare again; it resumes."
        ) from error


def _check_seen(plan: ShardPlan, part: Sequence[Utterance]) -> None:
    """Raises RunError unless this host sees the folder with its plan, and all audio."""
    # Without this check, audio that this host doesn't see would count as a fault of the
    # corpus.
    worker = f"The worker on {socket.gethostname()}"
    again = "mount it there, and run tfasr prepare again; it resumes."
    # The plan may be newer than this host's view of the folder.
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
