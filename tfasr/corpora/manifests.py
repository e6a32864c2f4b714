"""Reads tab-separated and JSON-lines lists of utterances, and decides which are left out.

These are the formats for your own speech. `fault` and `length_fault` are the rules for
utterances of all corpora that a model can't be trained on; `tfasr.data.prepare` applies
them to what the readers return.
"""

import json
import math
import operator
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from tfasr.alphabet import Alphabet
from tfasr.corpora.corpus import Corpus
from tfasr.corpora.reading import (
    Listed,
    MalformedLineError,
    assemble,
    channel_of,
    entries_of,
    numbered_lines,
    parsed_lines,
    require_folder,
    seconds_of,
    segment_of,
)
from tfasr.corpora.utterance import CorpusSplit, Rejection, Segment, Utterance
from tfasr.errors import UsageError

# The columns of a tab-separated list, those that it must have, and those of segments.
COLUMNS = ("path", "speaker", "seconds", "text")
REQUIRED = ("path", "text")
_OF_SEGMENTS = ("begin", "end", "channel")

# Likely names of the columns for segments, which would otherwise be ignored.
_RENAMED = {"start": "begin", "offset": "begin", "stop": "end"}

# Words in the names of other toolkits' fields that change the audio: factors, of which
# 1 changes nothing, and others.
_FACTORS = frozenset(("speed", "tempo", "gain", "volume"))
_EFFECTS = frozenset(
    (
        "pitch",
        "reverb",
        "rir",
        "trim",
        "crop",
        "transform",
        "transforms",
        "perturb",
        "perturbation",
        "augment",
        "augmentation",
        "augmentor",
        "augmentations",
        "channel",
        "start",
        "begin",
        "end",
        "stop",
        "offset",
        "onset",
    )
)


def read_tsv(manifest: str | Path, corpus_dir: str | Path) -> CorpusSplit:
    """Returns the utterances of a tab-separated list.

    The first line names the columns, in any order: ``path`` and ``text``, optionally
    ``speaker`` and ``seconds``. For segments of recordings there are also ``begin`` and
    ``end``, in seconds, and ``channel``, from 0; empty fields stand for the recording's
    begin and end, and the mean of its channels.

    Ids are the paths without suffix, with the segment if there is one. Lines with other
    columns that change the audio, such as ``speed``, are rejected; all others are
    ignored. Quotation marks have no special meaning. Durations come from the audio.

    A list can name any file on your computer, whose content then ends up in the shards,
    so read only lists that you trust.
    """
    corpus_dir = require_folder(
        corpus_dir, "the folder that the list's paths are relative to"
    )
    manifest = Path(manifest)
    lines = numbered_lines(manifest)
    columns = _columns(manifest, next(lines, (1, b""))[1])
    named = {*COLUMNS, *_OF_SEGMENTS}
    # Their values decide, line by line.
    doubtful = [name for name in columns if name not in named and _changing_words(name)]

    def parse(line: str) -> Listed:
        """Returns the utterance of a line."""
        return _parse(line, columns, doubtful, corpus_dir)

    return assemble(str(manifest), entries_of(parsed_lines(manifest, parse, lines)))


def id_of(path: str) -> str:
    """Returns an utterance's id by default: its path in the list, without suffix.

    >>> id_of("clips/./a.b.wav"), id_of(".hidden")
    ('clips/a.b', '.hidden')

    Raises:
        MalformedLineError: if the path can't be that of a file.
    """
    plain = ""
    if path.strip():
        plain = os.path.normpath(path)

    name = plain.rpartition("/")[2]
    if name in ("", ".", "..") or "\0" in path:
        raise MalformedLineError(f"its path must name a file; received {path!r}")

    dot = name.rfind(".")
    if 0 < dot < len(name) - 1:
        return plain[: dot - len(name)]

    return plain


def _columns(manifest: Path, header: bytes) -> list[str]:
    """Returns the columns that a list's header names; UsageError if it lacks some."""
    columns = [name.strip() for name in header.decode(errors="replace").split("\t")]
    recognised = [name for name in columns if name in COLUMNS or name in _OF_SEGMENTS]
    other = [name for name in columns if name in _RENAMED]

    if other:
        raise UsageError(
            "A tab-separated list must name the times of segments begin and end, in "
            f"seconds. Received: the column {other[0]} in {manifest}. Call it "
            f"{_RENAMED[other[0]]}, or leave it out."
        )

    missing = [name for name in REQUIRED if name not in recognised]
    if missing or len(recognised) != len(set(recognised)):
        fault = "a column twice"
        if missing:
            fault = f"no column {' and no column '.join(missing)}"

        raise UsageError(
            "A tab-separated list must begin with a header that names the columns path "
            "and text once, and speaker and seconds if it has them, with a tab between "
            f"two names. Received: {fault} in "
            f"{header[:80].decode(errors='replace')!r}, the first line of {manifest}."
        )

    return columns


