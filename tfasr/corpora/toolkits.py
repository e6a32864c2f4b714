"""Reads corpora in other toolkits' formats: Hugging Face datasets and lhotse manifests."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfasr.corpora.corpus import Corpus
from tfasr.corpora.manifests import entries_of
from tfasr.corpora.reading import (
    Entry,
    MalformedLineError,
    assemble,
    found_in,
    parsed_lines,
    require_folder,
)
from tfasr.corpora.utterance import CorpusSplit, Rejection
from tfasr.errors import UsageError, optional_package
from tfasr.kit.files import write_whole

_DATASET = "a folder of Hugging Face's datasets: saved to disk, or with parquet files"
_SPLITS = {"train": ("train",), "validation": ("validation", "valid", "dev"), "test": ("test",)}
_TEXTS = ("text", "sentence", "transcription", "transcript", "normalized_text", "raw_text")
_SPEAKERS = ("speaker_id", "client_id", "speaker")
_AUDIO_FOLDER = "tfasr-audio"
_MOST_OUTSIDE_S = 0.1  # how much of a recording its supervision may leave out


def dataset_splits(corpus_dir: str | Path) -> list[str]:
    folder = require_folder(corpus_dir, _DATASET)
    return [split for split in _SPLITS if _files(folder, split)]


def _files(folder: Path, split: str) -> list[Path]:
    for name in _SPLITS.get(split, (split,)):
        patterns = (f"{name}/data-*.arrow", f"**/{name}-*.parquet", f"**/{name}.parquet")
        patterns += (f"**/{name}/*.parquet",)
        if files := sorted({path for pattern in patterns for path in folder.glob(pattern)}):
            return files
    return []


def read_dataset(corpus_dir: str | Path, split: str) -> CorpusSplit:
    """Returns a split of a dataset whose rows have audio as bytes or as a path.

    Bytes are first written to files in the folder "tfasr-audio" in ``corpus_dir``, unless they are
    there already. The text is in the first of the columns "text", "sentence", "transcription",
    "transcript", "normalized_text" and "raw_text" that exists.
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


def _rows(folder: Path, split: str, files: list[Path]) -> Iterator[Entry]:
    kept, number = folder / _AUDIO_FOLDER / split, 0
    for path in files:
        for row in _table(path):
            yield _entry(row, kept / f"{number:08}", f"{path}, row {number}", path)
            number += 1


def _table(path: Path) -> Iterator[dict[str, Any]]:
    with optional_package("pyarrow", "--corpus dataset", "'tfasr[parquet]'"):
        import pyarrow
        from pyarrow import ipc, parquet

    try:
        with pyarrow.memory_map(str(path)) as file:
            if path.suffix == ".parquet":
                batches = parquet.ParquetFile(file).iter_batches(batch_size=64)
            else:
                batches = iter(ipc.open_stream(file))
            for batch in batches:
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"{path} must be a readable table: {error}. Fetch it again.") from error


def _entry(row: dict[str, Any], stem: Path, origin: str, path: Path) -> Entry:
    audio = row.get("audio")
    text = next((row[name] for name in _TEXTS if isinstance(row.get(name), str)), None)
    if not isinstance(audio, dict) or text is None or not {"bytes", "path"} & audio.keys():
        raise UsageError(
            f"A dataset must have a column audio with bytes or a path, and one of "
            f"{', '.join(_TEXTS)}. {path} has {', '.join(map(str, row))}."
        )
    place = Path(audio.get("path") or "")
    identity = place.stem or row.get("id") or stem.name
    if content := audio.get("bytes"):
        place = stem.with_name(stem.name + (place.suffix or ".wav"))
        if not (place.is_file() and place.stat().st_size == len(content)):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_whole(place, content)
    speaker = next((str(row[name]) for name in _SPEAKERS if row.get(name) is not None), "")
    return Entry(str(identity), stem.parents[2] / place, text, speaker, origin)


DATASET = Corpus(read_dataset, dataset_splits)


def read_lhotse(manifest: str | Path, corpus_dir: str | Path) -> CorpusSplit:
    """Returns the utterances of a lhotse manifest of cuts or supervisions.

    Audio files are read whole, so cuts and supervisions of a part are rejected. Supervisions in
    ``x_supervisions_y.jsonl.gz`` need their recordings in ``x_recordings_y.jsonl.gz``.
    """
    corpus_dir = require_folder(corpus_dir, "the folder that the manifest's paths are relative to")
    manifest = Path(manifest)
    recordings = {}
    if "supervisions" in manifest.name:
        path = manifest.with_name(manifest.name.replace("supervisions", "recordings"))
        if not path.is_file():
            raise UsageError(f"{manifest} needs its recordings in {path}, which does not exist.")
        for _, recording in parsed_lines(path, _object, _lines(path)):
            if not isinstance(recording, Rejection):
                recordings[recording.get("id")] = recording

    def parse(line: str) -> tuple[str, Path, str, str]:
        return _utterance(_object(line), recordings, corpus_dir)

    return assemble(str(manifest), entries_of(parsed_lines(manifest, parse, _lines(manifest))))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from ((n, line.strip()) for n, line in enumerate(file, start=1) if line.strip())
    except (OSError, EOFError) as error:
        raise UsageError(f"{path} must be readable lines of JSON: {error}.") from error


def _object(line: str) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise MalformedLineError("it must be a JSON object")
    return content


def _utterance(
    content: dict[str, Any], recordings: dict[str, Any], corpus_dir: Path
) -> tuple[str, Path, str, str]:
    try:
        supervision = content
        recording = content.get("recording") or recordings[content["recording_id"]]
        if "recording" in content:
            (supervision,) = content["supervisions"]
        (source,) = recording["sources"]
        if source["type"] != "file":
            raise MalformedLineError(f"its audio must be a file; received {source['type']!r}")
        start_s = content["start"]
        left_out_s = max(start_s, recording["duration"] - start_s - content["duration"])
        path, text = Path(source["source"]), supervision["text"]
        identity, speaker = str(content["id"]), str(supervision.get("speaker") or "")
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise MalformedLineError(
            f"it must be a supervision of a known recording, or a cut with one: {error!r}"
        ) from None
    if left_out_s > _MOST_OUTSIDE_S:
        raise MalformedLineError(
            "it must be a whole recording, because files are read whole; received a part. Cut the "
            "audio with lhotse's save_audios"
        )
    return identity, corpus_dir / path, text, speaker


LHOTSE = Corpus(read_lhotse, list_suffix=".jsonl")
