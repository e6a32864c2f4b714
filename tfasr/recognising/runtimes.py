"""Runs exported models; each runtime (such as ONNX Runtime) is imported only when needed.

All classes here are `Acoustics`: they map features to log-probabilities, and the rest
of a recogniser doesn't know which one it has. TensorFlow is needed only for exports to
Keras and SavedModel.
"""

import contextlib
import functools
import os
import queue
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.errors import UsageError, optional_package
from tfasr.kit.files import ALPHABET_FILE
from tfasr.kit.process import load_tensorflow, quiet_stderr, usable_cores
from tfasr.recognising import spec as exported
from tfasr.recognising.spec import (
    FEATURES,
    LENGTHS,
    LOG_PROBS,
    Acoustics,
    RecogniserSpec,
    State,
)

# In ONNX graphs, the outputs' names for the states after a chunk start with this.
NEXT = "next_"

# Names of LiteRT signatures: for a few output frames, with states in and out; for one
# utterance.
STEP = "step"
WHOLE = "whole"

# In LiteRT graphs, the outputs' names for the states after each output frame start with
# this.
STATES = "states_"

# How many output frames an exported model is tried on when it is opened.
_TRIED = 3

# How many characters of a runtime's own error a message shows.
_SHOWN = 300


def open_exported(
    folder: Path, decoder_changes: dict[str, Any]
) -> tuple[RecogniserSpec, Acoustics]:
    """Opens a folder that `tfasr export` wrote.

    Args:
        folder: of the export.
        decoder_changes: fields of the decoder's config that replace the export's.

    Returns:
        The recogniser's description, and its model.

    Raises:
        UsageError: if files are missing or damaged, or don't fit together.
    """
    # Before anything else is read of the folder.
    exported.check_sums(folder)
    runtime = exported.exported_runtime(folder)
    spec = exported.read_spec(folder, decoder_changes)
    path = folder / exported.MODEL_FILES[runtime]
    acoustics = open_model(runtime, path, spec)
    _check_fits(acoustics, spec, path)

    return spec, acoustics


def _check_fits(acoustics: Acoustics, spec: RecogniserSpec, path: Path) -> None:
    """Raises UsageError unless a model's outputs have the shape of its description.

    It is tried on a few frames, as files of two exports may have been mixed.
    """
    kernel, stride = spec.geometry
    frames = kernel + (_TRIED - 1) * stride
    features = np.zeros((1, frames, spec.features.num_features), np.float32)
    expected = (1, _TRIED, spec.alphabet.num_classes)

    try:
        log_probs = acoustics.log_probs(features, np.array([frames], np.int32))
        has_nan = np.isnan(log_probs).any()
    # Each runtime raises its own kinds of errors.
    except Exception as error:
        fault = " ".join(str(error).split())[:_SHOWN] or type(error).__name__
    else:
        fault = ""
        if has_nan:
            fault = "NaN"
        elif log_probs.shape != expected:
            fault = f"shape {log_probs.shape}"

    if fault:
        raise UsageError(
            f"{path} must fit {exported.SPEC_FILE} and {ALPHABET_FILE} in its folder: "
            f"{frames} frames of {spec.features.num_features} features must give "
            f"{_TRIED} output frames of {spec.alphabet.num_classes} classes. Received: "
            f"{fault}. Export the run again."
        )


def open_model(runtime: str, path: Path, spec: RecogniserSpec) -> Acoustics:
    """Opens an exported model.

    Args:
        runtime: one of `MODEL_FILES`.
        path: the model's file or folder.
        spec: the recogniser's description.

    Raises:
        UsageError: if the runtime isn't installed, or can't load the model.
    """
    if runtime == exported.ONNX:
        return OnnxAcoustics(path)

    if runtime == exported.LITERT:
        if STEP in litert_interpreter(path, 1).get_signature_list():
            return LitertAcoustics(path, spec.geometry[1])

        return LitertUtterances(path)

    install = "tensorflow. Exports to onnx and litert don't need it"
    with optional_package("TensorFlow", f"A recogniser exported to {runtime}", install):
        load_tensorflow()

    from tfasr.recognising.tensorflow_runtimes import (
        SavedModelAcoustics,
        open_keras_file,
    )

    if runtime == exported.KERAS:
        return open_keras_file(path)

    return SavedModelAcoustics(path)


