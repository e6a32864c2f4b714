"""The averages of weights that an optimizer keeps, which inference should use in their place."""

from collections.abc import Sequence
from typing import Any

import keras

from tfasr.errors import UsageError
from tfasr.training.experiment import TrainingConfig
from tfasr.training.optimizer.make import inner_optimizer
from tfasr.training.optimizer.private_keras import states_of


def averaging_rule(training: TrainingConfig) -> str | None:
    """Returns in words which averaged weights a run evaluates; None for those of the last step.

    Args:
        training: names the optimizer and the batches whose statistics go with the averages.

    Raises:
        UsageError: if the optimizer averages in two ways.
    """
    if not training.evaluate_averaged:
        return None
    kind = _kind(training.optimizer())
    if kind is None:
        return None
    utterances = training.averaged_statistics_utterances
    of = "of the training weights"
    if utterances:
        of = f"estimated anew, at every checkpoint from the same {utterances} utterances"
    return f"{kind}; batch statistics {of}"


def check_averaging(training: TrainingConfig, workers: int = 1) -> None:
    """Raises UsageError where averaged weights cannot be evaluated."""
    rule = averaging_rule(training)
    if rule is not None and (workers > 1 or training.num_replicas > 1):
        place = "In a cluster" if workers > 1 else "With several replicas"
        raise UsageError(
            f"{place} TrainingConfig.optimizer must not average weights that are to be evaluated. "
            f"Received: an optimizer with {rule}. Train on one device, bind another optimizer, or "
            "bind TrainingConfig.evaluate_averaged = False to evaluate the last step's weights."
        )


def averaged_values(optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]) -> list[Any]:
    """Returns the averages of weights, as tensors; the weights where no step was taken yet.

    Args:
        optimizer: built; its own averages, or those of the one whose loss it scales.
        variables: trainable; the optimizer's own are not among them.

    Source: A. Defazio et al., The Road Less Scheduled, 2024, equations 3 to 5: gradients are taken
    at y = (1 - beta_1) z + beta_1 x, and x is the average.
    """
    inner = inner_optimizer(optimizer)
    if not int(inner.iterations.numpy()):
        return [keras.ops.convert_to_tensor(variable) for variable in variables]
    return [_averaged(inner, variable) for variable in variables]


def _averaged(optimizer: keras.optimizers.Optimizer, variable: Any) -> Any:
    value = keras.ops.convert_to_tensor(variable)
    if _is_schedule_free(optimizer):
        # Keras calls z its momentum, and leaves y in the model.
        beta_1 = keras.ops.cast(optimizer.beta_1, value.dtype)
        (z,) = states_of(optimizer, variable, "momentums")
        return (value - (1 - beta_1) * z) / beta_1
    (average,) = states_of(optimizer, variable, "model_variables_moving_average")
    return value if average is None else keras.ops.convert_to_tensor(average)


def _kind(optimizer: keras.optimizers.Optimizer) -> str | None:
    inner = inner_optimizer(optimizer)
    if _is_schedule_free(inner):
        if inner.use_ema:
            raise UsageError(
                "ScheduleFreeAdamW.use_ema must be False: it averages its weights by itself. "
                "Received: True."
            )
        return "average of ScheduleFreeAdamW's iterates"
    if inner.use_ema:
        return f"moving average of weights, momentum {inner.ema_momentum} a step"
    return None


def _is_schedule_free(optimizer: keras.optimizers.Optimizer) -> bool:
    cls = getattr(keras.optimizers, "ScheduleFreeAdamW", None)  # from Keras 3.14 on
    return cls is not None and isinstance(optimizer, cls)