def _parse(
    line: str,
    columns: list[str],
    doubtful: list[str],
    corpus_dir: Path,
) -> Listed:
    """Returns the utterance of a line.

    Args:
        line: with tabs between its fields.
        columns: the names of the fields.
        doubtful: columns that may change the audio, unless they are empty.
        corpus_dir: which paths are relative to.

    Raises:
        MalformedLineError: if the line is wrong.
    """
    fields = line.split("\t")
    if len(fields) != len(columns):
        raise MalformedLineError(
            f"it must have {len(columns)} columns; it has {len(fields)}"
        )

    row = dict(zip(columns, fields, strict=True))
    for name in doubtful:
        _refuse_change(name, row[name].strip())

    seconds = row.get("seconds", "")
    if seconds.strip():
        # Only checked: durations come from the audio.
        seconds_of(seconds, "seconds")

    speaker = row.get("speaker", "").strip()
    utterance_id = id_of(row["path"])
    segment = _segment(row)
    if segment is not None:
        utterance_id = segment.named(utterance_id)

    return Listed(utterance_id, corpus_dir / row["path"], row["text"], speaker, segment)


def _segment(row: dict[str, str]) -> Segment | None:
    """Returns the segment that a row names; None for a whole recording."""
    begin, end, channel = (row.get(name, "").strip() for name in _OF_SEGMENTS)
    if not (begin or end or channel):
        return None

    begin_s = seconds_of(begin or "0", "begin")
    end_s = None
    if end:
        end_s = seconds_of(end, "end")

    return segment_of(begin_s, end_s, channel_of(channel))


TSV = Corpus(read_tsv, list_suffix=".tsv")


def read_json_manifest(
    manifest: str | Path, corpus_dir: str | Path | None = None
) -> CorpusSplit:
    """Returns the utterances of a JSON-lines manifest.

    Each line is an object with ``audio_filepath`` (absolute, or relative to the
    manifest's folder or to ``corpus_dir``) and ``text``, and optionally

    - ``offset`` and ``duration`` in seconds; an utterance is ``duration`` long if the
      file is longer;
    - ``channel``, from 0;
    - ``speaker``;
    - ``id``, by default the path without suffix, with the segment if it isn't the whole
      file.

    Lines with other fields that change the audio, such as ``speed``, are rejected. A
    manifest can name any file on your computer, whose content then ends up in the
    shards: read only those you trust.

    Source: NVIDIA NeMo's documentation, "Preparing Custom ASR Data".
    """
    manifest = Path(manifest).absolute()
    folders = [manifest.parent]
    if corpus_dir is not None:
        folders.append(
            require_folder(corpus_dir, "the folder that the manifest's paths are in")
        )

    _refuse_array(manifest)
    folders = list(dict.fromkeys(folders))
    parsed = parsed_lines(manifest, lambda line: _parse_json(line, folders))

    return assemble(str(manifest), entries_of(parsed))


def _refuse_array(manifest: Path) -> None:
    """Raises UsageError if a manifest is one JSON array, as other toolkits write it."""
    first = next(numbered_lines(manifest), (1, b""))[1]
    if not first.lstrip().startswith(b"["):
        return

    try:
        content = json.loads(manifest.read_bytes())
    except (ValueError, RecursionError):
        return  # each line will be read, and rejected if it is malformed

    if isinstance(content, list) and any(isinstance(value, dict) for value in content):
        raise UsageError(
            f"A JSON manifest must have one object a line. {manifest} is one JSON "
            "array: write its objects one a line, as with jq -c '.[]'."
        )


def _parse_json(line: str, folders: list[Path]) -> Listed:
    """Returns the utterance of a line.

    Args:
        line: a JSON object.
        folders: which relative paths are looked up in, one after the other.

    Raises:
        MalformedLineError: if the line is wrong.
    """
    content = _content(line)
    if not isinstance(content, dict):
        raise MalformedLineError("it must be a JSON object")

    path = _field(content, "audio_filepath", str)
    text = _field(content, "text", str)
    # Nearly all lines have only known fields.
    if not content.keys() <= _KNOWN:
        _refuse_changed_audio(content)

    duration = _field(content, "duration", int | float, default=0)
    if not 0 <= duration < math.inf:
        raise MalformedLineError(f"duration must not be below 0; received {duration!r}")

    segment = _json_segment(content, duration)
    stated_id = str(_field(content, "id", str | int, default=""))
    speaker = str(_field(content, "speaker", str | int, default=""))
    utterance_id = id_of(path)

    if stated_id.strip():
        utterance_id = stated_id
    elif os.path.isabs(path):  # noqa: PTH117 - no need for a Path
        # The id doesn't depend on where the corpus is.
        prefixes = (folder.as_posix().rstrip("/") + "/" for folder in folders)
        prefix = next(filter(utterance_id.startswith, prefixes), "")
        utterance_id = utterance_id.removeprefix(prefix)

    if segment is not None and not stated_id.strip():
        utterance_id = segment.named(utterance_id)

    candidates = [folder / path for folder in folders]
    if len(candidates) > 1:
        # Unlike this, Path.is_file raises on an overlong name.
        is_file = os.path.isfile
        candidates = [path for path in candidates if is_file(path)] or candidates

    # Whether a duration without an offset is that of a part, only the file can tell.
    stated_s = 0.0
    if segment is None:
        stated_s = duration

    return Listed(utterance_id, candidates[0], text, speaker, segment, stated_s)


