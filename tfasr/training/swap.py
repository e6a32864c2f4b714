"""Puts an evaluation model in a training model's place on its devices, and takes it
away again.
"""

import contextlib
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from tfasr.training.checkpoint import state_variables


class Swap:
    """Swaps a training model for an evaluation model and back.

    The values of the training model and its optimizer are copied to the host, per
    replica, and their device memory is freed. The evaluation model is loaded on the
    same devices, under the same strategy. Afterwards its memory is freed and the
    training values are copied back, bit for bit. Both models' functions stay traced: a
    swap only copies, but the first one also builds the evaluation model. Without an
    accelerator, device and host share one memory, and a swap saves nothing.

    Args:
        model: the training model, with its optimizer.
        build: returns the evaluation model; called once, in the scope of the model's
            strategy.

    Source: the paper, section 4.4.2 and Figure 6.
    """

    def __init__(self, model: keras.Model, build: Callable[[], keras.Model]):
        self._model = model
        self._build = build
        self._evaluation_model: keras.Model | None = None

    def prepare(self) -> None:
        """Builds the evaluation model now, for a ``build`` that reads the training model.

        Its memory is freed until the first swap. Does nothing if there is one already.
        """
        if self._evaluation_model is None:
            release(self._on_device())

    @contextlib.contextmanager
    def swapped(
        self,
        load: Callable[[keras.Model], None],
        timed: Callable[[], contextlib.AbstractContextManager],
    ) -> Iterator[dict[str, int]]:
        """Has the evaluation model on the devices during a block.

        ``load`` gives it its weights, and each way is a block of ``timed()``. Yields
        the bytes of variables on all devices together: "training", of the model and its
        optimizer, and "evaluation", while it is swapped in, of both models.
        """
        with contextlib.ExitStack() as training_values:
            memory = {"training": held_bytes(self._model)}
            with timed():
                training_values.enter_context(off_device(self._model))
                evaluation_model = self._on_device()
                load(evaluation_model)

            memory["evaluation"] = held_bytes(evaluation_model) + held_bytes(
                self._model
            )
            yield memory
            with timed():
                release(evaluation_model)
                training_values.close()

    def _on_device(self) -> keras.Model:
        if self._evaluation_model is None:
            with self._model.distribute_strategy.scope():
                self._evaluation_model = self._build()

        for component in _components(self._evaluation_model):
            _assign(
                component, np.zeros(component.shape, component.dtype.as_numpy_dtype)
            )

        return self._evaluation_model


@contextlib.contextmanager
def off_device(model: keras.Model) -> Iterator[None]:
    """Moves all variables of a model and its optimizer to the host during a block, per
    replica.
    """
    components = _components(model)
    values = [component.numpy() for component in components]
    release(model)
    try:
        yield
    finally:
        for component, value in zip(components, values, strict=True):
            _assign(component, value)


def release(model: keras.Model) -> None:
    """Frees the memory of a model's variables; until they are assigned they hold nothing."""
    for component in _components(model):
        _assign(component, np.zeros(0, component.dtype.as_numpy_dtype))


def held_bytes(model: keras.Model) -> int:
    """Returns the bytes of a model's and its optimizer's variables on their devices."""
    components = _components(model)
    shapes = [
        tf.raw_ops.VariableShape(input=c.handle, out_type=tf.int64) for c in components
    ]
    sizes = [int(np.prod(shape.numpy())) for shape in shapes]
    return sum(c.dtype.size * size for c, size in zip(components, sizes, strict=True))


def _components(model: keras.Model) -> list[tf.Variable]:
    local = model.distribute_strategy.experimental_local_results
    return [part for v in state_variables(model).values() for part in local(v.value)]


def _assign(component: tf.Variable, value: np.ndarray) -> None:
    # `assign` would reject another shape, even for a variable that `release` has
    # emptied.
    with tf.device(component.device):
        content = tf.constant(value, component.dtype)
        tf.raw_ops.AssignVariableOp(resource=component.handle, value=content)
