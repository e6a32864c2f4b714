"""A keyword spotter with 8504 parameters, in Keras 3.

It classifies one-second utterances and has no CTC, so it isn't in `MODELS`: only the
workloads ``keywords``, ``backends`` and ``roofline`` of ``tfasr bench`` use it.
`memory_accounting` and `step_cost` compute what it needs from its shapes.
"""

import math
from dataclasses import dataclass

import keras

from tfasr.kit.config import config_class, require
from tfasr.layers.fused_call import convolution_policy
from tfasr.layers.geometry import conv_output_frames
from tfasr.models import costs
from tfasr.models.recurrent import class_scores

# Order of an image's axes (batch N, height, width, channels C), and Keras's name for
# that order.
LAYOUTS = {"NHWC": "channels_last", "NCHW": "channels_first"}
# Each convolution's kernel, time x frequency, and whether 2 x 2 max pooling follows.
LAYERS = (((9, 5), False), ((3, 3), True), ((3, 3), True), ((3, 3), False))


@config_class
class KeywordSpotterConfig:
    """Sizes of the network; the defaults have 8504 trainable parameters."""

    # feature frames per utterance, which is one second long
    num_frames: int = 98
    num_bins: int = 40  # log-mel energies per frame
    # output channels of each convolution
    filters: tuple[int, int, int, int] = (10, 10, 22, 22)
    num_words: int = 30  # keywords to tell apart

    def check(self) -> None:
        require(min(self.filters) > 0, self, "filters", "positive")
        require(self.num_words > 1, self, "num_words", "at least 2")
        for field, axis in (("num_frames", 0), ("num_bins", 1)):
            enough = min(_sizes(getattr(self, field), axis)) > 0
            require(enough, self, field, "enough for all convolutions")


def _sizes(size: int, axis: int) -> list[int]:
    """Returns the size of an axis after each convolution and each pooling.

    The axis is 0 for time, 1 for frequency.
    """
    sizes = []
    for kernel, pooled in LAYERS:
        size = conv_output_frames(size, kernel[axis], 1)
        sizes.append(size)
        if pooled:
            size //= 2
            sizes.append(size)

    return sizes


class KeywordSpotter(keras.Model):
    """Four unpadded convolutions, a global mean, and class scores.

    Batch normalisation and ReLU follow each convolution. The last layer is always
    float32. ``layout``, one of `LAYOUTS`, is the order of the images' axes: which one
    is faster depends on the backend.
    """

    def __init__(
        self,
        config: KeywordSpotterConfig,
        seed: int = 0,
        dtype=None,
        layout: str = "NHWC",
    ):
        super().__init__(name="keyword_spotter", dtype=dtype)
        self.config = config
        self.layout = layout
        policy = self.dtype_policy
        data_format = LAYOUTS[layout]
        self.convolutions = [
            keras.layers.Conv2D(
                filters,
                kernel,
                use_bias=False,
                data_format=data_format,
                kernel_initializer=keras.initializers.HeNormal(100 * seed + number),
                dtype=convolution_policy(policy),
                name=f"convolution_{number}",
            )
            for number, (filters, (kernel, _)) in enumerate(
                zip(config.filters, LAYERS, strict=True)
            )
        ]
        self.normalisations = [
            keras.layers.BatchNormalization(
                axis=self._channel_axis,
                momentum=0.9,
                dtype=policy,
                name=f"normalisation_{number}",
            )
            for number in range(len(LAYERS))
        ]
        self.pooling = keras.layers.MaxPooling2D(
            2,
            data_format=data_format,
            dtype=policy,
            name="pooling",
        )
        self.classifier = class_scores(config.num_words, 100 * seed + 90)

    @property
    def _channel_axis(self) -> int:
        return 1 if self.layout == "NCHW" else -1

    def _image_shape(self, channels: int) -> tuple[int | None, ...]:
        if self.layout == "NCHW":
            return (None, channels, None, None)

        return (None,) * 3 + (channels,)

    def build(self, input_shape=None):
        channels = 1
        layers = zip(
            self.convolutions,
            self.normalisations,
            self.config.filters,
            strict=True,
        )
        for convolution, normalisation, filters in layers:
            convolution.build(self._image_shape(channels))
            normalisation.build(self._image_shape(filters))
            channels = filters

        self.classifier.build((None, channels))
        self.built = True

    def call(self, features, training=False):
        """Maps ``(batch, num_frames, num_bins)`` to float32 logits ``(batch, num_words)``."""
        hidden = keras.ops.expand_dims(features, self._channel_axis)
        layers = zip(self.convolutions, self.normalisations, LAYERS, strict=True)
        for convolution, normalisation, (_, pooled) in layers:
            hidden = keras.ops.relu(
                normalisation(convolution(hidden), training=training)
            )
            if pooled:
                hidden = self.pooling(hidden)

        image_axes = (2, 3) if self.layout == "NCHW" else (1, 2)

        return self.classifier(keras.ops.mean(hidden, axis=image_axes))


