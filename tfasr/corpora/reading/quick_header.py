"""The length of the commonest audio files from their first bytes, without opening a decoder."""

import os
from pathlib import Path

_HEAD_BYTES = 44
_PCM = 1
# Writers that cannot seek back leave sizes near these in a WAV header.
_MOST_WAV_BYTES = 2**31 - 2**16


def stated_duration_s(path: str | Path) -> float | None:
    """Returns the seconds of audio that a plain FLAC or WAV header states, or None.

    None is no fault: the header may say nothing, be of another format or lay things out in another
    way, or the file be unreadable or shorter than it states.

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
    form, channels = int.from_bytes(head[20:22], "little"), int.from_bytes(head[22:24], "little")
    rate_hz = int.from_bytes(head[24:28], "little")
    block = int.from_bytes(head[32:34], "little")
    bits = int.from_bytes(head[34:36], "little")
    stated = int.from_bytes(head[40:44], "little")
    whole_bytes = bits in (8, 16, 24, 32) and 8 * block == channels * bits
    possible = form == _PCM and rate_hz and channels and whole_bytes
    if not possible or not 0 < stated <= min(size - _HEAD_BYTES, _MOST_WAV_BYTES):
        return None
    if stated % block:
        return None
    return stated // block / rate_hz
