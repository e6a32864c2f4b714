"""Opens audio files, and reads durations from their headers."""

import contextlib
import errno
import os
import re
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import soundfile

_BY_LIBSNDFILE = ".flac .wav .ogg .oga .opus .mp3 .aif .aiff .au .caf .w64"
_BY_FFMPEG = ".m4a .mp4 .mov .3gp .webm .mka .mkv .aac .wma .amr .wv"
AUDIO_SUFFIXES = frozenset(f"{_BY_LIBSNDFILE} {_BY_FFMPEG}".split())

_HEAD_BYTES = 44
_PCM = 1
# Programs that can't seek back to the header (in a pipe) leave a size near 2**31 or 2**32 in it. If
# a FLAC header has no length, libsndfile reports 2**63 - 1 frames.
_UNKNOWN_BYTES = 2**31 - 2**16
_UNKNOWN_FRAMES = 2**62
_HIGHEST_HZ = 1_000_000  # resampling from a higher rate would take gigabytes
# What libsndfile logs about a chunk that is larger than the rest of the file.
_CUT_CHUNK = re.compile(r"^\s*(?:data|SSND|Data Size)\s*: (\d+) \(should be (\d+)\)", re.MULTILINE)
_OGG_LARGEST_PAGE_BYTES = 65307
_OGG_PAGE_HEADER_BYTES = 27
_OGG_END_OF_STREAM = 4
# First bytes of formats that libsndfile can't read; each group is named after ffmpeg's demuxer.
# ffmpeg may use only that: it might take the file for a playlist, which opens other files.
_FOREIGN = re.compile(
    rb"(?P<mov>.{4}ftyp)|(?P<matroska>\x1aE\xdf\xa3)|(?P<aac>\xff[\xf0\xf1\xf8\xf9])|(?P<asf>0&\xb2u)"
    rb"|(?P<amr>#!AMR)|(?P<wv>wvpk)",
    re.DOTALL,
)
_FFMPEG_S = 1800  # limit in seconds, for both processor time and wall-clock time
_FFMPEG_BYTES = 2**32 - 2**16  # largest WAV file: 12 hours at 48 kHz
_LONGEST_S = 1e6
_FFMPEG = (
    *("ffmpeg", "-nostdin", "-hide_banner", "-v", "error", "-xerror", "-timelimit", str(_FFMPEG_S)),
    *("-protocol_whitelist", "file,pipe", "-f", "{reader}", "-i", "file:/dev/stdin"),
    *("-map", "0:a:0", "-ac", "1", "-t", "{most_s}", "-c:a", "pcm_s16le", "-f", "wav", "pipe:1"),
)
_PIECE_BYTES = 1 << 20
# In ffmpeg's messages: prefixes for its developers, and words that mean that a file is truncated.
_FFMPEG_PREFIX = re.compile(r"\[[^]]* @ 0x[0-9a-f]+\] |file:/dev/stdin: ")
_FFMPEG_CUT = re.compile("ended prematurely|partial file", re.IGNORECASE)
_MOST_MESSAGE = 300


def stated_duration_s(path: str | Path) -> float | None:
    """Reads a duration from a plain FLAC or WAV header without a decoder; None if it isn't there.

    Source: RFC 9639, section 8.2 (FLAC's STREAMINFO); Microsoft's "Multimedia Programming Interface
    and Data Specifications 1.0" (RIFF WAVE).
    """
    with (
        contextlib.suppress(OSError, ValueError),
        open(path, "rb", buffering=0) as file,  # noqa: PTH123 - Path.open takes longer
    ):
        head = file.read(_HEAD_BYTES)
        if head.startswith(b"fLaC"):
            return _of_flac(head)
        if head.startswith(b"RIFF"):
            return _of_wav(head, os.fstat(file.fileno()).st_size)
    return None


def _of_flac(head: bytes) -> float | None:
    is_stream_info = len(head) >= 42 and head[4] & 0x7F == 0 and head[5:8] == b"\0\0\x22"
    packed = int.from_bytes(head[18:26], "big")
    rate_hz, samples = packed >> 44, packed & (2**36 - 1)
    if not is_stream_info or not rate_hz or not samples:
        return None
    return samples / rate_hz


def _of_wav(head: bytes, size: int) -> float | None:
    plain = head[8:20] == b"WAVEfmt \x10\0\0\0" and head[36:40] == b"data"
    if not plain or len(head) < _HEAD_BYTES:
        return None
    form, channels, rate_hz, _, block, bits = struct.unpack("<HHIIHH", head[20:36])
    (stated,) = struct.unpack("<I", head[40:44])
    whole_bytes = bits in (8, 16, 24, 32) and 8 * block == channels * bits
    possible = form == _PCM and rate_hz and channels and whole_bytes
    if not possible or not 0 < stated <= min(size - _HEAD_BYTES, _UNKNOWN_BYTES) or stated % block:
        return None
    return stated // block / rate_hz


class _ReadInOrder(soundfile.SoundFile):
    """An audio file that is read from beginning to end, without seeking.

    By default, soundfile seeks to its new position after each block. In an MP3 file this resets
    libsndfile's decoder, which loses its state, so the samples would depend on the block size.
    """

    def seekable(self) -> bool:
        return False


