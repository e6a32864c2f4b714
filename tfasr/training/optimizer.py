"""A run's optimizer: Keras's with fewer operations, and clipping that sees all replicas.

`make_optimizer` takes the optimizer that the user chose, with its settings and states,
and changes how it computes an update: in fewer operations (`fused`), with a loss scale
for float16, and with gradients that `summed_gradients` has prepared. Checkpoints fit
both the original and its variant.
"""

import functools
import inspect
import logging
import math

import keras
import tensorflow as tf
from keras import optimizers
from keras.optimizers import Optimizer

from tfasr.errors import UsageError
from tfasr.training.experiment import TrainingConfig
from tfasr.training.private_keras import DecayInUpdateStep, states_of, weight_decays

log = logging.getLogger("tfasr")


class FusedAdadelta(optimizers.Adadelta):
    """Keras's Adadelta in one operation per weight.

    Config, states and, to rounding, results are the same.

    Source: M. Zeiler, ADADELTA: An Adaptive Learning Rate Method, 2012, Algorithm 1.
    """

    def update_step(self, gradient, variable, learning_rate) -> None:
        # Embeddings have sparse gradients, which the operation doesn't take.
        if isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return

        sums = states_of(self, variable, "accumulated_grads", "accumulated_delta_vars")
        dtype = variable.dtype
        tf.raw_ops.ResourceApplyAdadelta(
            var=_handle(variable),
            accum=_handle(sums[0]),
            accum_update=_handle(sums[1]),
            lr=tf.cast(learning_rate, dtype),
            rho=tf.constant(self.rho, dtype),
            epsilon=tf.constant(self.epsilon, dtype),
            grad=tf.cast(gradient, dtype),
        )


class _FusedAdamStep:
    """The update of `FusedAdam` and `FusedAdamW`, which Keras's base class calls."""

    def update_step(self, gradient, variable, learning_rate) -> None:
        if isinstance(gradient, tf.IndexedSlices) or self.amsgrad:
            super().update_step(gradient, variable, learning_rate)
            return

        momentum, velocity = states_of(self, variable, "momentums", "velocities")
        _apply_adam(
            self,
            momentum,
            velocity,
            self.beta_1,
            self.beta_2,
            gradient,
            variable,
            learning_rate,
        )


class FusedAdam(_FusedAdamStep, optimizers.Adam):
    """Keras's Adam, fused like `FusedAdadelta`.

    Source: Kingma and Ba 2015, end of section 2.
    """


class FusedAdamW(_FusedAdamStep, optimizers.AdamW):
    """Keras's AdamW, fused like `FusedAdadelta`."""


# By Keras's class, the class that computes the same update in fewer operations.
_FUSED = {
    optimizers.Adadelta: FusedAdadelta,
    optimizers.Adam: FusedAdam,
    optimizers.AdamW: FusedAdamW,
}

# Older versions of Keras lack it.
_MUON = getattr(optimizers, "Muon", None)
# Keras's first versions of Muon, without rms_rate, computed other updates and failed on
# TensorFlow.
if _MUON is not None and "rms_rate" in inspect.signature(_MUON).parameters:

    class FusedMuon(_MUON):
        """Keras's Muon; config, saved states and, to rounding, results are the same.

        A matrix is never transposed in memory, and a weight that Adam updates takes one
        operation.

        Attributes:
            product_type: the type of the iterations' matrix products; None for the
                weights' own.

        Source: K. Jordan et al., Muon: An optimizer for hidden layers in neural
        networks, 2024; J. Liu et al., Muon is Scalable for LLM Training, 2025, section
        2.2 (the size of an update).
        """

        product_type: str | None = None

        def update_step(self, gradient, variable, learning_rate) -> None:
            momentum, velocity = states_of(
                self, variable, "momentums", "adam_velocities"
            )
            # Embeddings have sparse gradients.
            if isinstance(gradient, tf.IndexedSlices):
                super().update_step(gradient, variable, learning_rate)
            elif velocity is None:
                self._update_matrix(gradient, variable, learning_rate, momentum)
            else:
                _apply_adam(
                    self,
                    momentum,
                    velocity,
                    self.adam_beta_1,
                    self.adam_beta_2,
                    gradient,
                    variable,
                    learning_rate * self.adam_lr_ratio,
                )

        def _update_matrix(self, gradient, variable, learning_rate, momentum) -> None:
            """Moves a matrix along the orthogonal matrix closest to its momentum."""
            gradient = tf.cast(gradient, variable.dtype)
            summed = gradient + self.momentum * tf.convert_to_tensor(momentum)
            self.assign(momentum, summed)
            direction = gradient + self.momentum * summed if self.nesterov else summed

            size = 1.0
            if self.rms_rate is not None:
                size = self.rms_rate * math.sqrt(max(variable.shape))

            rate = size * tf.cast(learning_rate, variable.dtype)
            self.assign_sub(variable, rate * self._orthogonal(direction))

        def _orthogonal(self, matrix: tf.Tensor) -> tf.Tensor:
            """Approximates the closest matrix with orthonormal rows.

            If there are fewer columns than rows, the columns are orthonormal.

            Newton-Schulz: X <- (a + b G + c G G) X with G = X X', or from the right
            with G = X' X.
            """
            rows, columns = matrix.shape
            is_wide = rows <= columns
            original_dtype = matrix.dtype
            # Newton-Schulz converges if no singular value is above 1.
            matrix /= tf.norm(matrix) + 1e-7
            matrix = tf.cast(matrix, self.product_type or original_dtype)

            linear = self.muon_a * tf.eye(min(rows, columns), dtype=matrix.dtype)
            for _ in range(self.ns_steps):
                gram = tf.matmul(
                    matrix, matrix, transpose_a=not is_wide, transpose_b=is_wide
                )
                factor = (
                    linear + self.muon_b * gram + self.muon_c * tf.matmul(gram, gram)
                )

                if is_wide:
                    matrix = tf.matmul(factor, matrix)
                else:
                    matrix = tf.matmul(matrix, factor)

            return tf.cast(matrix, original_dtype)

    _FUSED[_MUON] = FusedMuon


