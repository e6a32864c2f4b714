"""A Keras model that trains a recogniser with CTC: losses, gradients and the step.

`tfasr.training.build.build_model` wraps a recogniser in a `CtcModel`, and
`tfasr.training.step.TimedStep` calls its traced step. A batch is the dict of tensors
that `tfasr.data.batches.BatchSource` yields. Within a step its utterances may pass
through the model in parts (`accumulate`), and each replica takes an equal share.
"""

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
    """Returns the CTC loss of each utterance, float32 ``(batch,)``.

    It is infinite where the labels have no path through the valid frames.

    On CPUs tfasr's compiled core computes it together with its gradient, which is 0
    where the loss is infinite. On GPUs, and if the core wasn't built, TensorFlow's
    kernel does. Both raise InvalidArgumentError for an utterance without labels, or
    with more labels than valid frames.

    Args:
        logits: ``(batch, frames, classes)``, the blank last; converted to float32.
        logit_lengths: int32 ``(batch,)``: valid frames.
        labels: int32 ``(batch, labels)``, right-padded with anything.
        label_lengths: int32 ``(batch,)``: valid labels.

    Example:
        Two frames of three classes, the last of them the blank, that are all equally
        likely. Of the 9 paths, the 3 that spell class 0 are (0, 0), (0, blank) and
        (blank, 0), so that the loss is -log(3 / 9).

        >>> losses = ctc_loss(tf.zeros([1, 2, 3]), [2], [[0]], [1])
        >>> print(f"{losses.numpy()[0]:.3f}")
        1.099

    Source: A. Graves et al., Connectionist Temporal Classification, ICML 2006.
    """
    logits = tf.cast(logits, tf.float32)
    if runs_here("float32", "ctc"):
        integers = (logit_lengths, labels, label_lengths)
        return _compiled_loss(logits, *(tf.cast(x, tf.int32) for x in integers))

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
    """The compiled core's loss; it computes loss and gradient in one call.

    Arguments and result are those of `ctc_loss`.
    """
    threads = team_size()

    def run(*arrays):
        try:
            return core.ctc(*arrays, threads=threads())
        except ValueError as error:
            raise tf.errors.InvalidArgumentError(None, None, str(error)) from error

    operation = Operation("TfasrCtc", [tf.float32, tf.float32], {"T": tf.float32})
    tensors = [tf.stop_gradient(logits), logit_lengths, labels, label_lengths]
    shapes = [logit_lengths.shape, logits.shape]

    with tf.name_scope("ctc_loss"):
        losses, gradient = call(run, operation, tensors, shapes)

    @tf.custom_gradient
    def slope(d_losses, _):
        # The gradient with respect to the logits; its own gradient is refused.
        return d_losses[:, None, None] * gradient, _REFUSE

    return losses, lambda d_losses: (slope(d_losses, logits), None, None, None)


# A function of logits, their lengths, labels and theirs; see `ctc_loss`.
Loss = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]
LOSSES: Registry[Loss] = Registry("loss", plural="losses")
"""What training can minimise, by name: functions with `ctc_loss`'s arguments and result.

With ``@LOSSES.register("smoothed_ctc")`` above a function,
``TrainingConfig.loss = 'smoothed_ctc'`` trains with it.
"""
LOSSES.register("ctc", ctc_loss)

# What both views of an utterance share.
_LABELLED = ("feature_lengths", "labels", "label_lengths")


