"""A recogniser cut into the modules that benchmarks time: alone, and with those before."""

from collections.abc import Callable
from dataclasses import dataclass

import keras
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.data.pipeline import Batch
from tfasr.losses import ctc_loss
from tfasr.models.stages import Stage, stages_of
from tfasr.training.ctc_model import CtcModel

UPDATE = "update"


@dataclass(frozen=True)
class Module:
    """A part of the model.

    Attributes:
        name: of a stage of the model, such as "front end", or "loss".
        forward: from what the module before returned and the batch to what this one returns.
        variables: its trainable variables.
        input_channels: last dimension of what it takes; 0 for the first.
    """

    name: str
    forward: Callable[[tf.Tensor, Batch], tf.Tensor]
    variables: list
    input_channels: int


def modules_of(model: CtcModel) -> list[Module]:
    """Returns the modules of a built model in order, the update of the weights left out.

    They are the stages of the recogniser, see `tfasr.models.stages`, and the loss; together they
    compute what `CtcModel.utterance_losses` does in training, without an intermediate loss.
    """
    modules = [
        Module(stage.name, _of_batch(stage), stage.variables, stage.input_width)
        for stage in stages_of(model.recogniser)
    ]
    return [*modules, Module("loss", _loss(model), [], Alphabet().num_classes)]


def step_through(modules: list[Module], batch: Batch, inputs: tf.Tensor | None = None) -> list:
    """Returns the gradients of modules run one after the other, for a sum over their outputs.

    Args:
        modules: neighbours.
        batch: lengths and labels, and the features where ``inputs`` is None.
        inputs: what the first module takes; their gradient is then computed too.
    """
    sources = [variable for module in modules for variable in module.variables]
    with tf.GradientTape() as tape:
        hidden = batch["features"]
        if inputs is not None:
            tape.watch(inputs)
            sources, hidden = [*sources, inputs], inputs
        for module in modules:
            hidden = module.forward(hidden, batch)
    values = [source.value if isinstance(source, keras.Variable) else source for source in sources]
    return tape.gradient(hidden, values)


def _of_batch(stage: Stage) -> Callable[[tf.Tensor, Batch], tf.Tensor]:
    return lambda hidden, batch: stage.forward(hidden, batch["feature_lengths"])


def _loss(model: CtcModel) -> Callable[[tf.Tensor, Batch], tf.Tensor]:
    def forward(logits: tf.Tensor, batch: Batch) -> tf.Tensor:
        lengths = model.output_lengths(batch["feature_lengths"])
        losses = ctc_loss(logits, lengths, batch["labels"], batch["label_lengths"])
        return tf.reduce_mean(losses)

    return forward
