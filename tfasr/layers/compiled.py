"""Calls the compiled core of the layers (``_recurrent/``) from TensorFlow graphs.

The kernels for batch normalisation and recurrent layers go through `call`, which finds
out how: at once, as an operation in the graph, or through Python.
"""

import os
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from tfasr.kit.process import usable_cores
from tfasr.layers import operations
from tfasr.layers.fused_call import has_gpu
from tfasr.layers.operations import Operation, core

DTYPES = ("float32", "bfloat16")  # for which the core has functions


def runs_here(dtype: str, function: str = "forward_float32") -> bool:
    """Whether a compiled function can run in the current graph.

    An older build of the core may lack the function. On GPUs, TensorFlow's own
    operations are used.
    """
    if not hasattr(core, function) or dtype not in DTYPES or has_gpu():
        return False

    # XLA programs can't call external code. TensorFlow's own layers make the same
    # check.
    return not control_flow_util.GraphOrParentsInXlaContext(
        tf.compat.v1.get_default_graph()
    )


def call(
    run: Callable[..., Sequence[np.ndarray]],
    operation: Operation,
    arguments: Sequence[tf.Tensor],
    shapes: Sequence[tuple[int | None, ...]],
) -> list[tf.Tensor]:
    """Calls a compiled function now if TensorFlow runs eagerly, else adds it to the graph.

    The graph runs it as an operation or, if `operations.registered` is false, calls
    back into Python. The latter is slower, especially while Python is busy, and can't
    be exported.

    Args:
        run: the function on NumPy arrays.
        operation: the same as an operation.
        arguments: its inputs.
        shapes: of its outputs, as far as they are known.
    """
    # Without a graph, NumPy arrays are passed directly.
    if tf.executing_eagerly():
        # tf.numpy_function converts bfloat16 in a way that NumPy 2 deprecates.
        return [
            tf.convert_to_tensor(array)
            for array in run(*(x.numpy() for x in arguments))
        ]

    if operations.registered():
        operations.limit_threads(_configured_threads())
        return operations.add(operation, arguments, replicas_here())

    results = tf.numpy_function(run, arguments, operation.dtypes, stateful=False)

    return [
        tf.ensure_shape(result, s) for result, s in zip(results, shapes, strict=True)
    ]


def second_derivatives_refused(what: str, instead: str) -> Callable:
    """Returns a gradient function that raises NotImplementedError with a remedy."""

    def refuse(*_):
        raise NotImplementedError(
            f"{what} has first derivatives only, but the gradient of its gradient was requested. "
            f"{instead}"
        )

    return refuse


def plain(array: np.ndarray) -> np.ndarray:
    """Returns an array for the compiled core: float32, or bfloat16 as uint16 for NumPy."""
    return array if array.dtype == np.float32 else array.view(np.uint16)


def replicas_here() -> int:
    """Returns how many replicas of the traced model share this process's cores."""
    if not tf.distribute.has_strategy():
        return 1

    return max(len(tf.distribute.get_strategy().extended.worker_devices), 1)


def team_size() -> Callable[[], int]:
    """Returns a function that returns how many threads a compiled call may use right then.

    That is the number of the process's cores (see `usable_cores`) or, if smaller, of
    TensorFlow's threads per operation, divided by the replicas in the process.
    TensorFlow's setting is read only when a graph is made: it can't change later, and
    reading takes as long as a small call.
    """
    configured = _configured_threads()
    replicas = replicas_here()

    def threads() -> int:
        cores = usable_cores()
        return max(min(configured or cores, cores) // replicas, 1)

    return threads


def _configured_threads() -> int:
    """Returns TensorFlow's setting of threads per operation; 0 if it is not set."""
    configured = tf.config.threading.get_intra_op_parallelism_threads()
    # TensorFlow reads the variable itself, but doesn't report it.
    return configured or int(os.environ.get("TF_NUM_INTRAOP_THREADS") or 0)
