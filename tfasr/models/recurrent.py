"""A convolution and a stack of recurrent layers: shared code of the LSTM and GRU models.

`AcousticModelConfig` is the paper's model and the default of ``tfasr train``.
`Network`, `class_scores` and `Stage` are for the other models, too.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import keras

from tfasr.errors import UsageError
from tfasr.kit.config import MOST_LAYERS, config_class, require, require_within
from tfasr.layers.batch_normalization import BatchNormalization
from tfasr.layers.fused_call import Dropout, convolution_policy, valid_frames
from tfasr.layers.geometry import conv_output_frames
from tfasr.layers.lstm import LSTM
from tfasr.models import costs

# Values of ``AcousticModelConfig.recurrent_initializer``.
RECURRENT_INITIALIZERS = {
    "glorot_uniform": keras.initializers.GlorotUniform,
    "orthogonal": keras.initializers.Orthogonal,
}


class Network(keras.Model):
    """A model that encodes features (`encode`) and classifies each output frame.

    A subclass creates its layers, with `class_scores` as ``classifier`` after all
    others, and defines ``build`` and `encode` or `encodings`. Checkpoints store
    variables in the order in which layers are assigned. The dtype policy applies to all
    but the last, which is float32.
    """

    def __init__(
        self,
        name: str,
        config: Any,
        dtype: str | keras.DTypePolicy | None = None,
    ):
        super().__init__(name=name, dtype=dtype)
        self.config = config

    def output_lengths(self, feature_lengths: Any) -> Any:
        return self.config.output_lengths(feature_lengths)

    def call(self, features: Any, feature_lengths: Any, training: bool = False) -> Any:
        """Returns float32 logits ``(batch, output frames, classes)``.

        Features are ``(batch, frames, num_features)``, padded on the right, with int32
        lengths ``(batch,)``.
        """
        return self.classifier(self.encode(features, feature_lengths, training))

    def call_with_intermediate(
        self,
        features: Any,
        feature_lengths: Any,
        training: bool = False,
    ) -> tuple[Any, Any]:
        """Returns the logits, and what the classifier makes of a layer half-way.

        That is the middle item of `encodings`, for a loss that trains lower layers
        directly.

        Raises:
            UsageError: if `encodings` returns fewer than two.

        Source: J. Lee and S. Watanabe, Intermediate Loss Regularization for CTC-based
        Speech Recognition, ICASSP 2021, section 3.
        """
        encodings = self.encodings(features, feature_lengths, training)
        if len(encodings) < 2:
            raise UsageError(
                "TrainingConfig.intermediate_loss_weight needs a model with at least two layers of "
                f"the same width before its classifier. Received: {type(self).__name__}, which "
                "exposes no such layer. Add layers, or set the weight to 0."
            )

        middle = encodings[(len(encodings) - 1) // 2]

        return self.classifier(encodings[-1]), self.classifier(middle)

    def output_layer(self) -> keras.layers.Layer:
        return self.classifier

    def encode(self, features: Any, feature_lengths: Any, training: bool) -> Any:
        """Returns the classifier's inputs ``(batch, output frames, width)``."""
        return self.encodings(features, feature_lengths, training)[-1]

    def encodings(self, features: Any, feature_lengths: Any, training: bool) -> list:
        """Returns outputs of layers as wide as the classifier's input, which comes last."""
        if type(self).encode is Network.encode:
            raise NotImplementedError(
                f"{type(self).__name__} must define encode or encodings."
            )

        return [self.encode(features, feature_lengths, training)]


def class_scores(num_classes: int, seed: int) -> keras.layers.Dense:
    """Returns the last layer, ``classifier``: logits of the classes, the CTC blank last.

    It is always float32, because the loss is computed from its logits.
    """
    return keras.layers.Dense(
        num_classes,
        kernel_initializer=keras.initializers.GlorotUniform(seed),
        dtype="float32",
        name="classifier",
    )


def zero_output_layer(model: Any) -> None:
    """Sets the kernel of a model's last layer to 0; UsageError if it has no kernel.

    Then all classes are equally likely at first, and so is every alignment.
    """
    if callable(getattr(model, "output_layer", None)):
        layer = model.output_layer()
    else:
        layer = None

    kernel = getattr(layer, "kernel", None)
    if kernel is None or len(kernel.shape) != 2:
        if layer is None:
            lacks = "no such method"
        else:
            lacks = f"a {type(layer).__name__} without it"

        raise UsageError(
            "TrainingConfig.zero_output_layer = True changes the kernel of the model's last layer. "
            f"{type(model).__name__} must have a method output_layer() that returns that layer, a "
            f"Dense: def output_layer(self): return self.scores. Received: {lacks}. Add it, or "
            "bind TrainingConfig.zero_output_layer = False."
        )

    kernel.assign(keras.ops.zeros_like(kernel))


