"""Reads tab-separated and JSON-lines lists of utterances, and decides which are left out."""

import json
import math
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from tfasr.alphabet import Alphabet
from tfasr.corpora.corpus import Corpus
from tfasr.corpora.reading import (
    Entry,
    MalformedLineError,
    assemble,
    numbered_lines,
    parsed_lines,
    require_folder,
)
from tfasr.corpora.utterance import CorpusSplit, Rejection, Utterance
from tfasr.errors import UsageError

COLUMNS = ("path", "speaker", "seconds", "text")
REQUIRED = ("path", "text")


def read_tsv(manifest: str | Path, corpus_dir: str | Path) -> CorpusSplit:
    """Returns the utterances of a tab-separated list; their ids are their paths without suffix.

    The first line names the columns, in any order: ``path`` and ``text``, optionally ``speaker``
    and ``seconds``. Other columns are ignored, and quotation marks have no special meaning.
    Durations come from the audio headers. A list can name any file on your computer, whose content
    then ends up in the shards, so read only lists that you trust.
    """
    corpus_dir = require_folder(corpus_dir, "the folder that the list's paths are relative to")
    manifest = Path(manifest)
    lines = numbered_lines(manifest)
    columns = _columns(manifest, next(lines, (1, b""))[1])
    parsed = parsed_lines(manifest, lambda line: _parse(line, columns, corpus_dir), lines)
    return assemble(str(manifest), entries_of(parsed))


def entries_of(parsed: Iterator[tuple[str, Any]]) -> Iterator[Entry | Rejection]:
    for origin, row in parsed:
        yield row if isinstance(row, Rejection) else Entry(*row, origin)


def id_of(path: str) -> str:
    """Returns an utterance's id by default: its path in the list, without suffix."""
    plain = os.path.normpath(path) if path.strip() else ""
    name = plain.rpartition("/")[2]
    if name in ("", ".", "..") or "\0" in path:
        raise MalformedLineError(f"its path must name a file; received {path!r}")
    dot = name.rfind(".")
    return plain[: dot - len(name)] if 0 < dot < len(name) - 1 else plain


def _columns(manifest: Path, header: bytes) -> list[str]:
    columns = [name.strip() for name in header.decode(errors="replace").split("\t")]
    recognised = [name for name in columns if name in COLUMNS]
    missing = [name for name in REQUIRED if name not in recognised]
    if missing or len(recognised) != len(set(recognised)):
        fault = f"no column {' and no column '.join(missing)}" if missing else "a column twice"
        raise UsageError(
            f"A tab-separated list must begin with a header that names the columns path and text "
            f"once, and speaker and seconds if it has them, with a tab between two names. "
            f"Received: {fault} in {header[:80].decode(errors='replace')!r}, the first line "
            f"of {manifest}."
        )
    return columns


def _parse(line: str, columns: list[str], corpus_dir: Path) -> tuple[str, Path, str, str]:
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
    speaker = row.get("speaker", "").strip()
    return id_of(row["path"]), corpus_dir / row["path"], row["text"], speaker


TSV = Corpus(read_tsv, list_suffix=".tsv")


def read_json_manifest(manifest: str | Path, corpus_dir: str | Path | None = None) -> CorpusSplit:
    """Returns the utterances of a JSON-lines manifest.

    Each line is an object with ``audio_filepath`` (absolute, or relative to the manifest's folder
    or to ``corpus_dir``) and ``text``, and optionally ``duration``, ``speaker`` and ``id`` (by
    default the path without suffix). Durations come from the audio headers. A manifest can name any
    file on your computer, whose content then ends up in the shards: read only those you trust.

    Source: NVIDIA NeMo's documentation, "Preparing Custom ASR Data".
    """
    manifest = Path(manifest).absolute()
    folders = [manifest.parent]
    if corpus_dir is not None:
        folders.append(require_folder(corpus_dir, "the folder that the manifest's paths are in"))
    _refuse_array(manifest)
    folders = list(dict.fromkeys(folders))
    parsed = parsed_lines(manifest, lambda line: _parse_json(line, folders))
    return assemble(str(manifest), entries_of(parsed))


def _refuse_array(manifest: Path) -> None:
    first = next(numbered_lines(manifest), (1, b""))[1]
    if not first.lstrip().startswith(b"["):
        return
    try:
        content = json.loads(manifest.read_bytes())
    except (ValueError, RecursionError):
        return  # each line will be read, and rejected if it is malformed
    if isinstance(content, list) and any(isinstance(value, dict) for value in content):
        raise UsageError(
            f"A JSON manifest must have one object a line. {manifest} is one JSON array: write "
            "its objects one a line, as with jq -c '.[]'."
        )


