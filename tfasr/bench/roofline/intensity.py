"""ERT's sweep: one array processed with more and more operations for each element.

Source: Y. Lo et al., Roofline Model Toolkit, 2014, and ERT's first kernel, which the settings
``ERT_FLOPS 1,2,4,...,256`` of the talk on keyword spotting run.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import tensorflow as tf

from tfasr.precision import PRECISIONS

_READ_AND_WRITTEN = 2
# Passes over the array in a call, so that what a call and its first copy take hardly counts.
_PASSES = 16
_CALL_BYTES = 64 * 2**20
# Two units, each of which begins a multiplication each cycle and ends it after four.
_CHAINS = 8


@dataclass(frozen=True)
class IntensityPoint:
    """An array worked through with so many operations for each of its elements.

    Attributes:
        precision: of `tfasr.precision.PRECISIONS`.
        place: where the array lies: "memory" or a cache.
        flops_per_element: floating-point operations for each element, which is read and written.
        flops_per_s: of the fastest call.
        bytes_per_s: read and written, of the same call.
    """

    precision: str
    place: str
    flops_per_element: int
    flops_per_s: float
    bytes_per_s: float

    @property
    def flops_per_byte(self) -> float:
        """The intensity."""
        return self.flops_per_s / self.bytes_per_s


def intensity_sweep(
    precision: str,
    place: str,
    array_bytes: int,
    flops_per_element: Sequence[int],
    threads: int,
    seconds: float,
) -> list[IntensityPoint]:
    """Measures operations and bytes per second over operations for each element.

    ``x = a x`` is repeated in place, or from two operations on ``x = a x + b``; XLA makes each
    pass one loop over the array, in which a number stays in a register. Every thread has a
    slice of its own; on a GPU there is one, and XLA chooses blocks and threads.

    Args:
        precision: of `tfasr.precision.multiplied`.
        place: where the array lies, for the result.
        array_bytes: of the array, over all threads.
        flops_per_element: operations: 1, or even numbers.
        threads: that work at the same time.
        seconds: how long each intensity is repeated; the first call is left out.
    """
    dtype = tf.dtypes.as_dtype(PRECISIONS[precision].dtype)
    elements = max(array_bytes // dtype.size // threads, 1)
    slices = [tf.fill([elements], tf.constant(0.5, dtype)) for _ in range(threads)]
    passes = max(_PASSES, _CALL_BYTES // (_READ_AND_WRITTEN * elements * dtype.size))
    points = []
    with ThreadPoolExecutor(threads) as pool:
        for flops in flops_per_element:
            work = _kernel(flops, dtype)

            def call(work=work) -> None:
                list(pool.map(lambda own: work(own, passes).numpy(), slices))

            work(slices[0], 1)  # traced once, not once in each thread
            seconds_of_call = _fastest(call, seconds)
            done = passes * elements * threads / seconds_of_call
            moved = done * _READ_AND_WRITTEN * dtype.size
            points.append(IntensityPoint(precision, place, flops, done * flops, moved))
    return points


def _kernel(flops: int, dtype: tf.DType) -> Callable[[tf.Tensor, int], tf.Tensor]:
    """Returns what makes passes over an array in place and returns its first element."""

    @tf.function(jit_compile=True)
    def passes(values: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        # The count is no constant, so that no pass can be left out.
        _, values = tf.while_loop(
            lambda number, _: number < count,
            lambda number, values: (number + 1, _worked_through(values, flops)),
            (tf.constant(0), values),
        )
        return values[0]

    return lambda values, count: passes(values, tf.constant(count))


def _worked_through(values: tf.Tensor, flops: int) -> tf.Tensor:
    """Returns an array after so many operations on each element; its values stay near 1.

    Many operations run in several chains, which are added up in the end: a processor begins a
    multiplication before the one before has ended only where neither needs the other.
    """

    def constant(value: float) -> tf.Tensor:
        return tf.constant(value, values.dtype)

    def once(values: tf.Tensor, addend: float = 0.001) -> tf.Tensor:
        return values * constant(0.8) + constant(addend)

    if flops == 1:
        return values * constant(0.999)
    pairs, chains = flops // 2, [values]
    if pairs >= 2 * _CHAINS:
        chains = [once(values, 0.001 * (number + 1)) for number in range(_CHAINS)]
        pairs -= 2 * _CHAINS - 1  # their beginning, and their sum
    for _ in range(pairs // len(chains)):
        chains = [once(chain) for chain in chains]
    values = chains[0]
    for chain in chains[1:]:
        values = values * constant(0.1) + chain
    for _ in range(pairs % len(chains)):
        values = once(values)
    return values


def _fastest(call: Callable[[], None], seconds: float) -> float:
    call()
    fastest_s, end = float("inf"), time.perf_counter() + seconds
    while fastest_s == float("inf") or time.perf_counter() < end:
        began = time.perf_counter()
        call()
        fastest_s = min(fastest_s, time.perf_counter() - began)
    return fastest_s
