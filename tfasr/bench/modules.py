"""Times the modules of a model, within the training step and alone, and matrix products.

The workloads ``scaling`` and ``roofline`` use these. Only TensorFlow lets a graph read
the clock between modules, so all of it runs on TensorFlow.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.bench.steppers import after
from tfasr.bench.workload import seconds_of
from tfasr.data.batches import Batch
from tfasr.kit.config import PRECISIONS
from tfasr.models.recurrent import Stage, stages_of
from tfasr.training.ctc import CtcModel, ctc_loss

# The first traces; the second may still choose algorithms.
WARMUP_CALLS = 2
# Name of the last "module", the optimizer's work.
UPDATE = "update"


class Replicas:
    """Runs the same work on every device of a strategy, each with separate values."""

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.count = strategy.num_replicas_in_sync

    def values(self, make: Callable[[], Any]) -> Any:
        """Calls ``make`` once for each device and returns the results."""
        if self.count == 1:
            return make()

        return self.strategy.experimental_distribute_values_from_function(
            lambda _: make()
        )

    def compiled(
        self,
        work: Callable[..., list],
        *arguments: Any,
    ) -> Callable[[], None]:
        """Returns a function that runs ``work`` on all devices and waits for its end.

        ``work`` returns a list of tensors; all devices begin at once.
        """

        def on_device(*arguments):
            # The returned number depends on all results, so TensorFlow can't skip any.
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

    def stacked(self, work: Callable[..., tf.Tensor], *arguments: Any) -> tf.Tensor:
        """Runs ``work`` on all devices and returns their results, ``(devices, ...)``."""
        if self.count == 1:
            return work(*arguments)[None]

        results = self.strategy.run(work, args=arguments)
        return tf.stack(self.strategy.experimental_local_results(results))


def time_in_turns(calls: dict[Any, Callable[[], Any]], rounds: int) -> dict[Any, float]:
    """Returns each call's median seconds.

    Calls alternate, so that a machine that slows down affects all alike. Two warm-up
    calls of each come first.
    """
    for call in calls.values():
        for _ in range(WARMUP_CALLS):
            call()

    rows = [
        {name: seconds_of(call) for name, call in calls.items()} for _ in range(rounds)
    ]
    return {name: statistics.median(row[name] for row in rows) for name in calls}


@dataclass(frozen=True)
class Module:
    """A part of the training step: a stage of the model, or the loss.

    Attributes:
        name: the name of a stage of the model, or "loss".
        forward: takes the previous module's output and the batch.
        variables: trainable variables.
        input_channels: last dimension of its input; 0 for the first module.
    """

    name: str
    forward: Callable[[tf.Tensor, Batch], tf.Tensor]
    variables: list
    input_channels: int


def modules_of(model: CtcModel) -> list[Module]:
    """Returns a model's stages and the loss, in order."""

    def of_batch(stage: Stage) -> Callable[[tf.Tensor, Batch], tf.Tensor]:
        return lambda hidden, batch: stage.forward(hidden, batch["feature_lengths"])

    def loss(logits: tf.Tensor, batch: Batch) -> tf.Tensor:
        lengths = model.output_lengths(batch["feature_lengths"])
        return tf.reduce_mean(
            ctc_loss(logits, lengths, batch["labels"], batch["label_lengths"])
        )

    modules = [
        Module(stage.name, of_batch(stage), stage.variables, stage.input_width)
        for stage in stages_of(model.recogniser)
    ]

    return [*modules, Module("loss", loss, [], Alphabet().num_classes)]


def step_through(
    modules: list[Module],
    batch: Batch,
    inputs: tf.Tensor | None = None,
) -> list:
    """Runs modules one after another and returns the gradients of their summed output.

    They begin with ``inputs``, or with the batch's features if that is None.
    """
    # Gradients of all weights and, except for the first module, of its input.
    sources = [variable for module in modules for variable in module.variables]
    with tf.GradientTape() as tape:
        hidden = batch["features"]
        if inputs is not None:
            tape.watch(inputs)
            sources = [*sources, inputs]
            hidden = inputs

        for module in modules:
            hidden = module.forward(hidden, batch)

    values = [
        source.value if isinstance(source, keras.Variable) else source
        for source in sources
    ]

    return tape.gradient(hidden, values)


