"""Opens audio files, and reads durations from their headers.

All reading of recordings begins here: corpora need durations of millions of files
quickly (`audio_duration_s`), and `tfasr.data.audio` needs samples (`opened_audio`).
Headers lie: programs that write to a pipe leave a wrong size, files are cut short, and
several files are joined to one. So wherever a header can't be trusted, one of the
modules `chunks`, `flac`, `mpeg` and `ogg` looks for the samples, and libsndfile decodes
exactly these. Formats that it doesn't know go through ffmpeg.
"""

import contextlib
import errno
import mmap
import os
import re
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile

from tfasr.corpora.chunks import UNKNOWN_BYTES, chunk_layout
from tfasr.corpora.flac import flac_layout, joined_files
from tfasr.corpora.formats import FLAC_MARK, FOREIGN
from tfasr.corpora.mpeg import mpeg_layout, tag_bytes
from tfasr.corpora.ogg import ogg_layout
from tfasr.corpora.parts import Layout, PartFile, Read, UnsoundError

# Suffixes by which a corpus's reader recognises audio; the content decides how it is
# read.
_BY_LIBSNDFILE = (
    ".flac .wav .wave .bwf .rf64 .w64 .ogg .oga .opus .mp3 .mp2 .mpga .aif .aiff .aifc "
    ".au .snd .caf .sph .nist"
)
_BY_FFMPEG = ".m4a .m4b .mp4 .mov .3gp .webm .mka .mkv .aac .wma .amr .wv"
AUDIO_SUFFIXES = frozenset(f"{_BY_LIBSNDFILE} {_BY_FFMPEG}".split())
_MPEG_SUFFIXES = (".mp3", ".mp2", ".mpga")

# The shortest header of a WAV file with samples; FLAC needs 42 bytes.
_HEAD_BYTES = 44
_PCM = 1  # WAVE's code for uncompressed integers
_UNKNOWN_FRAMES = 2**62  # libsndfile reports 2**63 - 1 frames if it doesn't know
_HIGHEST_HZ = 1_000_000  # resampling from a higher rate would take gigabytes
_FFMPEG_S = 1800  # limit in seconds, for both processor time and wall-clock time
_FFMPEG_BYTES = 2**32 - 2**16  # largest WAV file: 12 hours at 48 kHz
_LONGEST_S = 1e6  # of audio to decode; the limit in bytes is lower
# It may open only the file on its standard input: a recording from elsewhere could
# be a playlist that names other files or addresses. It stops at the first error, or a
# damaged file would pass for a shorter one.
_FFMPEG = (
    "ffmpeg",
    "-nostdin",
    "-hide_banner",
    "-v",
    "error",
    "-xerror",
    "-timelimit",
    str(_FFMPEG_S),
    "-protocol_whitelist",
    "file,pipe",
    "-f",
    "{reader}",
    "-i",
    "file:/dev/stdin",
    "-map",
    "0:a:0",
    "-ac",
    "1",
    "-t",
    "{most_s}",
    "-c:a",
    "pcm_s16le",
    "-f",
    "wav",
    "pipe:1",
)
_PIECE_BYTES = 1 << 20  # of ffmpeg's output to read at once
# In ffmpeg's messages: prefixes for its developers, and words that mean that a file is
# truncated.
_FFMPEG_PREFIX = re.compile(r"\[[^]]* @ 0x[0-9a-f]+\] |file:/dev/stdin: ")
_FFMPEG_CUT = re.compile("ended prematurely|partial file", re.IGNORECASE)
_MOST_MESSAGE = 300  # characters of what ffmpeg says


def stated_duration_s(path: str | Path) -> float | None:
    """Reads a duration from a plain FLAC or WAV header without a decoder.

    This is faster than libsndfile, which counts with millions of files. None if the
    file has another format, or its header can't be trusted.

    Source: RFC 9639, section 8.2 (FLAC's STREAMINFO); Microsoft's "Multimedia
    Programming Interface and Data Specifications 1.0" (RIFF WAVE).
    """
    with (
        contextlib.suppress(OSError, ValueError),
        open(path, "rb", buffering=0) as file,  # noqa: PTH123 - Path.open takes longer
    ):
        head = file.read(_HEAD_BYTES)
        if head.startswith(FLAC_MARK):
            return _of_flac(head)
        if head.startswith(b"RIFF"):
            return _of_wav(head, os.fstat(file.fileno()).st_size)

    return None


def _of_flac(head: bytes) -> float | None:
    """Returns the seconds in a FLAC file's first 42 bytes; None if they don't say."""
    is_stream_info = (
        len(head) >= 42 and head[4] & 0x7F == 0 and head[5:8] == b"\0\0\x22"
    )
    # 20 bits of sample rate, 8 of channels and sample size, and 36 of samples.
    packed = int.from_bytes(head[18:26], "big")
    rate_hz = packed >> 44
    samples = packed & (2**36 - 1)
    if not is_stream_info or not rate_hz or not samples:
        return None

    return samples / rate_hz


