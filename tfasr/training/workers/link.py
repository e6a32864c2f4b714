"""How fast the workers' link sums up a buffer, measured before a session's first step."""

import dataclasses
import statistics
import time
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfasr.training.workers.exchange import Workers
from tfasr.training.workers.gradients import summed_over_workers

SMALL_BYTES = 4096
_SMALL_TIMES = 9
_LARGE_TIMES = 5


@dataclass(frozen=True)
class Link:
    """How long workers take to sum a buffer up by the collective that sums their gradients.

    Attributes:
        small_bytes: of a buffer whose time is all latency.
        small_s: the median of some sums of it.
        large_bytes: of a buffer like all gradients.
        large_s: likewise.
        bytes_per_s: what each worker sends, and receives, of the large one in a second: in a ring
            of n workers 2 (n - 1) / n of its bytes.
        took_s: seconds of the whole measurement.
    """

    small_bytes: int
    small_s: float
    large_bytes: int
    large_s: float
    bytes_per_s: float
    took_s: float

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values, rounded."""
        values = dataclasses.asdict(self)
        return {n: float(f"{v:.6g}") if isinstance(v, float) else v for n, v in values.items()}


def measure_link(
    workers: Workers, strategy: tf.distribute.Strategy, large_bytes: int, exchange: str
) -> Link:
    """Measures; all workers call it at the same place.

    Args:
        workers: all of them.
        strategy: over all of them.
        large_bytes: of all gradients, as they are exchanged.
        exchange: their type.
    """
    began = time.perf_counter()
    width = tf.as_dtype(exchange).size

    def add(values: tf.Tensor) -> tf.Tensor:
        # A function's argument is on no device, and collectives need one.
        return summed_over_workers([tf.identity(values)], exchange)[0][:1]

    summed = tf.function(
        lambda values: strategy.run(add, args=(values,)),
        input_signature=[tf.TensorSpec([None], exchange)],
        autograph=False,
    )

    def seconds(size: int, times: int) -> float:
        values = tf.zeros([max(size // width, 1)], exchange)
        noted = []
        for _ in range(times + 1):
            begun = time.perf_counter()
            summed(values).numpy()
            noted.append(time.perf_counter() - begun)
        # Who came last to a sum has not waited for another; the first sum opened the connections.
        each = zip(*workers.gather(noted[1:]), strict=True)
        return statistics.median(min(one) for one in each)

    small_s, large_s = seconds(SMALL_BYTES, _SMALL_TIMES), seconds(large_bytes, _LARGE_TIMES)
    sent = 2 * (workers.count - 1) / workers.count * large_bytes
    took_s = time.perf_counter() - began
    return Link(SMALL_BYTES, small_s, large_bytes, large_s, sent / large_s, took_s)
