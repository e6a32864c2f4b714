"""Audio files of any rate and format as float32 samples at one rate."""

import functools
import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soxr

from tfasr.corpora.audio_header import audio_duration_s, opened_audio, unreadable
from tfasr.errors import UsageError

__all__ = ["audio_blocks", "audio_duration_s", "check_audio_reader", "read_audio"]

AUDIO_READERS = ("soundfile", "tfio")
_MOST_VALUES = 1 << 20  # samples of a block, over all channels
_LONG_S = 60.0  # length of a block if a whole file is read: most utterances fit into one
_REMEDY = (
    "Install TensorFlow 2.16 with tensorflow-io 0.37.1 (pip install 'tensorflow==2.16.*' "
    "'tensorflow-io==0.37.1'), or keep the default reader, soundfile."
)


def read_audio(
    path: str | Path, sample_rate_hz: int = 16000, reader: str = "soundfile"
) -> np.ndarray:
    """Returns an audio file's samples, float32 ``(samples,)``: one channel, -1..1 at full scale.

    Channels are averaged; other sample rates are converted by soxr's band-limited filter (HQ). The
    reader is "soundfile", or "tfio" if `check_audio_reader` accepts that. Raises ValueError, with
    path and cause, if the file is missing, unreadable, cut short or empty, or has NaN or infinity.
    """
    if sample_rate_hz <= 0:
        raise ValueError(f"sample_rate_hz must be positive. Received: {sample_rate_hz}.")
    if reader == "soundfile":
        blocks = list(audio_blocks(path, sample_rate_hz, _LONG_S)) or [np.zeros(0, np.float32)]
        mono = np.concatenate(blocks) if len(blocks) > 1 else blocks[0]
    else:
        check_audio_reader(reader)
        samples, rate_hz = _decode_with_tfio(path)
        mono = _mono(path, samples)
        if rate_hz != sample_rate_hz and mono.size:
            mono = soxr.resample(mono, rate_hz, sample_rate_hz, quality="HQ")
    if not mono.size:
        raise unreadable(path, f"it holds no audio: 0 samples at {sample_rate_hz} Hz")
    return np.ascontiguousarray(mono, dtype=np.float32)


def audio_blocks(
    path: str | Path, sample_rate_hz: int = 16000, block_s: float = 10.0
) -> Iterator[np.ndarray]:
    """Yields the samples that `read_audio` returns, bit for bit, in blocks, to save memory."""
    count = 0
    with opened_audio(path) as file:
        resampler = None
        if file.samplerate != sample_rate_hz:
            rates = (file.samplerate, sample_rate_hz)
            resampler = soxr.ResampleStream(*rates, 1, dtype="float32", quality="HQ")
        size = min(int(block_s * file.samplerate), _MOST_VALUES // file.channels, file.frames)
        size = max(size, 1)
        while len(block := file.read(size)):
            count += len(block)
            mono = _mono(path, block)
            yield mono if resampler is None else resampler.resample_chunk(mono)
        if count != file.frames:  # libsndfile may end early without an error
            raise unreadable(path, f"truncated: {count} of {file.frames} samples are there")
        if not count:
            raise unreadable(path, f"it holds no audio: 0 samples at {file.samplerate} Hz")
        if resampler is not None:
            yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)


def _mono(path: str | Path, samples: np.ndarray) -> np.ndarray:
    if not np.isfinite(samples).all():
        raise unreadable(path, "it holds samples that are not finite numbers")
    return samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1)


def check_audio_reader(name: str) -> None:
    """Raises UsageError unless `read_audio` can use this reader with the installed packages."""
    if name not in AUDIO_READERS:
        raise UsageError(f"The audio reader must be one of {AUDIO_READERS}. Received: {name!r}.")
    if name == "tfio" and (reason := _why_no_tfio()):
        raise UsageError(
            "The audio reader tfio needs tensorflow-io and the TensorFlow it was built for. "
            f"Received: {reason}. {_REMEDY}"
        )


def _decode_with_tfio(path: str | Path) -> tuple[np.ndarray, int]:
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
def _why_no_tfio() -> str:
    """Returns why tensorflow-io doesn't load, or ""; it fits only one version of TensorFlow."""
    try:
        import tensorflow as tf
    except ImportError as error:
        return f"TensorFlow cannot be imported ({error})"
    # If its native library doesn't fit, importing tensorflow-io only warns; using it raises.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            operations = importlib.import_module("tensorflow_io.python.ops")
            operations.core_ops.io_audio_readable_init  # noqa: B018 - the look-up loads the library
        except ModuleNotFoundError as error:
            return f"tensorflow-io is not installed ({error})"
        except Exception as error:  # a broken native library can raise anything
            cause = " ".join(str(error).split())[:400]
            return f"tensorflow-io does not load with TensorFlow {tf.__version__} ({cause})"
    return ""
