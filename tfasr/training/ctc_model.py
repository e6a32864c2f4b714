"""A Keras model that trains an acoustic model with CTC and times every step."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfasr.data.pipeline import Batch
from tfasr.losses import ctc_loss
from tfasr.models.acoustic_model import AcousticModel


class CtcModel(keras.Model):
    """Wraps an acoustic model for `fit` on the batches of `tfasr.data.pipeline.BatchSource`.

    Make and build it in the scope of the strategy it trains under. `fit` calls `train_function`
    once a step; its logs hold ``loss`` (mean over the global batch), ``utterance_loss`` and
    ``positions`` ``(batch,)``, ``utterances``, ``audio_s``, ``frames``, ``padded_frames`` (sums),
    and the seconds ``input_wait_s``, ``compile_s`` and ``train_s``.

    Args:
        acoustic_model: what is trained; built here.
        num_features: features per frame.
    """

    def __init__(self, acoustic_model: AcousticModel, num_features: int):
        super().__init__(name="ctc_model")
        self.acoustic_model = acoustic_model
        acoustic_model.build((None, None, num_features))
        self.built = True

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Everything is built already; Keras's way would use up a batch of every epoch."""

    def call(self, batch: Batch, training: bool = False) -> tf.Tensor:
        """Returns logits, see `AcousticModel.call`."""
        return self.acoustic_model(batch["features"], batch["feature_lengths"], training=training)

    def utterance_losses(self, batch: Batch, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the CTC losses ``(batch,)`` and the logits ``(batch, frames, classes)``."""
        logits = self(batch, training=training)
        lengths = self.acoustic_model.output_lengths(batch["feature_lengths"])
        losses = ctc_loss(logits, lengths, batch["labels"], batch["label_lengths"])
        return losses, logits

    def train_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Updates the weights on one replica's share of a batch."""
        replicas = self.distribute_strategy.num_replicas_in_sync
        with tf.GradientTape() as tape:
            losses, _ = self.utterance_losses(batch, training=True)
            # Shares are equal, so the mean of the replicas' means is the batch's.
            loss = self.optimizer.scale_loss(tf.reduce_mean(losses) / replicas)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {
            "utterance_loss": losses,
            "positions": batch["positions"],
            "duration_s": batch["duration_s"],
            "feature_lengths": batch["feature_lengths"],
            "padded_frames": tf.reduce_prod(tf.shape(batch["features"])[:2])[None],
        }

    def make_train_function(self, force: bool = False) -> None:
        """Sets ``train_function``, which fetches a batch, trains on it and times both."""
        if self.train_function is not None and not force:
            return
        step: Callable | None = None

        def train_function(iterator: Iterator[Batch]) -> dict[str, Any]:
            nonlocal step
            if step is None:
                # One signature with open dimensions: no shape of a batch is ever traced again.
                step = tf.function(self._global_step, input_signature=[iterator.element_spec])
            began = time.perf_counter()
            batch = next(iterator)
            fetched = time.perf_counter()
            traced = step.experimental_get_tracing_count()
            # Reading the values waits for the device: a step's time is then its own.
            outputs = {name: value.numpy() for name, value in step(batch).items()}
            compiled = step.experimental_get_tracing_count() > traced
            step_s = time.perf_counter() - fetched
            return {
                "loss": float(np.mean(outputs["utterance_loss"], dtype=np.float64)),
                "utterance_loss": outputs["utterance_loss"],
                "positions": outputs["positions"],
                "utterances": len(outputs["positions"]),
                "audio_s": float(outputs["duration_s"].sum(dtype=np.float64)),
                "frames": int(outputs["feature_lengths"].sum()),
                "padded_frames": int(outputs["padded_frames"].sum()),
                "input_wait_s": fetched - began,
                "compile_s": step_s if compiled else 0.0,
                "train_s": 0.0 if compiled else step_s,
            }

        self.train_function = train_function

    def _global_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        strategy = self.distribute_strategy
        outputs = strategy.run(self.train_step, args=(batch,))
        if strategy.num_replicas_in_sync == 1:
            return outputs
        return {name: strategy.gather(value, axis=0) for name, value in outputs.items()}
