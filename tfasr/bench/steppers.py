"""Training steps on any Keras backend, which wait until each part has ended.

Frameworks queue work, so a clock around a call alone would time the queueing.
`make_stepper` returns the stepper of Keras's current backend; workloads time its
methods. `profile` runs a step under the framework's profiler and returns its kernels.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfasr.errors import UsageError

# Only the used framework is imported; others load slowly and may take the GPU's memory.
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    from tfasr.training.ctc import ctc_loss
elif keras.backend.backend() == "jax":
    import jax
    import jax.numpy as jnp
else:
    import torch

Loss = Callable[..., Any]


@dataclass(frozen=True)
class Batch:
    """A batch as arrays, or as tensors once `Stepper.place` has moved it to the device.

    Attributes:
        inputs: of the model, each of shape ``(batch, ...)``.
        targets: the loss function's arguments after the model's outputs.
    """

    inputs: tuple[Any, ...]
    targets: tuple[Any, ...]

    def mapped(self, function: Callable[[Any], Any]) -> Batch:
        """Returns a batch with ``function`` applied to all arrays."""
        return Batch(
            tuple(map(function, self.inputs)), tuple(map(function, self.targets))
        )


class Stepper:
    """Runs parts of a Keras model's training step; every method waits for its work to end.

    ``place(batch)`` moves arrays to the device, or splits them over devices.
    ``forward`` computes the mean loss in training mode; ``gradients`` also all
    gradients, and ``update`` also changes the weights; each returns the loss. ``apart``
    returns the seconds of the forward and of the following backward pass, or None on
    several devices, which can't wait in between. ``predict`` returns the model's
    outputs in inference mode.
    """

    def __init__(self, model: Any, loss: Loss, optimizer: Any = None):
        self._model = model
        self._loss = loss
        self._optimizer = optimizer

        if optimizer is not None:
            optimizer.build(model.trainable_variables)

    def _values(self) -> list[Any]:
        """Returns the trainable weights as the backend's own tensors."""
        return [variable.value for variable in self._model.trainable_variables]


def after(value: tf.Tensor, tensors: Iterable[tf.Tensor | None]) -> tf.Tensor:
    """Returns ``value``, computed after the tensors.

    It is NaN if the sum of their first elements is NaN. A control dependency isn't
    enough, because TensorFlow drops operations whose results are unused and that have
    no side effects.
    """
    present = [tensor for tensor in tensors if tensor is not None]
    firsts = [tf.cast(tf.reshape(tensor, (-1,))[0], tf.float32) for tensor in present]
    number = tf.add_n(firsts) if firsts else tf.zeros(())

    return tf.where(tf.math.is_nan(number), tf.cast(float("nan"), value.dtype), value)


