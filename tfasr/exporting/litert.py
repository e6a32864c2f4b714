"""Writes a recogniser for LiteRT (formerly TensorFlow Lite), in one of two forms.

Unidirectional recurrent models get a graph for a fixed number of steps, because LiteRT
needs fixed sizes and its own LSTM doesn't expose its state. A call takes the recurrent
states, computes `STEP_FRAMES` output frames, and returns the states after each of them.
Longer recordings take several calls. The last call for a chunk of a stream is padded if
fewer frames are left; the next chunk then starts from the states after the last frame
that wasn't padding.

All other models are converted to LiteRT's operations, and take one utterance per call.
"""

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import (
    convert_variables_to_constants_v2,
)

from tfasr.errors import RunError
from tfasr.exporting.weights import FoldedStack, RecurrentWeights
from tfasr.kit.process import quiet_stderr
from tfasr.models.model import can_stream, model_name
from tfasr.recognising.runtimes import STATES, STEP, WHOLE, litert_interpreter
from tfasr.recognising.spec import FEATURES, LENGTHS, LOG_PROBS, OUTPUT_LENGTHS

# Output frames per call. More frames take less time each; fewer reduce latency.
STEP_FRAMES = 8
# Models that get a graph for a fixed number of steps.
STACKS = ("acoustic_model", "gru")
_EXPORT_OTHERWISE = "Export it with --to onnx or --to saved_model."  # a remedy
QUANTISED = ("int8",)  # those of LiteRT's precisions that have integer weights


def is_stepped(config: Any) -> bool:
    """Whether a model gets a graph for a fixed number of steps, and so can stream."""
    return model_name(config) in STACKS and can_stream(config)


def litert_graph(model: Any, num_features: int, *, int8: bool) -> bytes:
    """Writes a unidirectional `RecurrentStack`; ``int8`` means dynamic-range quantisation."""
    step, signature = _step(FoldedStack.of(model), num_features)
    return _signed(tf.function(step).get_concrete_function(**signature), STEP, int8)


