"""Finds the streams that follow each other in an Ogg file.

libsndfile reads only the first stream of a chain, such as an internet radio's.

Source: RFC 3533, sections 4 (chained streams) and 6 (pages).
"""

import mmap

from tfasr.corpora.parts import Layout, Part, UnsoundError

# How a page begins; the first one with the version, and the flag of a stream's
# beginning.
_PAGE = b"OggS"
_FIRST_PAGE = b"OggS\0\2"

# The bytes before the sizes of a page's segments.
_HEADER_BYTES = 27

# With 255 segments of 255 bytes.
_LARGEST_PAGE_BYTES = _HEADER_BYTES + 255 + 255 * 255

# The flag of a stream's last page.
_END_OF_STREAM = 4


def ogg_layout(content: bytes | mmap.mmap, size: int) -> Layout | None:
    """Returns the streams of a chain; None if there is only one.

    Args:
        content: the file's.
        size: in bytes.

    Raises:
        UnsoundError: if the last page is missing or isn't marked as the last.
    """
    if not _ends(content[max(0, size - 2 * _LARGEST_PAGE_BYTES) :]):
        raise UnsoundError("truncated: the Ogg stream has no last page")

    starts = [0]
    # A first page; streams of one recording, as of a film, have theirs in a row.
    before = 0
    while (place := content.find(_FIRST_PAGE, before + 1)) >= 0:
        page = content[before : before + _LARGEST_PAGE_BYTES]
        if place != before + _page_bytes(page):
            starts.append(place)

        before = place

    if len(starts) == 1:
        return None

    ends = [*starts[1:], size]
    windows = zip(starts, ends, strict=True)
    parts = tuple(Part(b"", (window,)) for window in windows)

    return Layout(
        parts, f"it is a chain of {len(parts)} Ogg streams; all of them are read"
    )


def _ends(tail: bytes) -> bool:
    """Whether the last page in ``tail`` is whole and marked as the last of its stream."""
    page = tail[max(0, tail.rfind(_PAGE)) :]
    if len(page) < _HEADER_BYTES:
        return False

    is_whole = len(page) >= _page_bytes(page)

    return is_whole and bool(page[5] & _END_OF_STREAM)


def _page_bytes(page: bytes) -> int:
    """Returns the size of a page that ``page`` begins with."""
    body = _HEADER_BYTES + page[_HEADER_BYTES - 1]
    return body + sum(page[_HEADER_BYTES:body])