def _parse_json(line: str, folders: list[Path]) -> tuple[str, Path, str, str]:
    content = _content(line)
    if not isinstance(content, dict):
        raise MalformedLineError("it must be a JSON object")
    path = _field(content, "audio_filepath", str)
    text = _field(content, "text", str)
    duration = _field(content, "duration", int | float, default=0)
    if not 0 <= duration < math.inf:
        raise MalformedLineError(f"duration must not be below 0; received {duration!r}")
    if _field(content, "offset", int | float, default=0) != 0:
        raise MalformedLineError(
            f"offset must be 0, because files are read whole; received {content['offset']!r}. "
            "Cut the audio into one file per utterance"
        )
    stated_id = str(_field(content, "id", str | int, default=""))
    speaker = str(_field(content, "speaker", str | int, default=""))
    utterance_id = id_of(path)
    if stated_id.strip():
        utterance_id = stated_id
    elif os.path.isabs(path):  # noqa: PTH117 - no need for a Path
        prefixes = (folder.as_posix().rstrip("/") + "/" for folder in folders)
        prefix = next(filter(utterance_id.startswith, prefixes), "")
        utterance_id = utterance_id.removeprefix(prefix)
    candidates = [folder / path for folder in folders]
    if len(candidates) > 1:
        is_file = os.path.isfile  # Path.is_file raises on an overlong name
        candidates = [path for path in candidates if is_file(path)] or candidates
    return utterance_id, candidates[0], text, speaker


def _content(line: str) -> Any:
    try:
        content = orjson.loads(line)
        numbers = (content.get("id"), content.get("speaker")) if isinstance(content, dict) else ()
        if float not in map(type, numbers):  # orjson parses very large integers as floats
            return content
    except orjson.JSONDecodeError:
        pass  # Python's parser accepts more, and its errors are clearer
    try:
        content = json.loads(line)
        json.dumps(content, ensure_ascii=False).encode()  # raises for a lone surrogate
    except (ValueError, RecursionError) as error:
        raise MalformedLineError(f"it is not JSON: {error}") from error
    return content


def _field(content: dict[str, Any], name: str, kind: Any, default: Any = None) -> Any:
    value = content.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, kind):
        expected = getattr(kind, "__name__", str(kind))
        raise MalformedLineError(f"{name} must be of type {expected}; received {value!r}")
    return value


JSON = Corpus(read_json_manifest, list_suffix=".json")

TOO_LONG = "longer than max_duration_s"
OUTSIDE = "characters outside the alphabet"


def ctc_frames_needed(labels: Sequence[int]) -> int:
    """Returns how many frames CTC needs: one per label, and a blank between equal neighbours."""
    return len(labels) + sum(map(operator.eq, labels, labels[1:]))


def fault(
    utterance: Utterance,
    alphabet: Alphabet,
    *,
    output_frames: Callable[[float], int],
    max_duration_s: float = math.inf,
) -> Rejection | None:
    """Returns why an utterance is left out, or None. ``output_frames`` maps seconds to frames."""
    if utterance.duration_s > max_duration_s:
        detail = f"{utterance.duration_s:.2f} s > {max_duration_s:.2f} s"
        return Rejection(utterance.id, TOO_LONG, detail)
    if not utterance.text:
        return Rejection(utterance.id, "empty transcript", str(utterance.audio_path))
    foreign = alphabet.foreign_characters(utterance.text)
    if foreign:
        detail = f"{foreign} in {utterance.text!r}"
        return Rejection(utterance.id, OUTSIDE, detail)
    return length_fault(utterance, alphabet, output_frames(utterance.duration_s))


def length_fault(utterance: Utterance, alphabet: Alphabet, frames: int) -> Rejection | None:
    """Returns why the transcript doesn't fit into this many output frames, or None."""
    needed = ctc_frames_needed(alphabet.encode(utterance.text)) if frames > 0 else 1
    if frames >= needed:
        return None
    where = f"{utterance.duration_s:.3f} s leave {max(frames, 0)} frames: {utterance.audio_path}"
    if frames < 1:
        return Rejection(utterance.id, "too short for the model's convolution", where)
    return Rejection(utterance.id, "no CTC path", f"{where}, {needed} needed")
