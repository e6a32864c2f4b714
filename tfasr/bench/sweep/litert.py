"""A recogniser in LiteRT (once TensorFlow Lite): converted, weights in 8 bits, run."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfasr.errors import RunError

QUANTISED = ("int8",)
"""Those of LiteRT's precisions whose weights become integers."""


def convert(
    model: keras.Model, batch: int, frames: int, num_features: int, *, quantised: bool
) -> bytes:
    """Converts a model for batches of one size.

    Args:
        model: built in float32, of a config that `tfasr.models.recogniser.portable` returned.
        batch: utterances.
        frames: padded feature frames.
        num_features: features per frame.
        quantised: whether weights become 8-bit integers (dynamic range: activations are quantised
            as they come, and sums stay in float32).

    Raises:
        RunError: if LiteRT cannot express the model.
    """
    signature = [
        tf.TensorSpec((batch, frames, num_features), tf.float32),
        tf.TensorSpec((batch,), tf.int32),
    ]
    function = tf.function(lambda features, lengths: model(features, lengths), signature)
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [function.get_concrete_function()], model
    )
    if quantised:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    try:
        return converter.convert()
    except Exception as error:  # the converter's own class is no public name
        raise RunError(
            "The model must convert to LiteRT; leave litert_float32 and int8 out of "
            f"SweepConfig.precisions otherwise. Received: {str(error)[:500]}"
        ) from error


def runner(content: bytes, num_threads: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Returns a function from features and lengths to logits, as the model does."""
    interpreter = _interpreter(content, num_threads)
    interpreter.allocate_tensors()
    features, lengths = sorted(
        interpreter.get_input_details(), key=lambda detail: len(detail["shape"]), reverse=True
    )
    output = interpreter.get_output_details()[0]["index"]

    def run(feature_values: np.ndarray, length_values: np.ndarray) -> np.ndarray:
        interpreter.set_tensor(features["index"], feature_values)
        interpreter.set_tensor(lengths["index"], length_values)
        interpreter.invoke()
        return interpreter.get_tensor(output)

    return run


def _interpreter(content: bytes, num_threads: int) -> Any:
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:  # TensorFlow's copy is on its way out, and says so
        Interpreter = tf.lite.Interpreter  # noqa: N806 - a class
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*Warning: tf.lite.Interpreter is deprecated")
        return Interpreter(model_content=content, num_threads=num_threads)
