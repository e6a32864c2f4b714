"""Exchange between the workers of a run: of values between steps, of gradients in them.

All workers must make each call, in the same order: a worker that makes another one, or
none, lets the others wait forever. `Workers` is a single process, `Together` are those
that take each step together under TensorFlow's collectives (`SharedStep`). Workers that
train in rounds exchange through `tfasr.training.workers.hub` instead.
"""

import contextlib
import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfasr.cluster.description import Cluster
from tfasr.errors import RunError


class Workers:
    """The processes that train a run, here only one.

    Rank 0 is the chief, which writes the run.
    """

    rank = 0
    count = 1

    def gather(self, value: Any) -> list[Any]:
        """Returns all workers' values, JSON in the order of their ranks."""
        return [value]

    def sums(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Returns the sums of arrays over all workers, in their own types."""
        return arrays

    def name(self, rank: int) -> str:
        """Returns what messages call a worker."""
        return "this process"


class Together(Workers):
    """Workers that exchange through TensorFlow's collectives, one replica each.

    ``strategy`` is that under which they train.
    """

    def __init__(self, cluster: Cluster, strategy: tf.distribute.Strategy):
        self.rank = cluster.rank
        self.count = cluster.size
        self.name = cluster.name
        self._strategy = strategy
        # The functions that add vectors over the workers, by their type.
        self._sums: dict[np.dtype, Callable[[tf.Tensor], tf.Tensor]] = {}

    def gather(self, value: Any) -> list[Any]:
        # Each worker fills one row, and the sum contains all rows.
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        own_lengths = np.zeros(self.count, np.int64)
        own_lengths[self.rank] = len(text)
        (lengths,) = self.sums([own_lengths])

        own_texts = np.zeros((self.count, int(lengths.max())), np.int64)
        own_texts[self.rank, : len(text)] = text
        (texts,) = self.sums([own_texts])

        rows = zip(texts.astype(np.uint8), lengths, strict=True)
        return [json.loads(row[:length].tobytes()) for row, length in rows]

    def sums(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        # Arrays of one type travel together. Collectives can't add up all types; others
        # are converted to a wider one and back.
        sent_types = [_sent_type(array.dtype) for array in arrays]
        totals = {}

        for sent_type in dict.fromkeys(sent_types):
            places = [n for n, other in enumerate(sent_types) if other == sent_type]
            flat = [arrays[place].ravel().astype(sent_type) for place in places]
            ends = np.cumsum([len(values) for values in flat])
            added = self._added(np.concatenate(flat)).numpy()
            parts = np.split(added, ends[:-1])
            totals |= dict(zip(places, parts, strict=True))

        return [
            totals[place].astype(array.dtype).reshape(array.shape)
            for place, array in enumerate(arrays)
        ]

    def _added(self, values: np.ndarray) -> tf.Tensor:
        """Returns the sum of a vector over the workers."""

        def add(tensor: tf.Tensor) -> tf.Tensor:
            return tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.SUM, tensor
            )

        if values.dtype not in self._sums:
            self._sums[values.dtype] = _on_replicas(self._strategy, add, values.dtype)

        return self._sums[values.dtype](tf.constant(values))


def _on_replicas(
    strategy: tf.distribute.Strategy, add: Callable, dtype: Any
) -> Callable:
    """Returns a function that calls ``add`` with a vector in a replica's context.

    It is traced once for all lengths.
    """

    def of_replica(part: tf.Tensor) -> tf.Tensor:
        # A function's argument is on no device, but collectives need one.
        return add(tf.identity(part))

    return tf.function(
        lambda vector: strategy.run(of_replica, args=(vector,)),
        input_signature=[tf.TensorSpec([None], dtype)],
        autograph=False,
    )


# The types that collectives can add up.
_ADDED = (np.float32, np.float64, np.int32, np.int64)


def _sent_type(dtype: np.dtype) -> np.dtype:
    """Returns a type that collectives can add up and that contains all values of another."""
    if dtype in _ADDED:
        return dtype

    # NumPy's kind of bfloat16 isn't that of floats.
    if dtype.kind == "f" or dtype.name == "bfloat16":
        return np.dtype(np.float32)

    return np.dtype(np.int64)


class StartBarrier:
    """A barrier before a run begins, which either all workers pass or none.

    A worker that fails before it passes sends the others its error, and they end too.
    """

    def __init__(self, workers: Workers):
        self._workers = workers
        self._passed = False

    def passed(self, offer: dict[str, Any]) -> list[dict[str, Any]]:
        """Waits for all workers and returns their offers by rank.

        Raises RunError if one of them failed before it came here.
        """
        self._passed = True
        offers = self._workers.gather(offer)
        for rank, other in enumerate(offers):
            if "failed" in other:
                raise RunError(
                    f"{self._workers.name(rank)} could not begin: {other['failed']}"
                )

        return offers

    @contextlib.contextmanager
    def sending_errors(self) -> Iterator[None]:
        """Sends the others an error that comes in the block, before `passed`."""
        try:
            yield
        except BaseException as error:
            if not self._passed:
                self._passed = True
                # The others may have ended already.
                with contextlib.suppress(tf.errors.OpError):
                    self._workers.gather({"failed": reason_of(error)})

            raise


def reason_of(error: BaseException) -> str:
    """Returns an error's message, or its class's name if that is empty."""
    return str(error) or type(error).__name__


def summed_over_workers(
    gradients: Sequence[tf.Tensor | None], exchange: str = "float32"
) -> list[tf.Tensor | None]:
    """Returns the sums of all workers' gradients; call it in a replica's context.

    They travel as one buffer, round the ring of the workers.

    Args:
        gradients: this worker's; None stays None.
        exchange: the type in which they travel. With "bfloat16", each worker's
            gradients are rounded to 8 bits of mantissa, and so is each partial sum on
            its way; the result has the gradients' own type.
    """
    sent = [
        tf.cast(gradient, exchange) for gradient in gradients if gradient is not None
    ]
    totals = iter(
        tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, sent)
    )

    return [
        None if gradient is None else tf.cast(next(totals), gradient.dtype)
        for gradient in gradients
    ]


def exchanged_bytes(variables: Sequence[keras.Variable], exchange: str) -> int:
    """Returns the bytes of the gradients that a worker contributes to a step's sum.

    Args:
        variables: the trainable weights.
        exchange: the type in which gradients travel, such as "bfloat16".
    """
    values = sum(math.prod(variable.shape) for variable in variables)
    return values * tf.as_dtype(exchange).size


# Buffers of this size take only the time that the first byte needs. Each kind of sum is
# repeated, and its median counts.
SMALL_BYTES = 4096
_SMALL_TIMES = 9
_LARGE_TIMES = 5


@dataclass(frozen=True)
class LinkSpeed:
    """How long workers take to sum a buffer, as they sum their gradients."""

    small_bytes: int  # of a buffer whose time is all latency
    small_s: float  # median of some sums of it
    large_bytes: int  # of a buffer like all gradients
    large_s: float  # median of some sums of it
    # That each of n workers sends and receives: 2 (n - 1) / n of large_bytes.
    bytes_per_s: float
    took_s: float  # of the whole measurement

    def to_json(self) -> dict[str, Any]:
        """Returns the fields, with numbers of six digits."""
        return {
            name: float(f"{value:.6g}") if isinstance(value, float) else value
            for name, value in dataclasses.asdict(self).items()
        }


def measure_link(
    workers: Workers, strategy: tf.distribute.Strategy, large_bytes: int, exchange: str
) -> LinkSpeed:
    """Measures the link between the workers; all call this at the same place.

    Args:
        workers: that train together.
        strategy: under which they train.
        large_bytes: the size of all gradients, see `exchanged_bytes`.
        exchange: the type in which they travel.
    """
    began = time.perf_counter()
    width = tf.as_dtype(exchange).size

    def add(values: tf.Tensor) -> tf.Tensor:
        (total,) = summed_over_workers([values], exchange)
        # One value is enough to wait for, and takes no time to copy.
        return total[:1]

    summed = _on_replicas(strategy, add, exchange)

    def seconds(size: int, times: int) -> float:
        """Returns the median time of a sum over the workers."""
        values = tf.zeros([max(size // width, 1)], exchange)
        times_s = []

        for _ in range(times + 1):
            begun = time.perf_counter()
            summed(values).numpy()
            times_s.append(time.perf_counter() - begun)

        # The first sum opened the connections.
        of_workers = workers.gather(times_s[1:])
        # The last worker to join a sum did not wait for others, so its time counts.
        return statistics.median(map(min, zip(*of_workers, strict=True)))

    small_s = seconds(SMALL_BYTES, _SMALL_TIMES)
    large_s = seconds(large_bytes, _LARGE_TIMES)
    sent = 2 * (workers.count - 1) / workers.count * large_bytes

    return LinkSpeed(
        small_bytes=SMALL_BYTES,
        small_s=small_s,
        large_bytes=large_bytes,
        large_s=large_s,
        bytes_per_s=sent / large_s,
        took_s=time.perf_counter() - began,
    )