def ctc_losses(logits, logit_lengths, labels, label_lengths):
    """Returns the CTC loss ``(batch,)`` by the backend's own kernel; on JAX, by Keras's.

    Args:
        logits: ``(batch, frames, classes)`` with the blank last.
        logit_lengths: valid frames, ``(batch,)``.
        labels: int32 ``(batch, labels)``, right-padded.
        label_lengths: valid labels, ``(batch,)``.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return ctc_loss(logits, logit_lengths, labels, label_lengths)

    blank = logits.shape[-1] - 1
    if backend == "torch":
        log_probs = torch.nn.functional.log_softmax(logits, dim=-1).transpose(0, 1)
        # PyTorch's kernel needs 64-bit labels and lengths.
        return torch.nn.functional.ctc_loss(
            log_probs,
            labels.to(torch.int64),
            logit_lengths.to(torch.int64),
            label_lengths.to(torch.int64),
            blank=blank,
            reduction="none",
        )

    return keras.ops.ctc_loss(
        labels,
        logits,
        label_lengths,
        logit_lengths,
        mask_index=blank,
    )


class TensorflowStepper(Stepper):
    """Graphs, without XLA by default.

    Under a strategy each batch is split over the devices.
    """

    def __init__(
        self,
        model: Any,
        loss: Loss,
        optimizer=None,
        strategy=None,
        xla: bool = False,
    ):
        self._strategy = strategy
        with strategy.scope() if strategy else tf.init_scope():
            super().__init__(model, loss, optimizer)

        # XLA needs exact shapes, so each shape is traced.
        compiled = partial(
            tf.function,
            reduce_retracing=not xla,
            jit_compile=xla or None,
        )
        self._forward = compiled(partial(self._everywhere, self._mean_loss))
        self._gradients = compiled(partial(self._everywhere, self._gradient_step))
        self._update = compiled(partial(self._everywhere, self._update_step))
        self._predict = compiled(lambda inputs: model(*inputs, training=False))

    def forward(self, batch: Batch) -> float:
        return self._run(self._forward, batch)

    def gradients(self, batch: Batch) -> float:
        return self._run(self._gradients, batch)

    def update(self, batch: Batch) -> float:
        return self._run(self._update, batch)

    def place(self, batch: Batch) -> Batch:
        replicas = self._strategy.num_replicas_in_sync if self._strategy else 1
        if replicas == 1:
            return batch.mapped(tf.constant)

        return batch.mapped(partial(self._split, replicas=replicas))

    def _split(self, array: np.ndarray, replicas: int) -> Any:
        """Returns an array's rows, some for each device."""
        # If the last batch has fewer utterances than devices, some are computed twice.
        rows = np.arange(max(len(array), replicas)) % len(array)
        parts = np.array_split(array[rows], replicas)

        return self._strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group])
        )

    def apart(self, batch: Batch) -> tuple[float, float] | None:
        if self._strategy is not None:
            return None

        variables = self._values()
        began = time.perf_counter()

        with tf.GradientTape() as tape:
            loss = self._forward(batch.inputs, batch.targets)

        loss.numpy()
        between = time.perf_counter()
        tape.gradient(loss, variables)
        tf.test.experimental.sync_devices()

        return between - began, time.perf_counter() - between

    def predict(self, batch: Batch) -> np.ndarray:
        return self._predict(tuple(map(tf.convert_to_tensor, batch.inputs))).numpy()

    def _run(self, function: Any, batch: Batch) -> float:
        """Runs a function on a batch and waits for its loss."""
        return float(np.mean(function(batch.inputs, batch.targets).numpy()))

    def _mean_loss(self, inputs, targets) -> tf.Tensor:
        """Computes the mean loss in training mode."""
        outputs = self._model(*inputs, training=True)
        return tf.reduce_mean(self._loss(outputs, *targets))

    def _gradient_step(self, inputs, targets) -> tf.Tensor:
        """Computes all gradients; returns the loss after them."""
        loss, gradients = self._loss_and_gradients(inputs, targets)
        if self._strategy is not None:
            context = tf.distribute.get_replica_context()
            gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)

        return after(loss, gradients)

    def _update_step(self, inputs, targets) -> tf.Tensor:
        """Changes the weights; returns the loss before."""
        loss, gradients = self._loss_and_gradients(inputs, targets)
        # Under a strategy, the optimizer sums the gradients itself.
        self._optimizer.apply(gradients, self._model.trainable_variables)

        return loss

    def _loss_and_gradients(self, inputs, targets):
        """Returns the loss, and gradients of this device's share of the mean over all."""
        with tf.GradientTape() as tape:
            loss = self._mean_loss(inputs, targets)
            share = loss
            if self._strategy is not None:
                share = loss / self._strategy.num_replicas_in_sync

        return loss, tape.gradient(share, self._values())

    def _everywhere(self, step, inputs, targets) -> tf.Tensor:
        """Runs a step on all devices; returns the mean of their losses."""
        if self._strategy is None:
            return step(inputs, targets)

        losses = self._strategy.run(step, args=(inputs, targets))
        return self._strategy.reduce("MEAN", losses, axis=None)


