"""A Keras model that trains a recogniser with CTC and times every step."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfasr.data.pipeline import Batch
from tfasr.losses import ctc_loss
from tfasr.training.optimizer.accumulation import accumulate
from tfasr.training.optimizer.make import summed_gradients
from tfasr.training.traces import StepTraces


class CtcModel(keras.Model):
    """Wraps a recogniser for `fit` on the batches of `tfasr.data.pipeline.BatchSource`.

    Make and build it in the scope of the strategy it trains under. `fit` calls `train_function`
    once a step; its logs hold ``loss`` (mean over the global batch), ``utterance_loss`` and
    ``positions`` ``(batch,)``, ``utterances``, ``audio_s``, ``frames``, ``padded_frames`` (sums),
    and the seconds ``input_wait_s``, ``compile_s`` and ``train_s``.

    Args:
        recogniser: what is trained, built: see `tfasr.models.recogniser`.
        output_lengths: from valid feature frames to valid output frames.
        accumulation_steps: parts of a device's share of a batch that go through the model one
            after the other; their gradients are added up, and clipped and applied once.

    Attributes:
        traces: counts what `train_function` traced and compiled.
    """

    def __init__(
        self,
        recogniser: keras.Model,
        output_lengths: Callable[[tf.Tensor], tf.Tensor],
        accumulation_steps: int = 1,
    ):
        super().__init__(name="ctc_model")
        self.recogniser = recogniser
        self.output_lengths = output_lengths
        self.accumulation_steps = accumulation_steps
        self.traces = StepTraces()
        self._step: Callable | None = None
        self.built = True

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Everything is built already; Keras's way would use up a batch of every epoch."""

    def call(self, batch: Batch, training: bool = False) -> tf.Tensor:
        """Returns logits, see `tfasr.models.recogniser.RecogniserConfig.make`."""
        return self.recogniser(batch["features"], batch["feature_lengths"], training=training)

    def utterance_losses(self, batch: Batch, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the CTC losses ``(batch,)`` and the logits ``(batch, frames, classes)``."""
        logits = self(batch, training=training)
        lengths = self.output_lengths(batch["feature_lengths"])
        losses = ctc_loss(logits, lengths, batch["labels"], batch["label_lengths"])
        return losses, logits

    def loss_gradients(self, batch: Batch) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns a share's losses ``(batch,)`` and its part of the gradients of their mean.

        The gradients are scaled as the optimizer wants them and divided by the replicas: shares
        are equal, so the mean of the replicas' means is the batch's.
        """
        replicas = self.distribute_strategy.num_replicas_in_sync
        if self.accumulation_steps == 1:
            weight = 1.0 / tf.cast(tf.shape(batch["feature_lengths"])[0], tf.float32)
            return self._weighted_gradients(batch, weight)
        shapes = [variable.shape for variable in self.trainable_variables]
        return accumulate(
            batch,
            self.accumulation_steps,
            self._weighted_gradients,
            shapes,
            unroll=replicas > 1,
        )

    def _weighted_gradients(
        self, batch: Batch, weight: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            losses, _ = self.utterance_losses(batch, training=True)
            share = weight / self.distribute_strategy.num_replicas_in_sync
            loss = self.optimizer.scale_loss(tf.reduce_sum(losses) * share)
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

    def make_train_function(self, force: bool = False) -> None:
        """Sets ``train_function``, which fetches a batch, trains on it and times both."""
        if self.train_function is not None and not force:
            return

        def train_function(iterator: Iterator[Batch]) -> dict[str, Any]:
            step = self.global_step(iterator.element_spec)
            began = time.perf_counter()
            batch = next(iterator)
            fetched = time.perf_counter()
            traced = step.experimental_get_tracing_count()
            # Reading the values waits for the device: a step's time is then its own.
            outputs = {name: value.numpy() for name, value in step(batch).items()}
            utterances = len(outputs["positions"])
            traces = step.experimental_get_tracing_count()
            step_s = time.perf_counter() - fetched
            padded_frames = int(outputs["padded_frames"].sum())
            compile_s = step_s if traces > traced else 0.0
            self.traces.record(utterances, padded_frames // utterances, traces, compile_s)
            return {
                "loss": float(np.mean(outputs["utterance_loss"], dtype=np.float64)),
                "utterance_loss": outputs["utterance_loss"],
                "positions": outputs["positions"],
                "utterances": utterances,
                "audio_s": float(outputs["duration_s"].sum(dtype=np.float64)),
                "frames": int(outputs["feature_lengths"].sum()),
                "padded_frames": padded_frames,
                "input_wait_s": fetched - began,
                "compile_s": compile_s,
                "train_s": step_s - compile_s,
            }

        self.train_function = train_function

    def _global_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        strategy = self.distribute_strategy
        outputs = strategy.run(self.train_step, args=(batch,))
        if strategy.num_replicas_in_sync == 1:
            return outputs
        return {name: strategy.gather(value, axis=0) for name, value in outputs.items()}
