"""The acoustic model cut into the modules that benchmarks time: alone, and with those before."""

from collections.abc import Callable
from dataclasses import dataclass

import keras
import tensorflow as tf

from tfasr.data.pipeline import Batch
from tfasr.losses import ctc_loss
from tfasr.training.ctc_model import CtcModel

UPDATE = "update"


@dataclass(frozen=True)
class Module:
    """A part of the model.

    Attributes:
        name: "front end", "recurrent 1" and so on, "head" or "loss".
        forward: from what the module before returned and the batch to what this one returns.
        variables: its trainable variables.
        input_channels: last dimension of what it takes.
    """

    name: str
    forward: Callable[[tf.Tensor, Batch], tf.Tensor]
    variables: list
    input_channels: int


def modules_of(model: CtcModel) -> list[Module]:
    """Returns the modules of a built model in order, the update of the weights left out.

    The front end is the convolution, a recurrent block an LSTM, each with the normalisation and
    dropout behind it; together they compute what `CtcModel.utterance_losses` does in training.
    """
    acoustic = model.recogniser
    features, width = acoustic.convolution.kernel.shape[1], acoustic.config.conv_filters
    layers = [acoustic.convolution, *_after(acoustic, 0)]
    modules = [Module("front end", _front_end(acoustic), _variables(layers), features)]
    for number, recurrent in enumerate(acoustic.recurrent):
        layers = [recurrent, *_after(acoustic, number + 1)]
        forward = _recurrent(acoustic, number)
        modules.append(Module(f"recurrent {number + 1}", forward, _variables(layers), width))
        width = acoustic.config.lstm_units * (2 if acoustic.config.bidirectional else 1)
    classifier = acoustic.classifier
    head = Module("head", lambda hidden, _: classifier(hidden), _variables([classifier]), width)
    loss = Module("loss", _loss(acoustic), [], classifier.kernel.shape[1])
    return [*modules, head, loss]


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


def _variables(layers: list) -> list:
    return [variable for layer in layers for variable in layer.trainable_variables]


def _after(acoustic, block: int) -> list:
    return [*acoustic.normalisations[block : block + 1], acoustic.dropouts[block]]


def _mask(acoustic, hidden: tf.Tensor, batch: Batch) -> tf.Tensor:
    lengths = acoustic.output_lengths(batch["feature_lengths"])
    return tf.sequence_mask(lengths, tf.shape(hidden)[1])


def _finish(acoustic, block: int, hidden: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    if acoustic.normalisations:
        hidden = acoustic.normalisations[block](hidden, training=True, mask=mask)
    return acoustic.dropouts[block](hidden, training=True)


def _front_end(acoustic):
    def forward(features: tf.Tensor, batch: Batch) -> tf.Tensor:
        hidden = acoustic.convolution(features)
        return _finish(acoustic, 0, hidden, _mask(acoustic, hidden, batch))

    return forward


def _recurrent(acoustic, number: int):
    def forward(hidden: tf.Tensor, batch: Batch) -> tf.Tensor:
        mask = _mask(acoustic, hidden, batch)
        masked = {"mask": mask} if acoustic.config.bidirectional else {}
        hidden = acoustic.recurrent[number](hidden, training=True, **masked)
        return _finish(acoustic, number + 1, hidden, mask)

    return forward


def _loss(acoustic):
    def forward(logits: tf.Tensor, batch: Batch) -> tf.Tensor:
        lengths = acoustic.output_lengths(batch["feature_lengths"])
        losses = ctc_loss(logits, lengths, batch["labels"], batch["label_lengths"])
        return tf.reduce_mean(losses)

    return forward