def staged_step(
    model: CtcModel,
    placed: Any,
    strategy: tf.distribute.Strategy,
) -> Callable[[], tuple[np.ndarray, float]]:
    """Returns a function that takes a step on one batch, with times for each module.

    It returns forward and backward seconds ``(modules + 1, 2)``, and seconds of the
    rest: in the first step mostly tracing. The update is last: 0, and its seconds with
    the gradients' exchange.

    The graph reads the clock after every forward and backward pass. Each pass waits for
    the reading before it, and each reading for its pass. So the intervals don't
    overlap, and add up to the step; but two modules can't run at the same time, as they
    may in a normal step.
    """
    replicas = Replicas(strategy)
    modules = modules_of(model)

    def on_device(batch: Batch) -> tf.Tensor:
        stamps = [tf.timestamp()]
        passes = []
        hidden = batch["features"]

        for module in modules:
            inputs = _since(stamps, hidden)
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                hidden = module.forward(inputs, batch)

            passes.append((module, tape, inputs, hidden))
            stamps.append(stamp([hidden]))

        # Of the loss by itself.
        gradient = _scaled(model.optimizer, tf.ones_like(hidden))
        gradients = []

        for number, (module, tape, inputs, outputs) in reversed(
            list(enumerate(passes))
        ):
            values = [variable.value for variable in module.variables]
            sources = values
            if number > 0:  # the features' gradient is not needed
                sources = [*values, inputs]

            of_sources = tape.gradient(
                outputs,
                sources,
                _since(stamps, gradient),
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            stamps.append(stamp(of_sources))
            gradients += zip(of_sources, module.variables, strict=False)

            if number > 0:
                gradient = of_sources[-1]

        begun = [
            (_since(stamps, gradient), variable) for gradient, variable in gradients
        ]
        model.optimizer.apply_gradients(begun)
        stamps.append(
            stamp([tf.convert_to_tensor(variable.value) for _, variable in begun])
        )

        return tf.stack(stamps)

    run = tf.function(lambda batch: replicas.stacked(on_device, batch))

    def step() -> tuple[np.ndarray, float]:
        began = time.perf_counter()
        stamps = run(placed).numpy()
        wall_s = time.perf_counter() - began
        # The mean over devices.
        intervals = np.diff(stamps, axis=1).mean(axis=0)
        forward_s, backward_s = intervals[:-1].reshape(2, -1)
        passes_s = np.stack([forward_s, backward_s[::-1]], axis=1)
        update_s = [[0.0, intervals[-1]]]
        rest_s = max(0.0, wall_s - float(intervals.sum()))

        return np.append(passes_s, update_s, axis=0), rest_s

    return step


def _scaled(optimizer, gradient: tf.Tensor) -> tf.Tensor:
    """Returns a gradient as an optimizer for float16 expects it."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer.scale_loss(gradient)

    return gradient


def _since(stamps: list[tf.Tensor], tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor that isn't there before the last reading of the clock."""
    with tf.control_dependencies([stamps[-1]]):
        return tf.identity(tensor)


def stamp(tensors: list[tf.Tensor]) -> tf.Tensor:
    """Reads the clock once all tensors have been computed; seconds, float64."""
    finished = after(tf.zeros(()), tensors)
    # The host can't read a number before the device has computed it.
    with tf.device("CPU:0"):
        finished = tf.identity(finished)
        # Reading the clock counts as a side effect, so TensorFlow keeps this wait.
        with tf.control_dependencies([finished]):
            return tf.timestamp()


@dataclass(frozen=True)
class ModuleSeconds:
    """Seconds of one module; on several devices, their mean.

    Attributes:
        alone_s: forward and backward on random input, without the other modules.
        forward_s: within a step; 0 for the update.
        first_s: forward and backward, in each of the process's first steps.
    """

    module: str
    alone_s: float
    forward_s: float
    backward_s: float
    first_s: list[float]

    @property
    def in_step_s(self) -> float:
        """Forward and backward seconds within a step."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class ModuleTimes:
    """Seconds of all modules of a model."""

    # In order, the update last.
    modules: list[ModuleSeconds]
    # The rest of each first step, mostly tracing.
    first_host_s: list[float]

    @property
    def step_s(self) -> float:
        """Seconds of a step in which no modules overlap."""
        return sum(module.in_step_s for module in self.modules)


def module_times(
    model: CtcModel,
    batch: Batch,
    strategy,
    rounds: int,
    first_steps: int = WARMUP_CALLS,
) -> ModuleTimes:
    """Times all modules within a step and alone.

    Args:
        model: compiled, with its optimizer.
        batch: for each device.
        strategy: of one or several devices.
        rounds: measurements of each module, of which the median counts.
        first_steps: how many of the process's first steps are returned.
    """
    replicas = Replicas(strategy)
    placed = replicas.values(
        lambda: {name: tf.constant(v) for name, v in batch.items()}
    )
    staged = staged_step(model, placed, strategy)
    modules = modules_of(model)
    first_s, first_host_s = zip(*(staged() for _ in range(first_steps)), strict=True)
    # After the first steps.
    medians_s = np.median([staged()[0] for _ in range(rounds)], axis=0).tolist()
    first_sums_s = np.sum(first_s, axis=2).T.tolist()
    calls: dict[str, Callable[[], Any]] = {
        module.name: _alone(replicas, model, module, number, batch, placed)
        for number, module in enumerate(modules)
    }
    # The last "module", which has no forward pass.
    calls[UPDATE] = _update(replicas, model)
    alone_s = time_in_turns(calls, rounds)
    seconds = []

    for (name, alone), (forward, backward), first in zip(
        alone_s.items(),
        medians_s,
        first_sums_s,
        strict=True,
    ):
        seconds.append(ModuleSeconds(name, alone, forward, backward, first))

    return ModuleTimes(seconds, list(first_host_s))


def _alone(replicas, model, module: Module, number: int, batch: Batch, placed):
    """Returns a call of one module, forward and backward, on random input."""
    if number == 0:
        return replicas.compiled(lambda batch: step_through([module], batch), placed)

    size = batch["features"].shape
    steps = int(model.output_lengths(size[1]))
    # Normal noise, because the output of a normalised layer is roughly standard normal.
    shape = (size[0], steps, module.input_channels)
    dtype = tf.float32 if module.name == "loss" else model.recogniser.compute_dtype
    inputs = replicas.values(
        lambda: tf.cast(tf.random.normal(shape, seed=number), dtype)
    )

    return replicas.compiled(
        lambda *both: step_through([module], *both), placed, inputs
    )


def _update(replicas, model: CtcModel):
    """Returns a call of the optimizer, on constant gradients."""
    variables = model.trainable_variables

    def update(*gradients):
        gradients = [_scaled(model.optimizer, gradient) for gradient in gradients]
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))

        return []

    gradients = replicas.values(
        lambda: [tf.fill(variable.shape, 1e-6) for variable in variables]
    )

    return replicas.compiled(update, *gradients)


def replica_seconds(
    model: CtcModel,
    batch: Batch,
    strategy: tf.distribute.Strategy,
    rounds: int,
) -> list[list[float]]:
    """Returns each device's forward and backward seconds, ``(rounds, devices)``.

    No device waits for another, so slow ones show up.
    """
    replicas = Replicas(strategy)
    modules = modules_of(model)
    placed = replicas.values(
        lambda: {name: tf.constant(v) for name, v in batch.items()}
    )

    def on_device(batch):
        began = tf.timestamp()
        with tf.control_dependencies([began]):
            begun = {name: tf.identity(value) for name, value in batch.items()}
            gradients = step_through(modules, begun)

        return tf.stack([began, stamp(gradients)])

    run = tf.function(lambda batch: replicas.stacked(on_device, batch))
    for _ in range(WARMUP_CALLS):
        run(placed)

    stamps = np.stack([run(placed).numpy() for _ in range(rounds)])

    return (stamps[:, :, 1] - stamps[:, :, 0]).tolist()


def matmul_ceiling(
    precision: str,
    *,
    seconds: float = 2.0,
    size: int | None = None,
) -> float:
    """Measures the FLOP/s of square matrix products; the fastest repetition counts.

    Args:
        precision: a key of `PRECISIONS`.
        seconds: to measure.
        size: of the matrices; None for one that is large enough here.
    """
    on_gpu = bool(tf.config.list_logical_devices("GPU"))
    size = size or (8192 if on_gpu else 2048)
    # A GPU queues work: waiting for each result would add the time of its transfer.
    in_a_row = 8 if on_gpu else 1
    dtype = PRECISIONS[precision].dtype
    shape = (size, size)
    left_factor = tf.cast(tf.random.stateless_normal(shape, (0, 0)), dtype)
    right_factor = tf.cast(tf.random.stateless_normal(shape, (0, 1)), dtype)

    @tf.function
    def products(left_factor: tf.Tensor, right_factor: tf.Tensor) -> tf.Tensor:
        for _ in range(in_a_row):
            # Scaled, so that repeated products don't overflow.
            left_factor = tf.matmul(left_factor, right_factor) * tf.cast(
                size**-0.5, left_factor.dtype
            )

        return left_factor[0, 0]

    call_s = fastest_s(lambda: products(left_factor, right_factor).numpy(), seconds)

    return in_a_row * 2 * size**3 / call_s


def gpu_peak_bytes(index: int = 0) -> int | None:
    """Returns TensorFlow's peak memory on a GPU; None for slices of a processor."""
    if not tf.config.list_logical_devices("GPU"):
        return None

    return tf.config.experimental.get_memory_info(f"GPU:{index}")["peak"]


def fastest_s(call: Callable[[], object], seconds: float) -> float:
    """Returns the seconds of the fastest call, without the first, which may trace."""
    call()
    fastest = float("inf")
    end = time.perf_counter() + seconds

    while fastest == float("inf") or time.perf_counter() < end:
        fastest = min(fastest, seconds_of(call))

    return fastest