def _of_wav(head: bytes, size: int) -> float | None:
    """Returns the seconds of a plain WAV file of ``size`` bytes; None for any other.

    Plain means: uncompressed, and only samples behind the header.
    """
    plain = head[8:20] == b"WAVEfmt \x10\0\0\0" and head[36:40] == b"data"
    if not plain or len(head) < _HEAD_BYTES:
        return None

    # The chunk "fmt ", without the bytes per second.
    form, channels, rate_hz, _, block, bits = struct.unpack("<HHIIHH", head[20:36])
    (stated,) = struct.unpack("<I", head[40:44])
    whole_bytes = bits in (8, 16, 24, 32) and 8 * block == channels * bits
    possible = form == _PCM and rate_hz and channels and whole_bytes
    # If anything follows the samples, the stated size may be wrong: `opened_audio`
    # looks at it.
    padded = stated + stated % 2
    if not possible or not 0 < stated < UNKNOWN_BYTES or padded != size - _HEAD_BYTES:
        return None

    return None if stated % block else stated // block / rate_hz


class _ReadInOrder(soundfile.SoundFile):
    """An audio file that is read from beginning to end, without seeking.

    By default, soundfile seeks to its new position after each block. In an MP3 file
    this resets libsndfile's decoder, which loses its state, so the samples would depend
    on the block size.
    """

    def seekable(self) -> bool:
        return False


class AudioFile:
    """An open recording, read from its beginning to its end.

    Attributes:
        samplerate: in Hz.
        channels: how many.
        frames: samples per channel, counted wherever the header can't be trusted.
        remark: how the header differs from the content, for people; "" if it doesn't.
        exact_seek: whether `seek` finds the sample that reading from the beginning
            would.
    """

    def __init__(
        self,
        files: list[soundfile.SoundFile],
        remark: str = "",
        rest: Callable[[], "AudioFile | None"] = lambda: None,
    ):
        """Begins with the first of ``files``, which are read one after the other.

        ``rest`` is called at the end, and may return what follows in the same file:
        looking for joined files takes time, so it is put off until the decoder is
        there.
        """
        first = files[0]
        self._files = list(files)
        # Joined files that come after the one being read.
        self._waiting = files[1:]
        self._file = first
        self._left: int = first.frames  # samples of this file that are unread
        self._rest = rest
        self.samplerate: int = first.samplerate
        self.channels: int = first.channels
        self.frames: int = sum(file.frames for file in files)
        self.remark = remark
        keeps_no_state = (
            first.format in _EXACT_SEEK and first.subtype in _EXACT_SEEK_SUBTYPES
        )
        self.exact_seek = len(files) == 1 and keeps_no_state

    def read(self, count: int) -> np.ndarray:
        """Returns the next samples, float32 ``(at most count, channels)``.

        At the end, these are no samples.
        """
        while self._left or self._next_file():
            block = self._file.read(
                min(count, self._left),
                dtype="float32",
                always_2d=True,
            )
            if len(block):
                self._left -= len(block)
                return block

            self._left = 0  # the decoder ends earlier than the header says

        return np.zeros((0, self.channels), np.float32)

    def _next_file(self) -> bool:
        """Goes on to the next joined file; returns whether there is one."""
        if not self._waiting and (rest := self._rest()) is not None:
            self.remark = rest.remark
            self.frames = rest.frames
            # The first of them is the file that has just been read.
            self._waiting = rest._files[1:]

        self._rest = lambda: None
        if not self._waiting:
            return False

        self._file = self._waiting.pop(0)
        self._left = self._file.frames

        return True

    def seek(self, frame: int) -> None:
        """Goes to a sample, counted from 0; only if `exact_seek`."""
        self._file.seek(frame)
        self._left = self.frames - frame


# Formats whose decoders keep no state from one block of samples to the next.
_EXACT_SEEK = ("WAV", "WAVEX", "RF64", "W64", "AIFF", "AU", "CAF", "NIST", "FLAC")
_EXACT_SEEK_SUBTYPES = (
    "PCM_S8",
    "PCM_U8",
    "PCM_16",
    "PCM_24",
    "PCM_32",
    "FLOAT",
    "DOUBLE",
    "ULAW",
    "ALAW",
)


