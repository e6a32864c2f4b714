"""What runs the model of an exported folder; each is imported when it is wanted."""

from pathlib import Path
from typing import Any

from tfasr.errors import UsageError
from tfasr.quiet import load_tensorflow
from tfasr.recognising.acoustics import Acoustics
from tfasr.recognising.exported import (
    KERAS,
    LITERT,
    MODEL_FILES,
    ONNX,
    check_sums,
    exported_runtime,
    read_spec,
)
from tfasr.recognising.spec import RecogniserSpec


def open_exported(
    folder: Path, decoder_changes: dict[str, Any]
) -> tuple[RecogniserSpec, Acoustics]:
    """Returns an exported recogniser in its parts.

    Args:
        folder: what `tfasr export` wrote.
        decoder_changes: fields of its decoder to replace.

    Raises:
        UsageError: if a file is missing or has changed, or what runs it is not installed.
    """
    check_sums(folder)
    runtime = exported_runtime(folder)
    spec = read_spec(folder, decoder_changes)
    return spec, open_model(runtime, folder / MODEL_FILES[runtime], spec)


def open_model(runtime: str, path: Path, spec: RecogniserSpec) -> Acoustics:
    """Returns a model that computes log-probabilities.

    Args:
        runtime: of `MODEL_FILES`.
        path: what holds the model.
        spec: of the recogniser.

    Raises:
        UsageError: if the model cannot be loaded, or what runs it is not installed.
    """
    if runtime == ONNX:
        from tfasr.recognising.onnx_acoustics import OnnxAcoustics

        return OnnxAcoustics(path)
    if runtime == LITERT:
        from tfasr.recognising.litert_acoustics import LitertAcoustics

        return LitertAcoustics(path, spec.geometry[1])
    try:
        load_tensorflow()
    except ModuleNotFoundError as error:
        raise UsageError(
            f"A recogniser exported to {runtime} needs TensorFlow, which is not installed: pip "
            "install tensorflow. Those exported to onnx and litert need none."
        ) from error
    if runtime == KERAS:
        from tfasr.recognising.keras_acoustics import open_keras_file

        return open_keras_file(path)
    from tfasr.recognising.saved_model_acoustics import SavedModelAcoustics

    return SavedModelAcoustics(path)
