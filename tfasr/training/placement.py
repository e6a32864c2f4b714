"""Where epochs are evaluated: on the training model, or on a second model in its place."""

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
    """``TrainingConfig.evaluation_devices``; empty ``processors`` mean all, empty ``gpus`` none."""

    processors: tuple[int, ...]
    gpus: tuple[int, ...]

    def environment(self) -> dict[str, str]:
        """Variables that show a child process only these GPUs."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = [visible.split(",")[gpu] if visible else str(gpu) for gpu in self.gpus]
        return {"CUDA_VISIBLE_DEVICES": ",".join(names) or "-1"}


def named_devices(names: Sequence[str]) -> Devices:
    numbers: dict[str, tuple[int, ...]] = {"cpu": (), "gpu": ()}
    for name in names:
        kind, _, number = name.partition(":")
        numbers[kind] += (int(number),)
    return Devices(numbers["cpu"], numbers["gpu"])


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
            f"Received: {list(names)}; {missing} are not among the processors {sorted(usable)} and "
            f"{len(gpus)} GPUs."
        )
    if not devices.gpus:
        return
    trained_on = [gpu for number, gpu in enumerate(gpus) if number not in devices.gpus]
    try:
        tf.config.set_visible_devices(trained_on, "GPU")
    except RuntimeError as error:
        raise UsageError(
            "The training process must not use the GPUs of TrainingConfig.evaluation_devices, but "
            f"has begun to: {error}. Train in a new process, as tfasr train does."
        ) from error


@dataclass(frozen=True)
class Scores:
    """An epoch's ``tracked_stats`` and further events, such as ``{"decode_work": 0.5}``."""

    values: dict[str, float]
    work: Mapping[str, object]


class PendingScores:
    """An evaluation, running or finished."""

    epoch: int
    checkpoint: Path | None  # None if it was another session's
    waiting: str  # the ledger's interval in which training waits for the scores

    def done(self) -> bool:
        raise NotImplementedError

    def scores(self) -> Scores:
        """Waits for the scores; raises RunError if they will not come."""
        raise NotImplementedError

    def write_hypotheses(self, path: Path) -> None:
        """Writes the hypotheses behind the scores, unless they are there already."""

    def booked(self) -> None:
        """Called once the scores are on disk and nothing else is needed."""


class Placement:
    """Where epochs are evaluated."""

    most_pending: int = 0  # evaluations under way while training goes on
    outlives_checkpoints: bool = False  # whether a checkpoint may be saved in the meantime
    traces: int | None = None  # of the forward pass; None if unknown

    def start(self, epoch: int, checkpoint: Path) -> PendingScores:
        """Starts to evaluate the current weights, which are also in a checkpoint."""
        raise NotImplementedError

    def begin(self, unscored: range) -> list[PendingScores]:
        """Resumes earlier sessions' evaluations of unscored epochs, before the first step."""
        return []

    def close(self) -> None:
        """Releases everything; evaluations under way are given up."""


@dataclass
class DecodingScores(PendingScores):
    epoch: int
    checkpoint: Path
    pending: PendingEvaluation
    waiting = "decode"

    def done(self) -> bool:
        return self.pending.done()

    def scores(self) -> Scores:
        result, worked_s = self.pending.result()
        work = {"decode_work": round(worked_s, 6)}
        if result.second is not None:
            work["second_decode_work"] = round(result.second.worked_s, 6)
        return Scores(result.scores(), work)

    def write_hypotheses(self, path: Path) -> None:
        self.pending.result()[0].write_hypotheses(path)


@dataclass
class SharedModel(Placement):
    """Runs the forward passes of an evaluation on the model that is trained.

    Averaged weights are read from the epoch's checkpoint for the forward passes; training then
    continues with its own weights, bit for bit. Both swaps are recorded as ``swap``.
    """

    model: CtcModel
    evaluator: Evaluator
    ledger: Ledger
    overlap: bool
    averaged: bool = False  # whether checkpoints hold averaged weights

    def __post_init__(self):
        self.most_pending = int(self.overlap)

    @property
    def traces(self) -> int:
        return self.evaluator.traces

    def start(self, epoch: int, checkpoint: Path) -> DecodingScores:
        with contextlib.ExitStack() as training_weights:
            if self.averaged:
                with self.ledger.interval("swap", epoch_num=epoch):
                    saved = values_kept(model_variables(self.model).values())
                    training_weights.enter_context(saved)
                    restore_for_use(checkpoint, self.model)
            with self.ledger.interval("eval_forward", epoch_num=epoch):
                pending = self.evaluator.start()
            if self.averaged:
                with self.ledger.interval("swap", epoch_num=epoch):
                    training_weights.close()
        return DecodingScores(epoch, checkpoint, pending)

    def close(self) -> None:
        self.evaluator.close()


@dataclass
class SwappedModel(Placement):
    """Swaps the training model for an evaluation model and back, at every evaluation.

    The values of the training model and its optimizer are copied to the host and their device
    memory is freed; the evaluation model is loaded from the epoch's checkpoint and runs the forward
    passes; its memory is freed and the training values are copied back, bit for bit. Both models'
    functions stay traced: a swap only copies, but the first one also builds the evaluation model.
    Each way is recorded as ``swap``. Without an accelerator it gains nothing.

    Source: the paper, section 4.4.2 and Figure 6.
    """

    model: CtcModel
    build: Callable[[], CtcModel]
    make_evaluator: Callable[[CtcModel], Evaluator]
    ledger: Ledger
    overlap: bool
    evaluating: tuple[CtcModel, Evaluator] | None = None

    def __post_init__(self):
        self.most_pending = int(self.overlap)

    @property
    def traces(self) -> int:
        return self.evaluating[1].traces if self.evaluating else 0

    def start(self, epoch: int, checkpoint: Path) -> DecodingScores:
        with contextlib.ExitStack() as away:
            with self.ledger.interval("swap", epoch_num=epoch):
                away.enter_context(off_device(self.model))
                model, evaluator = self._loaded(checkpoint)
            with self.ledger.interval("eval_forward", epoch_num=epoch):
                pending = evaluator.start()
            with self.ledger.interval("swap", epoch_num=epoch):
                release(model)
                away.close()
        return DecodingScores(epoch, checkpoint, pending)

    def close(self) -> None:
        if self.evaluating:
            self.evaluating[1].close()

    def _loaded(self, checkpoint: Path) -> tuple[CtcModel, Evaluator]:
        if self.evaluating is None:
            model = self.build()
            self.evaluating = model, self.make_evaluator(model)
        model = self.evaluating[0]
        for component in _components(model):
            _assign(component, np.zeros(component.shape, component.dtype.as_numpy_dtype))
        restore_for_use(checkpoint, model)
        return self.evaluating


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
    """Returns the bytes of a model's and its optimizer's variables on their devices."""
    components = _components(model)
    shapes = [tf.raw_ops.VariableShape(input=c.handle, out_type=tf.int64) for c in components]
    sizes = [int(np.prod(shape.numpy())) for shape in shapes]
    return sum(c.dtype.size * size for c, size in zip(components, sizes, strict=True))


def _components(model: keras.Model) -> list[tf.Variable]:
    local = model.distribute_strategy.experimental_local_results
    return [part for v in state_variables(model).values() for part in local(v.value)]


def _assign(component: tf.Variable, value: np.ndarray) -> None:
    # `assign` would reject another shape, even for a variable that holds nothing any more.
    with tf.device(component.device):
        content = tf.constant(value, component.dtype)
        tf.raw_ops.AssignVariableOp(resource=component.handle, value=content)