@contextlib.contextmanager
def opened_audio(path: str | Path) -> Iterator[AudioFile]:
    """Opens a complete audio file, through ffmpeg if libsndfile doesn't read its format.

    Files whose header states a wrong length are read to their end, and so are all of
    several files that were joined.

    Raises:
        ValueError: naming the path and the cause, also if a file is cut short. Only a
        full disk, which isn't the file's fault, raises OSError.
    """
    # Checked first, because libsndfile reports a missing file or a folder as "System
    # error".
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises on an overlong name
        raise unreadable(path, "there is no such file")

    try:
        with contextlib.ExitStack() as stack:
            opened = _opened(path, stack)
            _check_header(path, opened)
            yield opened
    except PermissionError as error:
        cause = "this user may not read it; change its permissions"
        raise unreadable(path, cause) from error
    except UnsoundError as error:
        raise unreadable(path, str(error)) from error
    except struct.error as error:
        raise unreadable(path, f"its header is cut short ({error})") from error
    # soundfile raises TypeError for a name that ends in .raw.
    except (soundfile.SoundFileError, OSError, TypeError) as error:
        # No space for ffmpeg's output.
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise

        cause = getattr(error, "error_string", str(error))
        # What libsndfile says of files in no format that it knows.
        if "possibly a pipe" in cause:
            cause = "its format is not recognised"

        raise unreadable(path, cause) from error


def _sound_file(source: str | Path | int | PartFile) -> soundfile.SoundFile:
    """Opens a file, descriptor or part of a file with libsndfile, which won't close it."""
    return _ReadInOrder(source, closefd=False)


def _opened(path: str | Path, stack: contextlib.ExitStack) -> AudioFile:
    """Opens a recording by what its first bytes say; ``stack`` closes all that is opened."""
    # One descriptor for the header, the layout and libsndfile.
    stored = stack.enter_context(open(path, "rb", buffering=0))  # noqa: PTH123, SIM115 - is faster
    size = os.fstat(stored.fileno()).st_size
    head = os.pread(stored.fileno(), _HEAD_BYTES, 0)

    if FOREIGN.match(head):
        decoded = stack.enter_context(decoded_by_ffmpeg(path))
        return AudioFile([stack.enter_context(_sound_file(decoded.fileno()))])

    def read(start: int, count: int) -> bytes:
        return os.pread(stored.fileno(), count, start)

    # A plain file needs no further look.
    if head.startswith(b"RIFF") and _of_wav(head, size) is not None:
        return AudioFile([stack.enter_context(_sound_file(stored.fileno()))])

    layout = _layout(path, stored, head, size, read)
    if layout is not None:
        return _joined(layout, stored, stack)
    if not head.startswith(FLAC_MARK):
        return AudioFile([stack.enter_context(_sound_file(path))])

    def rest() -> AudioFile | None:
        # The decoder reads in blocks, so most of a joined file is still unread.
        is_read = stored.tell() == size
        layout = None if is_read else joined_files(read, size)

        return None if layout is None else _joined(layout, stored, stack)

    return AudioFile([stack.enter_context(_sound_file(stored.fileno()))], rest=rest)


def _joined(layout: Layout, stored: BinaryIO, stack: contextlib.ExitStack) -> AudioFile:
    """Opens the parts of a layout; UnsoundError if they don't fit together.

    A decoder that expects another number of samples than were counted reads them
    wrongly.
    """
    files = []
    for part in layout.parts:
        file = stack.enter_context(_sound_file(PartFile(stored, part)))
        if part.frames is not None and abs(part.frames - file.frames) > part.tolerance:
            counts = (
                f"it holds {part.frames} samples, but the decoder expects {file.frames}"
            )
            raise UnsoundError(f"{counts}; convert it to FLAC")

        files.append(file)

    # A decoder gives samples of one rate and number of channels.
    forms = {(file.samplerate, file.channels) for file in files}
    if len(forms) > 1:
        listed = ", ".join(
            f"{rate} Hz with {count} channels" for rate, count in sorted(forms)
        )
        raise UnsoundError(
            f"files of different rates or channels are joined in it: {listed}"
        )

    return AudioFile(files, layout.remark)


