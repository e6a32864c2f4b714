"""Reads corpora in other toolkits' formats: Hugging Face datasets and lhotse manifests.

Only the formats are read: neither toolkit is needed, except pyarrow for tables.
"""

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from tfasr.corpora.corpus import Corpus
from tfasr.corpora.reading import (
    EMPTY_TRANSCRIPT,
    MOST_OUTSIDE_S,
    SPLIT_NAMES,
    TRANSCRIPT_WITHOUT_AUDIO,
    Listed,
    ListedUtterance,
    MalformedLineError,
    assemble,
    entries_of,
    found_in,
    parsed_lines,
    require_folder,
    segment_of,
)
from tfasr.corpora.utterance import CorpusSplit, Rejection, Segment
from tfasr.errors import UsageError, optional_package
from tfasr.kit.files import write_whole

_DATASET = "a folder of Hugging Face's datasets: saved to disk, or with parquet files"
# Columns with the transcript and the speaker, the first that a row has.
_TEXTS = (
    "text",
    "sentence",
    "transcription",
    "transcript",
    "normalized_text",
    "raw_text",
)
_SPEAKERS = ("speaker_id", "client_id", "speaker")
_AUDIO_FOLDER = "tfasr-audio"  # gets audio that a table contains as bytes
_ROUNDED_S = 0.001  # by which times in a manifest may differ


def dataset_splits(corpus_dir: str | Path) -> list[str]:
    """Returns which of "train", "validation" and "test" have tables."""
    folder = require_folder(corpus_dir, _DATASET)
    return [split for split in SPLIT_NAMES if _files(folder, split)]


def _files(folder: Path, split: str) -> list[Path]:
    """Returns the tables of a split: as saved to disk, or as on the hub."""
    for name in SPLIT_NAMES.get(split, (split,)):
        patterns = (
            f"{name}/data-*.arrow",
            f"**/{name}-*.parquet",
            f"**/{name}.parquet",
            f"**/{name}/*.parquet",
        )
        files = {path for pattern in patterns for path in folder.glob(pattern)}
        if files:
            return sorted(files)

    return []


def read_dataset(corpus_dir: str | Path, split: str) -> CorpusSplit:
    """Returns a split of a dataset whose rows have audio as bytes or as a path.

    Bytes are first written to files in the folder "tfasr-audio" in ``corpus_dir``,
    unless they are there already. The text is in the first of the columns "text",
    "sentence", "transcription", "transcript", "normalized_text" and "raw_text" that
    exists.
    """
    folder = require_folder(corpus_dir, _DATASET)
    files = _files(folder, split)
    if not files:
        raise UsageError(
            f"--corpus_dir must be {_DATASET}, with the split {split!r}, such as "
            f"data/{split}-00000-of-00001.parquet. Received: {folder}. Found there: "
            f"{found_in(folder)}."
        )

    return assemble(f"the split {split!r} of {folder}", _rows(folder, split, files))


def _rows(folder: Path, split: str, files: list[Path]) -> Iterator[ListedUtterance]:
    """Yields the rows of all tables; rows are numbered through, for files and ids."""
    # Where audio goes that a table contains as bytes.
    audio_folder = folder / _AUDIO_FOLDER / split
    number = 0

    for path in files:
        for row in _table(path):
            yield _entry(
                row, audio_folder / f"{number:08}", f"{path}, row {number}", path
            )
            number += 1