# Keras has it since 3.14.
if hasattr(optimizers, "ScheduleFreeAdamW"):

    class PublishedScheduleFreeAdamW(DecayInUpdateStep, optimizers.ScheduleFreeAdamW):
        """Keras's ScheduleFreeAdamW with the published update.

        Config and states are the same.

        On TensorFlow, Keras 3.15 computes the old average x from z (its momentum) only
        after the gradient has changed z. So each step moves x along the gradient
        instead of against it, by (1 - beta_1) / beta_1 of the step's size. Its weight
        decay also leaves out z. As in Keras, every iterate weighs the same in the
        average, those of the warm-up too.

        Source: A. Defazio et al., The Road Less Scheduled, 2024, Algorithm 1.
        """

        def update_step(self, gradient, variable, learning_rate) -> None:
            momentum, velocity = states_of(self, variable, "momentums", "velocities")
            cast = functools.partial(tf.cast, dtype=variable.dtype)
            gradient = cast(tf.convert_to_tensor(gradient))
            y = tf.convert_to_tensor(variable)
            z = tf.convert_to_tensor(momentum)
            step = cast(self.iterations + 1)
            rate = cast(learning_rate)
            beta_1 = cast(self.beta_1)
            beta_2 = cast(self.beta_2)

            if self.warmup_steps > 0:
                rate *= tf.minimum(step / cast(self.warmup_steps), 1)

            second = beta_2 * tf.convert_to_tensor(velocity) + (1 - beta_2) * tf.square(
                gradient
            )
            deviation = tf.sqrt(second / (1 - tf.pow(beta_2, step)))
            change = gradient / (deviation + cast(self.epsilon))

            if self.weight_decay and weight_decays(self, variable):
                change += cast(self.weight_decay) * y

            new_z = z - rate * change
            # The weight of new_z in the average.
            part = 1 / step
            x = (1 - part) * (y - (1 - beta_1) * z) / beta_1 + part * new_z
            self.assign(velocity, second)
            self.assign(momentum, new_z)
            self.assign(variable, (1 - beta_1) * new_z + beta_1 * x)

    _FUSED[optimizers.ScheduleFreeAdamW] = PublishedScheduleFreeAdamW


def fused(optimizer: Optimizer) -> Optimizer:
    """Returns an optimizer that does the same with fewer operations.

    ``optimizer`` itself is returned if it is already built, its class has no variant
    here, or its config lacks some of its settings.
    """
    # Keras passes some fifteen times over each variable. Ten matrices of 800 x 3200 on
    # 2 cores take 82 ms with AdaDelta, fused 30; with Adam 63, fused 18. Of 256 x 1024:
    # 9.1, fused 4.0; 7.8, fused 3.7. A whole step takes 3900 ms with the paper's model,
    # 195 ms with an4.gin's.
    cls = _FUSED.get(type(optimizer))
    if cls is None:
        return optimizer

    try:
        config = optimizer.get_config()
        plain = type(optimizer).from_config(dict(config))
        replacement = cls.from_config(config)
    except (TypeError, ValueError, NotImplementedError) as error:
        log.info(
            "%s: updated by Keras; its config cannot be read back: %s",
            cls.__name__,
            str(error).split("\n")[0],
        )
        return optimizer

    # The config would turn a learning rate that is a function into a number.
    same_variables = len(plain.variables) == len(optimizer.variables)
    if not same_variables or vars(plain).keys() != vars(optimizer).keys():
        log.info(
            "%s: updated by Keras; its config does not hold all settings", cls.__name__
        )
        return optimizer

    return replacement


