"""Seconds of each module of the model, within the step and alone, on one device or on several."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfasr.bench.probes.model_modules import UPDATE, Module, modules_of, step_through
from tfasr.bench.probes.replicas import WARMUP_CALLS, Replicas, time_in_turns
from tfasr.bench.probes.staged_step import StagedStep
from tfasr.data.pipeline import Batch
from tfasr.training.ctc_model import CtcModel


@dataclass(frozen=True)
class ModuleSeconds:
    """A module, or the update of the weights.

    Attributes:
        module: its name.
        alone_s: seconds forward and backward with every other module off, on random input.
        forward_s: seconds of its forward pass within the step; 0 of the update.
        backward_s: seconds of its backward pass within the step.
        first_s: seconds of both within each of the first steps of the process, which are left out
            of everything else.
    """

    module: str
    alone_s: float
    forward_s: float
    backward_s: float
    first_s: list[float]

    @property
    def in_step_s(self) -> float:
        """Seconds within the step; those of all modules add up to it."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class ModuleTimes:
    """All modules of a step.

    Attributes:
        modules: in their order, the update last.
        first_host_s: what each of the first steps took beside the modules: the first is traced.
    """

    modules: list[ModuleSeconds]
    first_host_s: list[float]

    @property
    def step_s(self) -> float:
        """Seconds of the whole step."""
        return sum(module.in_step_s for module in self.modules)


def module_times(
    model: CtcModel,
    batch: Batch,
    strategy: tf.distribute.Strategy,
    rounds: int,
    first_steps: int = WARMUP_CALLS,
) -> ModuleTimes:
    """Times every module's forward and backward pass, and the update.

    Args:
        model: built and compiled under the strategy; its weights are trained a few steps.
        batch: what each device computes on.
        strategy: places the work.
        rounds: measured repetitions, whose medians are returned.
        first_steps: steps before them.
    """
    replicas = Replicas(strategy)
    placed = replicas.values(lambda: {name: tf.constant(v) for name, v in batch.items()})
    staged = StagedStep(model, placed, strategy)
    first = [staged() for _ in range(first_steps)]
    steps = [staged() for _ in range(rounds)]
    modules = modules_of(model)
    calls: dict[str, Callable[[], Any]] = {
        module.name: _alone(replicas, model, module, number, batch, placed)
        for number, module in enumerate(modules)
    }
    calls[UPDATE] = _update(replicas, model)
    alone_s = time_in_turns(calls, rounds)
    found = [
        ModuleSeconds(
            name,
            alone_s[name],
            statistics.median(step.forward_s[number] for step in steps),
            statistics.median(step.backward_s[number] for step in steps),
            [step.forward_s[number] + step.backward_s[number] for step in first],
        )
        for number, name in enumerate(staged.names)
    ]
    return ModuleTimes(found, [step.host_s for step in first])


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
