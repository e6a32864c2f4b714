"""Finds the samples in files made of chunks, whatever size their header states.

These are WAV, RF64, W64, AIFF, CAF and AU. `tfasr.corpora.audio_header` calls
`chunk_layout` for them, and reads a file as usual if the result is None. Otherwise the
result describes a file with a right header, which libsndfile reads instead.

Sources: Microsoft's "Multimedia Programming Interface and Data Specifications 1.0"
(RIFF WAVE); EBU Tech 3306 (RF64); Sony's "Wave64 File Format"; Apple's "Audio
Interchange File Format 1.3" and "Core Audio Format Specification 1.0"; Sun's "audio.h"
(AU).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tfasr.corpora.parts import Layout, Part, Read, UnsoundError

# Programs that can't seek back to the header (in a pipe) leave a size near 2**31 or
# 2**32 in it.
UNKNOWN_BYTES = 2**31 - 2**16

# Such a size where sizes have 64 bits.
_UNKNOWN_64 = 2**62

# In RF64, this size means that the true one is in the chunk ds64.
_LARGEST_32 = 2**32 - 1

# RF64's chunk ds64: sizes of the file and the samples, and their number.
_DS64 = struct.Struct("<4sIQQQI")

# Chunks that may be cut off after the samples, without harm to them.
_AFTER_SAMPLES = frozenset(
    (
        b"LIST",
        b"id3 ",
        b"ID3 ",
        b"bext",
        b"fact",
        b"cue ",
        b"smpl",
        b"inst",
        b"PEAK",
        b"PAD ",
        b"JUNK",
        b"junk",
        b"FLLR",
        b"iXML",
        b"axml",
        b"_PMX",
        b"afsp",
        b"DISP",
        b"acid",
        b"plst",
        b"MARK",
        b"COMT",
        b"NAME",
        b"AUTH",
        b"ANNO",
        b"APPL",
        b"FVER",
        b"INFO",
        b"free",
        b"info",
    )
)


@dataclass(frozen=True)
class _Form:
    """How a container writes its chunks: a name, a size, and as many bytes.

    Attributes:
        first: position of the first chunk.
        size: of a chunk's size.
        name_bytes: of a chunk's name.
        samples: name of the chunk of samples.
        before: bytes in that chunk before the samples.
        counts_header: whether a chunk's size includes its name and size.
        alignment: chunks begin at multiples of it.
    """

    first: int
    size: struct.Struct
    name_bytes: int
    samples: bytes
    before: int
    counts_header: bool
    alignment: int


_RIFF = _Form(
    first=12,
    size=struct.Struct("<I"),
    name_bytes=4,
    samples=b"data",
    before=0,
    counts_header=False,
    alignment=2,
)

# Before AIFF's samples are an offset and a block size, and before CAF's an edit count.
_AIFF = replace(_RIFF, size=struct.Struct(">I"), samples=b"SSND", before=8)
_CAF = replace(_RIFF, first=8, size=struct.Struct(">Q"), before=4, alignment=1)
_W64 = _Form(
    first=40,
    size=struct.Struct("<Q"),
    name_bytes=16,  # a GUID
    samples=b"data",
    before=0,
    counts_header=True,
    alignment=8,
)


def _form_of(head: bytes) -> _Form | None:
    """Returns the form of a file that begins with these 40 bytes; None for any other."""
    if head[:4] in (b"RIFF", b"RF64", b"BW64") and head[8:12] == b"WAVE":
        return _RIFF
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return _AIFF
    if head[:4] == b"caff":
        return _CAF
    if head[:4] == b"riff" and head[24:28] == b"wave":
        return _W64

    return None


@dataclass
class _Samples:
    """The samples of one file: several chunks of them are read one after another.

    ``windows`` are pairs of positions, of the first byte and after the last one.

    Attributes:
        start: of the file.
        form: how its chunks are written.
        windows: where its samples are.
        stated: bytes of samples by the header.
        large: the chunk ds64.
    """

    start: int
    form: _Form
    windows: list[tuple[int, int]]
    stated: int = 0
    large: bytes = b""


def chunk_layout(read: Read, size: int) -> Layout | None:
    """Returns where a file's samples are.

    None if its header is right, or it isn't made of such chunks.

    Args:
        read: reads bytes of the file at a position.
        size: the file's.

    Raises:
        UnsoundError: if fewer samples are there than the header states.
    """
    # As many bytes as the longest header before a chunk, W64's.
    head = read(0, 40)
    if head[:4] in (b".snd", b"dns."):
        return _au_layout(head, size)
    if _form_of(head) is None:
        return None

    files = list(_files(read, size))
    present = sum(stop - start for file in files for start, stop in file.windows)
    if not files:
        return None

    stated = files[0].stated
    if len(files) == 1 and len(files[0].windows) == 1 and present == stated:
        return None

    parts = tuple(_part(read, file) for file in files)
    is_unknown = not stated or (stated >= UNKNOWN_BYTES and stated > present)

    # A size that the program didn't know is nothing to remark on.
    remark = ""
    if len(files) > 1:
        remark = f"{len(files)} files are joined in it; all of them are read"
    elif not is_unknown:
        remark = f"its header states {stated} bytes of samples, but {present} are there"

    return Layout(parts, remark)


def _files(read: Read, size: int) -> Iterator[_Samples]:
    """Yields the files that are joined in one, up to the first that isn't a known form."""
    start = 0
    while start < size:
        form = _form_of(read(start, 40))
        if form is None:
            return

        file = _Samples(start, form, [])
        start = _follow(read, size, file)
        if file.windows:
            yield file