@dataclass(frozen=True)
class LayerMemory:
    """What one layer needs to recognise one utterance, in 32-bit numbers."""

    name: str
    shape: tuple[int, ...]  # of the layer's output, without the batch axis
    weights: int  # trainable parameters

    @property
    def activations(self) -> int:
        """Numbers in the layer's output."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of weights and output."""
        return 4 * (self.weights + self.activations)


def memory_accounting(config: KeywordSpotterConfig) -> list[LayerMemory]:
    """Returns the memory that each layer needs to recognise one utterance.

    The first row is the input. Batch normalisation and ReLU overwrite the convolution's
    output. Scale and shift count as weights; moving statistics don't, because they can
    be folded into scale and shift.
    """
    rows = [LayerMemory("input", (config.num_frames, config.num_bins), 0)]
    sizes = zip(_sizes(config.num_frames, 0), _sizes(config.num_bins, 1), strict=True)
    channels = 1

    for filters, ((height, width), pooled) in zip(config.filters, LAYERS, strict=True):
        weights = height * width * channels * filters + 2 * filters
        name = f"convolution {height} x {width}, normalised, rectified"
        rows.append(LayerMemory(name, (*next(sizes), filters), weights))
        if pooled:
            rows.append(LayerMemory("maxima of 2 x 2", (*next(sizes), filters), 0))

        channels = filters

    rows.append(LayerMemory("mean over time and frequency", (channels,), 0))
    weights = (channels + 1) * config.num_words

    return [*rows, LayerMemory("fully connected", (config.num_words,), weights)]


# A training step's parts: convolutions forward, the gradients of their filters and of
# their inputs, the classifier's matmul and its two gradients, the rest. Profiled
# kernels are assigned to them.
FORWARD = "convolution"
OF_FILTERS = "filter gradient"
OF_INPUTS = "input gradient"
CLASSIFIER = "classifier"
CLASSIFIER_BACK = "classifier gradient"
REST = "elementwise"


def step_cost(config: KeywordSpotterConfig, batch: int) -> costs.ModuleCost:
    """Computes a training step's operations and bytes moved, by part.

    They follow from the tensors' shapes. Convolutions and matmuls are exact; the rest
    uses estimates of `tfasr.models.costs`. Each operation is assumed to read its inputs
    and write its outputs once, in 32-bit numbers.
    """
    parts = (FORWARD, OF_FILTERS, OF_INPUTS, CLASSIFIER, CLASSIFIER_BACK, REST)
    flops = dict.fromkeys(parts, 0)
    moves = dict.fromkeys(parts, 0)

    def add(part: str, operations: int, moved: int) -> None:
        flops[part] += operations
        moves[part] += moved

    sizes = zip(_sizes(config.num_frames, 0), _sizes(config.num_bins, 1), strict=True)
    inputs = batch * config.num_frames * config.num_bins
    channels = 1
    weights = 0

    for number, (filters, (kernel, pooled)) in enumerate(
        zip(config.filters, LAYERS, strict=True)
    ):
        kernels = math.prod(kernel) * channels * filters
        outputs = batch * math.prod(next(sizes)) * filters
        operations = 2 * outputs * kernels // filters
        moved = inputs + outputs + kernels
        add(FORWARD, operations, moved)
        add(OF_FILTERS, operations, moved)
        if number > 0:  # the features need no gradient
            add(OF_INPUTS, operations, moved)

        add(
            REST,
            costs.NORMALISATION_FLOPS * outputs,
            costs.NORMALISATION_MOVES * outputs,
        )
        inputs = outputs
        channels = filters
        weights = weights + kernels + 2 * filters
        if pooled:
            inputs = batch * math.prod(next(sizes)) * filters
            add(REST, 2 * outputs, 2 * (outputs + inputs))

    add(REST, 2 * inputs, 2 * inputs)  # the global mean and its gradient
    product = channels * config.num_words
    moved = batch * (channels + config.num_words) + product
    add(CLASSIFIER, 2 * batch * product, moved)
    add(CLASSIFIER_BACK, 4 * batch * product, 2 * moved)
    weights += product + config.num_words
    add(REST, costs.UPDATE_FLOPS * weights, costs.UPDATE_MOVES * weights)

    return costs.ModuleCost(
        "keyword spotter", flops, {part: 4 * n for part, n in moves.items()}
    )
