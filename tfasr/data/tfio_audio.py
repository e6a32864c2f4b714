"""The optional audio reader on tensorflow-io, whose native part fits one TensorFlow only."""

import functools
import importlib
import warnings
from pathlib import Path

import numpy as np

from tfasr.corpora.reading.audio_header import unreadable
from tfasr.errors import UsageError

_REMEDY = (
    "Install TensorFlow 2.16 with tensorflow-io 0.37.1 "
    "(pip install 'tensorflow==2.16.*' 'tensorflow-io==0.37.1'), "
    "or keep the default reader, soundfile."
)


def check_loads() -> None:
    """Raises UsageError unless tensorflow-io is installed and its native operations load."""
    reason = _why_not()
    if reason:
        raise UsageError(
            "The audio reader tfio needs tensorflow-io and the TensorFlow it was built for. "
            f"Received: {reason}. {_REMEDY}"
        )


def decode(path: str | Path) -> tuple[np.ndarray, int]:
    """Returns float32 ``(samples, channels)``, full scale being -1..1, and their rate in Hz.

    Raises:
        ValueError: if tensorflow-io cannot read the file to its end.
        UsageError: see `check_loads`.
    """
    check_loads()
    import tensorflow as tf
    import tensorflow_io as tfio

    try:
        audio = tfio.audio.AudioIOTensor(str(path))
        samples, rate_hz = audio.to_tensor().numpy(), int(audio.rate.numpy())
        promised = int(audio.shape[0])
    except (tf.errors.OpError, ValueError) as error:
        message = getattr(error, "message", str(error))
        raise unreadable(path, f"tensorflow-io: {message}") from error
    if len(samples) != promised:
        raise unreadable(path, f"truncated: {len(samples)} of {promised} samples are there")
    return _to_float(samples), rate_hz


def _to_float(samples: np.ndarray) -> np.ndarray:
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - 128) / 128
    if samples.dtype.kind == "i":
        full_scale = -float(np.iinfo(samples.dtype).min)
        return (samples / full_scale).astype(np.float32)
    return samples.astype(np.float32)


@functools.cache
def _why_not() -> str:
    try:
        import tensorflow as tf
    except ImportError as error:
        return f"TensorFlow cannot be imported ({error})"
    # Where the native part does not fit, importing tensorflow-io only warns, and an operation
    # raises when it is first looked up.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            operations = importlib.import_module("tensorflow_io.python.ops")
            operations.core_ops.io_audio_readable_init  # noqa: B018 - the look-up loads the library
        except ModuleNotFoundError as error:
            return f"tensorflow-io is not installed ({error})"
        except Exception as error:  # whatever a broken native part raises, it is the reason
            cause = " ".join(str(error).split())[:400]
            return f"tensorflow-io does not load with TensorFlow {tf.__version__} ({cause})"
    return ""