class JaxStepper(Stepper):
    """Compiled by XLA, once for each shape of a batch."""

    def __init__(self, model: Any, loss: Loss, optimizer: Any = None):
        super().__init__(model, loss, optimizer)
        # JAX's functions get all state as arguments and return the new one.
        self._trainable = self._values()
        self._others = [variable.value for variable in model.non_trainable_variables]
        variables = optimizer.variables if optimizer is not None else []
        self._optimizer_state = [variable.value for variable in variables]
        self._forward = jax.jit(self._mean_loss)
        self._gradients = jax.jit(jax.value_and_grad(self._mean_loss, has_aux=True))
        self._update = jax.jit(self._update_step)
        # The first program returns the backward pass with its values, an argument of
        # the second.
        self._linearised = jax.jit(self._linearise)
        self._pulled_back = jax.jit(lambda backward, gradient: backward(gradient))
        self._predict = jax.jit(self._outputs)

    def place(self, batch: Batch) -> Batch:
        placed = batch.mapped(jnp.asarray)
        jax.block_until_ready((placed.inputs, placed.targets))

        return placed

    def forward(self, batch: Batch) -> float:
        return self._kept(self._run(self._forward, batch))

    def gradients(self, batch: Batch) -> float:
        return self._kept(self._run(self._gradients, batch)[0])

    def apart(self, batch: Batch) -> tuple[float, float]:
        began = time.perf_counter()
        loss, backward, self._others = self._run(self._linearised, batch)
        between = time.perf_counter()
        jax.block_until_ready(self._pulled_back(backward, jnp.ones_like(loss)))

        return between - began, time.perf_counter() - between

    def update(self, batch: Batch) -> float:
        outputs = self._update(
            self._trainable,
            self._others,
            self._optimizer_state,
            batch.inputs,
            batch.targets,
        )
        outputs = jax.block_until_ready(outputs)
        loss, self._trainable, self._others, self._optimizer_state = outputs

        return float(loss)

    def predict(self, batch: Batch) -> np.ndarray:
        return np.asarray(self._predict(self._trainable, self._others, batch.inputs))

    def _outputs(self, trainable, others, inputs):
        """Returns the model's outputs in inference mode."""
        call = self._model.stateless_call
        return call(trainable, others, *inputs, training=False)[0]

    def _run(self, step: Callable[..., Any], batch: Batch) -> Any:
        """Runs a compiled function on a batch and waits for its results."""
        outputs = step(self._trainable, self._others, batch.inputs, batch.targets)
        return jax.block_until_ready(outputs)

    def _kept(self, outputs: tuple[Any, Any]) -> float:
        """Keeps the model's other state, such as moving averages; returns the loss."""
        loss, self._others = outputs
        return float(loss)

    def _mean_loss(self, trainable, others, inputs, targets):
        """Computes the mean loss in training mode, and the model's other state."""
        outputs, others = self._model.stateless_call(
            trainable,
            others,
            *inputs,
            training=True,
        )
        return jnp.mean(self._loss(outputs, *targets)), others

    def _linearise(self, trainable, *others):
        """Computes the loss, and returns the backward pass as a function."""
        return jax.vjp(
            lambda values: self._mean_loss(values, *others),
            trainable,
            has_aux=True,
        )

    def _update_step(self, trainable, others, state, inputs, targets):
        """Returns the loss, and all state after a change of the weights."""
        gradient = jax.value_and_grad(self._mean_loss, has_aux=True)
        (loss, others), gradients = gradient(trainable, others, inputs, targets)
        trainable, state = self._optimizer.stateless_apply(state, gradients, trainable)

        return loss, trainable, others, state


class TorchStepper(Stepper):
    """Eager PyTorch, by Keras's backend."""

    def place(self, batch: Batch) -> Batch:
        placed = batch.mapped(keras.ops.convert_to_tensor)
        _wait()

        return placed

    def forward(self, batch: Batch) -> float:
        return waited(self._mean_loss(batch))

    def gradients(self, batch: Batch) -> float:
        return waited(self._backward(batch))

    def apart(self, batch: Batch) -> tuple[float, float]:
        self._model.zero_grad()
        began = time.perf_counter()
        loss = self._mean_loss(batch)
        waited(loss)
        between = time.perf_counter()
        loss.backward()
        _wait()

        return between - began, time.perf_counter() - between

    def update(self, batch: Batch) -> float:
        loss = self._backward(batch)
        self._apply_gradients()

        return waited(loss)

    def predict(self, batch: Batch) -> np.ndarray:
        with torch.no_grad():
            outputs = self._model(*batch.inputs, training=False)

        return keras.ops.convert_to_numpy(outputs)

    def _backward(self, batch: Batch) -> torch.Tensor:
        """Computes all gradients; returns the loss."""
        self._model.zero_grad()
        loss = self._mean_loss(batch)
        loss.backward()

        return loss

    def _apply_gradients(self) -> None:
        """Changes the weights with Keras's optimizer."""
        variables = self._model.trainable_variables
        with torch.no_grad():
            self._optimizer.apply(
                [variable.value.grad for variable in variables], variables
            )

    def _mean_loss(self, batch: Batch) -> torch.Tensor:
        outputs = self._model(*batch.inputs, training=True)
        return self._loss(outputs, *batch.targets).mean()


