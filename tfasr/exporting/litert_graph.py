"""A recogniser for LiteRT (once TensorFlow Lite): so many output frames, states in and out.

LiteRT wants sizes that never change, and its LSTM keeps its state to itself. So the graph computes
`STEP_FRAMES` output frames, the steps of the recurrence written one behind the other, from states
that it is given, and returns the states behind each of them. A recording of any length is computed
by calling it again; where fewer frames are left, the states behind the last of these are taken.
"""

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfasr.errors import RunError, UsageError
from tfasr.exporting.folded import FoldedStack
from tfasr.exporting.recurrent_weights import RecurrentWeights
from tfasr.models.recogniser import can_stream, model_name
from tfasr.quiet import quiet_stderr
from tfasr.recognising.litert_acoustics import FEATURES, LOG_PROBS, SIGNATURE, STATES, state_name

STEP_FRAMES = 8
"""Output frames of a call. More share the products that are no recurrence's; fewer wait less."""

CARRIED = ("acoustic_model", "gru")
"""The models whose steps are written here."""


def check_litert(config: Any) -> None:
    """Raises UsageError for a model that cannot be computed step by step."""
    name = model_name(config)
    if name not in CARRIED:
        raise UsageError(
            f"A model that is exported to LiteRT must be one of {', '.join(CARRIED)}. Received: "
            f"{name!r}. Export it --to saved_model or --to keras."
        )
    if not can_stream(config):
        raise UsageError(
            "A model that is exported to LiteRT must need no later frames: its graph computes "
            f"{STEP_FRAMES} output frames at a time. Received: a bidirectional {name!r}. Export it "
            "--to onnx."
        )


def litert_graph(model: Any, num_features: int, *, int8: bool) -> bytes:
    """Returns a model's graph, as a file's content.

    Args:
        model: a built `tfasr.models.recurrent_stack.RecurrentStack` that runs in one direction.
        num_features: features per frame.
        int8: whether large matrices become int8, activations being quantised as they come (dynamic
            range).

    Raises:
        RunError: if LiteRT's converter refuses it.
    """
    step, given = _step(FoldedStack.of(model), num_features)
    module = tf.Module()
    module.step = tf.function(step)
    with tempfile.TemporaryDirectory() as folder, quiet_stderr():
        concrete = module.step.get_concrete_function(**given)
        tf.saved_model.save(module, folder, signatures={SIGNATURE: concrete})
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=[SIGNATURE])
        if int8:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        try:
            return converter.convert()
        except Exception as error:  # the converter's own class is no public name
            raise RunError(
                f"LiteRT's converter must take the graph. It said: {str(error)[:500]}"
            ) from error


def _step(stack: FoldedStack, num_features: int) -> tuple[Callable, dict[str, tf.TensorSpec]]:
    """Returns the function of one call, and what it takes by name."""
    frames = len(stack.kernel) + (STEP_FRAMES - 1) * stack.stride
    layers = [_Layer(weights) for weights in stack.recurrent]
    kernel, bias = _constant(stack.kernel), _constant(stack.bias)
    classifier = _constant(stack.classifier_kernel.T), _constant(stack.classifier_bias)
    names = [
        state_name(state, number)
        for number, layer in enumerate(layers)
        for state in layer.weights.states
    ]
    units = [layer.weights.units for layer in layers for _ in layer.weights.states]

    def step(features: tf.Tensor, **states: tf.Tensor) -> dict[str, tf.Tensor]:
        hidden = tf.nn.relu(tf.nn.conv1d(features, kernel, stack.stride, "VALID") + bias)[0]
        waiting, reached = [states[name] for name in names], []
        for layer in layers:
            given = [waiting.pop(0) for _ in layer.weights.states]
            after = layer.steps(hidden, given)
            hidden = after[0]
            reached += after
        logits = tf.matmul(hidden, classifier[0], transpose_b=True) + classifier[1]
        outputs = {STATES + name: one for name, one in zip(names, reached, strict=True)}
        return {LOG_PROBS: tf.nn.log_softmax(logits), **outputs}

    given = {FEATURES: tf.TensorSpec([1, frames, num_features], tf.float32)}
    given |= {
        name: tf.TensorSpec([1, size], tf.float32) for name, size in zip(names, units, strict=True)
    }
    return step, given


class _Layer:
    """The steps of a recurrent layer, one behind the other.

    Args:
        weights: of one direction, gates in ONNX's order.
    """

    def __init__(self, weights: RecurrentWeights):
        self.weights = weights
        self._kernel = _constant(weights.kernel[0])
        self._recurrent_kernel = _constant(weights.recurrent_kernel[0])
        biases = np.split(weights.bias[0], 2)
        # An LSTM adds both at the same place; a GRU's recurrent one is behind its own product.
        lstm = weights.operator == "LSTM"
        self._bias = _constant(biases[0] + biases[1] if lstm else biases[0])
        self._recurrent_bias = None if lstm else _constant(biases[1])
        self._after = _lstm_step if lstm else _gru_step

    def steps(self, hidden: tf.Tensor, states: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns each state behind each step ``(steps, units)``, the output first.

        Args:
            hidden: ``(steps, inputs)``.
            states: before the first ``(1, units)`` each, the output first.
        """
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


def _lstm_step(inputs: tf.Tensor, recurrent: tf.Tensor, states: list) -> list[tf.Tensor]:
    gates = tf.split(inputs + recurrent, 4, axis=1)
    into, out, forget = (tf.sigmoid(gate) for gate in gates[:3])
    cell = forget * states[1] + into * tf.tanh(gates[3])
    return [out * tf.tanh(cell), cell]


def _gru_step(inputs: tf.Tensor, recurrent: tf.Tensor, states: list) -> list[tf.Tensor]:
    of_inputs, of_state = tf.split(inputs, 3, axis=1), tf.split(recurrent, 3, axis=1)
    update, reset = (tf.sigmoid(of_inputs[n] + of_state[n]) for n in (0, 1))
    candidate = tf.tanh(of_inputs[2] + reset * of_state[2])
    return [update * states[0] + (1 - update) * candidate]


def _constant(array: np.ndarray) -> tf.Tensor:
    return tf.constant(np.ascontiguousarray(array, np.float32))