@dataclass(frozen=True)
class Stage:
    """A part of a model whose time can be measured alone.

    Attributes:
        name: such as "front end", "recurrent 1" or "head".
        forward: maps the previous stage's outputs (or the features) and the numbers of
            valid feature frames ``(batch,)`` to ``(batch, output frames, width)``.
        layers: those that the stage computes.
        input_width: channels; unused for the first stage.
    """

    name: str
    forward: Callable[[Any, Any], Any]
    layers: list
    input_width: int = 0

    @property
    def variables(self) -> list:
        """Trainable weights of the stage's layers."""
        return [
            variable for layer in self.layers for variable in layer.trainable_variables
        ]


def stages_of(model: Any) -> list[Stage]:
    """Returns a model's stages, which together compute a training call.

    A model that has no method ``stages`` is one stage.
    """
    if hasattr(model, "stages"):
        return model.stages()

    return [
        Stage("model", lambda x, lengths: model(x, lengths, training=True), [model])
    ]


class RecurrentStackConfig:
    """Methods for configs with fields named as in `AcousticModelConfig`, LSTM or other.

    The fields' names contain the kind of recurrence, so that gin files say which one
    they mean. These attributes are the same for all:

    Attributes:
        batch_normalisation: whether layers are batch-normalised.
        kind: part of the fields' names, such as "lstm".
        gates: per recurrent layer.
        model: the class of the model.
    """

    batch_normalisation: bool = True
    kind: str
    gates: int
    model: type["RecurrentStack"]

    @property
    def num_layers(self) -> int:
        return getattr(self, f"num_{self.kind}_layers")

    @property
    def units(self) -> int:
        return getattr(self, f"{self.kind}_units")

    def check(self) -> None:
        for field in (
            "conv_filters",
            "conv_kernel",
            "conv_stride",
            f"{self.kind}_units",
        ):
            require(getattr(self, field) > 0, self, field, "positive")

        require_within(self, 0, **{f"num_{self.kind}_layers": MOST_LAYERS})
        require(0 <= self.dropout < 1, self, "dropout", "in 0..1, below 1")

    def make(self, num_features: int, num_classes: int, *, seed: int = 0, dtype=None):
        return self.model(self, num_classes, seed, dtype=dtype)

    def smaller(self, units: int) -> "RecurrentStackConfig":
        sizes = {f"num_{self.kind}_layers": 2, f"{self.kind}_units": units}
        return dataclasses.replace(self, conv_filters=units, **sizes)

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def can_stream(self) -> bool:
        return not self.bidirectional

    def output_lengths(self, lengths: Any) -> Any:
        return conv_output_frames(lengths, self.conv_kernel, self.conv_stride)

    flops = costs.flops
    least_parameters = costs.least_parameters


