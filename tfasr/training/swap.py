"""Swaps a training model for an evaluation model on its devices, and back.

This is how the paper's systems evaluate: on devices whose memory the training model
fills. `tfasr.training.placement.SwappedModel` uses it for every evaluation, and
`tfasr.adapters` for models of other training loops.
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

        Its memory is freed until the first swap. Does nothing if it is built already.
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

        Args:
            load: gives the evaluation model its weights.
            timed: returns a context manager; each way of the swap is a block of it.

        Yields:
            The bytes of variables on all devices together: "training", of the model and
            its optimizer, and "evaluation", while it is swapped in, of both models.
        """
        with contextlib.ExitStack() as training_values:
            memory = {"training": held_bytes(self._model)}
            with timed():
                training_values.enter_context(off_device(self._model))
                evaluation_model = self._on_device()
                load(evaluation_model)

            # The emptied training model may still occupy some.
            held = held_bytes(evaluation_model) + held_bytes(self._model)
            memory["evaluation"] = held
            yield memory

            with timed():
                release(evaluation_model)
                training_values.close()

    def _on_device(self) -> keras.Model:
        """Returns the evaluation model, with memory for its variables."""
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
    """Moves all variables of a model and its optimizer to the host during a block.

    Each replica gets its own values back.
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
    """Frees the memory of a model's and its optimizer's variables.

    They have no content until they are assigned again.
    """
    for component in _components(model):
        _assign(component, np.zeros(0, component.dtype.as_numpy_dtype))


def held_bytes(model: keras.Model) -> int:
    """Returns the bytes of a model's and its optimizer's variables on their devices."""
    total = 0
    for component in _components(model):
        # The variable's own shape is that before `release`.
        shape = tf.raw_ops.VariableShape(input=component.handle, out_type=tf.int64)
        total += component.dtype.size * int(np.prod(shape.numpy()))

    return total


def _components(model: keras.Model) -> list[tf.Variable]:
    """Returns the replicas' variables of a model and its optimizer."""
    local = model.distribute_strategy.experimental_local_results
    return [
        component
        for variable in state_variables(model).values()
        for component in local(variable.value)
    ]


def _assign(component: tf.Variable, value: np.ndarray) -> None:
    """Gives a variable a value of any shape, where it is.

    `tf.Variable.assign` would reject another shape, even for a variable that `release`
    has emptied.
    """
    with tf.device(component.device):
        content = tf.constant(value, component.dtype)
        tf.raw_ops.AssignVariableOp(resource=component.handle, value=content)
