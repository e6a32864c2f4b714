"""Writes shards (compressed TFRecord files of features and labels) and opens prepared
splits.
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

_ZLIB_RLE = 3
_LISTED = 10
FileState = tuple[int, int]  # size in bytes, and time of the last change in ns
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
    """Writes a shard, which is called ``partial`` until it is complete and on the disk."""
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
    """Returns one utterance as a serialised tf.train.Example; features keep their dtype."""
    example = tf.train.Example()
    fields = example.features.feature
    fields["features"].bytes_list.value.append(features.tobytes())
    fields["labels"].int64_list.value.extend(labels)
    fields["position"].int64_list.value.append(position)
    fields["duration_s"].float_list.value.append(duration_s)

    return example.SerializeToString(deterministic=True)


@dataclass(frozen=True)
class ShardedSplit:
    """An opened, complete prepared split; utterances are in the order of the shards'
    records.
    """

    folder: Path
    index: dict[str, Any]
    utterances: HeldUtterances | PackedUtterances = field(repr=False)
    # shards' when opened
    states: dict[str, FileState] = field(repr=False, default_factory=dict)
    # all utterances in the shards, if these are only a part of them
    whole: HeldUtterances | PackedUtterances | None = field(default=None, repr=False)

    def part(self, utterances: int) -> "ShardedSplit":
        """Returns so many utterances of the split: always the same, chosen by their
        ids' hashes.
        """
        if utterances >= len(self.utterances):
            return self

        drawn = sorted(
            self.utterances, key=lambda u: hashlib.sha256(u.id.encode()).digest()
        )
        chosen = sorted(drawn[:utterances], key=lambda u: u.position)
        whole = self.whole or self.utterances

        return dataclasses.replace(self, utterances=HeldUtterances(chosen), whole=whole)

    @property
    def files(self) -> list[str]:
        return [str(self.folder / shard["file"]) for shard in self.index["shards"]]

    @property
    def duration_s(self) -> float:
        return self.utterances.duration_s

    @property
    def frames(self) -> np.ndarray:
        """Each utterance's number of feature frames, int64 ``(utterances,)``."""
        return self.utterances.column("frames").astype(np.int64)

    @property
    def frames_needed(self) -> np.ndarray:
        """The fewest output frames with which CTC can align each text, int64
        ``(utterances,)``.
        """
        return self.utterances.column("frames_needed").astype(np.int64)

    def transcripts(self) -> Iterator[str]:
        return self.utterances.texts()

    def at(self, positions: Sequence[int]) -> list[ShardedUtterance]:
        return self.utterances.at(positions)

    def check_unchanged(self) -> None:
        """Raises RunError if shards have changed since they were opened (a new time is
        allowed).
        """
        hashes = {shard["file"]: shard.get("sha256") for shard in self.index["shards"]}
        changed = []

        for name, state in self.states.items():
            path = self.folder / name
            with contextlib.suppress(OSError):
                now = file_state(path)
                if now == state:
                    continue

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
        """Returns mean and standard deviation of each feature, float32 ``(num_features,)``."""
        return FeatureSums.merged([self.index["feature_sums"]]).statistics()


def open_split(
    shard_dir: str | Path,
    split: str,
    *,
    content: bool = False,
) -> ShardedSplit:
    """Opens a split that ``tfasr prepare`` wrote to --shard_dir, and checks that it is
    complete.

    With ``content``, the shards' contents are checked too, by their hashes. Raises
    UsageError if the split was never prepared, or files are missing, damaged or
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
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def content_hashes(splits: dict[str, ShardedSplit]) -> dict[str, str]:
    """Returns each split's content hash; splits with the same records have the same hash."""
    return {name: split.index["content_hash"] for name, split in splits.items()}


def check_features(split: ShardedSplit, features: FeatureConfig) -> None:
    """Raises UsageError unless a split was prepared with these features."""
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
