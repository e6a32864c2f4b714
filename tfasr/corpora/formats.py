"""Recognises files by their first bytes, whatever their names say.

`tfasr.corpora.audio_header` chooses ffmpeg by it, and a recogniser in use rejects files
where it expects raw samples.
"""

import re

from tfasr.corpora.mpeg import begins_with_frames

# How a FLAC file begins.
FLAC_MARK = b"fLaC"

# First bytes of formats that libsndfile can't read; each group is named after ffmpeg's
# demuxer. ffmpeg may use only that: it might take the file for a playlist, which opens
# other files.
FOREIGN = re.compile(
    rb"(?P<mov>.{4}ftyp)|(?P<matroska>\x1aE\xdf\xa3)|(?P<aac>\xff[\xf0\xf1\xf8\xf9])"
    rb"|(?P<asf>0&\xb2u)|(?P<amr>#!AMR)|(?P<wv>wvpk)",
    re.DOTALL,
)

# Names for messages, by the marks with which files begin.
_FORMATS = {
    "WAV": (b"RIFF", b"RF64", b"BW64", b"riff"),
    "FLAC": (FLAC_MARK,),
    "Ogg": (b"OggS",),
    "MP3": (b"ID3",),
    "AIFF": (b"FORM",),
    "CAF": (b"caff",),
    "AU": (b".snd", b"dns."),
    "SPHERE": (b"NIST_1A",),
    "gzip": (b"\x1f\x8b\x08",),
    "ZIP": (b"PK\x03\x04",),
}


def format_of(beginning: bytes) -> str | None:
    """Returns the format of a file, for messages; None if it may be raw samples.

    >>> format_of(b"fLaC..."), format_of(b"")
    ('FLAC', None)

    Args:
        beginning: the file's first bytes, as many as there are.
    """
    for name, marks in _FORMATS.items():
        if beginning.startswith(marks):
            return name

    foreign = FOREIGN.match(beginning)
    if foreign is not None:
        if foreign.lastgroup != "aac":
            return foreign.lastgroup

        # AAC's mark is too short to be sure.
        if _begins_with_aac_frames(beginning):
            return "AAC"

    if begins_with_frames(beginning):
        return "MP3"

    return None


def _begins_with_aac_frames(content: bytes) -> bool:
    """Whether another frame with the same header follows the first one.

    Source: ISO/IEC 13818-7, section 6.2 (ADTS): 13 bits from bit 30 on are the frame's
    bytes.
    """
    size = int.from_bytes(content[3:6], "big") >> 5 & 0x1FFF
    return size > 7 and content[size : size + 3] == content[:3]