def _table(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a table, a few at a time.

    Raises:
        UsageError: if pyarrow is missing or can't read the table.
    """
    with optional_package("pyarrow", "--corpus dataset", "'tfasr[parquet]'"):
        import pyarrow
        from pyarrow import ipc, parquet

    try:
        # Tables may be larger than the memory.
        with pyarrow.memory_map(str(path)) as file:
            if path.suffix == ".parquet":
                batches = parquet.ParquetFile(file).iter_batches(batch_size=64)
            else:
                batches = iter(ipc.open_stream(file))

            for batch in batches:
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(
            f"{path} must be a readable table: {error}. Fetch it again."
        ) from error


def _entry(
    row: dict[str, Any],
    stem: Path,
    origin: str,
    path: Path,
) -> ListedUtterance | Rejection:
    """Returns a row's utterance, after writing its audio to a file if it is bytes.

    Args:
        row: a table's columns.
        stem: of the file for its audio, without suffix.
        origin: the row's place, for messages.
        path: the table's.
    """
    texts = [name for name in _TEXTS if name in row]
    if "audio" not in row or not texts:
        raise UsageError(
            f"A dataset must have a column audio with bytes or a path, and one of "
            f"{', '.join(_TEXTS)}. {path} has {', '.join(map(str, row))}."
        )

    audio = row["audio"] if isinstance(row["audio"], dict) else {}
    content = audio.get("bytes")
    name = audio.get("path") or ""
    stated_id = row.get("id")

    if stated_id not in (None, ""):
        identity = str(stated_id)
    else:
        identity = _name_in(name) or stem.name

    filled = [row[name] for name in texts if isinstance(row[name], str) and row[name]]
    text = filled[0] if filled else None
    if not content and not name:
        return Rejection(
            identity, TRANSCRIPT_WITHOUT_AUDIO, f"{origin}: it has no audio"
        )

    if text is None:
        if texts[1:]:
            detail = f"{origin}: {' and '.join(texts)} are empty"
        else:
            detail = f"{origin}: no text"

        return Rejection(identity, EMPTY_TRANSCRIPT, detail)

    place = Path(name)
    if content:
        place = stem.with_name(stem.name + (place.suffix or ".wav"))
        # Written by an earlier call, unless it was interrupted.
        if not (place.is_file() and place.stat().st_size == len(content)):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_whole(place, content)

    speaker = next(
        (str(row[name]) for name in _SPEAKERS if row.get(name) is not None), ""
    )

    return ListedUtterance(identity, stem.parents[2] / place, text, speaker, origin)


def _name_in(path: str) -> str:
    """Returns a path within a dataset without suffix; of a path outside it, only the name."""
    name = PurePosixPath(path)
    if name.is_absolute() or ".." in name.parts:
        return name.stem

    return str(name.with_suffix("")) if name.name else ""


DATASET = Corpus(read_dataset, dataset_splits)


def read_lhotse(manifest: str | Path, corpus_dir: str | Path) -> CorpusSplit:
    """Returns the utterances of a lhotse manifest of cuts or supervisions.

    A cut with one supervision is an utterance; with several, each supervision is one.
    Cuts and recordings with transforms other than Resample, cuts of several recordings
    (MixedCut), and cuts of several but not all channels are rejected. Supervisions in
    ``x_supervisions_y.jsonl.gz`` need their recordings in ``x_recordings_y.jsonl.gz``.

    Source: lhotse.readthedocs.io, "Cuts" and "Recording".
    """
    corpus_dir = require_folder(
        corpus_dir, "the folder that the manifest's paths are relative to"
    )
    manifest = Path(manifest)
    recordings = {}

    if "supervisions" in manifest.name:
        path = manifest.with_name(manifest.name.replace("supervisions", "recordings"))
        if not path.is_file():
            raise UsageError(
                f"{manifest} needs its recordings in {path}, which does not exist."
            )

        for _, recording in parsed_lines(path, _object):
            if not isinstance(recording, Rejection):
                recordings[recording.get("id")] = recording

    def parse(line: str) -> list[Listed]:
        return _utterances(_object(line), recordings, corpus_dir)

    def parsed() -> Iterator[tuple[str, Listed | Rejection]]:
        for place, result in parsed_lines(manifest, parse):
            for listed in [result] if isinstance(result, Rejection) else result:
                yield place, listed

    return assemble(str(manifest), entries_of(parsed()))


def _object(line: str) -> dict[str, Any]:
    """Parses a line as a JSON object; MalformedLineError if it isn't one."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        content = None

    if not isinstance(content, dict):
        raise MalformedLineError("it must be a JSON object")

    return content


def _utterances(
    content: dict[str, Any],
    recordings: dict[str, Any],
    corpus_dir: Path,
) -> list[Listed]:
    """Returns the utterances of a cut or supervision.

    Args:
        content: of the manifest's line.
        recordings: of a manifest of supervisions, by their ids.
        corpus_dir: to which paths are relative.

    Raises:
        MalformedLineError: if the line can't be used.
    """
    try:
        is_cut = "supervisions" in content
        if content.get("type", "MonoCut") not in ("MonoCut", "MultiCut"):
            raise MalformedLineError(
                f"its type is {content['type']}, which isn't supported"
            )

        recording = content.get("recording") or recordings[content["recording_id"]]
        _refuse_transforms(content)
        _refuse_transforms(recording)
        path = corpus_dir / _source(recording)
        supervisions = content["supervisions"] if is_cut else [content]
        listed = []

        for supervision in supervisions:
            stretch = content
            if len(supervisions) > 1:  # its times are relative to the cut
                stretch = supervision | {
                    "start": content["start"] + supervision["start"]
                }
                _require_within(supervision, content)

            # None if the utterance is a whole recording.
            segment = _segment(stretch, content, recording)
            identity = str(stretch["id"])
            speaker = str(supervision.get("speaker") or "")
            listed.append(
                Listed(identity, path, supervision["text"] or "", speaker, segment)
            )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        if isinstance(error, MalformedLineError):
            raise

        raise MalformedLineError(
            "it must be a supervision of a known recording, or a cut with one: "
            f"{error!r}"
        ) from None

    if not listed:
        raise MalformedLineError("its cut has no supervision, so no text")

    return listed


def _refuse_transforms(content: dict[str, Any]) -> None:
    """Raises MalformedLineError for transforms other than resampling."""
    for transform in content.get("transforms") or ():
        name = transform["name"] if isinstance(transform, dict) else str(transform)
        if name.rpartition(".")[2] != "Resample":  # tfasr resamples anyway
            raise MalformedLineError(
                f"its transform {name} would change the audio, which isn't supported. "
                "Write the changed audio with lhotse's save_audios"
            )


def _source(recording: dict[str, Any]) -> str:
    """Returns the path of a recording's only file."""
    sources = recording["sources"]
    if len(sources) != 1:
        raise MalformedLineError(f"its audio must be one file; received {len(sources)}")

    if sources[0]["type"] != "file":
        raise MalformedLineError(
            f"its audio must be a file; received {sources[0]['type']!r}"
        )

    return sources[0]["source"]


def _require_within(supervision: dict[str, Any], cut: dict[str, Any]) -> None:
    """Raises MalformedLineError if a cut ends or begins within a supervision."""
    end_s = supervision["start"] + supervision["duration"]
    if (
        supervision["start"] < -MOST_OUTSIDE_S
        or end_s > cut["duration"] + MOST_OUTSIDE_S
    ):
        raise MalformedLineError(
            f"its cut contains only a part of the supervision {supervision['id']}"
        )


def _segment(
    stretch: dict[str, Any],
    content: dict[str, Any],
    recording: dict[str, Any],
) -> Segment | None:
    """Returns which part of its recording a cut or supervision is; None if it is all of it."""
    channels = recording.get("channel_ids") or recording["sources"][0]["channels"]
    channel = stretch.get("channel", content.get("channel"))
    if isinstance(channel, list):
        if sorted(channel) == sorted(channels):
            channel = None
        elif len(channel) == 1:
            (channel,) = channel
        else:
            raise MalformedLineError(
                f"it must have one channel or all {len(channels)}; received {channel}"
            )

    if len(channels) == 1:
        channel = None
    elif channel is not None:
        channel = channels.index(channel)

    begin_s = max(stretch["start"], 0.0)
    end_s = stretch["start"] + stretch["duration"]
    is_whole = begin_s <= _ROUNDED_S and end_s >= recording["duration"] - _ROUNDED_S
    if is_whole and channel is None:
        return None

    if is_whole:  # but only one of its channels
        return segment_of(0.0, None, channel)

    return segment_of(begin_s, end_s, channel)


LHOTSE = Corpus(read_lhotse, list_suffix=".jsonl")
