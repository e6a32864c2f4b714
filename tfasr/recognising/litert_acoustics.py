"""An exported recogniser on LiteRT, without TensorFlow where ai-edge-litert is installed."""

import contextlib
import queue
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.cores import usable_cores
from tfasr.errors import UsageError
from tfasr.recognising.acoustics import State

SIGNATURE = "step"
FEATURES, LOG_PROBS = "features", "log_probs"
STATES = "states_"
"""The name of the states behind each output frame is this and the name of the state before."""


def state_name(state: str, number: int) -> str:
    """Returns the name of a state of a layer, such as "h_0"."""
    return f"{state}_{number}"


class LitertAcoustics:
    """Computes log-probabilities with a graph that `tfasr export --to litert` wrote.

    The graph computes a fixed number of output frames; any number comes of calling it again.

    Args:
        graph: the path of the file, or its content.
        stride: feature frames from one output frame to the next.
        num_threads: that may be in it at the same time; None: one per core that this process may
            use.
    """

    def __init__(self, graph: str | Path | bytes, stride: int, num_threads: int | None = None):
        self.batches_at_once = num_threads or usable_cores()
        self._graph = graph
        self._stride = stride
        # An interpreter serves one thread at a time; another is made for whoever finds none.
        self._idle: queue.SimpleQueue = queue.SimpleQueue()
        with self._runner() as runner:
            details = runner.get_input_details()
            self._frames = int(details[FEATURES]["shape"][1])
            shapes = {name: tuple(one["shape"]) for name, one in details.items()}
            self._states = {name: shape for name, shape in shapes.items() if name != FEATURES}
            steps, self._classes = runner.get_output_details()[LOG_PROBS]["shape"]
            self._steps = int(steps)

    @contextlib.contextmanager
    def _runner(self) -> Iterator[Any]:
        """Lends a function of the graph's inputs by name."""
        try:
            runner = self._idle.get_nowait()
        except queue.Empty:
            runner = _runner(self._graph)
        yield runner
        self._idle.put(runner)

    def log_probs(self, features: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Returns log-probabilities, see `tfasr.recognising.acoustics.Acoustics`."""
        first = self._frames - (self._steps - 1) * self._stride
        frames = (features.shape[1] - first) // self._stride + 1
        found = np.zeros((len(features), frames, self._classes), np.float32)
        for row, one, length in zip(found, features, lengths, strict=True):
            log_probs, _ = self.continued(one[:length], self.initial_state())
            row[: len(log_probs)] = log_probs
        return found

    def initial_state(self) -> State:
        """Returns the state of a recurrence that has heard nothing."""
        return [np.zeros(shape, np.float32) for shape in self._states.values()]

    def continued(self, features: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Returns the next log-probabilities, see `tfasr.recognising.acoustics.Acoustics`."""
        first = self._frames - (self._steps - 1) * self._stride
        frames = (len(features) - first) // self._stride + 1
        found = []
        with self._runner() as runner:
            for begun in range(0, frames, self._steps):
                count = min(self._steps, frames - begun)
                given = np.zeros((1, self._frames, features.shape[1]), np.float32)
                start = begun * self._stride
                seen = features[start : start + first + (count - 1) * self._stride]
                given[0, : len(seen)] = seen
                states = dict(zip(self._states, state, strict=True))
                outputs = runner(**{FEATURES: given, **states})
                found.append(outputs[LOG_PROBS][:count])
                state = [outputs[STATES + name][count - 1 : count] for name in self._states]
        return np.concatenate(found), state


def _runner(graph: str | Path | bytes) -> Any:
    """Returns a function of the graph's inputs by name, on one thread."""
    interpreter_class = _interpreter_class()
    source = {"model_content": graph} if isinstance(graph, bytes) else {"model_path": str(graph)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*Warning: tf.lite.Interpreter is deprecated")
        try:
            interpreter = interpreter_class(num_threads=1, **source)
        except ValueError as error:
            shown = "what it was given" if isinstance(graph, bytes) else graph
            raise UsageError(f"LiteRT must be able to load {shown}: {error}") from error
    return interpreter.get_signature_runner(SIGNATURE)


def _interpreter_class() -> Any:
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ModuleNotFoundError:
        pass
    else:
        return Interpreter
    try:  # TensorFlow's copy is on its way out, and says so
        import tensorflow as tf
    except ModuleNotFoundError as error:
        raise UsageError(
            "A recogniser exported to LiteRT needs ai-edge-litert, which is not installed: pip "
            "install 'tfasr[litert]', or pip install ai-edge-litert."
        ) from error
    return tf.lite.Interpreter
