"""How fast this machine moves memory, in the manner of STREAM."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

# Of float32 numbers: three such pieces stay in a core's second-level cache.
_PIECE = 32 * 1024
# Moved by each thread in a round at least: starting a thread takes as long as 100 KB.
_ROUND_BYTES = 32 * 1024 * 1024
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def cache_bytes() -> dict[int, int]:
    """Returns the bytes of the first core's data caches by level; empty where Linux tells none."""
    found = {}
    for folder in sorted(_CACHES.glob("index*")):
        try:
            kind = (folder / "type").read_text(encoding="utf-8").strip()
            size = (folder / "size").read_text(encoding="utf-8").strip()
            level = int((folder / "level").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if kind in ("Data", "Unified") and size.endswith("K"):
            found[level] = int(size[:-1]) * 1024
    return found


def cpu_bandwidth(array_bytes: int, threads: int, seconds: float) -> dict[str, float]:
    """Measures copy and triad over arrays of float32 numbers.

    Every thread has its own slices. The triad ``a = b + s * c`` runs piece by piece, so that its
    second pass finds the piece in a cache: memory sees two reads and one write, as in STREAM.

    Args:
        array_bytes: of each array, over all threads.
        threads: that work at the same time.
        seconds: how long each kind is repeated; the first round is left out.

    Returns:
        Bytes per second of the fastest round of "copy" (2 moves a number) and "triad" (3 moves).

    Source: J. McCalpin, Memory Bandwidth and Machine Balance in High Performance Computers, 1995.
    """
    numbers = max(array_bytes // 4 // threads, 1)
    arrays = [
        tuple(np.full(numbers, value, np.float32) for value in (0, 1, 2)) for _ in range(threads)
    ]
    times = -(-_ROUND_BYTES // (4 * numbers))
    with ThreadPoolExecutor(threads) as pool:
        return {
            name: moves
            * 4
            * numbers
            * threads
            * times
            / _fastest(pool, work, arrays, times, seconds)
            for name, work, moves in (("copy", _copy, 2), ("triad", _triad, 3))
        }


def gpu_bandwidth(array_bytes: int, seconds: float) -> dict[str, float]:
    """Measures scaling (in the place of a copy) and triad on the first GPU, see `cpu_bandwidth`."""
    import tensorflow as tf

    b, c = (tf.fill([max(array_bytes // 4, 1)], value) for value in (1.0, 2.0))
    found = {}
    for name, work, moves in (
        ("copy", tf.function(lambda: 3.0 * c), 2),
        ("triad", tf.function(lambda: b + 3.0 * c, jit_compile=True), 3),
    ):

        def once(work=work) -> None:
            work()
            tf.test.experimental.sync_devices()

        found[name] = moves * array_bytes / _best(once, seconds)
    return found


def _fastest(pool, work: Callable, arrays: list[tuple], times: int, seconds: float) -> float:
    def repeated(own: tuple) -> None:
        for _ in range(times):
            work(*own)

    return _best(lambda: list(pool.map(repeated, arrays)), seconds)


def _best(once: Callable[[], object], seconds: float) -> float:
    once()
    fastest_s, end = float("inf"), time.perf_counter() + seconds
    while fastest_s == float("inf") or time.perf_counter() < end:
        began = time.perf_counter()
        once()
        fastest_s = min(fastest_s, time.perf_counter() - began)
    return fastest_s


def _copy(a: np.ndarray, b: np.ndarray, _: np.ndarray) -> None:
    np.copyto(a, b)


def _triad(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    for start in range(0, len(a), _PIECE):
        piece = slice(start, start + _PIECE)
        np.multiply(c[piece], np.float32(3), out=a[piece])
        np.add(a[piece], b[piece], out=a[piece])
