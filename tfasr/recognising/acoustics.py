"""What computes log-probabilities: Keras from a run's checkpoint, or ONNX Runtime."""

from typing import Any, Protocol

import numpy as np

State = list[Any]
FEATURES, LENGTHS = "features", "lengths"
LOG_PROBS, OUTPUT_LENGTHS = "log_probs", "output_lengths"
"""What models take and return, by the names in exported files."""


class Acoustics(Protocol):
    """From normalised features to log-probabilities of all classes.

    Attributes:
        batches_at_once: how many threads may usefully call `log_probs` at the same time.
    """

    batches_at_once: int

    def log_probs(self, features: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Returns float32 ``(batch, output frames, classes)``, natural logarithms.

        Args:
            features: float32 ``(batch, frames, num_features)``, right-padded.
            lengths: int32 ``(batch,)``: valid feature frames, enough for an output frame.
        """

    def initial_state(self) -> State:
        """Returns the state of a recurrence that has heard nothing."""

    def continued(self, features: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Returns the next log-probabilities of one stream ``(output frames, classes)``.

        Args:
            features: float32 ``(frames, num_features)``, from the first that the next output
                frame sees; enough for one output frame.
            state: what `initial_state` or the call before returned.
        """
