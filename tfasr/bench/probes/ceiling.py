"""The fastest large matrix product of this machine: what a training step can be held against."""

import time

import tensorflow as tf

from tfasr.precision import PRECISIONS

_SECONDS = 2.0
_CPU_SIZE, _GPU_SIZE = 2048, 8192
# A GPU works through a queue: reading each result would measure the way there and back.
_IN_A_ROW = 8


def matmul_ceiling(precision: str, *, seconds: float = _SECONDS, size: int | None = None) -> float:
    """Measures floating-point operations per second of square matrix products.

    Args:
        precision: of `tfasr.precision.multiplied`; products run in its dtype.
        seconds: how long, the warm-up aside.
        size: rows and columns; by default 2048, on a GPU 8192.

    Returns:
        Those of the fastest of all repetitions: a ceiling is what nothing exceeds.
    """
    on_gpu = bool(tf.config.list_logical_devices("GPU"))
    size = size or (_GPU_SIZE if on_gpu else _CPU_SIZE)
    in_a_row = _IN_A_ROW if on_gpu else 1
    dtype = PRECISIONS[precision].dtype
    left, right = (
        tf.cast(tf.random.stateless_normal((size, size), seed=(0, number)), dtype)
        for number in range(2)
    )

    @tf.function
    def products(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        for _ in range(in_a_row):
            # Divided, so that a row of products does not overflow.
            left = tf.matmul(left, right) * tf.cast(size**-0.5, left.dtype)
        return left[0, 0]

    fastest_s, end = float("inf"), None
    while end is None or time.perf_counter() < end:
        began = time.perf_counter()
        products(left, right).numpy()
        now = time.perf_counter()
        if end is None:  # the first traced, and is left out
            end = now + seconds
            continue
        fastest_s = min(fastest_s, now - began)
    return in_a_row * 2 * size**3 / fastest_s
