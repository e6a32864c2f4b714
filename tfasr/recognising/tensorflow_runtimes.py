"""Runs models in TensorFlow: a run's, an exported Keras file or a SavedModel.

The classes are `Acoustics`, like those of `tfasr.recognising.runtimes`. Importing this
module loads TensorFlow.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfasr.data.manifest import file_sha256
from tfasr.errors import UsageError
from tfasr.models.keras_file import load_keras_file
from tfasr.models.model import RecogniserConfig, can_stream, frame_geometry, model_name
from tfasr.recognising.spec import FEATURES, LENGTHS, LOG_PROBS, RecogniserSpec, State
from tfasr.training.trained import TrainedRun

# A SavedModel's signatures for batches of recordings and for a stream's next frames.
WHOLE_SIGNATURE = "serving_default"
CONTINUED_SIGNATURE = "continued"

# In SavedModels, prefixes of the names of states before and after a chunk; a number
# follows.
STATE = "state_"
NEXT_STATE = "next_state_"


class KerasAcoustics:
    """Computes log-probabilities with a Keras model.

    Args:
        recogniser: maps features and lengths to logits, see `tfasr.models.model`.
        config: of the model.
        num_features: width of a feature frame.
    """

    # TensorFlow divides each batch among the cores.
    batches_at_once = 1

    def __init__(self, recogniser: Any, config: RecogniserConfig, num_features: int):
        self.recogniser = recogniser
        self.config = config
        self.output_lengths = config.output_lengths
        self.num_features = num_features
        signature = [
            tf.TensorSpec([None, None, num_features], tf.float32),
            tf.TensorSpec([None], tf.int32),
        ]
        self._forward = tf.function(self._log_probs, input_signature=signature)

    def _log_probs(self, features: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """Computes what `log_probs` returns; TensorFlow compiles it once."""
        return tf.nn.log_softmax(self.recogniser(features, lengths, training=False))

    def log_probs(self, features: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Returns a batch's log-probabilities, see `Acoustics`."""
        return self._forward(tf.constant(features), tf.constant(lengths)).numpy()

    def initial_state(self) -> State:
        """Returns the recurrences' states before the first frame."""
        return self.recogniser.initial_state(1)

    def continued(self, features: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Returns the next log-probabilities and states, see `Acoustics`."""
        log_probs, state = self._continued(tf.constant(features[None]), state)
        return log_probs[0].numpy(), state

    @functools.cached_property
    def _continued(self) -> Callable:
        """A function that is traced once, for chunks of any length."""
        state_spec = [
            tf.TensorSpec(state.shape, state.dtype) for state in self.initial_state()
        ]
        features_spec = tf.TensorSpec([1, None, self.num_features], tf.float32)

        @tf.function(input_signature=[features_spec, state_spec])
        def continued(features: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
            logits, state = self.recogniser.continued(features, state)
            return tf.nn.log_softmax(logits), state

        return continued


def open_run(
    trained: TrainedRun,
    checkpoint: str,
    decoder_changes: dict[str, Any],
) -> tuple[RecogniserSpec, KerasAcoustics]:
    """Opens a run's recogniser at a checkpoint.

    Args:
        trained: the run.
        checkpoint: "best", "last" or a file.
        decoder_changes: fields of the decoder's config that replace the run's.

    Raises:
        UsageError: if the checkpoint is missing, or the model's output frames aren't at
            equal distances.
    """
    path = trained.checkpoint(checkpoint)
    model = trained.model(checkpoint, precision="float32")
    experiment = trained.experiment
    decoder = trained.decoder(**decoder_changes)
    geometry = frame_geometry(experiment.model)
    kind = experiment.features.normalisation

    if len(geometry) != 2:
        raise UsageError(
            "To transcribe, a model must have output frames at equal distances. "
            f"Received: {model_name(experiment.model)!r}, whose output_lengths don't "
            "describe a convolution."
        )

    statistics = None
    if kind in ("corpus", "speaker"):
        statistics = trained.statistics

    spec = RecogniserSpec(
        model=model_name(experiment.model),
        features=experiment.features,
        statistics=statistics,
        alphabet=trained.alphabet,
        decoder=decoder,
        lexicon=tuple(trained.lexicon(decoder)),
        geometry=(geometry[0], geometry[1]),
        streams=can_stream(experiment.model) and hasattr(model.recogniser, "continued"),
        identity=file_sha256(path),
    )

    return spec, KerasAcoustics(
        model.recogniser, experiment.model, spec.features.num_features
    )


def open_keras_file(path: Path) -> KerasAcoustics:
    """Opens a model that `tfasr export --to keras` wrote.

    Raises:
        UsageError: if the file is damaged, or its model isn't registered.
    """
    model = load_keras_file(path)
    return KerasAcoustics(model.recogniser, model.config, model.num_features)


class SavedModelAcoustics:
    """Computes log-probabilities with a SavedModel, which needs no code of tfasr.

    Args:
        path: the SavedModel's folder.
    """

    # TensorFlow divides each batch among the cores.
    batches_at_once = 1

    def __init__(self, path: Path):
        # Kept, because its functions need it.
        self._model = tf.saved_model.load(str(path))
        self._whole = self._model.signatures[WHOLE_SIGNATURE]
        self._continued = self._model.signatures.get(CONTINUED_SIGNATURE)
        self._states = {}

        if self._continued is not None:
            _, specs = self._continued.structured_input_signature
            # By their numbers: "state_10" comes after "state_9".
            names = sorted(
                specs.keys() - {FEATURES}, key=lambda name: int(name[len(STATE) :])
            )
            self._states = {name: specs[name].shape for name in names}

    def log_probs(self, features: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Returns a batch's log-probabilities, see `Acoustics`."""
        inputs = {
            FEATURES: tf.constant(features),
            LENGTHS: tf.constant(lengths, tf.int32),
        }
        return self._whole(**inputs)[LOG_PROBS].numpy()

    def initial_state(self) -> State:
        """Returns the recurrences' states before the first frame."""
        return [tf.zeros(shape) for shape in self._states.values()]

    def continued(self, features: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Returns the next log-probabilities and states, see `Acoustics`."""
        inputs = dict(zip(self._states, state, strict=True))
        inputs[FEATURES] = tf.constant(features[None])
        outputs = self._continued(**inputs)
        reached = [outputs[NEXT_STATE + name[len(STATE) :]] for name in self._states]

        return outputs[LOG_PROBS][0].numpy(), reached
