"""A Keras model that trains a recogniser with CTC."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfasr.data.pipeline import Batch
from tfasr.losses import ctc_loss
from tfasr.training.optimizer.accumulation import accumulate
from tfasr.training.optimizer.make import summed_gradients


class CtcModel(keras.Model):
    """Wraps a recogniser for training on `tfasr.data.pipeline.BatchSource`'s batches.

    Make and build it in the scope of the strategy it trains under. It is a Keras model so that
    ordinary Keras callbacks can work on it; the steps come from `tfasr.training.step.TimedStep`.

    Args:
        recogniser: what is trained, built: see `tfasr.models.recogniser`.
        output_lengths: from valid feature frames to valid output frames.
        accumulation_steps: parts of a device's share of a batch that go through the model one
            after the other; their gradients are added up, and clipped and applied once.
        intermediate_loss_weight: part of what is minimised that is the CTC loss of a middle layer;
            above 0 the recogniser needs `tfasr.models.network.Network.call_with_intermediate`.
    """

    def __init__(
        self,
        recogniser: keras.Model,
        output_lengths: Callable[[tf.Tensor], tf.Tensor],
        accumulation_steps: int = 1,
        intermediate_loss_weight: float = 0.0,
    ):
        super().__init__(name="ctc_model")
        self.recogniser = recogniser
        self.output_lengths = output_lengths
        self.accumulation_steps = accumulation_steps
        self.intermediate_loss_weight = intermediate_loss_weight
        self._step: Callable | None = None
        self.built = True

    def call(self, batch: Batch, training: bool = False) -> tf.Tensor:
        """Returns logits, see `tfasr.models.recogniser.RecogniserConfig.make`."""
        return self.recogniser(batch["features"], batch["feature_lengths"], training=training)

    def utterance_losses(self, batch: Batch, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the CTC losses ``(batch,)`` and the logits ``(batch, frames, classes)``."""
        logits = self(batch, training=training)
        return self._ctc_losses(batch, logits), logits

    def training_losses(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the CTC losses ``(batch,)`` in training and what is minimised ``(batch,)``."""
        weight = self.intermediate_loss_weight
        if not weight:
            losses, _ = self.utterance_losses(batch, training=True)
            return losses, losses
        inputs = batch["features"], batch["feature_lengths"]
        logits, intermediate = self.recogniser.call_with_intermediate(*inputs, training=True)
        losses = self._ctc_losses(batch, logits)
        return losses, (1 - weight) * losses + weight * self._ctc_losses(batch, intermediate)

    def _ctc_losses(self, batch: Batch, logits: tf.Tensor) -> tf.Tensor:
        lengths = self.output_lengths(batch["feature_lengths"])
        return ctc_loss(logits, lengths, batch["labels"], batch["label_lengths"])

    def loss_gradients(
        self, batch: Batch, part: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns a share's losses ``(batch,)`` and its part of the gradients of their mean.

        The gradients are scaled as the optimizer wants them, and their sum over the replicas is
        that of the whole batch.

        Args:
            batch: this replica's share.
            part: float32 scalar: the share's part of the batch's utterances. By default shares are
                equal, so that the mean of the replicas' means is the batch's.
        """
        replicas = self.distribute_strategy.num_replicas_in_sync

        def weighted(rows: Batch, weight: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
            share = weight / replicas if part is None else weight * part
            return self._weighted_gradients(rows, share)

        if self.accumulation_steps == 1:
            weight = 1.0 / tf.cast(tf.shape(batch["feature_lengths"])[0], tf.float32)
            return weighted(batch, weight)
        shapes = [variable.shape for variable in self.trainable_variables]
        return accumulate(
            batch,
            self.accumulation_steps,
            weighted,
            shapes,
            unroll=replicas > 1,
        )

    def _weighted_gradients(
        self, batch: Batch, share: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            losses, minimised = self.training_losses(batch)
            loss = self.optimizer.scale_loss(tf.reduce_sum(minimised) * share)
        return losses, tape.gradient(loss, self.trainable_variables)

    def train_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Updates the weights on one replica's share of a batch."""
        losses, gradients = self.loss_gradients(batch)
        gradients = summed_gradients(self.optimizer, gradients)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {
            "utterance_loss": losses,
            "positions": batch["positions"],
            "duration_s": batch["duration_s"],
            "feature_lengths": batch["feature_lengths"],
            "padded_frames": tf.reduce_prod(tf.shape(batch["features"])[:2])[None],
        }

    def global_step(self, element_spec: Any) -> Callable[[Batch], dict[str, tf.Tensor]]:
        """Returns the step on a global batch, traced once for all shapes of this spec."""
        if self._step is None:
            # One signature with open dimensions: no shape of a batch is ever traced again.
            self._step = tf.function(self._global_step, input_signature=[element_spec])
        return self._step

    def _global_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        strategy = self.distribute_strategy
        outputs = strategy.run(self.train_step, args=(batch,))
        if strategy.num_replicas_in_sync == 1:
            return outputs
        return {name: strategy.gather(value, axis=0) for name, value in outputs.items()}