def converted_litert_graph(
    recognise: Callable,
    num_features: int,
    *,
    int8: bool,
) -> bytes:
    """Converts any model, for one utterance per call.

    ``recognise`` maps features and lengths to a dictionary of log-probabilities and
    output lengths.

    Raises:
        RunError: if LiteRT lacks an operation.
    """
    names = (LOG_PROBS, OUTPUT_LENGTHS)
    features = tf.TensorSpec([1, None, num_features], tf.float32)
    signature = {FEATURES: features, LENGTHS: tf.TensorSpec([1], tf.int32)}

    def in_order(features: tf.Tensor, lengths: tf.Tensor) -> list[tf.Tensor]:
        outputs = recognise(features, lengths)
        return [outputs[name] for name in names]

    with quiet_stderr(), _explained(_EXPORT_OTHERWISE):
        frozen = _frozen(
            tf.function(in_order).get_concrete_function(*signature.values())
        )

    def named(features: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        return dict(zip(names, frozen(features, lengths), strict=True))

    return _signed(tf.function(named).get_concrete_function(**signature), WHOLE, int8)


def convert(
    model: keras.Model,
    batch: int,
    frames: int,
    num_features: int,
    *,
    quantised: bool,
) -> bytes:
    """Converts a `portable` model that returns logits, for one input size.

    ``tfasr bench`` measures it; the size is fixed because LiteRT is faster then.

    Raises:
        RunError: if LiteRT lacks an operation.
    """
    features = tf.TensorSpec((batch, frames, num_features), tf.float32)
    signature = [features, tf.TensorSpec((batch,), tf.int32)]
    function = tf.function(
        lambda features, lengths: model(features, lengths), signature
    )

    with _explained("Leave litert_float32 and int8 out of SweepConfig.precisions."):
        frozen = _frozen(function.get_concrete_function())
        converter = tf.lite.TFLiteConverter.from_concrete_functions([frozen], model)
        return _content(converter, quantised)


def _frozen(concrete: Any) -> Any:
    """Replaces a function's variables by constants.

    LiteRT may lose variables in loops.
    """
    return convert_variables_to_constants_v2(concrete, lower_control_flow=False)


def _signed(concrete: Any, signature: str, int8: bool) -> bytes:
    """Returns a LiteRT file of a function, under the name of a signature."""
    module = tf.Module()
    module.function = concrete
    # Hand-written gradients can't be saved, and aren't needed.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)

    with (
        tempfile.TemporaryDirectory() as folder,
        quiet_stderr(),
        _explained(_EXPORT_OTHERWISE),
    ):
        tf.saved_model.save(module, folder, {signature: concrete}, options)
        converter = tf.lite.TFLiteConverter.from_saved_model(
            folder, signature_keys=[signature]
        )
        return _content(converter, int8)


def _content(converter: Any, int8: bool) -> bytes:
    """Returns a converter's file, quantised if wanted."""
    if int8:
        # Dynamic-range quantisation.
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter.convert()


@contextlib.contextmanager
def _explained(remedy: str) -> Iterator[None]:
    """Turns the converter's errors, of many lines, into a RunError with a remedy."""
    try:
        yield
    except Exception as error:  # the converter's error class is not public
        unknown = sorted(set(re.findall(r"'tf\.(\w+)' op", str(error))))
        cause = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if unknown:
            cause = f"LiteRT has no {', '.join(unknown)}"

        raise RunError(
            f"The model can't be converted to LiteRT: {cause}. {remedy}"
        ) from error


def runner(
    content: bytes, num_threads: int
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Returns a function that maps features and lengths to logits.

    ``content`` is what `convert` returned.
    """
    interpreter = litert_interpreter(content, num_threads)
    interpreter.allocate_tensors()
    # The converter renames inputs, so they are recognised by their number of axes.
    features, lengths = sorted(
        interpreter.get_input_details(),
        key=lambda detail: len(detail["shape"]),
        reverse=True,
    )
    output = interpreter.get_output_details()[0]["index"]

    def run(feature_values: np.ndarray, length_values: np.ndarray) -> np.ndarray:
        interpreter.set_tensor(features["index"], feature_values)
        interpreter.set_tensor(lengths["index"], length_values)
        interpreter.invoke()
        return interpreter.get_tensor(output)

    return run


def _step(
    stack: FoldedStack, num_features: int
) -> tuple[Callable, dict[str, tf.TensorSpec]]:
    """Returns a function that computes `STEP_FRAMES` output frames, and its signature."""
    frames = len(stack.kernel) + (STEP_FRAMES - 1) * stack.stride
    layers = [_Layer(weights) for weights in stack.recurrent]
    kernel = _constant(stack.kernel)
    bias = _constant(stack.bias)
    class_kernel = _constant(stack.classifier_kernel.T)
    class_bias = _constant(stack.classifier_bias)
    sizes = {
        f"{state}_{number}": weights.units
        for number, weights in enumerate(stack.recurrent)
        for state in weights.states
    }

    def step(features: tf.Tensor, **states: tf.Tensor) -> dict[str, tf.Tensor]:
        hidden = tf.nn.relu(
            tf.nn.conv1d(features, kernel, stack.stride, "VALID") + bias
        )[0]
        # In the order of the layers, each with one or two states.
        waiting = [states[name] for name in sizes]
        reached = []

        for layer in layers:
            after = layer.steps(hidden, [waiting.pop(0) for _ in layer.weights.states])
            hidden = after[0]
            reached += after

        logits = tf.matmul(hidden, class_kernel, transpose_b=True) + class_bias
        outputs = {LOG_PROBS: tf.nn.log_softmax(logits)}
        for name, state in zip(sizes, reached, strict=True):
            outputs[STATES + name] = state

        return outputs

    signature = {FEATURES: tf.TensorSpec([1, frames, num_features], tf.float32)}
    for name, size in sizes.items():
        signature[name] = tf.TensorSpec([1, size], tf.float32)

    return step, signature


class _Layer:
    """A recurrent layer as operations that LiteRT has, one after the other."""

    def __init__(self, weights: RecurrentWeights):
        self.weights = weights
        self._kernel = _constant(weights.kernel[0])
        self._recurrent_kernel = _constant(weights.recurrent_kernel[0])
        biases = np.split(weights.bias[0], 2)
        # An LSTM can add both biases at once. A GRU must add the recurrent bias to the
        # recurrent product, before the reset gate scales it.
        lstm = weights.operator == "LSTM"
        self._bias = _constant(biases[0] + biases[1] if lstm else biases[0])
        self._recurrent_bias = None if lstm else _constant(biases[1])
        self._after = _lstm_step if lstm else _gru_step

    def steps(self, hidden: tf.Tensor, states: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns each state after all steps, ``(steps, units)``; the first is the output."""
        projected = tf.matmul(hidden, self._kernel, transpose_b=True) + self._bias
        reached: list[list[tf.Tensor]] = [[] for _ in states]

        for inputs in tf.split(projected, STEP_FRAMES):
            recurrent = tf.matmul(states[0], self._recurrent_kernel, transpose_b=True)
            if self._recurrent_bias is not None:
                recurrent = recurrent + self._recurrent_bias

            states = self._after(inputs, recurrent, states)
            for seen, state in zip(reached, states, strict=True):
                seen.append(state)

        return [tf.concat(seen, axis=0) for seen in reached]


def _lstm_step(
    inputs: tf.Tensor,
    recurrent: tf.Tensor,
    states: list,
) -> list[tf.Tensor]:
    """Returns h and c after a step; gates are in ONNX's order."""
    gates = tf.split(inputs + recurrent, 4, axis=1)
    into, out, forget = (tf.sigmoid(gate) for gate in gates[:3])
    cell = forget * states[1] + into * tf.tanh(gates[3])

    return [out * tf.tanh(cell), cell]


def _gru_step(inputs: tf.Tensor, recurrent: tf.Tensor, states: list) -> list[tf.Tensor]:
    """Returns h after a step; gates are in ONNX's order."""
    of_inputs = tf.split(inputs, 3, axis=1)
    of_state = tf.split(recurrent, 3, axis=1)
    update, reset = (tf.sigmoid(of_inputs[n] + of_state[n]) for n in (0, 1))
    candidate = tf.tanh(of_inputs[2] + reset * of_state[2])

    return [update * states[0] + (1 - update) * candidate]


def _constant(array: np.ndarray) -> tf.Tensor:
    """Returns an array as a float32 constant, in the layout that LiteRT stores."""
    return tf.constant(np.ascontiguousarray(array, np.float32))
