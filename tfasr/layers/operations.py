"""The compiled C++ functions in ``_recurrent/`` (the core) as operations in TensorFlow graphs.

Importing this module adds them to TensorFlow if the core is built. A model written by
Keras's ``model.export`` contains them, so it loads only in processes that have imported
this module; others raise "Op type not registered 'TfasrRecurrence'". The files of
``tfasr export`` don't need tfasr.
"""

import functools
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfasr.kit.process import quota

try:
    from tfasr.layers import _recurrent_core as core
except ImportError:  # built without a compiler: layers use TensorFlow's own operations
    core = None

Attribute = int | float | tf.DType
_ANY_THREADS = 2**31 - 1  # means no limit
log = logging.getLogger("tfasr")


class Operation(NamedTuple):
    """A compiled function as an operation in a graph."""

    name: str
    dtypes: list[tf.DType]  # of its outputs
    attributes: dict[str, Attribute]  # constants, without "replicas"


@functools.cache
def registered() -> bool:
    """Adds the operations to TensorFlow once; returns whether that succeeded.

    It fails if TensorFlow's library isn't found, or the core was built for another one.
    """
    # The core is missing, or has no operations.
    if not hasattr(core, "register_operations"):
        return False

    reason = _reason_against()
    if reason is None:
        # TensorFlow's own setting is read when a graph is made: reading it looks for
        # devices.
        threads = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
        limit_threads(int(threads) if re.fullmatch("[0-9]{1,5}", threads) else 0)
        return True

    log.warning(
        "The compiled layers could not be added to TensorFlow as operations: %s Graphs call them "
        "through Python, so exported models run only in this process.",
        reason,
    )

    return False


def _reason_against() -> str | None:
    """Adds the operations; returns why that failed, or None."""
    # Registering a name twice would end the process.
    if op_def_registry.get("TfasrRecurrence") is not None:
        return "another copy of tfasr in this process has added its own."

    folder = Path(tf.sysconfig.get_lib())
    reason = f"there is no libtensorflow_framework in {folder}."
    for library in sorted(folder.glob("libtensorflow_framework*")):
        try:
            core.register_operations(str(library))
        except RuntimeError as error:
            reason = str(error)
        else:
            return None

    return reason


def limit_threads(configured: int) -> None:
    """Limits an operation's threads to TensorFlow's setting and the CPU quota.

    ``configured`` is 0 if TensorFlow has no limit.
    """
    # The quota may be infinite, or less than one processor.
    most = max(int(min(quota(), _ANY_THREADS)), 1)
    core.limit_threads(min(configured or _ANY_THREADS, most))


def add(
    operation: Operation,
    inputs: Sequence[tf.Tensor],
    replicas: int,
) -> list[tf.Tensor]:
    """Adds an operation to the current graph and returns its outputs.

    Call `registered` first. ``replicas`` share the process's threads.
    """
    attributes = {**operation.attributes, "replicas": replicas}
    # By the low-level interface: there is no generated wrapper for these
    # operations.
    values = {name: _value(attribute) for name, attribute in attributes.items()}
    graph = tf.compat.v1.get_default_graph()
    made = graph.create_op(operation.name, list(inputs), operation.dtypes, attrs=values)

    return list(made.outputs)


def _value(attribute: Attribute) -> tf.compat.v1.AttrValue:
    """Returns an attribute as graphs store it."""
    if isinstance(attribute, tf.DType):
        return tf.compat.v1.AttrValue(type=attribute.as_datatype_enum)
    if isinstance(attribute, float):
        return tf.compat.v1.AttrValue(f=attribute)

    return tf.compat.v1.AttrValue(i=attribute)


registered()
