"""NeMo-style manifests: one JSON object a line with ``audio_filepath, duration, text``."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from tfasr.corpora.corpus import Corpus
from tfasr.corpora.reading.assembly import Entry, assemble
from tfasr.corpora.reading.folders import require_folder
from tfasr.corpora.reading.text_lines import MalformedLineError, numbered_lines, parsed_lines
from tfasr.corpora.tsv import id_of
from tfasr.corpora.utterance import CorpusSplit, Rejection
from tfasr.errors import UsageError


def read_json_manifest(manifest: str | Path, corpus_dir: str | Path | None = None) -> CorpusSplit:
    """Returns the utterances of a JSON-lines manifest.

    Args:
        manifest: a UTF-8 file; each line an object with ``audio_filepath`` (absolute, or relative
            to the manifest's folder or to ``corpus_dir``) and ``text``, and optionally
            ``duration``, ``speaker`` and ``id``.
        corpus_dir: a second folder to look for relative paths in.

    Returns:
        Utterances with their ``id``, or else with their path without suffix, and with durations
        from the audio headers rather than from the manifest.

    Raises:
        UsageError: if the manifest or the folder is missing, or the manifest is one JSON array.

    A manifest may name files anywhere: read only such as you trust with your files' content.

    Source: NVIDIA NeMo's documentation, "Preparing Custom ASR Data".
    """
    manifest = Path(manifest).absolute()
    folders = [manifest.parent]
    if corpus_dir is not None:
        folders.append(require_folder(corpus_dir, "the folder that the manifest's paths are in"))
    _refuse_array(manifest)
    return assemble(str(manifest), _entries(manifest, list(dict.fromkeys(folders))))


def _entries(manifest: Path, folders: list[Path]) -> Iterator[Entry | Rejection]:
    for origin, entry in parsed_lines(manifest, lambda line: _parse(line, folders)):
        yield entry if isinstance(entry, Rejection) else Entry(*entry, origin)


def _refuse_array(manifest: Path) -> None:
    first = next(numbered_lines(manifest), (1, b""))[1]
    if not first.lstrip().startswith(b"["):
        return
    try:
        content = json.loads(manifest.read_bytes())
    except (ValueError, RecursionError):
        return  # its lines are judged one by one
    if isinstance(content, list) and any(isinstance(value, dict) for value in content):
        raise UsageError(
            f"A JSON manifest must have one object a line. {manifest} is one JSON array: write "
            "its objects one a line, as with jq -c '.[]'."
        )


def _parse(line: str, folders: list[Path]) -> tuple[str, Path, str, str]:
    content = _content(line)
    if not isinstance(content, dict):
        raise MalformedLineError("it must be a JSON object")
    path = _field(content, "audio_filepath", str)
    text = _field(content, "text", str)
    _check_times(content)
    own_id = str(_field(content, "id", str | int, default=""))
    speaker = str(_field(content, "speaker", str | int, default=""))
    utterance_id = id_of(path)
    if own_id.strip():
        utterance_id = own_id
    elif os.path.isabs(path):  # noqa: PTH117 - a str, and stays one
        utterance_id = _relative(utterance_id, folders)
    candidates = [folder / path for folder in folders]
    if len(candidates) > 1:
        is_file = os.path.isfile  # Path.is_file raises on an overlong name
        candidates = [found for found in candidates if is_file(found)] or candidates
    return utterance_id, candidates[0], text, speaker


def _content(line: str) -> Any:
    try:
        content = orjson.loads(line)
        numbers = (content.get("id"), content.get("speaker")) if isinstance(content, dict) else ()
        if float not in map(type, numbers):  # what has more digits than a float holds
            return content
    except orjson.JSONDecodeError:
        pass  # Python's is more liberal, and says what is wrong
    try:
        content = json.loads(line)
        json.dumps(content, ensure_ascii=False).encode()  # no half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise MalformedLineError(f"it is no JSON: {error}") from error
    return content


def _field(content: dict[str, Any], name: str, kind: Any, default: Any = None) -> Any:
    value = content.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, kind):
        expected = getattr(kind, "__name__", str(kind))
        raise MalformedLineError(f"{name} must be of type {expected}; received {value!r}")
    return value


def _check_times(content: dict[str, Any]) -> None:
    duration = _field(content, "duration", int | float, default=0)
    if not 0 <= duration < math.inf:
        raise MalformedLineError(f"duration must not be below 0; received {duration!r}")
    if _field(content, "offset", int | float, default=0) != 0:
        raise MalformedLineError(
            f"offset must be 0, because files are read whole; received {content['offset']!r}. "
            "Cut the audio into one file per utterance"
        )


def _relative(absolute_id: str, folders: list[Path]) -> str:
    for folder in folders:
        prefix = folder.as_posix().rstrip("/") + "/"
        if absolute_id.startswith(prefix):
            return absolute_id.removeprefix(prefix)
    return absolute_id


JSON = Corpus(read_json_manifest, list_suffix=".json")
