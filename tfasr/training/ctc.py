"""A Keras model that trains a recogniser with CTC."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfasr.data.batches import Batch
from tfasr.errors import RunError
from tfasr.kit.registry import Registry
from tfasr.layers.compiled import call, runs_here, second_derivatives_refused, team_size
from tfasr.layers.operations import Operation, core
from tfasr.training.optimizer import summed_gradients


def ctc_loss(
    logits: tf.Tensor,
    logit_lengths: tf.Tensor,
    labels: tf.Tensor,
    label_lengths: tf.Tensor,
) -> tf.Tensor:
    """The CTC loss of each utterance, float32 ``(batch,)``; infinite where the labels
    have no path.

    On CPUs tfasr's compiled core computes it together with its gradient, which is 0
    where the loss is infinite. On GPUs, and if the core wasn't built, TensorFlow's
    kernel does. Both raise InvalidArgumentError for an utterance without labels, or
    with more labels than valid frames.

    Args:
        logits: ``(batch, frames, classes)``, the blank last; converted to float32.
        logit_lengths: int32 ``(batch,)``: valid frames.
        labels: int32 ``(batch, labels)``, right-padded with anything.
        label_lengths: int32 ``(batch,)``: valid labels.

    Source: A. Graves et al., Connectionist Temporal Classification, ICML 2006.
    """
    logits = tf.cast(logits, tf.float32)
    if runs_here("float32", "ctc"):
        integers = [
            tf.cast(x, tf.int32) for x in (logit_lengths, labels, label_lengths)
        ]
        return _compiled_loss(logits, *integers)

    # With sparse labels TensorFlow runs its native kernel, with dense ones a 30 times
    # slower loop.
    valid = tf.sequence_mask(label_lengths, tf.shape(labels)[1])
    sparse = tf.SparseTensor(
        tf.where(valid),
        tf.boolean_mask(labels, valid),
        tf.shape(labels, out_type=tf.int64),
    )
    return tf.nn.ctc_loss(
        labels=sparse,
        logits=logits,
        label_length=None,
        logit_length=logit_lengths,
        logits_time_major=False,
        blank_index=-1,
    )


_REFUSE = second_derivatives_refused(
    "The compiled CTC loss",
    "TensorFlow's own CTC loss has no second derivatives either.",
)


@tf.custom_gradient
def _compiled_loss(logits, logit_lengths, labels, label_lengths):
    threads = team_size()

    def run(*arrays):
        try:
            return core.ctc(*arrays, threads=threads())
        except ValueError as error:
            raise tf.errors.InvalidArgumentError(None, None, str(error)) from error

    operation = Operation("TfasrCtc", [tf.float32, tf.float32], {"T": tf.float32})
    tensors = [tf.stop_gradient(logits), logit_lengths, labels, label_lengths]
    with tf.name_scope("ctc_loss"):
        losses, gradient = call(
            run, operation, tensors, [logit_lengths.shape, logits.shape]
        )

    @tf.custom_gradient
    def slope(d_losses, _):
        return d_losses[:, None, None] * gradient, _REFUSE

    return losses, lambda d_losses: (slope(d_losses, logits), None, None, None)


Loss = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]
LOSSES: Registry[Loss] = Registry("loss", plural="losses")
"""What training can minimise, by name: functions with `ctc_loss`'s arguments and result.

With ``@LOSSES.register("smoothed_ctc")`` above a function, ``TrainingConfig.loss = 'smoothed_ctc'``
trains with it.
"""
LOSSES.register("ctc", ctc_loss)

_LABELLED = ("feature_lengths", "labels", "label_lengths")


def divergences(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Returns KL(first || second) + KL(second || first) of each frame, ``(batch, frames)``.

    Both are logits ``(batch, frames, classes)``. The left side of each divergence has
    no gradient: it is what the other side should come closer to.
    """
    logs = [tf.nn.log_softmax(logits) for logits in (first, second)]
    fixed = [tf.stop_gradient(log) for log in logs]

    def divergence(target: tf.Tensor, log: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.exp(target) * (target - log), axis=-1)

    return divergence(fixed[0], logs[1]) + divergence(fixed[1], logs[0])