def waited(loss: torch.Tensor) -> float:
    """Waits for the device, and returns a loss as a number."""
    _wait()
    return float(loss.detach())


def _wait() -> None:
    """Waits until a GPU has done all work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def make_stepper(
    model: Any,
    loss: Loss,
    optimizer: Any = None,
    strategy: Any = None,
    xla: bool = False,
) -> Stepper:
    """Returns the stepper of Keras's current backend.

    Args:
        model: a Keras model.
        loss: of the model's outputs and a batch's targets, for each utterance.
        optimizer: None if weights are never updated.
        strategy: from `make_strategy`; None for one device.
        xla: whether TensorFlow compiles with XLA.
    """
    if keras.backend.backend() == "tensorflow":
        return TensorflowStepper(model, loss, optimizer, strategy, xla)

    if keras.backend.backend() == "jax":
        return JaxStepper(model, loss, optimizer)

    return TorchStepper(model, loss, optimizer)


def make_strategy(num_devices: int) -> Any:
    """Returns a ``tf.distribute.Strategy`` for several devices, or None for one.

    Without a GPU, the processor is split into logical devices, if TensorFlow is still
    unused.

    Raises:
        UsageError: on other backends, or if there are fewer devices.
    """
    if num_devices == 1:
        return None

    if (backend := keras.backend.backend()) != "tensorflow":
        raise UsageError(
            "Several devices need tf.distribute, so the backend must be tensorflow. "
            f"Received: {num_devices} devices and backend={backend!r}."
        )

    if not tf.config.list_physical_devices("GPU"):
        (processor,) = tf.config.list_physical_devices("CPU")
        logical = [tf.config.LogicalDeviceConfiguration()] * num_devices

        # TensorFlow is in use: keep its devices
        with contextlib.suppress(RuntimeError):
            tf.config.set_logical_device_configuration(processor, logical)

    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices(
        "CPU"
    )
    names = [device.name for device in devices]
    if len(names) < num_devices:
        raise UsageError(
            f"The number of devices must not exceed those available. Received: {num_devices}, with "
            f"{len(names)} available: {', '.join(names)}."
        )

    return tf.distribute.MirroredStrategy(names[:num_devices])


# "convolution/Conv2D:Conv2D", an operation's name and type; not
# "ExecutorState::Process".
_OPERATION = re.compile(r"[^:\s]+:([A-Za-z_]\w*)$")
# A whole XLA program; on processors, TensorFlow 2.21 runs only convolutions this way.
_PROGRAM = "CpuExecutable::ExecuteAsyncOnStream"
PROGRAM_NAME = "XLA program"
# Kinds of kernels by their names; the first that fits.
_KINDS = (
    ("convolution", re.compile("conv|xla", re.IGNORECASE)),
    ("recurrence", re.compile("pyfunc|rnn|lstm|recurrence", re.IGNORECASE)),
    ("matmul", re.compile(r"matmul|gemm|einsum|mm\b", re.IGNORECASE)),
)


@dataclass(frozen=True)
class Kernel:
    """All calls of one kernel in a step.

    Attributes:
        name: the operation's type on a processor, the kernel's own name on a GPU.
        calls: in one step.
        seconds: summed over threads or streams, without nested kernels.
        flops: floating-point operations, if counted from shapes.
        moved_bytes: read and written without caches, if counted from shapes.
    """

    name: str
    calls: float
    seconds: float
    flops: float | None = None
    moved_bytes: float | None = None

    @property
    def kind(self) -> str:
        """Which of `tfasr.models.costs.KINDS` the kernel computes, judging by its name."""
        return next(
            (kind for kind, names in _KINDS if names.search(self.name)), "elementwise"
        )


@dataclass(frozen=True)
class Kernels:
    """The kernels of a step, slowest first; ``reason`` says why they are missing."""

    kernels: list[Kernel]
    reason: str = ""

    @classmethod
    def of(cls, kernels: list[Kernel]) -> Kernels:
        """Returns what a profiler recorded, which may be nothing."""
        if not kernels:
            return cls([], "the profiler recorded no kernel")

        return cls(sorted(kernels, key=lambda kernel: -kernel.seconds))

    @property
    def seconds(self) -> float:
        """Seconds of all kernels, which may run in parallel."""
        return sum(kernel.seconds for kernel in self.kernels)


def profile(step: Callable[[], Any], steps: int) -> Kernels:
    """Runs ``step`` under the profiler ``steps`` times.

    Returns calls and seconds per step.
    """
    if keras.backend.backend() == "torch":
        return _profile_torch(step, steps)

    try:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2
    except ImportError as error:
        return Kernels([], f"the profiler's format cannot be read: {error}")

    with tempfile.TemporaryDirectory() as folder:
        try:
            tf.profiler.experimental.start(folder)
        except tf.errors.OpError as error:
            return Kernels([], f"the profiler did not start: {error.message}")

        for _ in range(steps):
            step()

        tf.profiler.experimental.stop()
        space = xplane_pb2.XSpace()

        for trace in sorted(Path(folder).rglob("*.xplane.pb")):
            space.MergeFromString(trace.read_bytes())

    return Kernels.of(kernels_of(space, steps))


def kernels_of(space: Any, steps: int = 1) -> list[Kernel]:
    """Returns the kernels in a trace of TensorFlow's profiler, slowest first.

    Those of GPUs if there are any, else operations on the processor.
    """
    gpus = [plane for plane in space.planes if plane.name.startswith("/device:GPU")]
    # A GPU that wasn't used has an empty plane.
    gpus = [plane for plane in gpus if any(line.events for line in plane.lines)]
    calls: Counter[str] = Counter()
    seconds: Counter[str] = Counter()

    for plane in gpus or [plane for plane in space.planes if plane.name == "/host:CPU"]:
        for line in plane.lines:
            # Other lines of a GPU repeat the kernels by their operations.
            if gpus and not line.name.startswith("Stream"):
                continue

            for name, span_ps in _own_times(_events(plane, line, on_gpu=bool(gpus))):
                calls[name] += 1
                seconds[name] += span_ps / 1e12

    kernels = [
        Kernel(name, calls[name] / steps, seconds[name] / steps) for name in calls
    ]

    return sorted(kernels, key=lambda kernel: -kernel.seconds)


def _events(plane: Any, line: Any, on_gpu: bool) -> list[tuple[str, int, int]]:
    """Returns name, begin and end in picoseconds of a line's kernels."""
    events = []
    for event in line.events:
        name = plane.event_metadata[event.metadata_id].name
        if not on_gpu:
            operation = _OPERATION.match(name)
            if name == _PROGRAM:
                name = PROGRAM_NAME
            else:
                name = operation and operation[1]

        if name is not None:
            events.append((name, event.offset_ps, event.offset_ps + event.duration_ps))

    return events


