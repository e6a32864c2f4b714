"""Seconds of each module of the model, the others off and on, on one device or on several."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfasr.bench.probes.computed import after
from tfasr.bench.probes.model_modules import UPDATE, Module, modules_of, step_through
from tfasr.data.pipeline import Batch
from tfasr.training.ctc_model import CtcModel

WARMUP_CALLS = 2


class Replicas:
    """Runs the same work on every device of a strategy, each with values of its own."""

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.count = strategy.num_replicas_in_sync

    def values(self, make: Callable[[], Any]) -> Any:
        """Returns what ``make`` returns, a copy on every device."""
        if self.count == 1:
            return make()
        return self.strategy.experimental_distribute_values_from_function(lambda _: make())

    def compiled(self, work: Callable[..., list], *arguments: Any) -> Callable[[], None]:
        """Returns a call that does work on all devices at once and waits for its end.

        Args:
            work: returns tensors that must have been computed; None among them is left out.
            arguments: of it, from `values`.
        """

        def on_device(*arguments):
            # Nothing of size leaves the function, and nothing can be pruned from it.
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


def time_in_turns(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Returns each call's median seconds over rounds in which every call has its turn.

    Two calls of each come before, which trace and compile; they are left out.
    """
    for call in calls.values():
        for _ in range(WARMUP_CALLS):
            call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def module_seconds(
    model: CtcModel, batch: Batch, strategy: tf.distribute.Strategy, rounds: int
) -> list[dict[str, Any]]:
    """Times every module's forward and backward pass, and the update.

    Args:
        model: built and compiled under the strategy; its weights are trained a few steps.
        batch: what each device computes on.
        strategy: places the work.
        rounds: measured repetitions.

    Returns:
        For each module in order ``module``, ``alone_s`` (every other module off) and ``in_step_s``:
        what it adds to the modules before it. The latter add up to the whole step.
    """
    replicas = Replicas(strategy)
    modules = modules_of(model)
    placed = replicas.values(lambda: {name: tf.constant(v) for name, v in batch.items()})
    calls: dict[str, Callable[[], Any]] = {}
    for number, module in enumerate(modules):
        until = modules[: number + 1]
        calls[f"until {module.name}"] = replicas.compiled(
            lambda batch, until=until: step_through(until, batch), placed
        )
        calls[f"alone {module.name}"] = _alone(replicas, model, module, number, batch, placed)
    calls[f"until {UPDATE}"] = _whole_step(replicas, model, placed)
    calls[f"alone {UPDATE}"] = _update(replicas, model)
    found = time_in_turns(calls, rounds)
    rows, before_s = [], 0.0
    for name in [*(module.name for module in modules), UPDATE]:
        until_s = found[f"until {name}"]
        added_s = until_s - before_s
        rows.append({"module": name, "alone_s": found[f"alone {name}"], "in_step_s": added_s})
        before_s = until_s
    return rows


def _alone(replicas, model, module: Module, number: int, batch: Batch, placed):
    if number == 0:
        return replicas.compiled(lambda batch: step_through([module], batch), placed)
    size = batch["features"].shape
    steps = int(model.output_lengths(size[1]))
    # What comes out of a normalised layer is about standard normal, as these are.
    shape = (size[0], steps, module.input_channels)
    dtype = tf.float32 if module.name == "loss" else model.recogniser.compute_dtype
    inputs = replicas.values(lambda: tf.cast(tf.random.normal(shape, seed=number), dtype))
    return replicas.compiled(
        lambda batch, inputs: step_through([module], batch, inputs), placed, inputs
    )


def _whole_step(replicas, model: CtcModel, placed):
    return replicas.compiled(lambda batch: [model.train_step(batch)["utterance_loss"]], placed)


def _update(replicas, model: CtcModel):
    variables = model.trainable_variables

    def gradients():
        return [tf.fill(variable.shape, 1e-6) for variable in variables]

    def update(*gradients):
        if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
            gradients = [model.optimizer.scale_loss(gradient) for gradient in gradients]
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return []

    return replicas.compiled(update, *replicas.values(gradients))
