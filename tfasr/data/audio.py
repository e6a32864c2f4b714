"""Audio files of any rate and format as float32 samples at one rate.

Everything that listens to a file goes through here: packing, noise for copies, and
transcription. Headers and formats are read one level below, in
`tfasr.corpora.audio_header`. A file that can't be used raises ValueError with its path
and the cause, so that a corpus's faults can be listed instead of ending the work.
"""

import functools
import importlib
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soxr

from tfasr.corpora.audio_header import (
    AudioFile,
    audio_duration_s,
    opened_audio,
    unreadable,
)
from tfasr.corpora.utterance import Segment
from tfasr.errors import UsageError

__all__ = ["audio_blocks", "audio_duration_s", "check_audio_reader", "read_audio"]

# tfio is tensorflow-io, which the sources name (docs/sources.md); it loads with
# TensorFlow 2.16 only.
AUDIO_READERS = ("soundfile", "tfio")
_MOST_VALUES = 1 << 20  # samples of a block, over all channels
# Length of a block if a whole file is read: most utterances fit into one.
_LONG_S = 60.0
# tensorflow-io 0.37.1 confuses files that threads open at once: one gets another's
# length.
_ONE_AT_A_TIME = threading.Lock()
_REMEDY = (
    "Install TensorFlow 2.16 with tensorflow-io 0.37.1 (pip install 'tensorflow==2.16.*' "
    "'tensorflow-io==0.37.1'), or keep the default reader, soundfile."
)
# Mixing and lossy codecs exceed full scale by a few decibels. 24 dB are samples in
# another unit.
_LOUDEST = 16.0
_NO_SAMPLES = np.zeros(0, np.float32)
_SILENT = 1e-4  # -80 dB of full scale: below the noise of any microphone
_CANCELLED = 1e-4  # power of the mean of channels over the mean of their powers: -40 dB

# What is remarkable about a recording that is used nevertheless.
OTHER_LENGTH = "its header states another length"
SILENT = "silent"
CHANNELS_CANCEL = "its channels cancel each other"
Remark = Callable[[str, str], None]  # ``remark(kind, detail)``

log = logging.getLogger("tfasr")


@dataclass
class Recorded:
    """What was read of a recording.

    Attributes:
        samples: float32 ``(samples,)``, one channel.
        remarks: pairs of a kind, such as `SILENT`, and details for people. The
            recording is used nevertheless; ``tfasr prepare`` counts the kinds.
    """

    samples: np.ndarray = field(default_factory=lambda: _NO_SAMPLES)
    remarks: list[tuple[str, str]] = field(default_factory=list)

    def remark(self, kind: str, detail: str) -> None:
        self.remarks.append((kind, detail))


def read_audio(
    path: str | Path,
    sample_rate_hz: int = 16000,
    reader: str = "soundfile",
    segment: Segment | None = None,
) -> np.ndarray:
    """Returns an audio file's samples, float32 ``(samples,)``: one channel, -1..1 at
    full scale.

    Channels are averaged unless the ``segment`` names one; other sample rates are
    converted by soxr's band-limited filter (HQ). The reader is "soundfile", or "tfio"
    if `check_audio_reader` accepts that. Raises ValueError, with path and cause, if the
    file is missing, unreadable, cut short or empty, has NaN, infinity or samples far
    above full scale, or lacks the segment.
    """
    (recorded,) = read_segments(path, [segment], sample_rate_hz, reader)
    if isinstance(recorded, ValueError):
        raise recorded

    return recorded.samples


def read_segments(
    path: str | Path,
    segments: Sequence[Segment | None],
    sample_rate_hz: int = 16000,
    reader: str = "soundfile",
) -> list[Recorded | ValueError]:
    """Reads several segments of a file, which is opened once; None stands for all of it.

    Each gets what `read_audio` returns, or the ValueError that it raises.
    """
    if sample_rate_hz <= 0:
        raise ValueError(
            f"sample_rate_hz must be positive. Received: {sample_rate_hz}."
        )

    # A whole recording is a segment without an end.
    parts = [segment or Segment() for segment in segments]
    try:
        if reader != "soundfile":
            return _segments_by_tfio(path, parts, sample_rate_hz, reader)
        if len(parts) == 1 and parts[0].begin_s == 0 and parts[0].end_s is None:
            return [_whole(path, sample_rate_hz, parts[0].channel)]

        with opened_audio(path) as file:
            return _cut(path, file, parts, sample_rate_hz)
    except ValueError as error:
        return [error] * len(parts)


