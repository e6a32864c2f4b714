"""Opens audio files, and reads their length from the header."""

import contextlib
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import soundfile

AUDIO_SUFFIXES = frozenset({".flac", ".wav", ".ogg", ".opus", ".mp3"})

_HEAD_BYTES = 44
_PCM = 1
# Writers that cannot seek back (a pipe) leave a size near 2**31 or 2**32 in the header of a
# complete file, and libsndfile reports 2**63 - 1 frames where a FLAC header states none.
_UNKNOWN_BYTES = 2**31 - 2**16
_UNKNOWN_FRAMES = 2**62
_HIGHEST_HZ = 1_000_000  # to convert a higher rate would take gigabytes
# libsndfile's log of a chunk that is larger than the rest of the file.
_CUT_CHUNK = re.compile(r"^\s*(?:data|SSND|Data Size)\s*: (\d+) \(should be (\d+)\)", re.MULTILINE)
_OGG_LARGEST_PAGE_BYTES = 65307
_OGG_PAGE_HEADER_BYTES = 27
_OGG_END_OF_STREAM = 4


def stated_duration_s(path: str | Path) -> float | None:
    """Returns the seconds that a plain FLAC or WAV header states, without a decoder, or None.

    Source: RFC 9639, section 8.2 (FLAC's STREAMINFO); Microsoft's "Multimedia Programming Interface
    and Data Specifications 1.0" (RIFF WAVE).
    """
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a third of the whole time
            head = file.read(_HEAD_BYTES)
            if head.startswith(b"fLaC"):
                return _of_flac(head)
            if head.startswith(b"RIFF"):
                return _of_wav(head, os.fstat(file.fileno()).st_size)
    except (OSError, ValueError):
        pass
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


@contextlib.contextmanager
def opened_audio(path: str | Path) -> Iterator[soundfile.SoundFile]:
    """Opens a complete audio file; errors, also libsndfile's, become a ValueError with the path."""
    # Asked first: to libsndfile a missing file, a locked one and a folder are a "System error".
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises on an overlong name
        raise unreadable(path, "there is no such file")
    try:
        Path(path).open("rb").close()
        with soundfile.SoundFile(path) as file:
            _check_complete(path, file)
            yield file
    except PermissionError as error:
        cause = "this user may not read it; change its permissions"
        raise unreadable(path, cause) from error
    # A TypeError is soundfile's answer to a name that ends in .raw.
    except (soundfile.SoundFileError, OSError, TypeError) as error:
        raise unreadable(path, getattr(error, "error_string", str(error))) from error


def audio_duration_s(path: str | Path) -> float:
    """Returns the seconds that a file's header states; a cut FLAC or MP3 shows when decoded."""
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
        rates = f"{file.samplerate} Hz, where {_HIGHEST_HZ} are the most"
        raise unreadable(path, f"its header states {rates}")
    # libsndfile reads what there is of a cut WAV and only mentions the cut in its log.
    for stated, present in _CUT_CHUNK.findall(file.extra_info):
        if int(present) < int(stated) < _UNKNOWN_BYTES:
            raise unreadable(path, f"truncated: {present} of {stated} bytes of audio are there")
    if file.format == "OGG" and not _ogg_ends(path):
        raise unreadable(path, "truncated: the Ogg stream has no last page")


def _ogg_ends(path: str | Path) -> bool:
    """Returns whether an Ogg file's last page is whole and marked as the last.

    Source: RFC 3533, section 6.
    """
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
