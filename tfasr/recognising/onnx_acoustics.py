"""An exported recogniser on ONNX Runtime, without TensorFlow."""

from pathlib import Path
from typing import Any

import numpy as np

from tfasr.cores import usable_cores
from tfasr.errors import UsageError
from tfasr.recognising.acoustics import State

FEATURES, LENGTHS, LOG_PROBS = "features", "lengths", "log_probs"
NEXT = "next_"
"""The name of a state behind a chunk is this and the name of the state before it."""


class OnnxAcoustics:
    """Computes log-probabilities with a graph that `tfasr export` wrote.

    Args:
        graph: the path of the file, or its content.
        num_threads: that may be in it at the same time; None: one per core that this process may
            use.
    """

    def __init__(self, graph: str | Path | bytes, num_threads: int | None = None):
        runtime = _runtime()
        self.batches_at_once = num_threads or usable_cores()
        options = runtime.SessionOptions()
        # Threads of the caller, each with a batch of its own, and none of ONNX Runtime's: these
        # share an LSTM's step badly, and take a quarter more of the processor while they wait.
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        source = graph if isinstance(graph, bytes) else str(graph)
        try:
            self._session = runtime.InferenceSession(
                source, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's own kinds, none of them public
            raise UsageError(f"ONNX Runtime must be able to load {graph!r}: {error}") from error
        inputs = [one for one in self._session.get_inputs() if one.name not in (FEATURES, LENGTHS)]
        self._states = {one.name: one.shape[2] for one in inputs}

    def log_probs(self, features: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Returns log-probabilities, see `tfasr.recognising.acoustics.Acoustics`."""
        batch = len(features)
        zeros = {name: np.zeros((1, batch, n), np.float32) for name, n in self._states.items()}
        inputs = {FEATURES: features, LENGTHS: lengths.astype(np.int32), **zeros}
        (log_probs,) = self._session.run([LOG_PROBS], inputs)
        return log_probs

    def initial_state(self) -> State:
        """Returns the state of a recurrence that has heard nothing."""
        return [np.zeros((1, 1, units), np.float32) for units in self._states.values()]

    def continued(self, features: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Returns the next log-probabilities, see `tfasr.recognising.acoustics.Acoustics`."""
        inputs = {
            FEATURES: features[None],
            LENGTHS: np.array([len(features)], np.int32),
            **dict(zip(self._states, state, strict=True)),
        }
        outputs = [LOG_PROBS, *(NEXT + name for name in self._states)]
        log_probs, *state = self._session.run(outputs, inputs)
        return log_probs[0], state


def _runtime() -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise UsageError(
            "An exported recogniser needs onnxruntime, which is not installed: pip install "
            "'tfasr[export]', or pip install onnxruntime."
        ) from error
    return onnxruntime