def _follow(read: Read, size: int, file: _Samples) -> int:
    """Adds a file's chunks of samples to it; returns where the next file begins.

    Some programs write several chunks of samples, so all chunks are followed to the
    end.

    Args:
        read: reads bytes of the whole file at a position.
        size: the whole file's, in bytes.
        file: one of the files that are joined in it; its windows are added to.
    """
    form = file.form
    position = file.start + form.first
    header_bytes = form.name_bytes + form.size.size

    while position + header_bytes <= size:
        if (
            position > file.start + form.first
            and _form_of(read(position, 40)) is not None
        ):
            return position

        name, length = _chunk(read, position, form)
        begin = position + header_bytes
        if name == b"ds64":
            file.large = read(position, _DS64.size)
        if name != form.samples:
            position = _aligned(begin + length, file, read)
            continue

        # The true size is in the chunk ds64.
        if file.large and length == _LARGEST_32:
            length = _DS64.unpack(file.large)[3]

        begin = min(begin + form.before, size)
        length = max(length - form.before, 0)
        end = _end_of_samples(read, size, file, begin, length)
        file.windows.append((begin, end))
        # The first chunk's, by which the header is judged.
        file.stated = file.stated or length
        position = _aligned(end, file, read)

    return size


def _chunk(read: Read, position: int, form: _Form) -> tuple[bytes, int]:
    """Returns the name (four bytes of it) and length of the chunk at a position."""
    content = read(position, form.name_bytes + form.size.size)
    (length,) = form.size.unpack(content[form.name_bytes :])
    if form.counts_header:
        length = max(length - len(content), 0)

    return content[:4], length


def _aligned(position: int, file: _Samples, read: Read) -> int:
    """Returns where the next chunk begins; some programs leave out the padding byte.

    Args:
        position: the end of a chunk.
        file: whose chunks they are.
        read: reads bytes at a position.
    """
    padding = -(position - file.start) % file.form.alignment
    if padding == 1 and file.form is _RIFF and read(position, 4) in (b"data", b"fmt "):
        return position

    return position + padding


