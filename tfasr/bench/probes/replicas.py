"""The same work on every device of a strategy, and calls that take turns."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfasr.bench.probes.computed import after

WARMUP_CALLS = 2


class Replicas:
    """Runs the same work on every device of a strategy, each with values of its own."""

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.count = strategy.num_replicas_in_sync

    def values(self, make: Callable[[], Any]) -> Any:
        """Returns what ``make`` returns, a copy on every device."""
        if self.count == 1:
            return make()
        return self.strategy.experimental_distribute_values_from_function(lambda _: make())

    def compiled(self, work: Callable[..., list], *arguments: Any) -> Callable[[], None]:
        """Returns a call that does work on all devices at once and waits for its end.

        Args:
            work: returns tensors that must have been computed; None among them is left out.
            arguments: of it, from `values`.
        """

        def on_device(*arguments):
            # Nothing of size leaves the function, and nothing can be pruned from it.
            return after(tf.zeros(()), work(*arguments))

        @tf.function
        def run(*arguments):
            if self.count == 1:
                return on_device(*arguments)
            return self.strategy.run(on_device, args=arguments)

        def call() -> None:
            run(*arguments)
            tf.test.experimental.sync_devices()

        return call


def time_in_turns(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Returns each call's median seconds over rounds in which every call has its turn.

    Two calls of each come before, which trace and compile; they are left out.
    """
    for call in calls.values():
        for _ in range(WARMUP_CALLS):
            call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}
