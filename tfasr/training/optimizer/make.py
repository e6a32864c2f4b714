"""The optimizer of a run: Keras's, fused, its loss scaled, its gradients clipped as a whole."""

import math

import keras
import tensorflow as tf

from tfasr.errors import UsageError
from tfasr.training.experiment import TrainingConfig
from tfasr.training.optimizer.fused_update import fused

_THRESHOLDS = ("clipnorm", "global_clipnorm", "clipvalue")


def make_optimizer(training: TrainingConfig) -> keras.optimizers.Optimizer:
    """Makes a run's optimizer in the current strategy's scope.

    Give it gradients that went through `summed_gradients`; in the scope of a strategy over several
    workers, sums over all of them.

    Raises:
        UsageError: if it accumulates gradients by itself, or its learning rate is no rate.
    """
    optimizer = fused(training.optimizer())
    if optimizer.gradient_accumulation_steps:
        # Keras counts a part as a step: schedules, epochs and the ledger would count other things.
        raise UsageError(
            f"{optimizer.name}.gradient_accumulation_steps must be None. Received: "
            f"{optimizer.gradient_accumulation_steps}. Bind "
            "TrainingConfig.gradient_accumulation_steps instead: it cuts a global batch into "
            "parts, and a step stays one update of the weights."
        )
    rate = optimizer.get_config().get("learning_rate")
    if isinstance(rate, int | float) and not 0 < rate < math.inf:  # a schedule is a dict
        raise UsageError(
            f"A learning rate must be a finite number above 0. Received: {rate} of "
            f"{type(optimizer).__name__}. Bind another, such as "
            f"{type(optimizer).__name__}.learning_rate = 0.001."
        )
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        _take_sums(optimizer)
    else:
        for name in _THRESHOLDS:
            if getattr(optimizer, name):
                setattr(optimizer, name, getattr(optimizer, name) / strategy.num_replicas_in_sync)
    if training.precision == "mixed_float16":
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


def summed_gradients(
    optimizer: keras.optimizers.Optimizer, gradients: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Returns what an optimizer of `make_optimizer` is to be given on one of several replicas.

    Keras clips, and looks for gradients that are no numbers, before it sums over replicas: on each
    replica's share alone. Where either matters, each replica here gets an equal part of the sum;
    that part clipped at as small a part of the threshold is the same part of the sum clipped.

    Args:
        optimizer: names what is done to the gradients.
        gradients: this replica's.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1 or not _needs_sum(optimizer):
        return gradients
    return list(context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients))


def inner_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Returns the optimizer whose loss is scaled, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _take_sums(optimizer: keras.optimizers.Optimizer) -> None:
    """Lets an optimizer take gradients as they are, instead of summing them over the workers.

    Keras clips before it sums: a worker would have to exchange all gradients twice. And it sums in
    the gradients' own type.
    """
    name = "_all_reduce_sum_gradients"
    if not hasattr(optimizer, name):
        raise RuntimeError(
            f"Keras's optimizers must have {name}, which a cluster replaces. Received: "
            f"{type(optimizer)} of Keras {keras.__version__}. Install a version that tfasr was "
            "tested with."
        )
    setattr(optimizer, name, list)


def _needs_sum(optimizer: keras.optimizers.Optimizer) -> bool:
    inner = inner_optimizer(optimizer)
    return inner is not optimizer or any(getattr(inner, name) for name in _THRESHOLDS)
