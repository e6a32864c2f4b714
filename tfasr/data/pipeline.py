"""Shards to batches: parallel readers, shuffling, bucketing or fixed padding, prefetching."""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import tensorflow as tf

from tfasr.config import config_class, require, to_json
from tfasr.data.augmentation import AugmentationConfig, augment
from tfasr.data.buckets import bucket_boundaries
from tfasr.data.features import FeatureConfig, normalise_features
from tfasr.data.shards import RECORD, ShardedSplit
from tfasr.data.shares import Share, share_of_batches, unread
from tfasr.errors import UsageError

Batch = dict[str, tf.Tensor]


def _options(warm_start: bool = False) -> tf.data.Options:
    """Returns options without tf.data's tuning thread.

    All parallelism is given, and now and then the end of an iterator waited for that thread to wake
    from its sleep of up to a minute.

    Args:
        warm_start: whether an iterator reads from when it is made, not only from its first element.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_warm_start = warm_start
    return options


@config_class
class PipelineConfig:
    """How batches are made.

    Attributes:
        global_batch_size: utterances per optimizer update, over all replicas.
        num_readers: shards read at the same time.
        shuffle_buffer: utterances among which the order is shuffled; the order of the shards is
            shuffled too, and `tfasr prepare` has mixed each split already.
        prefetch: global batches held ready, each over all replicas.
        padding: "bucketed" (utterances of similar length together, padded to the bucket's longest)
            or "fixed" (every utterance padded to ``max_frames``, as in the paper).
        num_buckets: lengths to which batches are padded.
        max_frames: feature frames of a fixed batch.
        first_epoch_by_length: whether the first epoch's batches go from the shortest bucket to the
            longest (SortaGrad); utterances of a bucket, and all later epochs, are shuffled. The
            shards are read once for each bucket, so that no memory grows with the corpus.

    Source: the paper, Table 2 (batch, readers, and the buffer of whole batches, which is
    ``prefetch``) and section 4.4.1 (1670 frames). D. Amodei et al., Deep Speech 2, ICML 2016,
    section 3.2 (SortaGrad, there by each batch's longest utterance).
    """

    global_batch_size: int = 96
    num_readers: int = 8
    shuffle_buffer: int = 40
    prefetch: int = 4
    padding: Literal["bucketed", "fixed"] = "bucketed"
    num_buckets: int = 8
    max_frames: int = 1670
    first_epoch_by_length: bool = False

    def check(self) -> None:
        """Raises ValueError for sizes that make no batch."""
        for field in ("global_batch_size", "num_readers", "num_buckets", "max_frames"):
            require(getattr(self, field) > 0, self, field, "positive")
        require(self.shuffle_buffer >= 0, self, "shuffle_buffer", "at least 0")
        require(self.prefetch >= 0, self, "prefetch", "at least 0")
        has_buckets = self.padding == "bucketed" and self.num_buckets > 1
        ordered = has_buckets or not self.first_epoch_by_length
        message = 'False unless padding is "bucketed" and num_buckets is above 1'
        require(ordered, self, "first_epoch_by_length", message)


@dataclass(frozen=True)
class _Kind:
    """What epochs have in common whose batches one traced function makes.

    Attributes:
        replicas: into how many elements each global batch is cut.
        share: of one of several workers.
        masked: whether `AugmentationConfig`'s masks are drawn.
        by_length: whether the buckets come one after the other.
    """

    replicas: int
    share: Share | None
    masked: bool
    by_length: bool


class BatchSource:
    """Makes the batches of one prepared split, the same for the same seed.

    A batch is a dict of ``features`` float32 ``(batch, frames, num_features)``, normalised and
    right-padded with 0; ``feature_lengths`` int32 ``(batch,)``; ``labels`` int32
    ``(batch, labels)``; ``label_lengths`` int32 ``(batch,)``; ``positions`` int64 ``(batch,)``, the
    utterances' places in the split; ``duration_s`` float32 ``(batch,)``. Batches hold real
    utterances alone: an epoch's last batch of a length is smaller, never filled up.

    Args:
        split: what to read.
        features: must be those that the split was prepared with, normalisation aside.
        pipeline: how to batch.
        augmentation: applied in training alone.
        statistics: mean and deviation for normalisation "corpus", of the training split.

    Raises:
        UsageError: if the split was prepared with other features, or is too long for
            fixed batches.
    """

    def __init__(
        self,
        split: ShardedSplit,
        features: FeatureConfig,
        pipeline: PipelineConfig,
        augmentation: AugmentationConfig | None = None,
        statistics: tuple[np.ndarray, np.ndarray] | None = None,
    ):
        check_features(split, features)
        self.split = split
        self._epochs: dict[_Kind, Callable[..., tf.data.Dataset]] = {}
        self._features = features
        self._pipeline = pipeline
        self._augmentation = augmentation or AugmentationConfig()
        if features.normalisation == "corpus" and statistics is None:
            raise UsageError(
                "Normalisation 'corpus' must be given the training split's statistics. "
                "Received: statistics=None."
            )
        self._statistics = statistics or (None, None)
        lengths = split.frames
        if pipeline.padding == "bucketed":
            self.boundaries = bucket_boundaries(lengths, pipeline.num_buckets)
        elif max(lengths) <= pipeline.max_frames:
            self.boundaries = [pipeline.max_frames]
        else:
            raise UsageError(
                f"PipelineConfig.max_frames must hold the longest utterance of {split.folder}, "
                f"{max(lengths)} frames. Received: {pipeline.max_frames}. Prepare with a shorter "
                "max_duration_s, raise max_frames, or use padding 'bucketed'."
            )

    def evaluation(self, share: Share | None = None) -> tf.data.Dataset:
        """Returns every utterance once, in the shards' order as far as bucketing allows.

        Args:
            share: of one of several workers, which gets every ``share.count``-th shard.
        """
        files = self.split.files if share is None else self.split.files[share.rank :: share.count]
        # An empty list would not say that it is one of names.
        files = files if files else tf.zeros([0], tf.string)
        records = tf.data.TFRecordDataset(files, self._compression)
        return (
            self._batches(records, lambda element: element)
            .prefetch(max(self._pipeline.prefetch, 1))
            .with_options(_options())
        )

    def first(self, count: int) -> Batch:
        """Returns the first utterances of the shards as one batch, without augmentation."""
        records = tf.data.TFRecordDataset(self.split.files, self._compression).take(count)
        batches = records.map(self._parse).padded_batch(count).with_options(_options())
        return next(iter(batches))

    def training(
        self,
        seed: int,
        epoch: int,
        skip: int = 0,
        replicas: int = 1,
        share: Share | None = None,
    ) -> tf.data.Dataset:
        """Returns one epoch's batches.

        The order depends on ``seed`` and ``epoch`` alone, so that a resumed epoch skips what it
        already trained on and meets the same remaining batches.

        Args:
            seed: of the run.
            epoch: counted from 1.
            skip: global batches left out at the beginning.
            replicas: above 1, each global batch is cut into as many equal consecutive elements;
                up to ``replicas - 1`` utterances of an uneven batch are left out.
            share: of one of several workers, which gets its part of each global batch, see
                `tfasr.data.shares.share_of_batches`; no utterance is left out.
        """
        generator = random.Random(f"{seed} {epoch}")
        files = list(self.split.files)
        generator.shuffle(files)
        order_seed = generator.randrange(2**31)
        # Traced once: anew, it would cost each epoch some 0.3 s, and memory that fragments.
        kind = _Kind(
            replicas,
            share,
            masked=epoch >= self._augmentation.from_epoch,
            by_length=epoch == 1 and self._pipeline.first_epoch_by_length,
        )
        if kind not in self._epochs:
            self._epochs[kind] = self._traced(kind)
        batches = self._epochs[kind](
            tf.constant(files), tf.constant(order_seed, tf.int64), tf.constant(skip, tf.int64)
        )
        batches = batches.prefetch(max(self._pipeline.prefetch, 1) * replicas)
        return batches.with_options(_options(warm_start=True))

    def _traced(self, kind: _Kind) -> Callable[..., tf.data.Dataset]:
        """Returns what makes such epochs' batches, of their files, order and batches to skip."""

        def epoch(*plan: tf.Tensor) -> tf.data.Dataset:
            batches = tf.data.Dataset.from_tensors(plan).flat_map(
                lambda *plan: self._epoch_batches(*plan, kind)
            )
            return batches if kind.replicas == 1 else _cut_for_replicas(batches, kind.replicas)

        files = tf.TensorSpec([len(self.split.files)], tf.string)
        number = tf.TensorSpec([], tf.int64)
        return tf.function(epoch, input_signature=[files, number, number])

    def _epoch_batches(
        self, files: tf.Tensor, order_seed: tf.Tensor, skip: tf.Tensor, kind: _Kind
    ) -> tf.data.Dataset:
        # `shuffle` mixes the global seed into its own; the order must not depend on who set one.
        tf.compat.v1.set_random_seed(None)

        def augmented(element: Batch) -> Batch:
            if not kind.masked:
                return element
            seeds = tf.stack([order_seed, element["positions"]])
            return {
                **element,
                "features": augment(
                    element["features"], self._augmentation, seeds, self._features.num_mel_bins
                ),
            }

        def batches_of(bucket: tf.Tensor | None) -> tf.data.Dataset:
            records = self._shuffled_records(files, order_seed, bucket)
            if kind.share is None:
                return self._batches(records, augmented)
            return self._unread_batches(records)

        if kind.by_length:
            batches = tf.data.Dataset.range(len(self.boundaries)).flat_map(batches_of).skip(skip)
        else:
            batches = batches_of(None).skip(skip)
        if kind.share is None:
            return batches

        def padded(rows: tf.data.Dataset, longest: tf.Tensor) -> tf.data.Dataset:
            parsed = self._parsed(rows, augmented)
            shapes = self._padded_shapes(parsed, self._bucket_of(longest))
            batch = parsed.padded_batch(self._pipeline.global_batch_size, shapes)
            return batch.map(self._with_static_shapes)

        return share_of_batches(batches, kind.share, padded)

    def _shuffled_records(
        self, files: tf.Tensor, order_seed: tf.Tensor, bucket: tf.Tensor | None
    ) -> tf.data.Dataset:
        """Returns serialised records in an epoch's order: all, or those of a bucket alone."""
        readers = min(self._pipeline.num_readers, len(self.split.files))
        records = tf.data.Dataset.from_tensor_slices(files).interleave(
            lambda file: tf.data.TFRecordDataset(file, self._compression),
            cycle_length=readers,
            num_parallel_calls=readers,
            deterministic=True,
        )
        if bucket is not None:

            def within(record: tf.Tensor) -> tf.Tensor:
                frames = unread(record, self._frame_bytes)["feature_lengths"]
                return tf.equal(self._bucket_of(frames), bucket)

            records = records.filter(within)
        if self._pipeline.shuffle_buffer:
            buffer = min(self._pipeline.shuffle_buffer, len(self.split.utterances))
            records = records.shuffle(buffer, order_seed)
        return records

    def _unread_batches(self, records: tf.data.Dataset) -> tf.data.Dataset:
        size = self._pipeline.global_batch_size
        elements = records.map(lambda record: unread(record, self._frame_bytes))
        return elements.group_by_window(
            self._bucket, lambda _, window: window.batch(size), window_size=size
        )

    @property
    def _frame_bytes(self) -> int:
        """Of a stored frame."""
        dtype = tf.as_dtype(self.split.index["packing"]["dtype"])
        return dtype.size * self._features.num_features

    @property
    def _compression(self) -> str:
        return self.split.index["packing"]["compression"]

    def _batches(self, records: tf.data.Dataset, transform) -> tf.data.Dataset:
        elements = self._parsed(records, transform)

        def pad(key: tf.Tensor, window: tf.data.Dataset) -> tf.data.Dataset:
            shapes = self._padded_shapes(elements, key)
            return window.padded_batch(self._pipeline.global_batch_size, shapes)

        batches = elements.group_by_window(
            self._bucket, pad, window_size=self._pipeline.global_batch_size
        )
        # Shapes given as tensors leave no static ones behind.
        return batches.map(self._with_static_shapes)

    def _parsed(self, records: tf.data.Dataset, transform) -> tf.data.Dataset:
        return records.map(
            lambda record: transform(self._parse(record)),
            # Not AUTOTUNE: it does not reach into the functions of an epoch.
            num_parallel_calls=os.cpu_count(),
            deterministic=True,
        )

    def _bucket(self, element: Batch) -> tf.Tensor:
        return self._bucket_of(element["feature_lengths"])

    def _bucket_of(self, frames: tf.Tensor) -> tf.Tensor:
        boundaries = tf.constant(self.boundaries, tf.int64)
        frames = tf.cast(frames, tf.int64)
        return tf.searchsorted(boundaries, frames[None], out_type=tf.int64)[0]

    def _padded_shapes(self, elements: tf.data.Dataset, bucket: tf.Tensor) -> dict[str, tf.Tensor]:
        shapes = dict.fromkeys(elements.element_spec, tf.constant([], tf.int64))
        shapes["labels"] = tf.constant([-1], tf.int64)
        frames = tf.gather(tf.constant(self.boundaries, tf.int64), bucket)
        shapes["features"] = tf.stack([frames, self._features.num_features])
        return shapes

    def _with_static_shapes(self, batch: Batch) -> Batch:
        frames = self._pipeline.max_frames if self._pipeline.padding == "fixed" else None
        shapes = {"features": [None, frames, self._features.num_features], "labels": [None, None]}
        return {
            name: tf.ensure_shape(value, shapes.get(name, [None])) for name, value in batch.items()
        }

    def _parse(self, record: tf.Tensor) -> Batch:
        parsed = tf.io.parse_single_example(record, RECORD)
        flat = tf.io.decode_raw(parsed["features"], self.split.index["packing"]["dtype"])
        features = tf.cast(tf.reshape(flat, [-1, self._features.num_features]), tf.float32)
        labels = tf.cast(tf.sparse.to_dense(parsed["labels"]), tf.int32)
        return {
            "features": normalise_features(features, self._features, *self._statistics),
            "feature_lengths": tf.shape(features)[0],
            "labels": labels,
            "label_lengths": tf.shape(labels)[0],
            "positions": parsed["position"],
            "duration_s": parsed["duration_s"],
        }


def check_features(split: ShardedSplit, features: FeatureConfig) -> None:
    """Raises UsageError unless a split was prepared with these features."""
    wanted = to_json(features)
    del wanted["normalisation"]
    prepared = split.index["features"]
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


def _cut_for_replicas(batches: tf.data.Dataset, replicas: int) -> tf.data.Dataset:
    """Makes each global batch that many equal elements: batch normalisation needs them equal."""

    def cut(batch: Batch) -> tf.data.Dataset:
        each = tf.shape(batch["feature_lengths"])[0] // replicas
        parts = {
            name: tf.reshape(
                value[: each * replicas], tf.concat([[replicas, each], tf.shape(value)[1:]], 0)
            )
            for name, value in batch.items()
        }
        return tf.data.Dataset.from_tensor_slices(parts).take(
            tf.where(each > 0, tf.constant(replicas, tf.int64), 0)
        )

    return batches.flat_map(cut)
