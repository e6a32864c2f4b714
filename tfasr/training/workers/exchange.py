"""Exchange between the workers of a run outside of steps; all workers must make each call."""

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
        return "this process"


class Together(Workers):
    """Workers that exchange through TensorFlow's collectives, one replica each."""

    def __init__(self, cluster: Cluster, strategy: tf.distribute.Strategy):
        self.rank = cluster.rank
        self.count = cluster.size
        self.name = cluster.name
        self._strategy = strategy
        self._sums: dict[np.dtype, Callable[[tf.Tensor], tf.Tensor]] = {}

    def gather(self, value: Any) -> list[Any]:
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        lengths = np.zeros(self.count, np.int64)
        lengths[self.rank] = len(text)
        (lengths,) = self.sums([lengths])
        texts = np.zeros((self.count, int(lengths.max())), np.int64)
        texts[self.rank, : len(text)] = text
        (texts,) = self.sums([texts])
        rows = zip(texts.astype(np.uint8), lengths, strict=True)
        return [json.loads(row[:length].tobytes()) for row, length in rows]

    def sums(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        # Collectives can't add up all types; others are converted to a wider one and
        # back.
        kinds = [
            a.dtype if a.dtype in _ADDED else np.dtype(_wider(a.dtype)) for a in arrays
        ]
        totals: dict[int, np.ndarray] = {}
        for kind in dict.fromkeys(kinds):
            places = [place for place, other in enumerate(kinds) if other == kind]
            flat = np.concatenate(
                [arrays[place].ravel().astype(kind) for place in places]
            )
            ends = np.cumsum([arrays[place].size for place in places])
            parts = np.split(self._added(flat).numpy(), ends[:-1])
            totals |= dict(zip(places, parts, strict=True))

        return [
            totals[k].astype(a.dtype).reshape(a.shape) for k, a in enumerate(arrays)
        ]

    def _added(self, values: np.ndarray) -> tf.Tensor:
        def add(tensor: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tensor)

        if values.dtype not in self._sums:
            self._sums[values.dtype] = _on_replicas(self._strategy, add, values.dtype)

        return self._sums[values.dtype](tf.constant(values))


def _on_replicas(
    strategy: tf.distribute.Strategy, add: Callable, dtype: Any
) -> Callable:
    """A function that calls ``add`` with a vector in a replica's context, traced once."""
    # A function's argument is on no device, but collectives need one. The length is
    # left open, as otherwise each new length would be traced anew.
    return tf.function(
        lambda vector: strategy.run(
            lambda part: add(tf.identity(part)), args=(vector,)
        ),
        input_signature=[tf.TensorSpec([None], dtype)],
        autograph=False,
    )


_ADDED = tuple(map(np.dtype, (np.float32, np.float64, np.int32, np.int64)))


def _wider(dtype: np.dtype) -> type:
    return np.float32 if dtype.kind == "f" or dtype.name == "bfloat16" else np.int64


class StartBarrier:
    """A barrier before a run begins, which either all workers pass or none.

    A worker that fails before it passes sends the others its error, and they end too.
    """

    def __init__(self, workers: Workers):
        self._workers = workers
        self._passed = False

    def passed(self, offer: dict[str, Any]) -> list[dict[str, Any]]:
        """Waits for all workers and returns their offers by rank; raises RunError if
        one failed.
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
    def telling(self) -> Iterator[None]:
        """Sends the others an error that comes before `passed`."""
        try:
            yield
        except BaseException as error:
            if not self._passed:
                self._passed = True
                # Another worker has already ended.
                with contextlib.suppress(tf.errors.OpError):
                    self._workers.gather({"failed": str(error) or type(error).__name__})

            raise


def summed_over_workers(
    gradients: Sequence[tf.Tensor | None], exchange: str = "float32"
) -> list[tf.Tensor | None]:
    """The sums of all workers' gradients; call it in a replica's context.

    They travel as one buffer, round the ring of the workers. With "bfloat16", each
    worker's gradients are rounded to 8 bits of mantissa, and so is each partial sum on
    its way; the result has the gradients' own type. None stays None.
    """
    sent = [
        tf.cast(gradient, exchange) for gradient in gradients if gradient is not None
    ]
    context = tf.distribute.get_replica_context()
    totals = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, sent))
    return [None if g is None else tf.cast(next(totals), g.dtype) for g in gradients]


def exchanged_bytes(variables: Sequence[keras.Variable], exchange: str) -> int:
    """The bytes of the gradients that each worker contributes to the sum in a step."""
    return (
        sum(math.prod(variable.shape) for variable in variables)
        * tf.as_dtype(exchange).size
    )


SMALL_BYTES = 4096
_SMALL_TIMES = 9
_LARGE_TIMES = 5


@dataclass(frozen=True)
class LinkSpeed:
    """How long workers take to sum a buffer with the collective that sums their gradients."""

    small_bytes: int  # of a buffer whose time is all latency
    small_s: float  # median of some sums of it
    large_bytes: int  # of a buffer like all gradients
    large_s: float  # median of some sums of it
    # That each of n workers sends and receives: 2 (n - 1) / n of large_bytes.
    bytes_per_s: float
    took_s: float  # of the whole measurement

    def to_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        return {
            n: float(f"{v:.6g}") if isinstance(v, float) else v
            for n, v in values.items()
        }


def measure_link(
    workers: Workers, strategy: tf.distribute.Strategy, large_bytes: int, exchange: str
) -> LinkSpeed:
    """Measures the link; all workers call it at the same place."""
    began = time.perf_counter()
    width = tf.as_dtype(exchange).size

    def add(values: tf.Tensor) -> tf.Tensor:
        return summed_over_workers([values], exchange)[0][:1]

    summed = _on_replicas(strategy, add, exchange)

    def seconds(size: int, times: int) -> float:
        values = tf.zeros([max(size // width, 1)], exchange)
        noted = []
        for _ in range(times + 1):
            begun = time.perf_counter()
            summed(values).numpy()
            noted.append(time.perf_counter() - begun)

        # The last worker to join a sum did not wait; the first sum opened the
        # connections.
        return statistics.median(map(min, zip(*workers.gather(noted[1:]), strict=True)))

    small_s = seconds(SMALL_BYTES, _SMALL_TIMES)
    large_s = seconds(large_bytes, _LARGE_TIMES)
    sent = 2 * (workers.count - 1) / workers.count * large_bytes
    took_s = time.perf_counter() - began
    return LinkSpeed(SMALL_BYTES, small_s, large_bytes, large_s, sent / large_s, took_s)