def _whole(path: str | Path, sample_rate_hz: int, channel: int | None) -> Recorded:
    """Reads a whole file, by the same code as streams, so that both get the same samples."""
    recorded = Recorded()
    blocks = list(
        audio_blocks(
            path,
            sample_rate_hz,
            _LONG_S,
            channel=channel,
            remark=recorded.remark,
        )
    )
    if len(blocks) == 1:  # needs no copy
        recorded.samples = blocks[0]
    elif blocks:
        recorded.samples = np.concatenate(blocks)

    return _checked(path, recorded, sample_rate_hz)


def _checked(path: str | Path, recorded: Recorded, sample_rate_hz: int) -> Recorded:
    """Returns a recording in contiguous float32; ValueError if it has no samples."""
    samples = recorded.samples
    if not samples.size:
        raise unreadable(path, f"it holds no audio: 0 samples at {sample_rate_hz} Hz")

    recorded.samples = np.ascontiguousarray(samples, dtype=np.float32)

    return recorded


def _cut(
    path: str | Path,
    file: AudioFile,
    segments: list[Segment],
    sample_rate_hz: int,
) -> list[Recorded | ValueError]:
    """Reads the segments of an open file in the order in which they begin.

    Compressed formats can't be sought exactly: then the file is read once from its
    start, for all segments. Otherwise each group of overlapping segments is sought and
    read once. Results are in the order of ``segments``; a segment that can't be used
    gets its ValueError.
    """
    results: list[Recorded | ValueError] = [ValueError()] * len(segments)
    waiting = sorted(range(len(segments)), key=lambda number: segments[number].begin_s)
    begins = [round(segment.begin_s * file.samplerate) for segment in segments]
    ends = [
        file.frames if segment.end_s is None else round(segment.end_s * file.samplerate)
        for segment in segments
    ]
    held: dict[int, list[np.ndarray]] = {number: [] for number in waiting}
    position = 0  # of the file, in samples

    while waiting:
        first = waiting[0]
        if file.exact_seek and begins[first] < file.frames:
            # Segments may overlap: all that begin before the end of the first one are
            # read with it.
            file.seek(begins[first])
            position = begins[first]

        if file.exact_seek:
            reading = [n for n in waiting if begins[n] < ends[first]]
        else:
            reading = list(waiting)

        last = max(ends[number] for number in reading)
        while position < last:
            block = file.read(min(_MOST_VALUES // file.channels, last - position))
            if not len(block):
                break

            for number in reading:
                begin = max(begins[number] - position, 0)
                held[number].append(block[begin : max(ends[number] - position, 0)])

            position += len(block)

        for number in reading:
            results[number] = _segment(
                path,
                file,
                segments[number],
                held.pop(number),
                sample_rate_hz,
            )

        waiting = [number for number in waiting if number not in reading]

    return results


def _segment(
    path: str | Path,
    file: AudioFile,
    segment: Segment,
    blocks: list[np.ndarray],
    sample_rate_hz: int,
) -> Recorded | ValueError:
    """Makes one channel at the wanted rate of a segment's blocks ``(samples, channels)``.

    Returns its ValueError instead of raising it, so that the other segments of the file
    are read.
    """
    recorded = Recorded()
    mixer = _Mixer(path, segment.channel)
    try:
        samples = mixer.mono(
            # A segment after the file's end has no blocks.
            np.concatenate([np.zeros((0, file.channels), np.float32), *blocks])
        )
        mixer.finish(recorded.remark)
        recorded.samples = _resampled(samples, file.samplerate, sample_rate_hz)
        return _checked(path, recorded, sample_rate_hz)
    except ValueError as error:
        return error


def resampler_to(wanted_hz: int, rate_hz: int) -> soxr.ResampleStream:
    """Returns a resampler of one channel in float32, which gets chunks of any size."""
    return soxr.ResampleStream(rate_hz, wanted_hz, 1, dtype="float32", quality="HQ")


def _resampled(samples: np.ndarray, rate_hz: int, wanted_hz: int) -> np.ndarray:
    """Converts samples ``(samples,)`` with the same resampler as `audio_blocks`."""
    if rate_hz == wanted_hz or not samples.size:
        return samples

    resampler = resampler_to(wanted_hz, rate_hz)
    return np.concatenate(
        [
            resampler.resample_chunk(samples),
            resampler.resample_chunk(_NO_SAMPLES, last=True),
        ]
    )


def warn(kind: str, detail: str) -> None:
    """Logs a remark about a recording that is used nevertheless."""
    log.warning("%s", detail)


def audio_blocks(
    path: str | Path,
    sample_rate_hz: int = 16000,
    block_s: float = 10.0,
    *,
    channel: int | None = None,
    remark: Remark = lambda kind, detail: None,
) -> Iterator[np.ndarray]:
    """Yields the samples that `read_audio` returns, bit for bit, in blocks.

    Transcription uses it for recordings of hours, which need not fit into memory.

    Args:
        path: the file.
        sample_rate_hz: rate of the samples.
        block_s: seconds of a block at the file's own rate; the last may be shorter.
        channel: the one to read, counted from 0; None for the mean of all.
        remark: called at the end with what is remarkable, such as silence.

    Raises:
        ValueError: as `read_audio` does, but possibly after some blocks.
    """
    count = 0
    with opened_audio(path) as file:
        resampler = None
        if file.samplerate != sample_rate_hz:
            resampler = resampler_to(sample_rate_hz, file.samplerate)

        size = min(
            int(block_s * file.samplerate),
            _MOST_VALUES // file.channels,
            file.frames,
        )
        size = max(size, 1)
        mixer = _Mixer(path, channel)

        while len(block := file.read(size)):
            count += len(block)
            mono = mixer.mono(block)
            yield mono if resampler is None else resampler.resample_chunk(mono)

        if count != file.frames:  # libsndfile may end early without an error
            raise unreadable(
                path, f"truncated: {count} of {file.frames} samples are there"
            )

        if not count:
            raise unreadable(
                path, f"it holds no audio: 0 samples at {file.samplerate} Hz"
            )

        if resampler is not None:
            yield resampler.resample_chunk(_NO_SAMPLES, last=True)
        if file.remark:
            remark(OTHER_LENGTH, f"{path}: {file.remark}")

        mixer.finish(remark)


class _Mixer:
    """Makes one channel of several, and notices if that cancels them.

    A recording with one channel inverted, for example by a wrongly wired microphone, is
    silent in the mean of its channels. That is remarked only at the end, because single
    blocks may cancel by chance.
    """

    def __init__(self, path: str | Path, channel: int | None):
        self._path = path
        self._channel = channel
        self._loudest = 0.0
        self._power = 0.0  # of the channels, on average
        self._mean_power = 0.0  # of their mean

    def mono(self, samples: np.ndarray) -> np.ndarray:
        """Maps a block, float32 ``(samples, channels)``, to ``(samples,)``.

        Raises:
            ValueError: if the wanted channel is missing, or samples are far above full
            scale or no numbers.
        """
        count = samples.shape[1]
        if samples.size:
            self._check_range(samples)
        if self._channel is not None:
            if self._channel >= count:
                if count == 1:
                    available = "only channel 0"
                else:
                    available = f"the channels 0 to {count - 1}"

                raise unreadable(
                    self._path, f"it has {available}, but not {self._channel}"
                )

            return samples[:, self._channel]

        if count == 1:
            return samples[:, 0]

        mean = samples.mean(axis=1)
        self._power += float(np.square(samples, dtype=np.float64).sum()) / count
        self._mean_power += float(np.square(mean, dtype=np.float64).sum())

        return mean

    def _check_range(self, samples: np.ndarray) -> None:
        """Raises ValueError for samples in another unit, and remembers the loudest."""
        loudest = max(samples.max(), -samples.min())
        if not np.isfinite(loudest):
            raise unreadable(self._path, "it holds samples that are not finite numbers")

        # Probably integers that a program stored as floats.
        if loudest > _LOUDEST:
            scale = f"it holds samples up to {loudest:.4g}, where full scale is 1"
            raise unreadable(
                self._path, f"{scale}: scale them, or store them as integers"
            )

        self._loudest = max(self._loudest, float(loudest))

    def finish(self, remark: Remark) -> None:
        """Remarks that all blocks together were silent, or that their channels cancelled."""
        if self._loudest < _SILENT:
            remark(SILENT, f"{self._path}: no sample exceeds {_SILENT:g} of full scale")
        elif self._power and self._mean_power < _CANCELLED * self._power:
            detail = f"{self._path}: the mean of its channels is almost silent; choose one channel"
            remark(CHANNELS_CANCEL, detail)


def check_audio_reader(name: str) -> None:
    """Raises UsageError unless `read_audio` can use this reader with what is installed."""
    if name not in AUDIO_READERS:
        raise UsageError(
            f"The audio reader must be one of {AUDIO_READERS}. Received: {name!r}."
        )

    if name == "tfio" and (reason := _why_no_tfio()):
        raise UsageError(
            "The audio reader tfio needs tensorflow-io and the TensorFlow it was built for. "
            f"Received: {reason}. {_REMEDY}"
        )


def _decode_with_tfio(path: str | Path) -> tuple[np.ndarray, int]:
    """Decodes a whole file with tensorflow-io.

    Returns samples float32 ``(samples, channels)`` and their rate in Hz.
    """
    import tensorflow as tf
    import tensorflow_io as tfio

    try:
        with _ONE_AT_A_TIME:
            audio = tfio.audio.AudioIOTensor(str(path))
            samples = audio.to_tensor().numpy()
            rate_hz = int(audio.rate.numpy())
            promised = int(audio.shape[0])
    except (tf.errors.OpError, ValueError) as error:
        message = getattr(error, "message", str(error))
        raise unreadable(path, f"tensorflow-io: {message}") from error

    if len(samples) != promised:
        raise unreadable(
            path, f"truncated: {len(samples)} of {promised} samples are there"
        )

    return _to_float(samples), rate_hz


def _segments_by_tfio(
    path: str | Path,
    segments: list[Segment],
    sample_rate_hz: int,
    reader: str,
) -> list[Recorded | ValueError]:
    """`read_segments` with tensorflow-io, which always decodes the whole file."""
    check_audio_reader(reader)
    samples, rate_hz = _decode_with_tfio(path)
    results: list[Recorded | ValueError] = []

    for segment in segments:
        end_s = len(samples) / rate_hz if segment.end_s is None else segment.end_s
        part = samples[round(segment.begin_s * rate_hz) : round(end_s * rate_hz)]
        recorded = Recorded()

        try:
            mono = _Mixer(path, segment.channel).mono(part)
            if rate_hz != sample_rate_hz and mono.size:
                mono = soxr.resample(mono, rate_hz, sample_rate_hz, quality="HQ")

            recorded.samples = mono
            results.append(_checked(path, recorded, sample_rate_hz))
        except ValueError as error:
            results.append(error)

    return results


def _to_float(samples: np.ndarray) -> np.ndarray:
    """Scales integers of any width to -1..1.

    Eight bits are unsigned in WAV, with silence at 128.
    """
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - 128) / 128

    if samples.dtype.kind == "i":
        full_scale = -float(np.iinfo(samples.dtype).min)
        return (samples / full_scale).astype(np.float32)

    return samples.astype(np.float32)


@functools.cache
def _why_no_tfio() -> str:
    """Returns why tensorflow-io doesn't load, or "".

    Each release of it fits only one version of TensorFlow, so it usually doesn't.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        return f"TensorFlow cannot be imported ({error})"

    # If its native library doesn't fit, importing tensorflow-io only warns; using it
    # raises.
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
