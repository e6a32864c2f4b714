"""Counts the frames of MP3 files, because their header may state another length.

Most have no header, so a decoder would have to guess their length or read all of it.
`mpeg_layout` goes from frame to frame without decoding any. Layers I and II and the
lower sample rates of MPEG-2 and 2.5 are counted the same way.

Sources: ISO/IEC 11172-3 and 13818-3 (frame headers); id3.org, "ID3 tag version 2.4.0",
section 3.1; gabriel.mp3-tech.org/mp3infotag.html (the header that Xing and LAME write
into the first frame).
"""

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tfasr.corpora.parts import Layout, Part, UnsoundError

_KBPS = {  # by version (1; 2 and 2.5) and layer
    (1, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (1, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES_HZ = {  # by the code of the version: 1, 2 and 2.5
    3: (44100, 48000, 32000),
    2: (22050, 24000, 16000),
    0: (11025, 12000, 8000),
}
_SAMPLES = {  # of a frame, by version and layer
    (1, 1): 384,
    (1, 2): 1152,
    (1, 3): 1152,
    (2, 1): 384,
    (2, 2): 1152,
    (2, 3): 576,
}
_LENGTH_HEADERS = (b"Xing", b"Info")  # of files with a variable and a constant bit rate
_BEGINNING = re.compile(rb"\xff[\xe0-\xff]|ID3|TAG|APETAGEX")  # of a frame, or of a tag
_ID3V1_BYTES = 128
_APE_HEADER_BYTES = 32
_MOST_BETWEEN = 2881  # bytes of the largest frame; damage of this size loses speech
# A tag of ten zeros, by which libsndfile recognises every MP3.
_ANY_TAG = b"ID3\x03\0\0\0\0\0\x0a" + bytes(10)
_TRIMMED_FRAMES = 3  # decoders leave out the delay of an encoder at both ends


@dataclass(frozen=True)
class _Frame:
    """What the header of a frame says of it."""

    bytes: int
    samples: int
    rate_hz: int
    layer: int
    version: int  # 1 or 2; 2 for 2.5 too
    # Of layer III's side information, between the header and a length header.
    side_bytes: int


def _frame(header: bytes) -> _Frame | None:
    """Parses the four bytes that a frame begins with; None if they aren't a frame's."""
    if len(header) < 4 or header[0] != 0xFF or header[1] < 0xE0:
        return None

    version_code = header[1] >> 3 & 3
    layer = 4 - (header[1] >> 1 & 3)
    rate_code = header[2] >> 2 & 3
    # If the bit rate is free (0) or forbidden (15), the frame's size is unknown.
    rate_index = header[2] >> 4
    if version_code == 1 or layer == 4 or rate_code == 3 or rate_index in (0, 15):
        return None

    version = 1 if version_code == 3 else 2
    rate_hz = _RATES_HZ[version_code][rate_code]
    samples = _SAMPLES[version, layer]
    slot = 4 if layer == 1 else 1  # bytes; frames are padded by one slot
    bits_per_s = 1000 * _KBPS[version, layer][rate_index - 1]
    slots = samples // 8 * bits_per_s // slot // rate_hz
    is_mono = header[3] >> 6 == 3
    side_bytes = {(1, False): 32, (1, True): 17, (2, False): 17, (2, True): 9}[
        version, is_mono
    ]
    padded = slots + (header[2] >> 1 & 1)

    return _Frame(padded * slot, samples, rate_hz, layer, version, side_bytes)


def tag_bytes(content: bytes | mmap.mmap, place: int) -> int:
    """Returns the size of a tag (ID3 version 1 or 2, APE) at a place; 0 without a tag.

    Tags stand before, after and sometimes between the frames.
    """
    head = content[place : place + _APE_HEADER_BYTES]
    if head[:3] == b"ID3" and len(head) >= 10 and max(head[6:10]) < 128:
        # Seven bits of each byte, so tags never look like frames.
        size = head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]
        footer_bytes = 10 if head[5] & 0x10 else 0
        return 10 + size + footer_bytes

    if head[:3] == b"TAG":
        return _ID3V1_BYTES

    if head[:8] == b"APETAGEX":
        # APE's size leaves out the header itself.
        after_header = int.from_bytes(head[12:16], "little")
        is_header = int.from_bytes(head[20:24], "little") >> 29 & 1
        return _APE_HEADER_BYTES + (after_header if is_header else 0)

    return 0


def begins_with_frames(content: bytes) -> bool:
    """Whether at least two frames follow each other.

    Raw samples hardly ever look like that, though they often look like one frame.
    """
    place = 0
    for _ in range(2):
        frame = _frame(content[place : place + 4])
        if frame is None:
            return False

        place += frame.bytes

    return True


def mpeg_layout(content: bytes | mmap.mmap, size: int) -> Layout | None:
    """Returns an MP3's frames, counted.

    None if its length header is right, or it isn't an MP3. If all frames have about the
    size of the first, a header that states the file's size is believed without
    counting.

    Raises:
        UnsoundError: if there are fewer frames than the header states, or the frames
        are interrupted by something else.
    """
    frames = _frames(content, size)
    begin, first = next(frames, (0, None))
    if first is None:
        return None

    # Of the header that Xing and LAME write into the first frame.
    stated_frames, stated_bytes = _stated(content, begin, first)
    if content[size - _ID3V1_BYTES : size - 125] == b"TAG":
        end = size - _ID3V1_BYTES
    else:
        end = size

    if stated_bytes == end - begin and _fits_constant_rate(
        first, stated_frames, stated_bytes
    ):
        return None

    count = 0 if stated_frames else 1  # the frame with the length header holds no sound
    windows = [[begin + (first.bytes if stated_frames else 0), begin + first.bytes]]

    for place, frame in frames:
        if (frame.rate_hz, frame.layer) != (first.rate_hz, first.layer):
            rates = f"{first.rate_hz} and {frame.rate_hz} Hz"
            raise UnsoundError(
                f"its frames differ (layers {first.layer}, {frame.layer}; {rates})"
            )

        count += 1
        if place != windows[-1][1]:
            windows.append([place, place])

        windows[-1][1] = min(place + frame.bytes, size)

    # Encoders count the frame with the header or leave it out.
    if stated_frames and abs(count - stated_frames) <= 1:
        return None

    in_samples = f"{count * first.samples} of {stated_frames * first.samples} samples"
    if count < stated_frames:
        raise UnsoundError(f"truncated: {in_samples} are there")

    remark = ""
    if stated_frames:
        remark = (
            f"its header states {stated_frames * first.samples} samples, but "
            f"{count * first.samples} are there"
        )

    header = b""
    if first.layer == 3:
        # So that the decoder needn't estimate the length.
        header = _ANY_TAG + _length_header(content[begin : begin + 4], count)

    part = Part(
        header,
        tuple((start, stop) for start, stop in windows if stop > start),
        frames=count * first.samples,
        tolerance=_TRIMMED_FRAMES * first.samples,
    )

    return Layout((part,), remark)


def _frames(content: bytes | mmap.mmap, size: int) -> Iterator[tuple[int, _Frame]]:
    """Yields the place and header of each frame, skipping tags and other bytes.

    After such bytes, a frame counts only if another frame or a tag follows it.
    """
    place = 0
    ended = None  # where the last frame ended

    while place + 4 <= size:
        frame = _frame(content[place : place + 4])
        if frame is not None and (
            ended == place or _is_followed(content, place, frame, size)
        ):
            if ended is not None and place - ended > _MOST_BETWEEN:
                raise UnsoundError(
                    f"damaged: {place - ended} bytes from byte {ended} on are no MPEG "
                    "frames"
                )

            yield place, frame
            place += frame.bytes
            ended = place
            continue

        tag = tag_bytes(content, place)
        if tag:
            place += tag
            ended = None if ended is None else place
            continue

        following = _BEGINNING.search(content, place + 1)
        place = size if following is None else following.start()


def _is_followed(
    content: bytes | mmap.mmap,
    place: int,
    frame: _Frame,
    size: int,
) -> bool:
    """Whether another frame, a tag or the file's end comes after a frame."""
    after = place + frame.bytes
    other = _frame(content[after : after + 4])
    if other is not None:
        return (other.layer, other.rate_hz) == (frame.layer, frame.rate_hz)

    return after == size or bool(tag_bytes(content, after))


def _stated(content: bytes | mmap.mmap, begin: int, first: _Frame) -> tuple[int, int]:
    """Returns the frames and bytes that a length header states; 0 for what it doesn't."""
    place = begin + 4 + first.side_bytes
    if first.layer != 3 or content[place : place + 4] not in _LENGTH_HEADERS:
        return 0, 0

    flags, *numbers = (
        int.from_bytes(content[at : at + 4], "big")
        for at in range(place + 4, place + 16, 4)
    )
    frames = numbers.pop(0) if flags & 1 else 0

    return frames, numbers[0] if flags & 2 else 0


def _fits_constant_rate(first: _Frame, frames: int, size: int) -> bool:
    """Whether frames as large as the first one make up so many bytes.

    The first one, with the length header, is not among ``frames``.
    """
    return frames > 0 and abs(size / (frames + 1) - first.bytes) <= 1


def _length_header(header: bytes, count: int) -> bytes:
    """Returns a frame without sound whose length header states ``count`` frames."""
    # The highest bit rate, so that the frame is large enough; no checksum, no padding.
    longest = bytes([0xFF, header[1] | 1, header[2] & 0x0C | 0xE0, header[3]])
    frame = _frame(longest)
    content = longest + bytes(frame.side_bytes) + b"Xing" + (1).to_bytes(4, "big")
    content += count.to_bytes(4, "big")

    return content.ljust(frame.bytes, b"\0")