def _end_of_samples(
    read: Read,
    size: int,
    file: _Samples,
    begin: int,
    length: int,
) -> int:
    """Returns where a chunk of samples ends; the end of the file if its length is wrong.

    A length is right if only chunks or another file follow. A length larger than the
    file is one that the program didn't know, if it is near the largest, and else it
    means that the file was cut.

    Raises:
        UnsoundError: if the file was cut.
    """
    end = begin + length
    if end > size:
        unknown = UNKNOWN_BYTES
        if file.form.size.size == 8 or file.large:
            unknown = _UNKNOWN_64

        if length < unknown:
            shortfall = f"{size - begin} of {length} bytes of audio are there"
            raise UnsoundError(f"truncated: {shortfall}")

        return size

    padding = -(end - file.start) % file.form.alignment
    if any(_only_chunks(read, size, file.form, end + skip) for skip in {0, padding}):
        return end

    return size


def _only_chunks(read: Read, size: int, form: _Form, position: int) -> bool:
    """Whether chunks, or other files, fill a file from a position to its end."""
    header_bytes = form.name_bytes + form.size.size
    while position + header_bytes <= size:
        if _form_of(read(position, 40)) is not None:
            return True

        name, length = _chunk(read, position, form)
        end = position + header_bytes + length
        if name in _AFTER_SAMPLES and end > size:
            return True
        if not all(32 <= letter < 127 for letter in name) or end > size:
            return False

        position = end + -end % form.alignment

    return True


def _part(read: Read, file: _Samples) -> Part:
    """Returns a file with a header that states the true size.

    A WAV file that is too large for 32 bits becomes RF64; other forms can't state it.
    """
    begin = file.windows[0][0]
    present = sum(stop - start for start, stop in file.windows)
    form = file.form
    # Everything before the samples, with the size to correct at its end.
    header = bytearray(read(file.start, begin - file.start))
    is_large = present > UNKNOWN_BYTES
    if form is _RIFF and (is_large or file.large):
        header = _as_rf64(header, file, present)
    elif form.size.size == 4 and present >= _LARGEST_32:
        raise UnsoundError(
            f"its header states {file.stated} bytes of samples, but {present} follow, "
            "more than this format allows; write it as RF64 or FLAC"
        )
    else:
        length = form.before + present
        if form.counts_header:
            length += form.name_bytes + form.size.size

        form.size.pack_into(header, len(header) - form.before - form.size.size, length)

    return Part(bytes(header), tuple(file.windows))


def _as_rf64(header: bytearray, file: _Samples, present: int) -> bytearray:
    """Returns the header of a WAV file as one with 64-bit sizes.

    Args:
        header: everything before the samples.
        file: where it is from; it may have 64-bit sizes already, but wrong ones.
        present: bytes of samples.
    """
    chunks = header[12:]
    if file.large:
        _, length = struct.unpack("<4sI", file.large[:8])
        place = chunks.index(b"ds64")
        del chunks[place : place + 8 + length]

    # The size of the samples' chunk, which ends the header.
    chunks[-4:] = _LARGEST_32.to_bytes(4, "little")
    ds64 = _DS64.pack(b"ds64", _DS64.size - 8, len(chunks) + present, present, 0, 0)

    return (
        bytearray(b"RF64" + _LARGEST_32.to_bytes(4, "little") + b"WAVE" + ds64) + chunks
    )


def _au_layout(head: bytes, size: int) -> Layout | None:
    """Returns where the samples of an AU file are; None if its header is right.

    Such a file has no chunks.

    Args:
        head: its first bytes.
        size: the file's.

    Raises:
        UnsoundError: if fewer samples are there than the header states.
    """
    # The mark is reversed in little-endian files.
    order = "<"
    if head.startswith(b".snd"):
        order = ">"

    begin, stated = struct.unpack(f"{order}II", head[4:12])
    present = size - begin
    if stated == present or stated >= UNKNOWN_BYTES or present <= 0:
        return None
    if stated > present:
        raise UnsoundError(f"truncated: {present} of {stated} bytes of audio are there")

    header = head[:8] + _LARGEST_32.to_bytes(4, "little")  # unknown: up to the end
    remark = f"its header states {stated} bytes of samples, but {present} are there"

    return Layout((Part(header, ((len(header), size),)),), remark)