class RecurrentStack(Network):
    """Conv1D, then recurrent layers, then a dense layer to classes.

    Padding must be on the right. The convolution adds none, and a forward recurrence
    reaches padding last, so padding affects no valid output frame. A backward
    recurrence uses a mask. Batch statistics leave padding out.
    """

    model_name = ""  # the Keras model's name

    def __init__(
        self,
        config: RecurrentStackConfig,
        num_classes: int,
        seed: int = 0,
        dtype=None,
    ):
        super().__init__(self.model_name, config, dtype)
        # Every layer draws with a different seed, in a fixed order.
        seeds = iter(range(seed * 1000, seed * 1000 + 1000))
        initializer = keras.initializers.GlorotUniform(next(seeds))
        self.convolution = keras.layers.Conv1D(
            config.conv_filters,
            config.conv_kernel,
            config.conv_stride,
            activation="relu",
            kernel_initializer=initializer,
            dtype=convolution_policy(self.dtype_policy),
            name="convolution",
        )
        self.recurrent = [
            self._recurrent(number, seeds) for number in range(config.num_layers)
        ]
        blocks = range(config.num_layers + 1)
        self.normalisations = [
            BatchNormalization(dtype=self.dtype_policy, name=f"normalisation_{i}")
            for i in blocks
            if config.batch_normalisation
        ]
        self.dropouts = [
            Dropout(
                config.dropout,
                seed=next(seeds),
                dtype=self.dtype_policy,
                name=f"dropout_{i}",
            )
            for i in blocks
        ]
        self.classifier = class_scores(num_classes, next(seeds))

    def one_way(self, seeds: Iterator[int], **options: Any) -> keras.layers.Layer:
        """Creates a recurrent layer for one direction; subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} must define one_way.")

    def _recurrent(self, number: int, seeds: Iterator[int]) -> keras.layers.Layer:
        """Creates a recurrent layer for the directions that the config wants."""
        # The backward layer isn't Keras's copy of the forward one, which would draw
        # equal weights.
        name = f"{self.config.kind}_{number}"
        options = {
            "units": self.config.units,
            "return_sequences": True,
            "dtype": self.dtype_policy,
        }
        forward = self.one_way(seeds, go_backwards=False, name=name, **options)
        if not self.config.bidirectional:
            return forward

        backward = self.one_way(
            seeds,
            go_backwards=True,
            name=f"{name}_backward",
            **options,
        )

        return keras.layers.Bidirectional(
            forward,
            backward_layer=backward,
            dtype=self.dtype_policy,
            name=f"bidirectional_{number}",
        )

    def build(self, input_shape: Any = None) -> None:
        self.convolution.build(input_shape)
        shape = (None, None, self.config.conv_filters)
        for block in range(len(self.dropouts)):
            if self.normalisations:
                self.normalisations[block].build(shape)
            if block < len(self.recurrent):
                self.recurrent[block].build(shape)
                shape = (None, None, self.config.directions * self.config.units)

        self.classifier.build(shape)
        self.built = True

    def encodings(self, features: Any, feature_lengths: Any, training: bool) -> list:
        hidden = self.convolution(features)
        valid = self._valid(hidden, feature_lengths)
        outputs = [self._finished(0, hidden, valid, training)]

        for number in range(len(self.recurrent)):
            outputs.append(self._recurred(number, outputs[-1], valid, training))

        return outputs[1:] or outputs

    def initial_state(self, batch: int) -> list:
        """Returns the recurrence's state before any frame, tensors ``(batch, units)``."""
        sizes = [size for layer in self.recurrent for size in _state_sizes(layer)]
        return [keras.ops.zeros((batch, size)) for size in sizes]

    def continued(self, features: Any, state: list) -> tuple[Any, list]:
        """Returns logits of a stream's next frames and the state after them.

        See `tfasr.models.model.RecogniserConfig.make`.
        """
        hidden = self._finished(0, self.convolution(features), None, training=False)
        # The states of all layers, in order; each takes its own.
        waiting = list(state)
        reached = []

        for number, layer in enumerate(self.recurrent):
            last = [waiting.pop(0) for _ in _state_sizes(layer)]
            # Calls the inner loop, because Keras's layers return states only if
            # configured so.
            _, hidden, states = layer.inner_loop(hidden, last, None, training=False)
            reached += states
            hidden = self._finished(number + 1, hidden, None, training=False)

        return self.classifier(hidden), reached

    def _valid(self, hidden, feature_lengths):
        return valid_frames(hidden, self.output_lengths(feature_lengths))

    def _recurred(self, number, hidden, valid, training):
        """Computes a recurrent layer and what follows it."""
        # A backward layer would start in the padding, so it needs the mask.
        masked = {"mask": valid} if self.config.bidirectional else {}
        hidden = self.recurrent[number](hidden, training=training, **masked)
        return self._finished(number + 1, hidden, valid, training)

    def _finished(self, block, hidden, valid, training):
        """Normalises a layer's outputs and applies dropout; ``valid`` None means all."""
        dropout = self.dropouts[block]
        if not self.normalisations:
            return dropout(hidden, training=training)

        # `valid` isn't passed as a mask, because Keras would pass that on to all
        # following layers, including recurrent ones.
        normalisation = self.normalisations[block]

        return normalisation(hidden, training=training, valid=valid, dropout=dropout)

    def stages(self) -> list[Stage]:
        """Returns the parts whose time is measured one by one, see `Stage`."""

        def behind(block: int) -> list:
            return [*self.normalisations[block : block + 1], self.dropouts[block]]

        def front_end(features, lengths):
            hidden = self.convolution(features)
            return self._finished(
                0,
                hidden,
                self._valid(hidden, lengths),
                training=True,
            )

        def recurrent(number: int):
            def forward(hidden, lengths):
                return self._recurred(
                    number,
                    hidden,
                    self._valid(hidden, lengths),
                    training=True,
                )

            return forward

        stages = [Stage("front end", front_end, [self.convolution, *behind(0)])]
        width = self.config.conv_filters
        for number, layer in enumerate(self.recurrent):
            layers = [layer, *behind(number + 1)]
            stages.append(
                Stage(f"recurrent {number + 1}", recurrent(number), layers, width)
            )
            width = self.config.directions * self.config.units

        head = Stage(
            "head",
            lambda hidden, _: self.classifier(hidden),
            [self.classifier],
            width,
        )

        return [*stages, head]


