"""A recogniser as a Keras file, and as TensorFlow's SavedModel, which needs no Keras."""

from pathlib import Path
from typing import Any

import tensorflow as tf

from tfasr.models.build import build_recogniser
from tfasr.models.recogniser import portable
from tfasr.models.saved import SavedRecogniser
from tfasr.recognising.keras_acoustics import KerasAcoustics
from tfasr.recognising.saved_model_acoustics import (
    CONTINUED,
    FEATURES,
    LENGTHS,
    LOG_PROBS,
    NEXT,
    OUTPUT_LENGTHS,
    STATE,
    WHOLE,
)


def write_keras(acoustics: KerasAcoustics, num_classes: int, path: Path) -> None:
    """Writes a model as a Keras file, see `tfasr.models.saved.SavedRecogniser`.

    Args:
        acoustics: the run's model.
        num_classes: classes, the CTC blank last.
        path: of the file, which ends ``.keras``.
    """
    saved = SavedRecogniser(
        acoustics.config, acoustics.num_features, num_classes, name="recogniser"
    )
    saved.recogniser.set_weights(acoustics.recogniser.get_weights())
    saved.save(path)


def write_saved_model(
    acoustics: KerasAcoustics, num_classes: int, path: Path, *, continues: bool
) -> None:
    """Writes a model as a SavedModel, of operations that every TensorFlow has.

    Args:
        acoustics: the run's model.
        num_classes: classes, the CTC blank last.
        path: of the folder.
        continues: whether it gets the signature for the next frames of one stream, too.
    """
    config = portable(acoustics.config)
    model = build_recogniser(config, acoustics.num_features, num_classes, dtype="float32")
    model.set_weights(acoustics.recogniser.get_weights())
    features = [None, None, acoustics.num_features]

    def whole(features: tf.Tensor, lengths: tf.Tensor) -> dict[str, Any]:
        log_probs = tf.nn.log_softmax(model(features, lengths, training=False))
        return {LOG_PROBS: log_probs, OUTPUT_LENGTHS: config.output_lengths(lengths)}

    given = {
        FEATURES: tf.TensorSpec(features, tf.float32),
        LENGTHS: tf.TensorSpec([None], tf.int32),
    }
    signatures = {WHOLE: tf.function(whole).get_concrete_function(**given)}
    if continues:
        states = model.initial_state(1)

        def continued(features: tf.Tensor, **states: tf.Tensor) -> dict[str, tf.Tensor]:
            logits, reached = model.continued(features, [states[name] for name in names])
            after = {f"{NEXT}{number}": state for number, state in enumerate(reached)}
            return {LOG_PROBS: tf.nn.log_softmax(logits), **after}

        names = [f"{STATE}{number}" for number in range(len(states))]
        given = {FEATURES: tf.TensorSpec([1, *features[1:]], tf.float32)}
        given |= {
            name: tf.TensorSpec(state.shape, tf.float32)
            for name, state in zip(names, states, strict=True)
        }
        signatures[CONTINUED] = tf.function(continued).get_concrete_function(**given)
    module = tf.Module()
    module.weights = [variable.value for variable in model.variables]
    tf.saved_model.save(module, str(path), signatures)