def divergences(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Returns KL(first || second) + KL(second || first) of each frame.

    The left side of each divergence has no gradient: it is what the other side should
    come closer to.

    Args:
        first: logits ``(batch, frames, classes)``.
        second: logits of the same shape.

    Returns:
        The sums, in nats, ``(batch, frames)``.
    """
    first_log = tf.nn.log_softmax(first)
    second_log = tf.nn.log_softmax(second)

    def divergence(target: tf.Tensor, log: tf.Tensor) -> tf.Tensor:
        target = tf.stop_gradient(target)
        return tf.reduce_sum(tf.exp(target) * (target - log), axis=-1)

    return divergence(first_log, second_log) + divergence(second_log, first_log)


# A function of some rows of a batch and the weight of each, see `accumulate`.
Compute = Callable[[Batch, tf.Tensor], tuple[tf.Tensor, list[tf.Tensor]]]


def accumulate(
    batch: Batch,
    parts: int,
    compute: Compute,
    shapes: Sequence[tuple[int, ...]],
    *,
    unroll: bool = False,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns losses ``(batch,)`` and the gradients of their mean, part by part.

    Only one part's activations are in memory at a time.

    Args:
        batch: a device's utterances.
        parts: at most so many, none of them empty.
        compute: takes a part and the weight of each of its utterances; returns losses
            ``(part,)`` and the gradients of their weighted sum.
        shapes: of the gradients.
        unroll: puts the parts one after the other into the graph; in a loop, a mirrored
            replica can't update variables.
    """
    utterances = tf.shape(batch["feature_lengths"])[0]
    weight = 1.0 / tf.cast(utterances, tf.float32)
    if unroll:
        return _unrolled(batch, utterances, parts, weight, compute)

    parts = tf.minimum(parts, utterances)

    def add(number, losses, sums):
        # Parts differ by at most one utterance.
        start = number * utterances // parts
        stop = (number + 1) * utterances // parts
        part_losses, gradients = compute(_rows(batch, start, stop), weight)
        pairs = zip(sums, gradients, strict=True)
        sums = [total + gradient for total, gradient in pairs]

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
    """Does what `accumulate` does, with a fixed number of parts in the graph."""
    losses = []
    sums = []

    for number in range(parts):
        start = number * utterances // parts
        stop = (number + 1) * utterances // parts

        # A part must not begin before the one before has freed its memory.
        with tf.control_dependencies(sums):
            # With fewer utterances than parts, one utterance of weight 0 fills an empty
            # part.
            empty = tf.equal(start, stop)
            first = tf.minimum(start, utterances - 1)
            rows = _rows(batch, first, tf.where(empty, first + 1, stop))
            part_losses, gradients = compute(rows, tf.where(empty, 0.0, weight))

        losses.append(part_losses[: stop - start])
        if sums:
            pairs = zip(sums, gradients, strict=True)
            sums = [total + gradient for total, gradient in pairs]
        else:
            sums = gradients

    return tf.concat(losses, axis=0), sums


def _rows(batch: Batch, start: tf.Tensor, stop: tf.Tensor) -> Batch:
    """Returns some utterances of a batch, those from ``start`` to before ``stop``."""
    return {name: value[start:stop] for name, value in batch.items()}


class CtcModel(keras.Model):
    """Wraps a built recogniser for training on `tfasr.data.batches.BatchSource`'s batches.

    Make and build it in the scope of the strategy it trains under. It is a Keras model
    so that Keras callbacks can work on it; `tfasr.training.step.TimedStep` takes the
    steps. The arguments from the third on are settings of `TrainingConfig`.

    Args:
        recogniser: built; see `tfasr.models.model.RecogniserConfig.make`.
        output_lengths: maps numbers of feature frames to numbers of output frames.
        accumulation_steps: into how many parts a device's share of a batch is split.
        intermediate_loss_weight: above 0, the recogniser needs
            `tfasr.models.recurrent.Network.call_with_intermediate`.
        consistency_weight: above 0, batches need ``second_features``.
        middle_labels: for each class but the blank, the classes that replace it in the
            middle layer's loss, see `TrainingConfig.intermediate_labels`.
        loss: the name in `LOSSES` of what training minimises; evaluations always report
            the CTC loss.
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
        # The training step as a TensorFlow function, once it was asked for.
        self._step: Callable | None = None
        # The recogniser is built already, so Keras must not try to.
        self.built = True

    def call(self, batch: Batch, training: bool = False) -> tf.Tensor:
        """Returns logits, see `tfasr.models.model.RecogniserConfig.make`."""
        return self.recogniser(
            batch["features"], batch["feature_lengths"], training=training
        )

    def utterance_losses(
        self, batch: Batch, training: bool, middle: bool = False
    ) -> tuple[tf.Tensor, ...]:
        """Returns the CTC losses and the logits of a batch.

        Args:
            batch: from `tfasr.data.batches.BatchSource`.
            training: whether dropout is on, and batch statistics are learnt.
            middle: whether to return the middle layer's logits too.

        Returns:
            The losses ``(batch,)``, then the logits ``(batch, frames, classes)`` of the
            last layer and, with ``middle``, of the middle one.
        """
        all_logits = self._all_logits(batch, training, middle)

        return self._ctc_losses(batch, all_logits[0]), *all_logits

    def training_losses(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the losses to record and those to minimise, both ``(batch,)``.

        They differ if the middle layer has a loss too, or two views must agree.
        """
        if self.consistency_weight:
            return self._consistent_losses(batch)

        all_logits = self._all_logits(batch, True, self.intermediate_loss_weight > 0)

        losses, *middle = self._all_losses(batch, all_logits)
        return losses, self._minimised(losses, *middle)

    def _all_logits(
        self, batch: Batch, training: bool, middle: bool
    ) -> tuple[tf.Tensor, ...]:
        """Returns logits ``(batch, frames, classes)`` in a tuple.

        If ``middle``, those of the middle layer come second.
        """
        if not middle:
            return (self(batch, training=training),)

        return self.recogniser.call_with_intermediate(
            batch["features"], batch["feature_lengths"], training=training
        )

    def _minimised(self, last: tf.Tensor, middle: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the weighted mean of the last layer's losses and the middle one's."""
        if middle is None:
            return last

        weight = self.intermediate_loss_weight
        return (1 - weight) * last + weight * middle

    def _consistent_losses(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the losses of `training_losses` for two views of each utterance.

        The views differ in their augmentation. Training also minimises how far their
        outputs are apart.

        Source: Z. Yao et al., CR-CTC, ICLR 2025, section 3.2.
        """
        # Both views pass through the model in one batch of twice the size.
        views = {name: tf.concat([batch[name]] * 2, axis=0) for name in _LABELLED}
        views["features"] = tf.concat(
            [batch["features"], batch["second_features"]], axis=0
        )
        valid = tf.sequence_mask(
            self.output_lengths(batch["feature_lengths"]), dtype=tf.float32
        )
        all_logits = self._all_logits(views, True, self.intermediate_loss_weight > 0)
        all_losses = self._all_losses(views, all_logits)

        recorded = []
        minimised = []

        for logits, losses in zip(all_logits, all_losses, strict=True):
            losses = tf.add_n(tf.split(losses, 2)) / 2
            recorded.append(losses)

            first, second = tf.split(tf.cast(logits, tf.float32), 2)
            frames = divergences(first, second)
            # Padding doesn't count, nor frames that were added to it.
            apart = tf.reduce_sum(frames[:, : tf.shape(valid)[1]] * valid, axis=1)
            minimised.append(losses + self.consistency_weight * apart / 2)

        return recorded[0], self._minimised(*minimised)

    def _all_losses(
        self, batch: Batch, all_logits: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Returns the training losses ``(batch,)`` of each of `_all_logits`.

        The middle layer is trained on `middle_labels` in place of the utterance's own,
        if there are any.
        """
        if len(all_logits) == 1 or not self._middle_labels:
            return [self._chosen_losses(batch, logits) for logits in all_logits]

        of_classes = tf.ragged.constant(
            self._middle_labels, dtype=tf.int32, row_splits_dtype=tf.int32
        )
        unpadded = tf.RaggedTensor.from_tensor(
            batch["labels"], lengths=batch["label_lengths"], row_splits_dtype=tf.int32
        )
        replaced = tf.gather(of_classes, unpadded).merge_dims(1, 2)
        labels = replaced.to_tensor()
        lengths = replaced.row_lengths()

        # CTC needs a blank between two equal labels, so there may be too few frames for
        # these labels, though enough for the utterance's own.
        pairs = tf.sequence_mask(tf.maximum(lengths - 1, 0), tf.shape(labels)[1] - 1)
        repeated = pairs & (labels[:, 1:] == labels[:, :-1])
        needed = lengths + tf.math.count_nonzero(repeated, axis=1, dtype=tf.int32)
        fits = needed <= tf.cast(
            self.output_lengths(batch["feature_lengths"]), tf.int32
        )

        # Where they don't fit, the last layer's loss counts in place of the middle's.
        middle = batch | {"labels": labels, "label_lengths": tf.where(fits, lengths, 1)}
        losses = self._chosen_losses(batch, all_logits[0])

        return [
            losses,
            tf.where(fits, self._chosen_losses(middle, all_logits[1]), losses),
        ]

    def _chosen_losses(self, batch: Batch, logits: tf.Tensor) -> tf.Tensor:
        """Returns the losses that training minimises.

        Raises RunError if a user's loss fails or returns another shape or type.
        """
        losses = LOSSES.call(
            self._loss_name,
            logits,
            self.output_lengths(batch["feature_lengths"]),
            batch["labels"],
            batch["label_lengths"],
        )
        if losses.shape.rank != 1 or losses.dtype != tf.float32:
            raise RunError(
                f"{LOSSES.entry(self._loss_name).place}: the loss {self._loss_name!r} must return "
                f"a float32 tensor with a loss per utterance. Received: {losses}."
            )

        return losses

    def _ctc_losses(self, batch: Batch, logits: tf.Tensor) -> tf.Tensor:
        return ctc_loss(
            logits,
            self.output_lengths(batch["feature_lengths"]),
            batch["labels"],
            batch["label_lengths"],
        )

    def loss_gradients(
        self, batch: Batch, part: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns losses ``(batch,)`` and gradients of a device's share of a batch.

        Summed over devices, the gradients are those of the global batch's mean loss,
        times the optimizer's loss scale.

        Args:
            batch: the device's share.
            part: the fraction of the global batch's utterances in this share; by
                default all shares are equal.
        """
        replicas = self.distribute_strategy.num_replicas_in_sync

        def weighted(
            rows: Batch, weight: tf.Tensor
        ) -> tuple[tf.Tensor, list[tf.Tensor]]:
            if part is None:
                share = weight / replicas
            else:
                share = weight * part

            with tf.GradientTape() as tape:
                losses, minimised = self.training_losses(rows)
                loss = self.optimizer.scale_loss(tf.reduce_sum(minimised) * share)

            return losses, tape.gradient(loss, self.trainable_variables)

        if self.accumulation_steps == 1:
            weight = 1.0 / tf.cast(tf.shape(batch["feature_lengths"])[0], tf.float32)
            return weighted(batch, weight)

        shapes = [variable.shape for variable in self.trainable_variables]
        mirrored = isinstance(self.distribute_strategy, tf.distribute.MirroredStrategy)

        return accumulate(
            batch,
            self.accumulation_steps,
            weighted,
            shapes,
            unroll=mirrored or replicas > 1,
        )

    def train_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Updates the weights on a device's share of a batch.

        Overrides Keras's method. Returns what `tfasr.training.step.StepResult` is made
        of: a value per utterance, and ``padded_frames`` ``(1,)`` per device.
        """
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
        """Returns a training step as a TensorFlow function.

        Its first call traces it. A model has one training step: later calls return the
        same function.

        Args:
            step: the function to trace.
            signature: the types and shapes of its arguments, with open dimensions.
        """
        if self._step is None:
            # One signature with open dimensions, or each new batch shape would be
            # traced again. As in Keras's fit, AutoGraph converts nothing: that would
            # take a third of the tracing.
            self._step = tf.function(step, input_signature=signature, autograph=False)

        return self._step

    def _global_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Takes the step on all replicas; a replica's results follow the one before's."""
        strategy = self.distribute_strategy
        outputs = strategy.run(self.train_step, args=(batch,))
        if strategy.num_replicas_in_sync == 1:
            return outputs

        return {name: strategy.gather(value, axis=0) for name, value in outputs.items()}