@contextlib.contextmanager
def opened_audio(path: str | Path) -> Iterator[soundfile.SoundFile]:
    """Opens a complete audio file, through ffmpeg if libsndfile doesn't read its format.

    Pass a number of frames to the file's ``read``. Errors, except for a full disk, are raised as a
    ValueError that names the path.
    """
    # Checked first, because libsndfile reports a missing file or a folder as "System error".
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises on an overlong name
        raise unreadable(path, "there is no such file")
    try:
        with decoded_by_ffmpeg(path) as decoded:
            source = path if decoded is None else decoded.fileno()
            with _ReadInOrder(source, closefd=False) as file:
                _check_complete(path, file)
                yield file
    except PermissionError as error:
        cause = "this user may not read it; change its permissions"
        raise unreadable(path, cause) from error
    # soundfile raises TypeError for a name that ends in .raw.
    except (soundfile.SoundFileError, OSError, TypeError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:  # no space for ffmpeg's output
            raise
        raise unreadable(path, getattr(error, "error_string", str(error))) from error


@contextlib.contextmanager
def decoded_by_ffmpeg(path: str | Path, most_s: float = _LONGEST_S) -> Iterator[BinaryIO | None]:
    """Decodes a recording in a format that libsndfile can't read to a temporary mono WAV file.

    Yields that file, or None if libsndfile reads the format. At most ``most_s`` seconds are
    decoded. Raises ValueError if ffmpeg is missing or can't read the whole file.
    """
    with Path(path).open("rb") as file:
        foreign = _FOREIGN.match(file.read(_HEAD_BYTES))
        if foreign is None:
            yield None
            return
        if shutil.which(_FFMPEG[0]) is None:
            remedy = "install ffmpeg (such as apt install ffmpeg), or convert it to FLAC"
            raise unreadable(path, f"libsndfile does not read its format: {remedy}")
        file.seek(0)
        command = [word.format(reader=foreign.lastgroup, most_s=most_s) for word in _FFMPEG]
        with tempfile.TemporaryFile() as decoded:
            if fault := _run_ffmpeg(command, file, decoded):
                raise unreadable(path, f"ffmpeg: {fault}")
            decoded.seek(0)
            yield decoded


def _run_ffmpeg(command: list[str], source: BinaryIO, decoded: BinaryIO) -> str:
    """Runs ffmpeg and writes its output to ``decoded``; returns what went wrong, or "".

    If this process is killed, ffmpeg ends at its next write to the pipe, or at its time limit.
    """
    with (
        tempfile.TemporaryFile() as messages,
        subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE, stderr=messages) as process,
    ):
        late = threading.Timer(_FFMPEG_S, process.kill)
        late.start()
        try:
            while decoded.tell() <= _FFMPEG_BYTES and (piece := process.stdout.read(_PIECE_BYTES)):
                decoded.write(piece)
            if decoded.tell() <= _FFMPEG_BYTES:
                process.wait()
        finally:
            late.cancel()
            process.kill()
        messages.seek(0)
        text = messages.read(_PIECE_BYTES).decode(errors="replace")
    if decoded.tell() > _FFMPEG_BYTES:
        return f"it holds more than {_FFMPEG_BYTES / 1e9:.1f} GB of samples: cut it in two"
    text = "; ".join(_FFMPEG_PREFIX.sub("", text).split("\n")).strip("; ")[:_MOST_MESSAGE]
    if "matches no streams" in text:
        return "it holds no audio, only pictures"
    failed = process.returncode or _FFMPEG_CUT.search(text)
    return (text or f"it ended with exit code {process.returncode}") if failed else ""


def audio_duration_s(path: str | Path) -> float:
    """Returns the duration in a file's header, which may be too long if a FLAC or MP3 was cut."""
    stated_s = stated_duration_s(path)
    if stated_s is not None:
        return stated_s
    with opened_audio(path) as file:
        return file.frames / file.samplerate


def unreadable(path: str | Path, cause: str) -> ValueError:
    return ValueError(
        f"An audio file must be readable to its end. Received: {path}: {cause.strip().rstrip('.')}."
    )


def _check_complete(path: str | Path, file: soundfile.SoundFile) -> None:
    if file.frames > _UNKNOWN_FRAMES:
        raise unreadable(path, "its header does not state its length; encode it again")
    if file.samplerate > _HIGHEST_HZ:
        rates = f"{file.samplerate} Hz, more than the limit of {_HIGHEST_HZ} Hz"
        raise unreadable(path, f"its header states {rates}")
    # libsndfile reads a truncated WAV as far as it goes, and mentions the fault only in its log.
    for stated, present in _CUT_CHUNK.findall(file.extra_info):
        if int(present) < int(stated) < _UNKNOWN_BYTES:
            raise unreadable(path, f"truncated: {present} of {stated} bytes of audio are there")
    if file.format == "OGG" and not _ogg_ends(path):
        raise unreadable(path, "truncated: the Ogg stream has no last page")


def _ogg_ends(path: str | Path) -> bool:
    """Whether an Ogg file's last page is complete and marked as the last (RFC 3533, section 6)."""
    with Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 2 * _OGG_LARGEST_PAGE_BYTES))
        tail = file.read()
    page = tail[max(0, tail.rfind(b"OggS")) :]
    if len(page) < _OGG_PAGE_HEADER_BYTES:
        return False
    num_segments = page[_OGG_PAGE_HEADER_BYTES - 1]
    body = _OGG_PAGE_HEADER_BYTES + num_segments
    is_whole = len(page) >= body + sum(page[_OGG_PAGE_HEADER_BYTES:body])
    return is_whole and bool(page[5] & _OGG_END_OF_STREAM)
