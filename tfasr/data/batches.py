"""Makes batches of a prepared split's shards, with tf.data.

Training and evaluation read their utterances only from here. On the way from the shards
to a batch, records are read from several files at once, shuffled, parsed, normalised,
augmented, grouped into buckets of similar length, padded and prefetched, in this order.

The order of training batches depends on the seed and the epoch only, never on time or
on how many threads read. That is what makes a run resumable within an epoch, and its
losses comparable by seed.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfasr.data.augmentation import (
    AugmentationConfig,
    Tempo,
    VocalTract,
    augment,
    most_frames,
    resampled,
)
from tfasr.data.features import FeatureConfig, normalise_features, pooled
from tfasr.data.shards import RECORD, FeatureSums, ShardedSplit, check_features
from tfasr.errors import RunError, UsageError
from tfasr.kit.config import config_class, require, require_within
from tfasr.kit.process import usable_cores

Batch = dict[str, tf.Tensor]
# Nothing here needs AutoGraph, which would take longer than all the rest of making a
# dataset.
do_not_convert = tf.autograph.experimental.do_not_convert
# The views of an utterance in a training batch; the second one is optional.
_FEATURES = ("features", "second_features")
# Lengths to try as a bucket's longest. With quantiles of the lengths as candidates, so
# many come close to the best choice in milliseconds.
_CANDIDATES = 128
_SHOWN = 200  # characters of TensorFlow's message
_MOST_UTTERANCES = 2**20  # per batch: TensorFlow ends the process if a size overflows
# The second view's masks; those below are the first's, tempo and vocal tract.
_SECOND_SEEDS = 4
# If the tempo changes, about so many utterances' lengths decide the buckets.
_ENOUGH_LENGTHS = 100_000


def bucket_boundaries(lengths: Sequence[int], num_buckets: int) -> list[int]:
    """Returns the bucket boundaries (longest lengths) that need the least padding.

    This is a shortest path, found by dynamic programming over at most 128 candidate
    lengths.

    Args:
        lengths: the utterances' frames, in any order.
        num_buckets: the most buckets; fewer distinct lengths give fewer.

    Returns:
        Ascending lengths in frames; the last is that of the longest utterance.

    Raises:
        ValueError: if there are no lengths.
    """
    if not len(lengths):
        raise ValueError(
            "A split must hold utterances to be bucketed. Received: lengths=[]."
        )

    ordered = np.sort(np.asarray(lengths))
    candidates = np.unique(ordered)
    if len(candidates) > _CANDIDATES:
        # Tries quantiles only, because time grows with the square of the number of
        # candidates.
        quantiles = np.linspace(0, 1, _CANDIDATES)
        candidates = np.unique(np.quantile(ordered, quantiles, method="higher"))

    counts = np.searchsorted(ordered, candidates, side="right")
    # cost[j] = fewest frames, with padding, if candidate j is the last boundary so far.
    cost = candidates * counts
    choice = []

    for _ in range(min(num_buckets, len(candidates)) - 1):
        # alternatives[i, j]: candidate i is the boundary before candidate j.
        between = counts[None, :] - counts[:, None]
        alternatives = cost[:, None] + candidates[None, :] * between
        alternatives[np.tril_indices(len(candidates), -1)] = np.iinfo(np.int64).max
        choice.append(alternatives.argmin(axis=0))
        cost = alternatives.min(axis=0)

    boundaries = [len(candidates) - 1]
    for previous in reversed(choice):
        boundaries.append(int(previous[boundaries[-1]]))

    return sorted({int(candidates[index]) for index in boundaries})


@dataclass(frozen=True)
class Padding:
    """Groups utterances by length into buckets, and pads a bucket's batches to its length.

    The few lengths of batches are those for which a compiled training step must be
    traced.
    """

    boundaries: list[int]  # the buckets' longest lengths in frames, ascending
    batch_size: int  # utterances; the last batch of a bucket may have fewer
    num_features: int
    frames: int | None  # of each batch; None if buckets differ

    def bucket_of(self, frames: tf.Tensor) -> tf.Tensor:
        """Returns the index, int64, of the bucket for an utterance with this many frames."""
        boundaries = tf.constant(self.boundaries, tf.int64)
        frames = tf.cast(frames, tf.int64)
        return tf.searchsorted(boundaries, frames[None], out_type=tf.int64)[0]

    def batches(self, elements: tf.data.Dataset) -> tf.data.Dataset:
        """Returns padded batches, each as soon as its bucket has enough utterances."""
        grouped = elements.group_by_window(
            self._bucket,
            lambda bucket, window: self._padded(window, bucket),
            window_size=self.batch_size,
        )
        # `_padded` passes shapes as tensors, so TensorFlow doesn't know them when
        # tracing.
        return grouped.map(self._with_static_shapes)

    def unpadded(self, elements: tf.data.Dataset) -> tf.data.Dataset:
        """Groups elements without features into the same batches as `batches`."""
        return elements.group_by_window(
            self._bucket,
            lambda bucket, window: window.batch(self.batch_size),
            window_size=self.batch_size,
        )

    def one_batch(
        self,
        elements: tf.data.Dataset,
        longest: tf.Tensor,
    ) -> tf.data.Dataset:
        """Returns utterances as one batch, padded for a longest utterance of
        ``longest`` frames.
        """
        return self._padded(elements, self.bucket_of(longest)).map(
            self._with_static_shapes
        )

    def _bucket(self, element: Batch) -> tf.Tensor:
        return self.bucket_of(element["feature_lengths"])

    def _padded(self, elements: tf.data.Dataset, bucket: tf.Tensor) -> tf.data.Dataset:
        """Pads the utterances of one bucket to its length and returns them as batches."""
        shapes = dict.fromkeys(elements.element_spec, tf.constant([], tf.int64))
        shapes["labels"] = tf.constant([-1], tf.int64)
        frames = tf.gather(tf.constant(self.boundaries, tf.int64), bucket)

        for name in shapes.keys() & _FEATURES:
            shapes[name] = tf.stack([frames, self.num_features])

        return elements.padded_batch(self.batch_size, shapes)

    def _with_static_shapes(self, batch: Batch) -> Batch:
        """Declares the shapes that are the same for all batches."""
        shapes = dict.fromkeys(_FEATURES, [None, self.frames, self.num_features])
        shapes["labels"] = [None, None]
        return {
            name: tf.ensure_shape(value, shapes.get(name, [None]))
            for name, value in batch.items()
        }


def _options(warm_start: bool = False) -> tf.data.Options:
    """Returns options without tf.data's tuning thread, which can take a minute to end.

    With ``warm_start``, reading begins when the iterator is made, not at its first
    batch.
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
        shuffle_buffer: size of the shuffle buffer in utterances. Shards are read in
            random order too, and `tfasr prepare` has mixed each split's utterances.
        prefetch: number of global batches (of all replicas together) prepared in
            advance.
        padding: "fixed" (every utterance padded to ``max_frames``, as in the paper) or
            "bucketed" (utterances of similar length together, padded to the bucket's
            longest).
        num_buckets: number of lengths to which batches are padded.
        max_frames: feature frames to which "fixed" pads.
        batch_size_schedule: pairs of an epoch (ascending, 2 or later) and the batch
            size from that epoch on; until then, it is ``global_batch_size``. The batch
            size changes how many steps an epoch has, and learning rates depend on the
            step.

    Source: the paper, Table 2 (batch size, readers, and ``prefetch``, its buffer of
    whole batches, which is 40 or more there and 4 here, to spare memory) and section
    4.4.1 (1670 frames). D. Amodei et al., Deep Speech 2, ICML 2016, section 3.2
    (SortaGrad, which sorts by each batch's longest utterance). S. Smith et al., Don't
    Decay the Learning Rate, Increase the Batch Size, ICLR 2018 (batch sizes by epoch).
    """

    global_batch_size: int = 96
    num_readers: int = 8
    shuffle_buffer: int = 40
    prefetch: int = 4
    padding: Literal["fixed", "bucketed"] = "fixed"
    num_buckets: int = 8
    max_frames: int = 1670
    batch_size_schedule: tuple[tuple[int, int], ...] = ()

    def check(self) -> None:
        buckets = {"num_readers": 2**16, "num_buckets": 2**16, "max_frames": 2**24}
        require_within(self, 1, global_batch_size=_MOST_UTTERANCES, **buckets)
        require_within(self, 0, shuffle_buffer=2**31 - 1, prefetch=2**20)
        epochs = [1, *(epoch for epoch, _ in self.batch_size_schedule)]
        ascending = all(earlier < later for earlier, later in pairwise(epochs))
        message = f"pairs of an epoch, ascending from 2, and a batch size of 1..{_MOST_UTTERANCES}"
        positive = (
            0 < min(self.batch_sizes) <= max(self.batch_sizes) <= _MOST_UTTERANCES
        )
        require(ascending and positive, self, "batch_size_schedule", message)

    @property
    def batch_sizes(self) -> list[int]:
        """All global batch sizes of a run, in the order of their epochs."""
        return [self.global_batch_size, *(size for _, size in self.batch_size_schedule)]

    def batch_size(self, epoch: int) -> int:
        """Returns how many utterances a global batch has in an epoch; epochs count from 1."""
        begun = sum(epoch >= begin for begin, _ in self.batch_size_schedule)
        return self.batch_sizes[begun]


class Reading:
    """Iterates over a split's batches, with one-line errors.

    Raises RunError if a shard can't be read, because TensorFlow's own errors span many
    lines of the graph's internals. If memory runs out, TensorFlow's error passes.
    """

    def __init__(self, batches: Any, split: ShardedSplit):
        self._iterator = iter(batches)
        self._split = split
        self.element_spec = batches.element_spec

    def __iter__(self) -> "Reading":
        return self

    def __next__(self) -> Batch:
        try:
            return next(self._iterator)
        except tf.errors.ResourceExhaustedError:
            raise
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            self._split.check_unchanged()
            # TensorFlow's message may contain a record's bytes, and Python may fail to
            # decode it.
            cause = ascii(getattr(error, "message", "no record"))[1:_SHOWN]
            raise RunError(
                f"The shards in {self._split.folder} can't be read as those of tfasr prepare "
                f"({type(error).__name__}: {cause}). Run tfasr prepare into another "
                "--shard_dir; checkpoints are kept."
            ) from None


@dataclass(frozen=True)
class Share:
    """Which rows of each batch a worker trains on.

    Of a batch of n utterances, these are ``rank * n // count`` to ``(rank + 1) * n //
    count``. All workers together get each row once.
    """

    rank: int
    count: int


@dataclass(frozen=True)
class _Kind:
    """What a traced function depends on; epochs for which all of it is equal share one."""

    replicas: int  # number of parts into which each global batch is cut
    share: Share | None
    masked: bool  # whether `AugmentationConfig`'s masks are applied
    batch_size: int  # of global batches


class BatchSource:
    """Makes the batches of one prepared split; the same seed gives the same batches.

    A batch is a dict of

    - ``features`` float32 ``(batch, frames, num_features)``, normalised and
    right-padded with 0; - ``feature_lengths`` int32 ``(batch,)``; - ``labels`` int32
    ``(batch, labels)``; - ``label_lengths`` int32 ``(batch,)``; - ``positions`` int64
    ``(batch,)``, the utterances' positions in the split; - ``duration_s`` float32
    ``(batch,)``.

    Batches contain real utterances only: each bucket's last batch in an epoch may be
    smaller. The attribute ``boundaries`` has the lengths to which training batches are
    padded.

    Args:
        split: the opened split.
        features: what its shards were prepared with, and the normalisation to apply.
        pipeline: sizes and padding of batches.
        augmentation: of training batches; None for none.
        statistics: mean and deviation of the training split, for normalisation "corpus"
            and "speaker". The latter reads the whole split when the source is made.
        output_lengths: the model's. It is required if the tempo changes, because a fast
            utterance must keep enough output frames for its labels.
        second_view: adds ``second_features`` to training batches: the same utterances
            with other masks.
        evaluated: the size of evaluation batches, by default twice the global batch
            size, as they need no memory for gradients.

    Raises:
        UsageError: if the split has other features, or an utterance too long for fixed
        batches.
    """

    def __init__(
        self,
        split: ShardedSplit,
        features: FeatureConfig,
        pipeline: PipelineConfig,
        augmentation: AugmentationConfig | None = None,
        statistics: tuple[np.ndarray, np.ndarray] | None = None,
        output_lengths: Callable[[Any], Any] | None = None,
        *,
        second_view: bool = False,
        evaluated: int | None = None,
    ):
        check_features(split, features)
        self.split = split
        # Traced functions of epochs.
        self._epochs: dict[_Kind, Callable[..., tf.data.Dataset]] = {}
        self._features = features
        self._pipeline = pipeline
        self._second_view = second_view
        self._evaluated = evaluated or 2 * pipeline.global_batch_size
        self._augmentation = augmentation or AugmentationConfig()
        if features.normalisation in ("corpus", "speaker") and statistics is None:
            raise UsageError(
                f"Normalisation {features.normalisation!r} must be given the training split's "
                "statistics. Received: statistics=None."
            )

        self._statistics = statistics or (None, None)
        self._padding = self._padded_for(0.0)
        change = self._augmentation.tempo_change
        self._training_padding = self._padded_for(change) if change else self._padding
        self.boundaries = self._training_padding.boundaries
        tract_change = self._augmentation.vocal_tract_change
        self._vocal_tract = VocalTract(tract_change, features) if tract_change else None
        self._tempo = None
        if change:
            if output_lengths is None:
                raise UsageError(
                    "A source whose tempo changes must be given the model's output_lengths. "
                    f"Received: tempo_change={change} and None."
                )

            self._tempo = Tempo(change, output_lengths, int(split.frames.max()))

        if features.normalisation == "speaker" and len(split.utterances):
            self._speakers, self._of_speakers = self._speaker_statistics()

    @property
    def frame_ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """The fewest and most frames of utterances in training, int64 ``(utterances,)``.

        Both are the utterances' own frames unless the tempo changes.
        """
        frames = self.split.frames
        if self._tempo is None:
            return frames, frames

        return self._tempo.ranges(frames, self.split.frames_needed)

    def _padded_for(self, tempo_change: float) -> Padding:
        """Returns the padding of batches at tempos that change by up to ``tempo_change``.

        Raises:
            UsageError: if the longest utterance doesn't fit into fixed batches.
        """
        pipeline = self._pipeline
        lengths = self.split.frames
        longest = int(most_frames(lengths.max(initial=0), tempo_change))
        sizes = (pipeline.global_batch_size, self._features.num_features)
        if pipeline.padding == "bucketed":
            if tempo_change:
                # Each utterance has a range of lengths: its ends and middle stand for it.
                some = lengths[:: max(len(lengths) // _ENOUGH_LENGTHS, 1)]
                slowed = [
                    most_frames(some, change)
                    for change in (-tempo_change, tempo_change)
                ]
                lengths = np.concatenate([some, *slowed, [longest]])

            return Padding(
                bucket_boundaries(lengths, pipeline.num_buckets), *sizes, None
            )

        if longest <= pipeline.max_frames:
            return Padding([pipeline.max_frames], *sizes, pipeline.max_frames)

        slowest = " at the slowest tempo" if tempo_change else ""
        raise UsageError(
            f"PipelineConfig.max_frames must hold the longest utterance of {self.split.folder}, "
            f"{longest} frames{slowest}. Received: {pipeline.max_frames}. Prepare with a shorter "
            "max_duration_s, raise max_frames, or use padding 'bucketed'."
        )

    @do_not_convert
    def evaluation(self, share: Share | None = None) -> tf.data.Dataset:
        """Returns each utterance once, in batches of up to ``evaluated`` utterances.

        The batches are the same in every epoch, without augmentation. A worker with a
        ``share`` gets every ``count``-th shard. If the split is only a part of the
        prepared one, records of other utterances are skipped.
        """
        if share is None:
            files = self.split.files
        else:
            files = self.split.files[share.rank :: share.count]

        files = files or tf.zeros([0], tf.string)  # an empty list has no type
        records = tf.data.TFRecordDataset(files, self._compression)
        if self.split.whole:
            wanted = tf.constant([u.position for u in self.split.utterances], tf.int64)

            def within(record: tf.Tensor) -> tf.Tensor:
                position = tf.io.parse_single_example(
                    record, {"position": RECORD["position"]}
                )
                return tf.reduce_any(wanted == position["position"])

            records = records.filter(within)

        padding = replace(self._padding, batch_size=self._evaluated)

        return (
            padding.batches(self._parsed(records, self._parse))
            .prefetch(max(self._pipeline.prefetch, 1))
            .with_options(_options())
        )

    @do_not_convert
    def first(self, count: int) -> Batch:
        """Returns the first utterances of the shards as one batch, without augmentation.

        They are the examples whose transcripts training shows after each epoch.
        """
        records = tf.data.TFRecordDataset(self.split.files, self._compression).take(
            count
        )
        batches = records.map(self._parse).padded_batch(count).with_options(_options())
        return next(Reading(batches, self.split))

    def training(
        self,
        seed: int,
        epoch: int,
        skip: int = 0,
        replicas: int = 1,
        share: Share | None = None,
    ) -> tf.data.Dataset:
        """Returns one epoch's batches.

        The order depends on ``seed`` and ``epoch`` only.

        Args:
            seed: of the run.
            epoch: counted from 1.
            skip: the global batches that a resumed epoch has already trained on. The
                remaining ones are those that it would have had.
            replicas: into how many elements of equal size each global batch is cut.
                Remaining utterances, at most ``replicas - 1``, are left out.
            share: a worker gets its rows of each global batch, see `share_of_batches`;
                no utterance is left out.
        """
        # Seeded by a text, so each pair of seed and epoch gives a different order.
        generator = random.Random(f"{seed} {epoch}")
        files = list(self.split.files)
        generator.shuffle(files)
        order_seed = generator.randrange(2**31)
        # Traced once per kind, because tracing takes some 0.3 s and fragments memory.
        masked = epoch >= self._augmentation.from_epoch
        kind = _Kind(replicas, share, masked, self._pipeline.batch_size(epoch))
        if kind not in self._epochs:
            self._epochs[kind] = self._traced(kind)

        batches = self._epochs[kind](
            tf.constant(files),
            tf.constant(order_seed, tf.int64),
            tf.constant(skip, tf.int64),
        )
        batches = batches.prefetch(max(self._pipeline.prefetch, 1) * replicas)

        return batches.with_options(_options(warm_start=True))

    def _traced(self, kind: _Kind) -> Callable[..., tf.data.Dataset]:
        """Traces the making of an epoch's batches, for any files, seed and ``skip``."""

        def epoch(*plan: tf.Tensor) -> tf.data.Dataset:
            batches = tf.data.Dataset.from_tensors(plan).flat_map(
                lambda *plan: self._epoch_batches(*plan, kind)
            )
            if kind.replicas == 1:
                return batches

            return cut_for_replicas(batches, kind.replicas)

        files = tf.TensorSpec([len(self.split.files)], tf.string)
        number = tf.TensorSpec([], tf.int64)

        return tf.function(
            do_not_convert(epoch), input_signature=[files, number, number]
        )

    def _epoch_batches(
        self,
        files: tf.Tensor,
        order_seed: tf.Tensor,
        skip: tf.Tensor,
        kind: _Kind,
    ) -> tf.data.Dataset:
        """Returns the batches of an epoch, as tensors of a traced function.

        With a share, whole batches are formed of unread records first, so that only the
        worker's own rows are decompressed into features, normalised and augmented.
        """
        # `shuffle` also uses TensorFlow's global seed, on which the order must not
        # depend.
        tf.compat.v1.set_random_seed(None)
        padding = replace(self._training_padding, batch_size=kind.batch_size)

        def augmented(record: tf.Tensor) -> Batch:
            return self._augmented(self._parse(record, order_seed), order_seed, kind)

        records = self._shuffled_records(files, order_seed)
        if kind.share is None:
            return padding.batches(self._parsed(records, augmented)).skip(skip)

        unread = records.map(lambda record: self._unread(record, order_seed))
        batches = padding.unpadded(unread).skip(skip)

        def padded(rows: tf.data.Dataset, longest: tf.Tensor) -> tf.data.Dataset:
            return padding.one_batch(self._parsed(rows, augmented), longest)

        return share_of_batches(batches, kind.share, padded)

    def _augmented(self, element: Batch, order_seed: tf.Tensor, kind: _Kind) -> Batch:
        """Changes the tempo of an utterance and masks its views.

        Both views have the same tempo, because they must have the same number of output
        frames.
        """
        seeds = tf.stack([order_seed, element["positions"]])
        features = element["features"]
        frames = element["feature_lengths"]
        if self._tempo is not None:
            frames = self._tempo.frames(frames, element["labels"], seeds)
            features = resampled(features, frames)

        element = {**element, "feature_lengths": frames}
        views = {"features": 0}
        if self._second_view:
            views["second_features"] = _SECOND_SEEDS

        for name, shift in views.items():
            element[name] = features
            if kind.masked:
                bins = self._features.num_mel_bins
                element[name] = augment(
                    features,
                    self._augmentation,
                    seeds + shift,
                    bins,
                )

        return element

    def _unread(self, record: tf.Tensor, order_seed: tf.Tensor) -> Batch:
        """Returns a record's facts for batching, at its tempo in this epoch."""
        dtype = tf.as_dtype(self.split.index["packing"]["dtype"])
        element = unread(record, dtype.size * self._features.num_features)
        labels = element.pop("labels")
        frames = element["feature_lengths"]
        if self._tempo is not None:
            seeds = tf.stack([order_seed, element["positions"]])
            frames = self._tempo.frames(frames, labels, seeds)

        return {**element, "feature_lengths": frames}

    def _shuffled_records(
        self,
        files: tf.Tensor,
        order_seed: tf.Tensor,
    ) -> tf.data.Dataset:
        """Returns an epoch's serialised records, of several shards in turn and shuffled."""
        readers = min(self._pipeline.num_readers, len(self.split.files))
        records = tf.data.Dataset.from_tensor_slices(files).interleave(
            lambda file: tf.data.TFRecordDataset(file, self._compression),
            cycle_length=readers,
            num_parallel_calls=readers,
            deterministic=True,
        )
        if self._pipeline.shuffle_buffer:
            buffer = min(self._pipeline.shuffle_buffer, len(self.split.utterances))
            records = records.shuffle(buffer, order_seed)

        return records

    @property
    def _compression(self) -> str:
        return self.split.index["packing"]["compression"]

    def _parsed(self, records: tf.data.Dataset, parse: Callable) -> tf.data.Dataset:
        """Parses records on all cores, keeping their order."""
        # AUTOTUNE would have no effect inside an epoch's traced function.
        return records.map(parse, num_parallel_calls=usable_cores(), deterministic=True)

    @do_not_convert
    def _speaker_statistics(self) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns each position's speaker number, and the speakers' means and deviations.

        They are those of the whole split, also for a part of it, or else a speaker's
        features would depend on which utterances were drawn.

        Returns:
            int64 ``(positions,)``, -1 for gaps, and two float32 tensors ``(speakers,
            num_features)``.
        """
        utterances = self.split.whole or self.split.utterances
        positions = np.array([utterance.position for utterance in utterances])
        codes = utterances.column("speaker")
        # An utterance of an unknown speaker is normalised as if it were the speaker's
        # only one.
        codes = np.where(codes == 0, ~positions.astype(np.uint64), codes)
        # Speakers are numbered, as their codes are too large for indices.
        names, numbers = np.unique(codes, return_inverse=True)
        speakers = np.full(positions.max() + 1, -1)
        speakers[positions] = numbers
        sums = [FeatureSums() for _ in names]
        records = tf.data.TFRecordDataset(self.split.files, self._compression)
        records = self._parsed(records, self._decoded).with_options(_options())
        for parsed, features in Reading(records, self.split):
            sums[speakers[int(parsed["position"])]].add(features.numpy())

        speaker_statistics = tuple(
            map(np.stack, zip(*(s.statistics() for s in sums), strict=True))
        )
        frames = np.array([[s.frames] for s in sums], np.float32)
        # tensors, because arrays would be copied into each traced graph
        with tf.device("CPU"):
            values = [
                tf.constant(array)
                for array in pooled(frames, speaker_statistics, self._statistics)
            ]
            return tf.constant(speakers), values

    def _decoded(self, record: tf.Tensor) -> tuple[Batch, tf.Tensor]:
        """Returns a parsed record and its features before normalisation.

        The features are float32 ``(frames, num_features)``, whatever the shards store.
        """
        parsed = tf.io.parse_single_example(record, RECORD)
        # Reshaped as integers, because on processors without half precision oneDNN logs
        # an error.
        dtype = tf.as_dtype(self.split.index["packing"]["dtype"])
        bits = tf.io.decode_raw(
            parsed["features"], tf.uint16 if dtype.size == 2 else tf.int32
        )
        rows = tf.reshape(bits, [-1, self._features.num_features])

        return parsed, tf.cast(tf.bitcast(rows, dtype), tf.float32)

    def _parse(self, record: tf.Tensor, order_seed: tf.Tensor | None = None) -> Batch:
        """Returns an utterance's element, normalised and not yet padded or masked.

        Without ``order_seed``, as in evaluation, its vocal tract stays as it is.
        """
        parsed, features = self._decoded(record)
        mean, deviation = self._statistics
        if self._features.normalisation == "speaker":
            speaker = tf.gather(self._speakers, parsed["position"])
            mean, deviation = (
                tf.gather(values, speaker) for values in self._of_speakers
            )

        if order_seed is not None and self._vocal_tract is not None:
            seed = tf.stack([order_seed, parsed["position"]])
            features = self._vocal_tract.drawn(features, seed)
            if self._features.normalisation == "speaker":
                # A speaker's mean moves along with the speaker's vocal
                # tract.
                mean = self._vocal_tract.drawn(mean[None], seed)[0]

        labels = tf.cast(tf.sparse.to_dense(parsed["labels"]), tf.int32)

        return {
            "features": normalise_features(features, self._features, mean, deviation),
            "feature_lengths": tf.shape(features)[0],
            "labels": labels,
            "label_lengths": tf.shape(labels)[0],
            "positions": parsed["position"],
            "duration_s": parsed["duration_s"],
        }


def unread(record: tf.Tensor, frame_bytes: int) -> Batch:
    """Returns the facts about a serialised record that batching needs.

    Its features stay serialised in ``record``; only their number is computed, from
    bytes.
    """
    parsed = tf.io.parse_single_example(record, RECORD)
    return {
        "record": record,
        "positions": parsed["position"],
        "duration_s": parsed["duration_s"],
        "feature_lengths": tf.strings.length(parsed["features"]) // frame_bytes,
        "labels": tf.cast(tf.sparse.to_dense(parsed["labels"]), tf.int32),
    }


def share_of_batches(
    batches: tf.data.Dataset,
    share: Share,
    padded: Callable[[tf.data.Dataset, tf.Tensor], tf.data.Dataset],
) -> tf.data.Dataset:
    """Returns a worker's share of each batch, with facts about the whole batch.

    All workers need these facts: losses are weighted by the whole batch, and each
    process writes which utterances a step has seen.

    Args:
        batches: of what `unread` returns, without labels.
        share: the worker's.
        padded: makes one batch of serialised records, padded for a number of frames.

    Returns:
        Batches that also have ``all_positions`` int64, ``all_duration_s`` float32 and
        ``all_lengths`` int32, each ``(utterances,)``, of the whole batch in its order;
        ``first_row`` int32, where the share begins; and ``counted`` float32: 1, or 0 if
        the batch has too few utterances for all workers, so that this worker repeats
        one of another worker's.
    """

    def share_of(batch: Batch) -> tf.data.Dataset:
        utterances = tf.shape(batch["positions"])[0]
        begin = share.rank * utterances // share.count
        end = (share.rank + 1) * utterances // share.count
        empty = tf.equal(begin, end)
        first = tf.minimum(begin, utterances - 1)
        rows = batch["record"][first : tf.where(empty, first + 1, end)]
        records = tf.data.Dataset.from_tensor_slices(rows)
        of_all = {
            "all_positions": batch["positions"],
            "all_duration_s": batch["duration_s"],
            "all_lengths": batch["feature_lengths"],
            "first_row": first,
            "counted": tf.where(empty, 0.0, 1.0),
        }
        longest = tf.reduce_max(batch["feature_lengths"])

        return padded(records, longest).map(lambda part: {**part, **of_all})

    return batches.flat_map(share_of)


def cut_for_replicas(batches: tf.data.Dataset, replicas: int) -> tf.data.Dataset:
    """Cuts each batch into ``replicas`` equal elements, and drops what remains.

    A batch with fewer utterances than replicas gives no elements at all.
    """

    def cut(batch: Batch) -> tf.data.Dataset:
        each = tf.shape(batch["feature_lengths"])[0] // replicas
        parts = {
            name: tf.reshape(
                value[: each * replicas],
                tf.concat([[replicas, each], tf.shape(value)[1:]], 0),
            )
            for name, value in batch.items()
        }
        return tf.data.Dataset.from_tensor_slices(parts).take(
            tf.where(each > 0, tf.constant(replicas, tf.int64), 0)
        )

    return batches.flat_map(cut)
