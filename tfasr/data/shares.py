"""A worker's share of each global batch, and the equal shares of replicas."""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from tfasr.data.shards import RECORD

Element = dict[str, tf.Tensor]


@dataclass(frozen=True)
class Share:
    """Rows ``rank * n // count`` to ``(rank + 1) * n // count`` of each global batch of n.

    A ``span`` of (first, last, parts) has ``first * n // parts`` to ``last * n // parts`` instead.
    """

    rank: int
    count: int
    span: tuple[int, int, int] | None = None


def unread(record: tf.Tensor, frame_bytes: int) -> Element:
    """Returns the facts about a serialised record that batching needs; features stay undecoded."""
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
    """Returns a worker's share of each batch, and what it knows of the others' shares.

    ``batches`` are of `unread` records, without their labels; ``padded`` makes one padded batch of
    a dataset of serialised records, given the frames of the longest. Of the whole batch, in the
    single process's order, are ``all_positions`` int64, ``all_duration_s`` float32 and
    ``all_lengths`` int32, each ``(utterances,)``. ``first_row`` int32 is where the share begins;
    ``counted`` float32 is 1, or 0 where a batch has fewer utterances than workers and this one
    holds another's first.
    """
    begins, ends, parts = share.span or (share.rank, share.rank + 1, share.count)

    def share_of(batch: Element) -> tf.data.Dataset:
        utterances = tf.shape(batch["positions"])[0]
        begin, end = begins * utterances // parts, ends * utterances // parts
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
    """Returns each batch as equal elements, without up to ``replicas - 1`` of its utterances."""

    def cut(batch: Element) -> tf.data.Dataset:
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