def _layout(
    path: str | Path,
    stored: BinaryIO,
    head: bytes,
    size: int,
    read: Read,
) -> Layout | None:
    """Returns a file's layout if its header is wrong or incomplete, else None.

    Raises:
        UnsoundError: if it is cut short.
    """
    if not size:
        raise UnsoundError("it is empty: 0 bytes")
    if head.startswith(FLAC_MARK):
        return flac_layout(read, size)

    if head.startswith((b"OggS", b"ID3", b"\xff")) or _is_named_mpeg(path, head):
        with mmap.mmap(stored.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if head.startswith(b"OggS"):
                return ogg_layout(content, size)

            start = tag_bytes(content, 0)
            if content[start : start + 4] in (FLAC_MARK, b"OggS", b"RIFF"):
                return None  # another format behind MP3's tag

            return mpeg_layout(content, size)

    if head.startswith(b"NIST_1A"):
        _check_sphere(read(0, 1024), size)
        return None

    return chunk_layout(read, size)


def _is_named_mpeg(path: str | Path, head: bytes) -> bool:
    """Whether a name says MP3, for files that begin with something else than a frame."""
    return str(path).lower().endswith(_MPEG_SUFFIXES) and not head.startswith(b"RIFF")


def _check_sphere(header: bytes, size: int) -> None:
    """Raises UnsoundError if a NIST SPHERE file has fewer samples than its header states."""
    fields = dict(re.findall(rb"^(\w+) -i (\d+)", header, re.MULTILINE))
    count = int(fields.get(b"sample_count", 0))
    sample_bytes = int(fields.get(b"channel_count", 1)) * int(
        fields.get(b"sample_n_bytes", 2)
    )
    present = (size - len(header)) // sample_bytes
    if present < count:
        raise UnsoundError(f"truncated: {present} of {count} samples are there")


@contextlib.contextmanager
def decoded_by_ffmpeg(
    path: str | Path, most_s: float = _LONGEST_S
) -> Iterator[BinaryIO | None]:
    """Decodes a recording in a format that libsndfile can't read.

    Args:
        path: the recording.
        most_s: seconds to decode at most.

    Yields:
        A temporary mono WAV file, or None if libsndfile reads the format.

    Raises:
        ValueError: if ffmpeg is missing or can't read the whole file.
    """
    with Path(path).open("rb") as file:
        foreign = FOREIGN.match(file.read(_HEAD_BYTES))
        if foreign is None:
            yield None
            return

        if shutil.which(_FFMPEG[0]) is None:
            remedy = (
                "install ffmpeg (such as apt install ffmpeg), or convert it to FLAC"
            )
            raise unreadable(path, f"libsndfile does not read its format: {remedy}")

        file.seek(0)
        command = [
            word.format(reader=foreign.lastgroup, most_s=most_s) for word in _FFMPEG
        ]

        with tempfile.TemporaryFile() as decoded:
            if fault := _run_ffmpeg(command, file, decoded):
                raise unreadable(path, f"ffmpeg: {fault}")

            decoded.seek(0)
            yield decoded


def _run_ffmpeg(command: list[str], source: BinaryIO, decoded: BinaryIO) -> str:
    """Runs ffmpeg and writes its output to ``decoded``; returns what went wrong, or "".

    If this process is killed, ffmpeg ends at its next write to the pipe, or at its time
    limit.
    """
    with (
        tempfile.TemporaryFile() as messages,
        subprocess.Popen(
            command,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=messages,
        ) as process,
    ):
        # ffmpeg's own limit counts processor time only.
        late = threading.Timer(_FFMPEG_S, process.kill)
        late.start()

        try:
            while decoded.tell() <= _FFMPEG_BYTES:
                piece = process.stdout.read(_PIECE_BYTES)
                if not piece:
                    process.wait()
                    break

                decoded.write(piece)
        finally:
            late.cancel()
            process.kill()

        messages.seek(0)
        # A damaged file may cause a message per frame.
        text = messages.read(_PIECE_BYTES).decode(errors="replace")

    if decoded.tell() > _FFMPEG_BYTES:
        return (
            f"it holds more than {_FFMPEG_BYTES / 1e9:.1f} GB of samples: cut it in two"
        )

    text = _FFMPEG_PREFIX.sub("", text).replace("\n", "; ")
    text = text.strip("; ")[:_MOST_MESSAGE]
    if "matches no streams" in text:
        return "it holds no audio, only pictures"

    if process.returncode or _FFMPEG_CUT.search(text):
        return text or f"it ended with exit code {process.returncode}"

    return ""


def audio_duration_s(path: str | Path) -> float:
    """Returns an audio file's seconds, from its header if that can be trusted.

    The headers of FLAC files, and of WAV files that end with their samples, are
    trusted; reading the samples will show whether they are right. In other files
    samples are counted, without decoding them.

    Raises:
        ValueError: as `opened_audio` does.
    """
    stated_s = stated_duration_s(path)
    if stated_s is not None:
        return stated_s

    with opened_audio(path) as file:
        return file.frames / file.samplerate


def unreadable(path: str | Path, cause: str) -> ValueError:
    """Returns the error for a recording that can't be used, for the caller to raise."""
    return ValueError(
        f"An audio file must be readable to its end. Received: {path}: "
        f"{cause.strip().rstrip('.')}."
    )


def _check_header(path: str | Path, file: AudioFile) -> None:
    """Raises ValueError for lengths and rates that would exhaust the memory."""
    if file.frames > _UNKNOWN_FRAMES:
        raise unreadable(path, "its header does not state its length; encode it again")

    if file.samplerate > _HIGHEST_HZ:
        rates = f"{file.samplerate} Hz, more than the limit of {_HIGHEST_HZ} Hz"
        raise unreadable(path, f"its header states {rates}")
