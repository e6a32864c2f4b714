"""What devices do to each other: the seconds of an all-reduce, and who keeps the others waiting."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tfasr.bench.probes.computed import after
from tfasr.bench.probes.model_modules import modules_of, step_through
from tfasr.bench.probes.replicas import WARMUP_CALLS, Replicas, time_in_turns
from tfasr.data.pipeline import Batch
from tfasr.training.ctc_model import CtcModel


@dataclass(frozen=True)
class AllReduce:
    """Median seconds of an all-reduce of so many bytes on each device."""

    size_bytes: int
    seconds: float


def all_reduce_seconds(
    strategy: tf.distribute.Strategy, sizes_bytes: Sequence[int], rounds: int
) -> list[AllReduce]:
    """Times all-reduces of float32 tensors over the strategy's devices.

    Args:
        strategy: of at least two devices.
        sizes_bytes: of the tensor on each device.
        rounds: measured repetitions, of which medians are returned.
    """
    replicas = Replicas(strategy)

    def reduce(tensor):
        context = tf.distribute.get_replica_context()
        return [context.all_reduce(tf.distribute.ReduceOp.SUM, tensor)]

    calls = {
        str(size): replicas.compiled(reduce, replicas.values(lambda size=size: tf.zeros(size // 4)))
        for size in sizes_bytes
    }
    seconds = time_in_turns(calls, rounds)
    return [AllReduce(size, seconds[str(size)]) for size in sizes_bytes]


def replica_seconds(
    model: CtcModel, batch: Batch, strategy: tf.distribute.Strategy, rounds: int
) -> list[list[float]]:
    """Returns the seconds of forward and backward pass on each device, for each round.

    Devices begin together and do not wait for each other here: what differs is a straggler's.
    """
    replicas, modules = Replicas(strategy), modules_of(model)
    placed = replicas.values(lambda: {name: tf.constant(v) for name, v in batch.items()})

    def on_device(batch):
        began = tf.timestamp()
        with tf.control_dependencies([began]):
            begun = {name: tf.identity(value) for name, value in batch.items()}
            finished = after(tf.zeros(()), step_through(modules, begun))
        # A number on the host cannot be read before the device has computed it.
        with tf.device("CPU:0"):
            finished = tf.identity(finished)
            # The clock has side effects of its own, so this wait is kept.
            with tf.control_dependencies([finished]):
                return tf.stack([began, tf.timestamp()])

    @tf.function
    def run(batch):
        if replicas.count == 1:
            return on_device(batch)[None]
        return tf.stack(strategy.experimental_local_results(strategy.run(on_device, args=(batch,))))

    for _ in range(WARMUP_CALLS):
        run(placed)
    stamps = np.stack([run(placed).numpy() for _ in range(rounds)])
    return (stamps[:, :, 1] - stamps[:, :, 0]).tolist()