def _apply_adam(
    optimizer, momentum, velocity, beta_1, beta_2, gradient, variable, learning_rate
) -> None:
    """Updates a weight and both of its states as Adam does, in one operation.

    The arguments are those of ``update_step``, the states and their decay rates.
    """
    dtype = variable.dtype
    beta_1 = tf.constant(beta_1, dtype)
    beta_2 = tf.constant(beta_2, dtype)
    step = tf.cast(optimizer.iterations + 1, beta_1.dtype)
    tf.raw_ops.ResourceApplyAdam(
        var=_handle(variable),
        m=_handle(momentum),
        v=_handle(velocity),
        beta1_power=tf.pow(beta_1, step),
        beta2_power=tf.pow(beta_2, step),
        lr=tf.cast(learning_rate, dtype),
        beta1=beta_1,
        beta2=beta_2,
        epsilon=tf.constant(optimizer.epsilon, dtype),
        grad=tf.cast(gradient, dtype),
    )


def _handle(variable):
    """Returns TensorFlow's handle of a variable, Keras's own or TensorFlow's."""
    if isinstance(variable, keras.Variable):
        variable = variable.value

    return variable.handle


# Settings of Keras's optimizers that limit gradients.
_THRESHOLDS = ("clipnorm", "global_clipnorm", "clipvalue")


def make_optimizer(training: TrainingConfig) -> Optimizer:
    """Makes a run's optimizer in the current strategy's scope.

    Pass it gradients from `summed_gradients`; under a strategy over several workers,
    pass their sums over all workers.

    Raises:
        UsageError: if the optimizer accumulates gradients by itself, or its learning
            rate is not a finite number above 0.
    """
    optimizer = fused(training.optimizer())
    if optimizer.gradient_accumulation_steps:
        # Keras counts each part as a step, so schedules would count parts instead of
        # updates.
        raise UsageError(
            f"{optimizer.name}.gradient_accumulation_steps must be None. Received: "
            f"{optimizer.gradient_accumulation_steps}. Bind "
            "TrainingConfig.gradient_accumulation_steps instead: it cuts a global batch into "
            "parts, and a step stays one update of the weights."
        )

    # As in Muon's published code.
    if training.precision == "mixed_bfloat16" and hasattr(optimizer, "product_type"):
        optimizer.product_type = "bfloat16"

    # A schedule's config is a dict, and isn't checked here.
    rate = optimizer.get_config().get("learning_rate")
    if isinstance(rate, int | float) and not 0 < rate < math.inf:
        name = type(optimizer).__name__
        raise UsageError(
            f"A learning rate must be a finite number above 0. Received: {rate} of {name}. Bind "
            f"another, such as {name}.learning_rate = 0.001."
        )

    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        _take_sums(optimizer)
    else:
        _divide_thresholds(optimizer, strategy.num_replicas_in_sync)

    if training.precision == "mixed_float16":
        return optimizers.LossScaleOptimizer(optimizer)

    return optimizer


def summed_gradients(
    optimizer: Optimizer, gradients: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Prepares one replica's gradients for an optimizer of `make_optimizer`.

    Keras clips, and looks for infinite gradients, before it sums over replicas, so it
    sees only a replica's share. If the optimizer does either, this returns the mean
    over replicas instead. Clipping it equals clipping the sum, as `make_optimizer`
    divides thresholds by the replicas.

    Args:
        optimizer: from `make_optimizer`.
        gradients: of this replica, one per trainable weight.
    """
    context = tf.distribute.get_replica_context()
    inner = inner_optimizer(optimizer)
    looks_for_infinities = inner is not optimizer
    clips = any(getattr(inner, name) for name in _THRESHOLDS)
    needs_sum = looks_for_infinities or clips
    if context.num_replicas_in_sync == 1 or not needs_sum:
        return gradients

    return list(context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients))


def inner_optimizer(
    optimizer: Optimizer,
) -> Optimizer:
    """Returns the optimizer inside a `LossScaleOptimizer`, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _divide_thresholds(optimizer: Optimizer, replicas: int) -> None:
    """Makes thresholds fit the mean of the replicas' gradients in place of their sum."""
    for name in _THRESHOLDS:
        threshold = getattr(optimizer, name)
        if threshold:
            setattr(optimizer, name, threshold / replicas)


def _take_sums(optimizer: Optimizer) -> None:
    """Lets an optimizer take gradients as they are, without summing them over workers.

    Keras clips before it sums, so workers would have to exchange all gradients twice;
    and it sums in the gradients' own type instead of ``gradient_exchange``.
    """
    name = "_all_reduce_sum_gradients"
    if not hasattr(optimizer, name):
        raise RuntimeError(
            f"Keras's optimizers must have {name}, which a cluster replaces. {type(optimizer)} of "
            f"Keras {keras.__version__} does not: install a version that tfasr was tested with."
        )

    setattr(optimizer, name, list)
