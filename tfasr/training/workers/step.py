"""A training step of several workers on one global batch, each on its share, timed.

All workers make the same updates of the same weights, so that the result is that of one
process with the whole batch. `SharedStep` takes the place of `TimedStep` in the
training loop of each worker. A signal to one of them must not end its loop alone: the
steps pass it on to all (`AgreedInterruption`).
"""

import dataclasses
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfasr.data.batches import Batch
from tfasr.layers.batch_normalization_kernel import counted
from tfasr.ledger.schema import WorkerStep
from tfasr.training.checkpoint import TrainingState, plain_array, state_variables
from tfasr.training.ctc import CtcModel
from tfasr.training.run_folder import Interruption
from tfasr.training.step import StepResult, TimedStep
from tfasr.training.workers.exchange import Workers, summed_over_workers


class AgreedInterruption:
    """A signal to any of the workers, which all of them obey at the same step.

    Attributes:
        received: the signal, once all workers know about it.
    """

    def __init__(self, of_this_worker: Interruption):
        self.received: signal.Signals | None = None
        self._of_this_worker = of_this_worker

    @property
    def asked(self) -> int:
        """The number of the signal that this worker received, or 0."""
        return int(self._of_this_worker.received or 0)

    def agree(self, asked: int) -> None:
        """Notes the signal that all workers now know about; 0 for none."""
        if asked:
            self.received = signal.Signals(asked)

    def agree_between(self, workers: Workers) -> None:
        """Shares a signal received between two steps; all workers must call this."""
        self.agree(max(workers.gather(self.asked)))


def from_chief(
    workers: Workers, model: keras.Model, state: TrainingState
) -> TrainingState:
    """Gives all workers the chief's variables.

    Args:
        workers: that exchange them.
        model: with its optimizer, on each of them.
        state: where this worker's run stands.

    Returns:
        The chief's state.
    """
    variables = list(state_variables(model).values())
    values = [plain_array(variable) for variable in variables]
    # Only the chief contributes to the sum.
    if workers.rank:
        values = [np.zeros_like(value) for value in values]

    for variable, value in zip(variables, workers.sums(values), strict=True):
        if workers.rank:
            variable.assign(value)

    return TrainingState(**workers.gather(dataclasses.asdict(state))[0])


# What the model gets of a batch. The rest describes the whole global batch.
_OWN = ("features", "feature_lengths", "labels", "label_lengths")


class SharedStep(TimedStep):
    """Takes a step of all workers, on this worker's share of a global batch.

    Its results are those of the whole batch.

    Args:
        model: of this worker.
        interruption: passes on the signals that workers receive.
        exchange: the type in which gradients travel, see `TrainingConfig`.

    Attributes:
        times: the worker's own times of the last step.
    """

    def __init__(
        self,
        model: CtcModel,
        interruption: AgreedInterruption,
        exchange: str = "float32",
    ):
        super().__init__(model)
        self.times: WorkerStep | None = None
        self._interruption = interruption
        self._exchange = exchange

    def __call__(self, iterator: Iterator[Batch]) -> StepResult | None:
        result = super().__call__(iterator)
        if result is None:
            return None

        step_s = result.compile_s + result.train_s
        # From the wall clock, which may be changed meanwhile: kept within the step.
        ready_s = float(np.clip(self._ready_s, 0.0, step_s))
        self.times = WorkerStep(
            utterances=self._of_share,
            input_wait_s=round(result.input_wait_s, 6),
            step_s=round(step_s, 6),
            ready_s=round(ready_s, 6),
            compiled=result.compile_s > 0,
        )

        return result

    def _outputs(self, step: Callable, batch: Batch) -> dict[str, np.ndarray]:
        fetched_epoch_s = time.time()
        asked = tf.constant(self._interruption.asked, tf.float32)
        losses, asked, ready = step(batch, asked)
        # Reading a value waits for the step.
        losses = losses.numpy()
        self._interruption.agree(int(asked.numpy()))
        self._ready_s = ready.numpy() - fetched_epoch_s

        share, frames = batch["features"].shape[:2]
        self._of_share = int(batch["counted"]) * int(share)
        return {
            "utterance_loss": losses,
            "positions": batch["all_positions"].numpy(),
            "duration_s": batch["all_duration_s"].numpy(),
            "feature_lengths": batch["all_lengths"].numpy(),
            "padded_frames": np.array(len(losses) * int(frames)),
        }

    def _traced(self, element_spec: Any) -> Callable:
        return self._model.traced(
            self._global_step, [element_spec, tf.TensorSpec([], tf.float32)]
        )

    def _global_step(self, batch: Batch, asked: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return self._model.distribute_strategy.run(self._share, args=(batch, asked))

    def _share(self, batch: Batch, asked: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Takes the step, in this worker's replica.

        Returns:
            The losses of all utterances of the global batch ``(utterances,)``, the
            number of a signal that a worker has received, or 0, and when this worker's
            gradients were ready, by the wall clock.
        """
        model = self._model
        share = {name: batch[name] for name in _OWN}
        of_share = tf.cast(tf.shape(batch["feature_lengths"])[0], tf.float32)
        utterances = tf.shape(batch["all_positions"])[0]
        part = batch["counted"] * of_share / tf.cast(utterances, tf.float32)

        with counted(batch["counted"]):
            losses, gradients = model.loss_gradients(share, part)

        # Exchanged first, while the gradients are computed: the losses are available
        # earlier.
        all_losses, asked = self._exchanged(batch, losses, asked)
        computed = [gradient for gradient in gradients if gradient is not None]

        with tf.control_dependencies(computed):
            ready = tf.timestamp()

        with tf.control_dependencies([ready]):
            gradients = [
                None if gradient is None else tf.identity(gradient)
                for gradient in gradients
            ]

        gradients = summed_over_workers(gradients, self._exchange)
        model.optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return all_losses, asked, ready

    def _exchanged(
        self, batch: Batch, losses: tf.Tensor, asked: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the losses of the whole batch, and the largest number of a signal.

        Both travel in one buffer: the losses in the places of their utterances, then
        one number per worker.
        """
        utterances = tf.shape(batch["all_positions"])[0]
        rows = batch["first_row"] + tf.range(tf.shape(losses)[0])
        placed = tf.scatter_nd(
            rows[:, None], losses * batch["counted"], utterances[None]
        )
        context = tf.distribute.get_replica_context()
        rank = context.replica_id_in_sync_group
        sent = tf.concat(
            [placed, tf.one_hot(rank, context.num_replicas_in_sync) * asked], axis=0
        )
        totals = context.all_reduce(tf.distribute.ReduceOp.SUM, sent)

        return totals[:utterances], tf.reduce_max(totals[utterances:])
