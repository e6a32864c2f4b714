"""Writes shards and opens prepared splits.

A shard is a compressed TFRecord file with the features and labels of some utterances.
Packing writes them; training, evaluation and exports open the whole split with
`open_split` and read its records through `tfasr.data.batches`.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfasr.data.features import FeatureConfig
from tfasr.data.manifest import (
    FeatureSums,
    HeldUtterances,
    PackedUtterances,
    ShardedUtterance,
    check_shards,
    file_sha256,
    read_index,
    read_manifest,
    require_prepared,
)
from tfasr.errors import RunError, UsageError
from tfasr.kit.config import config_class, require, to_json
from tfasr.kit.files import PARTIAL_SUFFIX, publish

_ZLIB_RLE = 3  # zlib's number for the strategy of run lengths
_LISTED = 10  # files in a message
FileState = tuple[int, int]  # size in bytes, and time of the last change in ns
# What a record holds; features are the bytes of an array in the split's dtype.
RECORD = {
    "features": tf.io.FixedLenFeature([], tf.string),
    "labels": tf.io.VarLenFeature(tf.int64),
    "position": tf.io.FixedLenFeature([], tf.int64),
    "duration_s": tf.io.FixedLenFeature([], tf.float32),
}


@config_class
class ShardConfig:
    """How utterances are packed.

    Attributes:
        utterances_per_shard: at most so many; bad utterances make a shard smaller.
        dtype: of the stored features; float16 halves the files, with rounding below 0.1
            %.
        compression: of the TFRecord files; "" for none.
        max_duration_s: longer utterances are left out and counted; 0 keeps all.

    Source: the paper, sections 4.3 (16.7 s) and 4.4.1 (64 utterances, 1670 frames).
    """

    utterances_per_shard: int = 64
    dtype: Literal["float16", "float32"] = "float16"
    compression: Literal["GZIP", "ZLIB", ""] = "GZIP"
    max_duration_s: float = 16.7

    def check(self) -> None:
        require(self.utterances_per_shard > 0, self, "utterances_per_shard", "positive")
        require(
            self.max_duration_s >= 0,
            self,
            "max_duration_s",
            "positive, or 0 for no limit",
        )


def write_shard(
    path: Path,
    records: list[bytes],
    compression: str,
    partial: Path | None = None,
) -> None:
    """Writes a shard, which is called ``partial`` until it is complete and on the disk.

    Args:
        path: of the shard.
        records: as `encode_record` returns them.
        compression: of `ShardConfig`.
        partial: a name of your own if several processes may write the same shard.

    Raises:
        RunError: if the disk fails. A full disk raises TensorFlow's error, which
        `tfasr.data.packing.room_in` explains.
    """
    partial = partial or path.with_suffix(PARTIAL_SUFFIX)
    partial.unlink(missing_ok=True)  # a link is removed, never followed
    # Digits of features don't repeat, so looking for repeated sequences would more than
    # double the time and find nothing. Files get smaller by run lengths and by the
    # frequencies of bytes.
    options = tf.io.TFRecordOptions(
        compression_type=compression,
        compression_level=1,
        compression_strategy=_ZLIB_RLE,
    )
    try:
        with tf.io.TFRecordWriter(str(partial), options) as writer:
            for record in records:
                writer.write(record)

        publish(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            # Otherwise it would occupy space on a full disk.
            partial.unlink(missing_ok=True)

        full = tf.errors.ResourceExhaustedError  # `packing.room_in` reports a full disk
        if isinstance(error, tf.errors.OpError) and not isinstance(error, full):
            raise RunError(
                f"{path} can't be written: {error.message}. Finished shards are kept: repair the "
                "disk, and run tfasr prepare again; it resumes."
            ) from error

        raise


def encode_record(
    features: np.ndarray,
    labels: list[int],
    position: int,
    duration_s: float,
) -> bytes:
    """Returns one utterance as a serialised tf.train.Example; features keep their dtype.

    The same utterance always gives the same bytes, which shards' hashes rely on.
    """
    example = tf.train.Example()
    fields = example.features.feature
    fields["features"].bytes_list.value.append(features.tobytes())
    fields["labels"].int64_list.value.extend(labels)
    fields["position"].int64_list.value.append(position)
    fields["duration_s"].float_list.value.append(duration_s)

    return example.SerializeToString(deterministic=True)


@dataclass(frozen=True)
class ShardedSplit:
    """An opened, complete prepared split; utterances are in the order of their records.

    Attributes:
        folder: the split's.
        index: contents of ``index.json``.
        utterances: those to train on or evaluate.
        states: of the shards' files when they were opened.
        whole: all utterances in the shards, if ``utterances`` are only a part of them.
    """

    folder: Path
    index: dict[str, Any]
    utterances: HeldUtterances | PackedUtterances = field(repr=False)
    states: dict[str, FileState] = field(repr=False, default_factory=dict)
    whole: HeldUtterances | PackedUtterances | None = field(default=None, repr=False)

    def part(self, utterances: int) -> "ShardedSplit":
        """Returns so many utterances of the split, always the same.

        They are chosen by their ids' hashes, so the choice depends on nothing else. The
        split itself is returned if it has no more.
        """
        if utterances >= len(self.utterances):
            return self

        # Hashes serve as random numbers that need no seed.
        drawn = sorted(
            self.utterances, key=lambda u: hashlib.sha256(u.id.encode()).digest()
        )
        chosen = sorted(drawn[:utterances], key=lambda u: u.position)
        all_utterances = self.whole or self.utterances

        return dataclasses.replace(
            self, utterances=HeldUtterances(chosen), whole=all_utterances
        )

    @property
    def files(self) -> list[str]:
        """Paths of the shards, in the order of the index."""
        return [str(self.folder / shard["file"]) for shard in self.index["shards"]]

    @property
    def duration_s(self) -> float:
        """Seconds of audio of all utterances."""
        return self.utterances.duration_s

    @property
    def frames(self) -> np.ndarray:
        """Each utterance's number of feature frames, int64 ``(utterances,)``."""
        return self.utterances.column("frames").astype(np.int64)

    @property
    def frames_needed(self) -> np.ndarray:
        """The fewest output frames with which CTC can align each text.

        int64 ``(utterances,)``.
        """
        return self.utterances.column("frames_needed").astype(np.int64)

    def transcripts(self) -> Iterator[str]:
        """Yields the normalised transcripts, in the order of the utterances."""
        return self.utterances.texts()

    def at(self, positions: Sequence[int]) -> list[ShardedUtterance]:
        """Returns the utterances at these positions, in this order; KeyError for a gap."""
        return self.utterances.at(positions)

    def check_unchanged(self) -> None:
        """Raises RunError if shards have changed since they were opened.

        A new time with the same content is allowed, as copying or restoring files gives
        one.
        """
        hashes = {shard["file"]: shard.get("sha256") for shard in self.index["shards"]}
        changed = []

        for name, state in self.states.items():
            path = self.folder / name
            with contextlib.suppress(OSError):
                now = file_state(path)
                if now == state:
                    continue

                # Hashed only if the time is new, as that takes long.
                if now[0] == state[0] and file_sha256(path) == hashes[name]:
                    self.states[name] = now
                    continue

            changed.append(name)

        if changed:
            raise RunError(
                f"A run's data must stay as it is. In {self.folder} {len(changed)} of "
                f"{len(self.states)} shards are gone or changed since the run was begun: "
                f"{', '.join(changed[:_LISTED])}. Checkpoints belong to the old shards: restore "
                "these and continue with --resume, or begin a new run."
            )

    def feature_statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns each feature's mean and deviation, float32 ``(num_features,)``.

        They are over all frames of the split's shards, for normalisation "corpus".
        """
        return FeatureSums.merged([self.index["feature_sums"]]).statistics()


def open_split(
    shard_dir: str | Path,
    split: str,
    *,
    content: bool = False,
) -> ShardedSplit:
    """Opens a split that ``tfasr prepare`` wrote, and checks that it is complete.

    Args:
        shard_dir: the folder given as --shard_dir.
        split: a name such as "train".
        content: whether to check the shards' contents too, by their hashes.

    Raises:
        UsageError: if the split was never prepared, or files are missing, damaged or
            changed.
    """
    folder = Path(shard_dir) / split
    require_prepared(shard_dir, split)
    index = read_index(folder)
    check_shards(folder, index, content=content)
    states = {
        shard["file"]: file_state(folder / shard["file"]) for shard in index["shards"]
    }

    return ShardedSplit(folder, index, read_manifest(folder, index), states)


def file_state(path: Path) -> FileState:
    """Returns a file's size and time of change: a cheap check for changes."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def content_hashes(splits: dict[str, ShardedSplit]) -> dict[str, str]:
    """Returns each split's content hash; splits with the same records have the same hash."""
    return {name: split.index["content_hash"] for name, split in splits.items()}


def check_features(split: ShardedSplit, features: FeatureConfig) -> None:
    """Raises UsageError unless a split was prepared with these features.

    The normalisation doesn't count: it is applied when batches are made.
    """
    # Without normalisation, which batches apply.
    wanted = to_json(features)
    del wanted["normalisation"]
    prepared = {"spectrum": "power", **split.index["features"]}
    differing = [
        f"{name} {prepared.get(name)} in the shards, {wanted.get(name)} wanted"
        for name in sorted(wanted.keys() | prepared.keys())
        if wanted.get(name) != prepared.get(name)
    ]
    if differing:
        raise UsageError(
            f"Shards must be prepared with the model's features. {split.folder} differs in: "
            f"{'; '.join(differing)}. Run tfasr prepare with the same --gin_file into another "
            "--shard_dir, or correct the preset."
        )