Compute = Callable[[Batch, tf.Tensor], tuple[tf.Tensor, list[tf.Tensor]]]


def accumulate(
    batch: Batch,
    parts: int,
    compute: Compute,
    shapes: Sequence[tuple[int, ...]],
    *,
    unroll: bool = False,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns losses ``(batch,)`` and the gradients of their mean, summed over a
    batch's parts.

    There are at most ``parts`` parts, none empty. ``compute`` takes a part and the
    weight of each of its utterances; it returns losses ``(part,)`` and the gradients of
    their weighted sum, with the given ``shapes``. ``unroll`` puts the parts one after
    the other into the graph; in a loop, a mirrored replica can't update variables.
    """
    utterances = tf.shape(batch["feature_lengths"])[0]
    weight = 1.0 / tf.cast(utterances, tf.float32)
    if unroll:
        return _unrolled(batch, utterances, parts, weight, compute)

    parts = tf.minimum(parts, utterances)

    def add(number, losses, sums):
        start = number * utterances // parts
        stop = (number + 1) * utterances // parts
        part_losses, gradients = compute(_rows(batch, start, stop), weight)
        sums = [
            total + gradient for total, gradient in zip(sums, gradients, strict=True)
        ]
        return number + 1, losses.write(number, part_losses), sums

    losses = tf.TensorArray(tf.float32, parts, element_shape=[None], infer_shape=False)
    _, losses, sums = tf.while_loop(
        lambda number, *_: number < parts,
        add,
        (tf.constant(0), losses, [tf.zeros(shape) for shape in shapes]),
        parallel_iterations=1,
    )
    return losses.concat(), sums


def _unrolled(
    batch: Batch, utterances: tf.Tensor, parts: int, weight: tf.Tensor, compute: Compute
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    losses = []
    sums = []
    for number in range(parts):
        start = number * utterances // parts
        stop = (number + 1) * utterances // parts
        # A part must not begin before the one before has freed its memory.
        with tf.control_dependencies(sums):
            # If there are fewer utterances than parts, one of weight 0 fills an empty
            # part.
            empty = tf.equal(start, stop)
            first = tf.minimum(start, utterances - 1)
            rows = _rows(batch, first, tf.where(empty, first + 1, stop))
            part_losses, gradients = compute(rows, tf.where(empty, 0.0, weight))

        losses.append(part_losses[: stop - start])
        if sums:
            sums = [a + b for a, b in zip(sums, gradients, strict=True)]
        else:
            sums = gradients

    return tf.concat(losses, axis=0), sums


def _rows(batch: Batch, start: tf.Tensor, stop: tf.Tensor) -> Batch:
    return {name: value[start:stop] for name, value in batch.items()}


class CtcModel(keras.Model):
    """Wraps a built recogniser for training on `tfasr.data.batches.BatchSource`'s batches.

    Make and build it in the scope of the strategy it trains under. It is a Keras model
    so that Keras callbacks can work on it; `tfasr.training.step.TimedStep` takes the
    steps. With an ``intermediate_loss_weight`` the recogniser needs
    `tfasr.models.recurrent.Network.call_with_intermediate`; with a
    ``consistency_weight`` batches need ``second_features``. ``middle_labels`` are, for
    each class but the blank, the classes that replace it in the middle layer's loss,
    see `TrainingConfig.intermediate_labels`. ``loss`` is the name in `LOSSES` of what
    training minimises; evaluations report the CTC loss. The arguments from the third on
    are settings of `TrainingConfig`.
    """

    def __init__(
        self,
        recogniser: keras.Model,
        output_lengths: Callable[[tf.Tensor], tf.Tensor],
        accumulation_steps: int = 1,
        intermediate_loss_weight: float = 0.0,
        consistency_weight: float = 0.0,
        middle_labels: Sequence[Sequence[int]] = (),
        loss: str = "ctc",
    ):
        super().__init__(name="ctc_model")
        self.recogniser = recogniser
        self.output_lengths = output_lengths
        self.accumulation_steps = accumulation_steps
        self.intermediate_loss_weight = intermediate_loss_weight
        self.consistency_weight = consistency_weight
        self._middle_labels = middle_labels
        self._loss_name = loss
        self._step: Callable | None = None
        self.built = True

    def call(self, batch: Batch, training: bool = False) -> tf.Tensor:
        """Returns logits, see `tfasr.models.model.RecogniserConfig.make`."""
        return self.recogniser(
            batch["features"], batch["feature_lengths"], training=training
        )

    def utterance_losses(
        self, batch: Batch, training: bool, middle: bool = False
    ) -> tuple[tf.Tensor, ...]:
        """Returns the CTC losses ``(batch,)`` and the logits; see `_all_logits`."""
        all_logits = self._all_logits(batch, training, middle)
        return self._ctc_losses(batch, all_logits[0]), *all_logits

    def training_losses(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the losses to record and those to minimise, both ``(batch,)``."""
        if self.consistency_weight:
            return self._consistent_losses(batch)

        all_logits = self._all_logits(batch, True, self.intermediate_loss_weight > 0)
        losses, *middle = self._all_losses(batch, all_logits)
        return losses, self._minimised(losses, *middle)

    def _all_logits(
        self, batch: Batch, training: bool, middle: bool
    ) -> tuple[tf.Tensor, ...]:
        """Returns logits ``(batch, frames, classes)``; if ``middle``, the middle
        layer's too.
        """
        if not middle:
            return (self(batch, training=training),)

        inputs = batch["features"], batch["feature_lengths"]
        return self.recogniser.call_with_intermediate(*inputs, training=training)

    def _minimised(self, last: tf.Tensor, middle: tf.Tensor | None = None) -> tf.Tensor:
        weight = self.intermediate_loss_weight
        return last if middle is None else (1 - weight) * last + weight * middle

    def _consistent_losses(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the losses of `training_losses` for both views of each utterance.

        Source: Z. Yao et al., CR-CTC, ICLR 2025, section 3.2.
        """
        views = {name: tf.concat([batch[name]] * 2, axis=0) for name in _LABELLED}
        views["features"] = tf.concat(
            [batch["features"], batch["second_features"]], axis=0
        )
        valid = tf.sequence_mask(
            self.output_lengths(batch["feature_lengths"]), dtype=tf.float32
        )
        of_utterances = []
        minimised = []
        all_logits = self._all_logits(views, True, self.intermediate_loss_weight > 0)
        for logits, losses in zip(
            all_logits, self._all_losses(views, all_logits), strict=True
        ):
            losses = tf.add_n(tf.split(losses, 2)) / 2
            frames = divergences(*tf.split(tf.cast(logits, tf.float32), 2))
            apart = tf.reduce_sum(frames[:, : tf.shape(valid)[1]] * valid, axis=1)
            of_utterances.append(losses)
            minimised.append(losses + self.consistency_weight * apart / 2)

        return of_utterances[0], self._minimised(*minimised)

    def _all_losses(
        self, batch: Batch, all_logits: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Returns the training losses ``(batch,)`` of what `_all_logits` returned."""
        if len(all_logits) == 1 or not self._middle_labels:
            return [self._chosen_losses(batch, logits) for logits in all_logits]

        ragged = {"row_splits_dtype": tf.int32}
        of_classes = tf.ragged.constant(self._middle_labels, dtype=tf.int32, **ragged)
        labels = batch["labels"]
        lengths = batch["label_lengths"]
        unpadded = tf.RaggedTensor.from_tensor(labels, lengths=lengths, **ragged)
        replaced = tf.gather(of_classes, unpadded).merge_dims(1, 2)
        labels = replaced.to_tensor()
        lengths = replaced.row_lengths()
        # There may be too few frames for these labels, though enough for the
        # utterance's own.
        pairs = tf.sequence_mask(tf.maximum(lengths - 1, 0), tf.shape(labels)[1] - 1)
        repeated = pairs & (labels[:, 1:] == labels[:, :-1])
        needed = lengths + tf.math.count_nonzero(repeated, axis=1, dtype=tf.int32)
        fits = needed <= tf.cast(
            self.output_lengths(batch["feature_lengths"]), tf.int32
        )
        middle = batch | {"labels": labels, "label_lengths": tf.where(fits, lengths, 1)}
        losses = self._chosen_losses(batch, all_logits[0])
        return [
            losses,
            tf.where(fits, self._chosen_losses(middle, all_logits[1]), losses),
        ]

    def _chosen_losses(self, batch: Batch, logits: tf.Tensor) -> tf.Tensor:
        """Returns the losses that training minimises; RunError if a user's loss fails
        or has another shape.
        """
        lengths = self.output_lengths(batch["feature_lengths"])
        arguments = (logits, lengths, batch["labels"], batch["label_lengths"])
        losses = LOSSES.call(self._loss_name, *arguments)
        if losses.shape.rank != 1 or losses.dtype != tf.float32:
            raise RunError(
                f"{LOSSES.entry(self._loss_name).place}: the loss {self._loss_name!r} must return "
                f"a float32 tensor with a loss per utterance. Received: {losses}."
            )

        return losses

    def _ctc_losses(self, batch: Batch, logits: tf.Tensor) -> tf.Tensor:
        lengths = self.output_lengths(batch["feature_lengths"])
        return ctc_loss(logits, lengths, batch["labels"], batch["label_lengths"])

    def loss_gradients(
        self, batch: Batch, part: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns losses ``(batch,)`` and gradients of one device's share of a global batch.

        Summed over devices, the gradients are those of the global batch's mean loss,
        times the optimizer's loss scale. ``part`` is the fraction of the global batch's
        utterances in this share; by default all shares are equal.
        """
        replicas = self.distribute_strategy.num_replicas_in_sync

        def weighted(
            rows: Batch, weight: tf.Tensor
        ) -> tuple[tf.Tensor, list[tf.Tensor]]:
            share = weight / replicas if part is None else weight * part
            with tf.GradientTape() as tape:
                losses, minimised = self.training_losses(rows)
                loss = self.optimizer.scale_loss(tf.reduce_sum(minimised) * share)

            return losses, tape.gradient(loss, self.trainable_variables)

        if self.accumulation_steps == 1:
            weight = 1.0 / tf.cast(tf.shape(batch["feature_lengths"])[0], tf.float32)
            return weighted(batch, weight)

        shapes = [variable.shape for variable in self.trainable_variables]
        mirrored = isinstance(self.distribute_strategy, tf.distribute.MirroredStrategy)
        unroll = mirrored or replicas > 1
        return accumulate(
            batch, self.accumulation_steps, weighted, shapes, unroll=unroll
        )

    def train_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        losses, gradients = self.loss_gradients(batch)
        gradients = summed_gradients(self.optimizer, gradients)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_variables, strict=True)
        )
        return {
            "utterance_loss": losses,
            "positions": batch["positions"],
            "duration_s": batch["duration_s"],
            "feature_lengths": batch["feature_lengths"],
            "padded_frames": tf.reduce_prod(tf.shape(batch["features"])[:2])[None],
        }

    def global_step(self, element_spec: Any) -> Callable[[Batch], dict[str, tf.Tensor]]:
        """Returns the step on a global batch, traced once for all shapes of this spec."""
        return self.traced(self._global_step, [element_spec])

    def traced(self, step: Callable, signature: list[Any]) -> Callable:
        """Returns ``step`` as a TensorFlow function, traced at its first call."""
        if self._step is None:
            # One signature with open dimensions, or each new batch shape would be
            # traced again. As in Keras's fit, AutoGraph converts nothing: that would
            # take a third of the tracing.
            self._step = tf.function(step, input_signature=signature, autograph=False)

        return self._step

    def _global_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        strategy = self.distribute_strategy
        outputs = strategy.run(self.train_step, args=(batch,))
        if strategy.num_replicas_in_sync == 1:
            return outputs

        return {name: strategy.gather(value, axis=0) for name, value in outputs.items()}
