"""Counts the samples of a FLAC file by its last frame, and finds files joined to it.

`tfasr.corpora.audio_header` calls this for each FLAC file that it opens, so the usual
case must be quick: only the end of the file is read.

Source: RFC 9639, sections 8.2 (STREAMINFO) and 9.1 (frame header).
"""

import re

from tfasr.corpora.formats import FLAC_MARK
from tfasr.corpora.parts import Layout, Part, Read

# How a file begins: the mark; STREAMINFO's type and length.
_BEGINNING = re.compile(rb"fLaC[\x00\x80]\x00\x00\x22")

# How a frame begins: with blocks of one size, or of several.
_SYNC = (b"\xff\xf8", b"\xff\xf9")

# MP3's tag, which some programs write behind FLAC files too.
_TAG_BYTES = 128

# The mark, a block's header, and STREAMINFO.
_HEAD_BYTES = 42

# How many bytes libFLAC reads at once.
_DECODER_BYTES = 8192

# Of the largest frame, if the header doesn't state it.
_MOST_FRAME_BYTES = 1 << 20

# Of a frame's header.
_MOST_FRAME_HEADER = 16

# Samples of a block by the code in its header; 0: reserved, or stated after the header.
_BLOCK_SIZES = (
    0,
    192,
    576,
    1152,
    2304,
    4608,
    0,
    0,
    *(256 << power for power in range(8)),
)


def flac_layout(read: Read, size: int) -> Layout | None:
    """Returns the files in a FLAC file; None if it ends where its header says.

    Only the end of the file is read, so this doesn't find a longer file of the same
    number of samples that was joined to it: see `joined_files`.
    """
    head = read(0, _HEAD_BYTES)
    stated = _stated_samples(head)
    tail = _tail(read, head, 0, size)
    is_joined = FLAC_MARK in tail[-_DECODER_BYTES:]
    if stated and not is_joined and _last_sample(tail, head) == stated:
        return None

    return joined_files(read, size)


def joined_files(read: Read, size: int) -> Layout | None:
    """Returns the files in a FLAC file; None if there is one, whose header is right."""
    content = read(0, size)
    starts = [0]

    for match in _BEGINNING.finditer(content, 1):  # not the file's own beginning
        starts.append(match.start())

    ends = [*starts[1:], size]
    parts = []
    remark = ""
    is_right = False

    for start, end in zip(starts, ends, strict=True):
        head = content[start : start + _HEAD_BYTES]
        stated = _stated_samples(head)
        present = _last_sample(_tail(read, head, start, end), head)

        # If fewer are there, the decoder will tell.
        is_right = present <= stated
        if not is_right:
            if stated:
                remark = f"its header states {stated} samples, but {present} are there"

            # The number of samples is in the lower bits of these bytes.
            corrected_bits = int.from_bytes(head[18:26], "big") - stated + present
            head = head[:18] + corrected_bits.to_bytes(8, "big") + head[26:]

        parts.append(Part(head, ((start + len(head), end),)))

    if len(parts) > 1:
        remark = f"{len(parts)} files are joined in it; all of them are read"
    elif is_right:
        return None

    return Layout(tuple(parts), remark)


def _stated_samples(head: bytes) -> int:
    """Returns the samples per channel that a header states; 0 if it doesn't know."""
    return int.from_bytes(head[18:26], "big") & (2**36 - 1)


def _tail(read: Read, head: bytes, start: int, end: int) -> bytes:
    """Returns the end of a file, with its last frame.

    Args:
        read: reads bytes at a position.
        head: the file's first bytes, which state the size of its largest frame.
        start: where the file begins, if several are joined.
        end: where it ends.
    """
    largest = int.from_bytes(head[15:18], "big") or _MOST_FRAME_BYTES
    length = max(largest + _TAG_BYTES, _DECODER_BYTES)
    begin = max(start + _HEAD_BYTES, end - length)

    return read(begin, end - begin)


def _last_sample(tail: bytes, head: bytes) -> int:
    """Returns the number of samples up to the end of the last frame; 0 without a frame.

    Frames are looked for from the end, because samples may look like the start of one.
    """
    place = len(tail)
    while (place := max(tail.rfind(sync, 0, place) for sync in _SYNC)) >= 0:
        samples = _frame_end(tail[place : place + _MOST_FRAME_HEADER], head)
        if samples:
            return samples

    return 0


def _frame_end(frame: bytes, head: bytes) -> int:
    """Returns the number of the sample after a frame; 0 if its header isn't one.

    The checksum of the header decides: 16 bits of sync code occur in samples, too.

    Args:
        frame: the frame's first bytes.
        head: the file's first bytes, with the size of its blocks.
    """
    if len(frame) < 6 or frame[3] & 1:
        return 0

    code = frame[2] >> 4
    rate_code = frame[2] & 15
    ones = 8 - (~frame[4] & 0xFF).bit_length()  # leading ones, as in UTF-8
    number_bytes = ones or 1
    number = frame[4] & (0x7F >> ones)

    for byte in frame[5 : 4 + number_bytes]:
        number = number << 6 | byte & 0x3F

    place = 4 + number_bytes
    samples = _BLOCK_SIZES[code]
    if code in (6, 7):
        samples = 1 + int.from_bytes(frame[place : place + code - 5], "big")
        place += code - 5

    # These rates are stated after the header, in one or two bytes.
    place += {12: 1, 13: 2, 14: 2}.get(rate_code, 0)
    if not samples or ones in (1, 8) or place >= len(frame):
        return 0
    if _crc_8(frame[:place]) != frame[place]:
        return 0

    # Blocks of different sizes: the number is that of the first sample.
    if frame[1] == 0xF9:
        return number + samples

    return number * int.from_bytes(head[10:12], "big") + samples


def _crc_8(content: bytes) -> int:
    """Returns the checksum of a frame header, of the polynomial x^8 + x^2 + x + 1."""
    remainder = 0
    for byte in content:
        remainder ^= byte
        for _ in range(8):
            remainder <<= 1
            if remainder & 0x100:
                remainder ^= 0x107

    return remainder