def _state_sizes(layer: Any) -> list[int]:
    """Returns the widths of a recurrent layer's states: h and, for an LSTM, c."""
    return keras.tree.flatten(layer.cell.state_size)


@config_class
class AcousticModelConfig(RecurrentStackConfig):
    """Sizes of the acoustic model.

    Attributes:
        conv_filters: output channels of the convolution over frames.
        conv_kernel: feature frames seen by one output frame.
        conv_stride: feature frames between output frames.
        num_lstm_layers: number of recurrent layers.
        lstm_units: width of each layer, per direction.
        bidirectional: whether layers also run backwards; both outputs are concatenated.
        dropout: dropout rate between layers.
        batch_normalisation: whether layers are batch-normalised, ignoring padded
            frames.
        recurrent_initializer: of the LSTMs' recurrent weights; all other weights start
            as "glorot_uniform".
        lstm_kernel: required implementation, see `tfasr.layers.lstm.LSTM`.

    Source: the paper (arXiv 2003.12366), section 4.4.3. It doesn't name the
    convolution's activation; tfasr uses ReLU.
    """

    conv_filters: int = 600
    conv_kernel: int = 11
    conv_stride: int = 2
    num_lstm_layers: int = 5
    lstm_units: int = 800
    bidirectional: bool = False
    dropout: float = 0.05
    batch_normalisation: bool = True
    recurrent_initializer: Literal["glorot_uniform", "orthogonal"] = "glorot_uniform"
    lstm_kernel: Literal["auto", "fused", "cudnn", "generic"] = "auto"

    kind = "lstm"
    gates = 4
    model = property(lambda self: AcousticModel)

    step_bytes = costs.estimated_step_bytes
    step_costs = costs.model_costs

    def portable(self) -> "AcousticModelConfig":
        return dataclasses.replace(self, lstm_kernel="generic")


class AcousticModel(RecurrentStack):
    """The paper's model: a convolution, LSTMs and a dense layer."""

    model_name = "acoustic_model"

    def one_way(self, seeds: Iterator[int], **options) -> LSTM:
        options["kernel_initializer"] = keras.initializers.GlorotUniform(next(seeds))
        initializer = RECURRENT_INITIALIZERS[self.config.recurrent_initializer]
        recurrent = initializer(seed=next(seeds))
        return LSTM(
            recurrent_initializer=recurrent,
            kernel=self.config.lstm_kernel,
            **options,
        )

    @property
    def kernels(self) -> set[str]:
        """Names of the implementations that computed the LSTMs so far."""
        layers = [getattr(layer, "forward_layer", layer) for layer in self.recurrent]
        return {layer.last_kernel for layer in layers if layer.last_kernel}


@config_class
class GruModelConfig(RecurrentStackConfig):
    """Sizes of the model, as in `AcousticModelConfig` but with GRUs.

    Source: Cho et al. 2014, "Learning phrase representations using RNN
    encoder-decoder"; the rest is the model of the paper (arXiv 2003.12366), section
    4.4.3.
    """

    conv_filters: int = 600  # output channels of the convolution over frames
    num_gru_layers: int = 5  # how many recurrent layers follow
    gru_units: int = 800  # width of each, in each direction
    bidirectional: bool = False  # whether each layer also runs backwards
    dropout: float = 0.05  # share of activations dropped between layers in training

    conv_kernel = 11  # feature frames that one output frame sees
    conv_stride = 2  # feature frames from one output frame to the next
    kind = "gru"
    gates = 3
    model = property(lambda self: GruModel)

    def step_bytes(
        self,
        num_features: int,
        parameters: int,
        batch: int,
        frames: int,
    ) -> int:
        units = self.directions * self.gru_units
        # 24 values per unit of each layer: gates, states and what Keras's loop stores
        # of them; 24 more for the temporary values of the layer that is being computed.
        a_frame = units * (24 * self.num_gru_layers + 24) + 8 * self.conv_filters
        a_frame += self.conv_kernel * num_features
        values = (
            max(self.output_lengths(frames), 1) * a_frame + 2 * frames * num_features
        )

        return costs.step_bytes(parameters, batch * values)


class GruModel(RecurrentStack):
    """The paper's model with GRUs instead of LSTMs."""

    model_name = "gru_model"

    def one_way(self, seeds: Iterator[int], **options) -> keras.layers.GRU:
        options["kernel_initializer"] = keras.initializers.GlorotUniform(next(seeds))
        recurrent = keras.initializers.Orthogonal(seed=next(seeds))
        return keras.layers.GRU(recurrent_initializer=recurrent, **options)