class OnnxAcoustics:
    """Computes log-probabilities with ONNX Runtime, in one thread per usable core.

    Args:
        graph: the path of a ``.onnx`` file, or its content.
    """

    def __init__(self, graph: str | Path | bytes):
        self.batches_at_once = usable_cores()
        self._session = onnx_session(graph)
        inputs = self._session.get_inputs()
        states = [value for value in inputs if value.name not in (FEATURES, LENGTHS)]
        # Widths of the recurrent states, by their names; {} if the graph takes
        # none.
        self._states = {state.name: state.shape[2] for state in states}

    def log_probs(self, features: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Returns a batch's log-probabilities, see `Acoustics`."""
        inputs = {FEATURES: features, LENGTHS: lengths.astype(np.int32)}
        # Each utterance begins without a past.
        for name, units in self._states.items():
            inputs[name] = np.zeros((1, len(features), units), np.float32)

        (log_probs,) = self._session.run([LOG_PROBS], inputs)

        return log_probs

    def initial_state(self) -> State:
        """Returns the recurrences' states before the first frame."""
        return [np.zeros((1, 1, units), np.float32) for units in self._states.values()]

    def continued(self, features: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Returns the next log-probabilities and states, see `Acoustics`."""
        inputs = {
            FEATURES: features[None],
            LENGTHS: np.array([len(features)], np.int32),
        }
        # The states of the chunk before.
        inputs |= zip(self._states, state, strict=True)
        outputs = [LOG_PROBS, *(NEXT + name for name in self._states)]
        log_probs, *state = self._session.run(outputs, inputs)

        return log_probs[0], state


def onnx_session(graph: str | Path | bytes) -> Any:
    """Opens a graph that ONNX Runtime runs in the caller's thread.

    Args:
        graph: the path of a ``.onnx`` file, or its content.

    Raises:
        UsageError: if ONNX Runtime isn't installed, or can't load the graph.
    """
    runtime = onnx_runtime()
    options = runtime.SessionOptions()

    # Uses only the caller's threads, each of which has its own batch. ONNX Runtime's
    # threads are bad at sharing an LSTM's step, and take a quarter more processor time
    # while they wait.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # Errors only.
    options.log_severity_level = 3

    # Reads the file here, because ONNX Runtime rejects file names that aren't UTF-8.
    source = graph
    if not isinstance(graph, bytes):
        source = Path(graph).read_bytes()

    try:
        return runtime.InferenceSession(
            source, options, providers=["CPUExecutionProvider"]
        )
    # ONNX Runtime's error classes aren't public.
    except Exception as error:
        message = f"ONNX Runtime must be able to load {_shown(graph)}: {error}"
        raise UsageError(message) from error


def _shown(graph: str | Path | bytes) -> str:
    """Returns a model's name for messages."""
    if isinstance(graph, bytes):
        return "these bytes"

    return str(graph)


def onnx_runtime() -> Any:
    """Imports ONNX Runtime without its telemetry; UsageError if it isn't installed."""
    # Calling `disable_telemetry_events` after the import would be too late.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    install = "'tfasr[export]', or pip install onnxruntime"

    with optional_package("onnxruntime", "An exported recogniser", install):
        import onnxruntime

        return onnxruntime


class _Litert:
    """LiteRT interpreters of a graph, each used by one thread at a time.

    An interpreter isn't safe for threads, so each concurrent call gets its own; they
    are kept for later calls.

    Args:
        graph: the path of a ``.tflite`` file, or its content.

    Attributes:
        signature: the name of the graph's function that is called.
        batches_at_once: see `Acoustics`.
    """

    signature: str

    def __init__(self, graph: str | Path | bytes):
        self.batches_at_once = usable_cores()
        self._graph = graph
        self._states: dict[str, tuple[int, ...]] = {}
        self._idle: queue.SimpleQueue = queue.SimpleQueue()

    @contextlib.contextmanager
    def _runner(self) -> Iterator[Any]:
        """Yields a function that runs the graph on named inputs.

        Its interpreter is one that no other thread uses, or a new one.
        """
        try:
            runner = self._idle.get_nowait()
        except queue.Empty:
            interpreter = litert_interpreter(self._graph, 1)
            with quiet_stderr():  # hides a line about the CPU delegate
                interpreter.allocate_tensors()

            runner = interpreter.get_signature_runner(self.signature)

        # Not given back after an error, as its state is unknown then.
        yield runner
        self._idle.put(runner)

    def initial_state(self) -> State:
        """Returns the recurrences' states before the first frame."""
        return [np.zeros(shape, np.float32) for shape in self._states.values()]

    def log_probs(self, features: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Returns a batch's log-probabilities, computed one utterance at a time."""
        outputs = [
            self.continued(row[:length], self.initial_state())[0]
            for row, length in zip(features, lengths, strict=True)
        ]

        return exported.padded(outputs)[0]


class LitertAcoustics(_Litert):
    """Computes log-probabilities with LiteRT, some output frames per call.

    The graph has a fixed number of frames in its step and returns the state after each
    of them, so a chunk of any length is computed in steps.

    Args:
        graph: the path of a ``.tflite`` file, or its content.
        stride: feature frames between output frames.
    """

    signature = STEP

    def __init__(self, graph: str | Path | bytes, stride: int):
        super().__init__(graph)
        self._stride = stride

        with self._runner() as runner:
            details = runner.get_input_details()
            frames = int(details[FEATURES]["shape"][1])
            shapes = {name: tuple(detail["shape"]) for name, detail in details.items()}
            self._states = {
                name: shape for name, shape in shapes.items() if name != FEATURES
            }
            self._steps = int(runner.get_output_details()[LOG_PROBS]["shape"][0])

        self._frames = frames
        # How many feature frames the first output frame sees.
        self._first = frames - (self._steps - 1) * stride

    def continued(self, features: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Returns the next log-probabilities and states, see `Acoustics`."""
        frames = (len(features) - self._first) // self._stride + 1
        parts = []

        with self._runner() as runner:
            for begun in range(0, frames, self._steps):
                count = min(self._steps, frames - begun)

                # The last call is padded; its outputs for padding are dropped.
                inputs = np.zeros((1, self._frames, features.shape[1]), np.float32)
                start = begun * self._stride
                seen = features[
                    start : start + self._first + (count - 1) * self._stride
                ]
                inputs[0, : len(seen)] = seen
                values = dict(zip(self._states, state, strict=True))
                values[FEATURES] = inputs
                outputs = runner(**values)

                parts.append(outputs[LOG_PROBS][:count])
                state = [
                    outputs[STATES + name][count - 1 : count] for name in self._states
                ]

        return np.concatenate(parts), state


class LitertUtterances(_Litert):
    """Computes log-probabilities with LiteRT, one utterance per call; it can't stream."""

    signature = WHOLE

    def continued(self, features: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Returns an utterance's log-probabilities, and the state as it was: []."""
        inputs = {
            FEATURES: features[None],
            LENGTHS: np.array([len(features)], np.int32),
        }
        with self._runner() as runner:
            return runner(**inputs)[LOG_PROBS][0], state


def litert_interpreter(graph: str | Path | bytes, num_threads: int) -> Any:
    """Returns an interpreter of a graph.

    Args:
        graph: the path of a ``.tflite`` file, or its content.
        num_threads: that it may use.

    Raises:
        UsageError: if LiteRT isn't installed or can't load the graph.
    """
    make = functools.partial(_interpreter_class(), num_threads=num_threads)
    if isinstance(graph, bytes):
        make = functools.partial(make, model_content=graph)
    else:
        make = functools.partial(make, model_path=str(graph))

    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=r"\s*Warning: tf.lite.Interpreter is deprecated"
        )
        try:
            return make()
        except ValueError as error:
            raise UsageError(
                f"LiteRT must be able to load {_shown(graph)}: {error}"
            ) from error


def _interpreter_class() -> Any:
    """Returns LiteRT's own class, or TensorFlow's if LiteRT isn't installed.

    Raises:
        UsageError: if neither is.
    """
    with contextlib.suppress(ModuleNotFoundError):
        from ai_edge_litert.interpreter import Interpreter

        return Interpreter

    install = "'tfasr[litert]', or pip install ai-edge-litert"
    with optional_package("ai-edge-litert", "A recogniser exported to LiteRT", install):
        import tensorflow as tf  # its interpreter is deprecated, and warns

        return tf.lite.Interpreter
