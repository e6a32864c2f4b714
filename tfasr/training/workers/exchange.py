"""What the workers of a run tell each other between steps: every call is made by all of them."""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfasr.cluster.description import Cluster
from tfasr.errors import RunError


class Workers(Protocol):
    """The processes that train a run together.

    Attributes:
        rank: of this one; 0 is the chief, which writes the run.
        count: of all.
    """

    rank: int
    count: int

    def gather(self, value: Any) -> list[Any]:
        """Returns what all workers gave, JSON values in the order of their ranks."""

    def sums(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Returns the sums of arrays over all workers, in their own types."""

    def name(self, rank: int) -> str:
        """Returns how messages call a worker."""


class Alone:
    """The one process of a run without a cluster; see `Workers`."""

    rank, count = 0, 1

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def sums(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        return arrays

    def name(self, rank: int) -> str:
        return "this process"


class Together:
    """Workers that exchange through TensorFlow's collectives; see `Workers`.

    Args:
        cluster: who they are.
        strategy: over all of them, one replica each.
    """

    def __init__(self, cluster: Cluster, strategy: tf.distribute.Strategy):
        self.rank, self.count = cluster.rank, cluster.size
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
        return [
            json.loads(row[:length].astype(np.uint8).tobytes())
            for row, length in zip(texts, lengths, strict=True)
        ]

    def sums(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        # What collectives can add up holds each of these types.
        kinds = [a.dtype if a.dtype in _ADDED else np.dtype(_wider(a.dtype)) for a in arrays]
        found: dict[int, np.ndarray] = {}
        for kind in dict.fromkeys(kinds):
            places = [place for place, other in enumerate(kinds) if other == kind]
            flat = np.concatenate([arrays[place].ravel().astype(kind) for place in places])
            ends = np.cumsum([arrays[place].size for place in places])
            totals = np.split(self._added(flat).numpy(), ends[:-1])
            found |= dict(zip(places, totals, strict=True))
        return [
            found[place].astype(array.dtype).reshape(array.shape)
            for place, array in enumerate(arrays)
        ]

    def _added(self, values: np.ndarray) -> tf.Tensor:
        if values.dtype not in self._sums:

            def add(tensor: tf.Tensor) -> tf.Tensor:
                context = tf.distribute.get_replica_context()
                # A function's argument is on no device, and collectives need one.
                return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(tensor))

            # The length is left open: else that of each text would be traced anew.
            self._sums[values.dtype] = tf.function(
                lambda tensor: self._strategy.run(add, args=(tensor,)),
                input_signature=[tf.TensorSpec([None], values.dtype)],
                autograph=False,
            )
        return self._sums[values.dtype](tf.constant(values))


_ADDED = tuple(map(np.dtype, (np.float32, np.float64, np.int32, np.int64)))


def _wider(dtype: np.dtype) -> type:
    return np.float32 if dtype.kind == "f" or dtype.name == "bfloat16" else np.int64


class Gate:
    """What all workers pass together before a run begins, or none.

    A worker that fails in the block before it passes tells the others, which then end too.
    """

    def __init__(self, workers: Workers):
        self._workers = workers
        self._passed = False

    def passed(self, offer: dict[str, Any]) -> list[dict[str, Any]]:
        """Waits until all workers are here; returns what each offered, by rank.

        Raises:
            RunError: if one of them failed before.
        """
        self._passed = True
        offers = self._workers.gather(offer)
        for rank, other in enumerate(offers):
            if "failed" in other:
                raise RunError(f"{self._workers.name(rank)} could not begin: {other['failed']}")
        return offers

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Tells the others of what goes wrong in a block before `passed`."""
        try:
            yield
        except BaseException as error:
            if not self._passed:
                self._passed = True
                with contextlib.suppress(tf.errors.OpError):  # another one is gone already
                    self._workers.gather({"failed": str(error) or type(error).__name__})
            raise
