"""Evaluation by a model of its own, in whose favour the training model leaves the device."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tfasr.ledger import Ledger
from tfasr.training.checkpoint import restore_for_use, state_variables
from tfasr.training.ctc_model import CtcModel
from tfasr.training.evaluation import Evaluator
from tfasr.training.placement.protocol import Placement
from tfasr.training.placement.shared import DecodingScores


class SwappedModel(Placement):
    """Swaps the training model for an evaluation model and back, at every evaluation.

    The values of the training model and its optimizer are copied to the host and their memory on
    the devices is given back; the evaluation model is loaded from the epoch's checkpoint and runs
    the forward passes; its memory is given back and the training values are copied to where they
    were, bit for bit. Both models' functions stay traced, so a swap is copying alone; only the
    first one also builds the evaluation model. Each way is booked as ``swap``.

    On a processor without accelerator device and host are the same memory: the swap is done all
    the same, and gains nothing there.

    Args:
        model: trained, with its optimizer.
        build: returns the evaluation model.
        evaluator: makes an evaluator of it.
        ledger: books the swaps and the forward passes.
        overlap: whether training goes on while the decoder works.

    Source: the paper, section 4.4.2 and Figure 6.
    """

    def __init__(
        self,
        model: CtcModel,
        build: Callable[[], CtcModel],
        evaluator: Callable[[CtcModel], Evaluator],
        ledger: Ledger,
        *,
        overlap: bool,
    ):
        self.most_pending = 1 if overlap else 0
        self._model = model
        self._build = build
        self._make_evaluator = evaluator
        self._ledger = ledger
        self._evaluating: tuple[CtcModel, Evaluator] | None = None

    @property
    def traces(self) -> int:
        return self._evaluating[1].traces if self._evaluating else 0

    def start(self, epoch: int, checkpoint: Path) -> DecodingScores:
        with contextlib.ExitStack() as away:
            with self._ledger.interval("swap", epoch_num=epoch):
                away.enter_context(off_device(self._model))
                model, evaluator = self._loaded(checkpoint)
            with self._ledger.interval("eval_forward", epoch_num=epoch):
                pending = evaluator.start()
            with self._ledger.interval("swap", epoch_num=epoch):
                release(model)
                away.close()
        return DecodingScores(epoch, checkpoint, pending)

    def close(self) -> None:
        if self._evaluating:
            self._evaluating[1].close()

    def _loaded(self, checkpoint: Path) -> tuple[CtcModel, Evaluator]:
        if self._evaluating is None:
            model = self._build()
            self._evaluating = model, self._make_evaluator(model)
        model = self._evaluating[0]
        _fill(model)
        restore_for_use(checkpoint, model)
        return self._evaluating


@contextlib.contextmanager
def off_device(model: keras.Model) -> Iterator[None]:
    """Keeps all variables of a model and its optimizer on the host while the block runs.

    A replica's own values, such as the moving statistics of its batches, come back to it.
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
    """Gives the memory of a model's variables back; until they are assigned they hold nothing."""
    for component in _components(model):
        _assign(component, np.zeros(0, component.dtype.as_numpy_dtype))


def held_bytes(model: keras.Model) -> int:
    """Returns what the variables of a model and its optimizer take on their devices."""
    return sum(
        component.dtype.size
        * int(np.prod(tf.raw_ops.VariableShape(input=component.handle, out_type=tf.int64).numpy()))
        for component in _components(model)
    )


def _fill(model: keras.Model) -> None:
    for component in _components(model):
        _assign(component, np.zeros(component.shape, component.dtype.as_numpy_dtype))


def _components(model: keras.Model) -> list[tf.Variable]:
    strategy = model.distribute_strategy
    return [
        component
        for variable in state_variables(model).values()
        for component in strategy.experimental_local_results(variable.value)
    ]


def _assign(component: tf.Variable, value: np.ndarray) -> None:
    # `assign` would refuse another shape, even where nothing is left of the variable's own.
    with tf.device(component.device):
        tf.raw_ops.AssignVariableOp(
            resource=component.handle, value=tf.constant(value, component.dtype)
        )