# The fields that are read; others are checked for changes of the audio.
_KNOWN = {"audio_filepath", "text", "duration", "offset", "id", "speaker"}
_KNOWN |= {"channel", "channel_selector"}


def _refuse_changed_audio(content: dict[str, Any]) -> None:
    """Raises MalformedLineError for unknown fields that may change the audio."""
    for name, value in content.items():
        if name not in _KNOWN:
            _refuse_change(name, value)


def _refuse_change(name: str, value: Any) -> None:
    """Raises MalformedLineError if a field would change the audio in an unknown way.

    The field's name decides, unless its value means no change: nothing, false, 0, or 1
    for a factor.

    Args:
        name: the field's, such as "speed_factor".
        value: in JSON or as text.
    """
    words = _changing_words(name)
    if not words or not value:
        return

    try:
        # true means a change, though it is 1 as a number.
        number = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = None

    is_factor = words <= _FACTORS
    if number == 0 or (is_factor and number == 1):
        return

    raise MalformedLineError(
        f"its field {name} would change the audio, which isn't supported; received "
        f"{value!r}. Write the changed audio to a file, or leave the field out"
    )


def _changing_words(name: str) -> set[str]:
    """Returns the words in a field's name that mean a change of the audio."""
    return set(re.split("[^a-z]+", name.lower())) & (_FACTORS | _EFFECTS)


def _json_segment(content: dict[str, Any], duration: float) -> Segment | None:
    """Returns the segment that an object names; None for a whole recording."""
    offset = _field(content, "offset", int | float, default=0)
    channel = content.get("channel", content.get("channel_selector"))
    # NeMo's word for the mean of all channels.
    if channel == "average":
        channel = None

    if channel is not None and (
        isinstance(channel, bool) or not isinstance(channel, int)
    ):
        raise MalformedLineError(
            f"channel must be a number from 0; received {channel!r}"
        )

    if not offset and channel is None:
        return None

    end_s = None
    if duration:
        end_s = offset + duration

    return segment_of(offset, end_s, channel)


def _content(line: str) -> Any:
    """Parses a line as JSON, by orjson where that gives the same as Python's parser."""
    try:
        content = orjson.loads(line)
        numbers = ()
        if isinstance(content, dict):
            numbers = (content.get("id"), content.get("speaker"))

        # Orjson parses very large integers as floats.
        if float not in map(type, numbers):
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
    """Returns a field's value; one that is null counts as missing.

    Args:
        content: the object.
        name: of the field.
        kind: the type or types of its value.
        default: the value of a missing field; None if it must not be missing.

    Raises:
        MalformedLineError: if it is missing or of another type.
    """
    value = content.get(name)
    if value is None and default is not None:
        return default

    if isinstance(value, bool) or not isinstance(value, kind):
        expected = getattr(kind, "__name__", str(kind))
        raise MalformedLineError(
            f"{name} must be of type {expected}; received {value!r}"
        )

    return value


JSON = Corpus(read_json_manifest, list_suffix=".json")

# Reasons by which rejected utterances are counted, see `Rejection`.
TOO_LONG = "longer than max_duration_s"
OUTSIDE = "characters outside the alphabet"


def ctc_frames_needed(labels: Sequence[int]) -> int:
    """Returns how many frames CTC needs for labels.

    One per label, and a blank between equal neighbours, or they would merge into one.
    """
    return len(labels) + sum(map(operator.eq, labels, labels[1:]))


def fault(
    utterance: Utterance,
    alphabet: Alphabet,
    *,
    output_frames: Callable[[float], int],
    max_duration_s: float = math.inf,
) -> Rejection | None:
    """Returns why an utterance is left out, or None.

    Args:
        utterance: with a normalised transcript.
        alphabet: which characters it may have.
        output_frames: maps seconds to the model's output frames.
        max_duration_s: longer utterances are left out.
    """
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


def length_fault(
    utterance: Utterance,
    alphabet: Alphabet,
    frames: int,
) -> Rejection | None:
    """Returns why the transcript doesn't fit into this many output frames, or None.

    Without frames, one is needed: a model's convolution makes none of very short audio.
    """
    needed = ctc_frames_needed(alphabet.encode(utterance.text)) if frames > 0 else 1
    if frames >= needed:
        return None

    where = f"{utterance.duration_s:.3f} s leave {max(frames, 0)} frames: {utterance.audio_path}"
    if frames < 1:
        return Rejection(utterance.id, "too short for the model's convolution", where)

    return Rejection(utterance.id, "no CTC path", f"{where}, {needed} needed")
