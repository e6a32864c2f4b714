"""Tab-separated lists of utterances, whose header names the columns: path, text and others."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

from tfasr.corpora.corpus import Corpus
from tfasr.corpora.reading.assembly import Entry, assemble
from tfasr.corpora.reading.folders import require_folder
from tfasr.corpora.reading.text_lines import MalformedLineError, numbered_lines, parsed_lines
from tfasr.corpora.utterance import CorpusSplit, Rejection
from tfasr.errors import UsageError

COLUMNS = ("path", "speaker", "seconds", "text")
REQUIRED = ("path", "text")


def read_tsv(manifest: str | Path, corpus_dir: str | Path) -> CorpusSplit:
    """Returns the utterances of a tab-separated list.

    Args:
        manifest: a UTF-8 file whose first line names its columns, in any order: ``path`` and
            ``text``, and if there are any ``speaker`` and ``seconds``, whose fields may be empty.
            Other columns are not read, and nothing is quoted.
        corpus_dir: the folder that the paths are relative to.

    Returns:
        Utterances with ids that are their paths without suffix, and durations from the audio
        headers rather than from the column ``seconds``.

    Raises:
        UsageError: if the folder or the list is missing, or the header lacks a column or names
            one twice.

    A list may name files anywhere: read only such as you trust with your files' content.
    """
    corpus_dir = require_folder(corpus_dir, "the folder that the list's paths are relative to")
    manifest = Path(manifest)
    lines = numbered_lines(manifest)
    columns = _columns(manifest, next(lines, (1, b""))[1])
    return assemble(str(manifest), _entries(lines, columns, manifest, corpus_dir))


def _entries(
    lines: Iterator[tuple[int, bytes]], columns: list[str], manifest: Path, corpus_dir: Path
) -> Iterator[Entry | Rejection]:
    for origin, row in parsed_lines(manifest, lambda line: _parse(line, columns), lines):
        if isinstance(row, Rejection):
            yield row
        else:
            utterance_id, path, speaker, text = row
            yield Entry(utterance_id, corpus_dir / path, text, speaker, origin)


def id_of(path: str) -> str:
    """Returns the id of an utterance that is listed by path: the path without its suffix.

    Raises:
        MalformedLineError: if the path names no file.
    """
    plain = os.path.normpath(path) if path.strip() else ""
    name = plain.rpartition("/")[2]
    if name in ("", ".", "..") or "\0" in path:
        raise MalformedLineError(f"its path must name a file; received {path!r}")
    dot = name.rfind(".")
    return plain[: dot - len(name)] if 0 < dot < len(name) - 1 else plain


def _columns(manifest: Path, header: bytes) -> list[str]:
    columns = [name.strip() for name in header.decode(errors="replace").split("\t")]
    known = [name for name in columns if name in COLUMNS]
    missing = [name for name in REQUIRED if name not in known]
    if missing or len(known) != len(set(known)):
        found = f"no column {' and no column '.join(missing)}" if missing else "a column twice"
        raise UsageError(
            f"A tab-separated list must begin with a header that names the columns path and text "
            f"once, and speaker and seconds if it has them, with a tab between two names. "
            f"Received: {found} in {header[:80].decode(errors='replace')!r}, the first line "
            f"of {manifest}."
        )
    return columns


def _parse(line: str, columns: list[str]) -> tuple[str, str, str, str]:
    fields = line.split("\t")
    if len(fields) != len(columns):
        raise MalformedLineError(f"it must have {len(columns)} columns; it has {len(fields)}")
    row = dict(zip(columns, fields, strict=True))
    seconds = row.get("seconds", "")
    try:
        valid = not seconds.strip() or 0 <= float(seconds) < math.inf
    except ValueError:
        valid = False
    if not valid:
        raise MalformedLineError(
            f"seconds must be a number, not below 0, or empty; received {seconds!r}"
        )
    return id_of(row["path"]), row["path"], row.get("speaker", "").strip(), row["text"]


TSV = Corpus(read_tsv, list_suffix=".tsv")
