"""Tab-separated lists of utterances: ``path speaker seconds text`` under a header."""

import math
import os
from pathlib import Path, PurePath

from tfasr.corpora.corpus import Corpus
from tfasr.corpora.reading.assembly import Entry, assemble
from tfasr.corpora.reading.folders import require_folder
from tfasr.corpora.reading.text_lines import (
    MalformedLineError,
    decode_line,
    malformed,
    numbered_lines,
)
from tfasr.corpora.utterance import CorpusSplit
from tfasr.errors import UsageError

COLUMNS = ("path", "speaker", "seconds", "text")


def read_tsv(manifest: str | Path, corpus_dir: str | Path) -> CorpusSplit:
    """Returns the utterances of a tab-separated list.

    Args:
        manifest: a UTF-8 file with the header ``path speaker seconds text``; nothing is quoted,
            and speaker and seconds may be empty.
        corpus_dir: the folder that the paths are relative to.

    Returns:
        Utterances with ids that are their paths without suffix, and durations from the audio
        headers rather than from the column ``seconds``.

    Raises:
        UsageError: if the folder or the list is missing, or the list has another header.

    A list may name files anywhere: read only such as you trust with your files' content.
    """
    corpus_dir = require_folder(corpus_dir, "the folder that the list's paths are relative to")
    manifest = Path(manifest)
    lines = numbered_lines(manifest)
    _check_header(manifest, next(lines, (1, b""))[1])
    entries, rejections = [], []
    for number, line in lines:
        try:
            path, speaker, text = _parse(decode_line(line))
            utterance_id = id_of(path)
        except MalformedLineError as error:
            rejections.append(malformed(manifest, number, error))
            continue
        origin = f"{manifest}, line {number}"
        entries.append(Entry(utterance_id, corpus_dir / path, text, speaker, origin))
    return assemble(str(manifest), entries, rejections)


def id_of(path: str) -> str:
    """Returns the id of an utterance that is listed by path: the path without its suffix.

    Raises:
        MalformedLineError: if the path names no file.
    """
    plain = PurePath(os.path.normpath(path)) if path.strip() else PurePath()
    if plain.name in ("", "..") or "\0" in path:
        raise MalformedLineError(f"its path must name a file; received {path!r}")
    return plain.with_suffix("").as_posix()


def _check_header(manifest: Path, line: bytes) -> None:
    if line != "\t".join(COLUMNS).encode():
        raise UsageError(
            f"A tab-separated list must begin with the header {' '.join(COLUMNS)}, with a tab "
            f"between two names. Received: {line[:80].decode(errors='replace')!r} in {manifest}."
        )


def _parse(line: str) -> tuple[str, str, str]:
    """Returns path, speaker and text."""
    fields = line.split("\t")
    if len(fields) != len(COLUMNS):
        raise MalformedLineError(f"it must have {len(COLUMNS)} columns; it has {len(fields)}")
    path, speaker, seconds, text = fields
    try:
        valid = not seconds.strip() or 0 <= float(seconds) < math.inf
    except ValueError:
        valid = False
    if not valid:
        raise MalformedLineError(
            f"seconds must be a number, not below 0, or empty; received {seconds!r}"
        )
    return path, speaker.strip(), text


TSV = Corpus(read_tsv, list_suffix=".tsv")
