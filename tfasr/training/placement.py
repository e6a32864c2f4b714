"""Evaluation by the very model that is trained, between its epochs."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tfasr.errors import UsageError
from tfasr.ledger.events import Ledger
from tfasr.training.checkpoint import model_variables, restore_for_use, state_variables, values_kept
from tfasr.training.ctc import CtcModel
from tfasr.training.evaluation import Evaluator, PendingEvaluation


@dataclass(frozen=True)
class Devices:
    """``TrainingConfig.evaluation_devices``; no processors mean all, no GPUs none."""

    processors: tuple[int, ...]
    gpus: tuple[int, ...]

    def environment(self) -> dict[str, str]:
        """Makes a child process see these GPUs alone."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        own = visible.split(",") if visible else None
        names = [own[gpu] if own else str(gpu) for gpu in self.gpus]
        return {"CUDA_VISIBLE_DEVICES": ",".join(names) or "-1"}


def named_devices(names: Sequence[str]) -> Devices:
    found: dict[str, list[int]] = {"cpu": [], "gpu": []}
    for name in names:
        kind, _, number = name.partition(":")
        found[kind].append(int(number))
    return Devices(tuple(found["cpu"]), tuple(found["gpu"]))


def leave_to_evaluation(names: Sequence[str]) -> None:
    """Checks that devices exist, and hides GPUs among them from this process.

    TensorFlow takes the memory of every GPU that it sees, so call it before it looks at them.

    Raises:
        UsageError: if a device is missing, or this process holds the GPUs already.
    """
    devices = named_devices(names)
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    missing = [f"cpu:{number}" for number in devices.processors if number not in usable]
    gpus = tf.config.list_physical_devices("GPU") if devices.gpus else []
    missing += [f"gpu:{number}" for number in devices.gpus if number >= len(gpus)]
    if missing:
        raise UsageError(
            "TrainingConfig.evaluation_devices must name devices that this process may use. "
            f"Received: {list(names)}, of which {missing} are not among the processors "
            f"{sorted(usable)} and {len(gpus)} GPUs."
        )
    if not devices.gpus:
        return
    own = [gpu for number, gpu in enumerate(gpus) if number not in devices.gpus]
    try:
        tf.config.set_visible_devices(own, "GPU")
    except RuntimeError as error:
        raise UsageError(
            "GPUs of TrainingConfig.evaluation_devices must be left alone by the training process, "
            f"which has begun to use them: {error}. Train in a process of its own, as tfasr train "
            "does."
        ) from error


@dataclass(frozen=True)
class Scores:
    """An epoch's ``tracked_stats`` and further events, such as ``{"decode_work": 0.5}``."""

    values: dict[str, float]
    work: Mapping[str, object]


class PendingScores:
    """An evaluation under way, or at its end.

    Attributes:
        checkpoint: of the epoch; None if another session had it.
        waiting: the ledger's interval in which training waits for the scores.
    """

    epoch: int
    checkpoint: Path | None = None
    waiting: str

    def done(self) -> bool:
        raise NotImplementedError

    def scores(self) -> Scores:
        """Waits for the scores; raises RunError if they will not come."""
        raise NotImplementedError

    def write_hypotheses(self, path: Path) -> None:
        """Writes the hypotheses behind the scores, unless they are there already."""

    def booked(self) -> None:
        """Is called once the scores are on the disk: nothing has to be kept any longer."""


class Placement:
    """Where epochs are evaluated.

    Attributes:
        most_pending: how many evaluations may be under way while training goes on; at 0 the scores
            are waited for at the end of the epoch.
        outlives_checkpoints: whether a checkpoint may be saved while evaluations are under way.
        traces: how often the forward pass was traced; None if unknown.
    """

    most_pending: int = 0
    outlives_checkpoints: bool = False
    traces: int | None = None

    def start(self, epoch: int, checkpoint: Path) -> PendingScores:
        """Begins to evaluate the weights that training has reached, which a checkpoint holds."""
        raise NotImplementedError

    def begin(self, unscored: range) -> list[PendingScores]:
        """Called before the first step; returns evaluations of unscored epochs from earlier
        sessions.
        """
        return []

    def close(self) -> None:
        """Releases everything; evaluations under way are given up."""


class DecodingScores(PendingScores):
    waiting = "decode"

    def __init__(self, epoch: int, checkpoint: Path, pending: PendingEvaluation):
        self.epoch = epoch
        self.checkpoint = checkpoint
        self._pending = pending

    def done(self) -> bool:
        return self._pending.done()

    def scores(self) -> Scores:
        result, worked_s = self._pending.result()
        work = {"decode_work": round(worked_s, 6)}
        if result.second is not None:
            work["second_decode_work"] = round(result.second.worked_s, 6)
        return Scores(result.scores(), work)

    def write_hypotheses(self, path: Path) -> None:
        self._pending.result()[0].write_hypotheses(path)


class SharedModel(Placement):
    """Runs the forward passes of an evaluation on the model that is trained.

    Averaged weights are read from the epoch's checkpoint for the forward passes; training then goes
    on from its own, bit for bit. Both ways are recorded as ``swap``.
    """

    def __init__(
        self,
        model: CtcModel,
        evaluator: Evaluator,
        ledger: Ledger,
        *,
        overlap: bool,
        averaged: bool = False,
    ):
        self.most_pending = 1 if overlap else 0
        self._model = model
        self._evaluator = evaluator
        self._ledger = ledger
        self._averaged = averaged

    @property
    def traces(self) -> int:
        return self._evaluator.traces

    def start(self, epoch: int, checkpoint: Path) -> DecodingScores:
        with contextlib.ExitStack() as kept:
            if self._averaged:
                with self._ledger.interval("swap", epoch_num=epoch):
                    kept.enter_context(values_kept(model_variables(self._model).values()))
                    restore_for_use(checkpoint, self._model)
            with self._ledger.interval("eval_forward", epoch_num=epoch):
                pending = self._evaluator.start()
            if self._averaged:
                with self._ledger.interval("swap", epoch_num=epoch):
                    kept.close()
        return DecodingScores(epoch, checkpoint, pending)

    def close(self) -> None:
        self._evaluator.close()


class SwappedModel(Placement):
    """Swaps the training model for an evaluation model and back, at every evaluation.

    The values of the training model and its optimizer are copied to the host and their device
    memory is freed; the evaluation model is loaded from the epoch's checkpoint and runs the forward
    passes; its memory is freed and the training values are copied back, bit for bit. Both models'
    functions stay traced: a swap only copies, but the first one also builds the evaluation model.
    Each way is recorded as ``swap``. Without an accelerator it gains nothing.

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
    """Moves all variables of a model and its optimizer to the host during a block, per replica."""
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
    """What the variables of a model and its optimizer take on their devices."""
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
