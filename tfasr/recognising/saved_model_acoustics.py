"""An exported recogniser as TensorFlow's SavedModel, without Keras."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from tfasr.recognising.acoustics import State

FEATURES, LENGTHS, LOG_PROBS = "features", "lengths", "log_probs"
OUTPUT_LENGTHS = "output_lengths"
WHOLE, CONTINUED = "serving_default", "continued"
"""The signatures: of batches of recordings, and of the next frames of one stream."""
STATE, NEXT = "state_", "next_state_"


class SavedModelAcoustics:
    """Computes log-probabilities with what `tfasr export --to saved_model` wrote.

    Args:
        path: of the folder.
    """

    batches_at_once = 1  # TensorFlow divides one among the cores

    def __init__(self, path: Path):
        self._model = tf.saved_model.load(str(path))  # its functions need it to live on
        self._whole = self._model.signatures[WHOLE]
        self._continued = self._model.signatures.get(CONTINUED)
        self._states = {}
        if self._continued is not None:
            _, specs = self._continued.structured_input_signature
            names = sorted(specs.keys() - {FEATURES}, key=lambda name: int(name[len(STATE) :]))
            self._states = {name: specs[name].shape for name in names}

    def log_probs(self, features: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Returns log-probabilities, see `tfasr.recognising.acoustics.Acoustics`."""
        given = {FEATURES: tf.constant(features), LENGTHS: tf.constant(lengths, tf.int32)}
        return self._whole(**given)[LOG_PROBS].numpy()

    def initial_state(self) -> State:
        """Returns the state of a recurrence that has heard nothing."""
        return [tf.zeros(shape) for shape in self._states.values()]

    def continued(self, features: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Returns the next log-probabilities, see `tfasr.recognising.acoustics.Acoustics`."""
        states = dict(zip(self._states, state, strict=True))
        found = self._continued(**{FEATURES: tf.constant(features[None]), **states})
        reached = [found[NEXT + name[len(STATE) :]] for name in self._states]
        return found[LOG_PROBS][0].numpy(), reached