def _own_times(events: Iterable[tuple[str, int, int]]) -> list[tuple[str, int]]:
    """Returns each event's name and time without the events that it contains."""
    spans: list[list[Any]] = []
    # (end, index) of the events that contain this one
    around: list[tuple[int, int]] = []

    for name, began, ended in sorted(events, key=lambda event: (event[1], -event[2])):
        while around and around[-1][0] <= began:
            around.pop()

        if around:
            spans[around[-1][1]][1] -= min(ended, around[-1][0]) - began

        around.append((ended, len(spans)))
        spans.append([name, ended - began])

    return [(name, max(time_ps, 0)) for name, time_ps in spans]


def _profile_torch(step, steps: int) -> Kernels:
    """Returns the kernels of a step by PyTorch's profiler."""
    from torch.profiler import ProfilerActivity

    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU]
    if on_gpu:
        activities.append(ProfilerActivity.CUDA)

    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(steps):
            step()

    # Time on the GPU, if there is one, without nested events.
    spent = f"self_{'device' if on_gpu else 'cpu'}_time_total"
    kernels = [
        Kernel(event.key, event.count / steps, getattr(event, spent) / 1e6 / steps)
        for event in profiler.key_averages()
        if getattr(event, spent) > 0
    ]
    return Kernels.of(kernels)
