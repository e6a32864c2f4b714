"""Reads Kaldi's data folders: ``wav.scp``, ``text``, and optionally ``segments``, ``utt2spk``.

Source: kaldi-asr.org/doc, "Data preparation", section "Files you need to create
yourself".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tfasr.corpora.corpus import Corpus
from tfasr.corpora.reading import (
    AUDIO_WITHOUT_TRANSCRIPT,
    DUPLICATE_ID,
    TRANSCRIPT_WITHOUT_AUDIO,
    ListedUtterance,
    MalformedLineError,
    assemble,
    found_in,
    parsed_lines,
    require_folder,
    seconds_of,
    segment_of,
)
from tfasr.corpora.utterance import CorpusSplit, Rejection, Segment
from tfasr.errors import UsageError

_EXPECTED = "a folder of Kaldi's data folders, such as data with data/train/wav.scp, or one of them"
_NAMES = {
    "train": ("train",),
    "validation": ("validation", "valid", "dev"),
    "test": ("test",),
}
_WHOLE = Segment()


@dataclass(frozen=True)
class _TableLine:
    key: str
    fields: list[str]
    place: str


def kaldi_splits(corpus_dir: str | Path) -> list[str]:
    folder = require_folder(corpus_dir, _EXPECTED)
    return [split for split in _NAMES if _folder_of(folder, split) is not None]


def _folder_of(folder: Path, split: str) -> Path | None:
    for name in _NAMES.get(split, (split,)):
        if (folder / name / "wav.scp").is_file():
            return folder / name

    return None


def read_kaldi(corpus_dir: str | Path, split: str) -> CorpusSplit:
    """Returns the utterances of ``corpus_dir/split``, or of ``corpus_dir`` if it has
    ``wav.scp``.

    Relative paths in ``wav.scp`` are relative to that folder, to ``corpus_dir``, or to
    the working directory, where Kaldi looks. A segment's fifth field is its channel,
    from 0; an end below 0 is the recording's end. Recordings that ``wav.scp`` makes by
    a command, or keeps in an archive, are rejected: tfasr starts no programs that a
    list names.
    """
    corpus_dir = require_folder(corpus_dir, _EXPECTED)
    folder = _folder_of(corpus_dir, split)
    if folder is None and (corpus_dir / "wav.scp").is_file():
        folder = corpus_dir
    if folder is None:
        names = " or ".join(_NAMES.get(split, (split,)))
        raise UsageError(
            f"The split {split!r} must be the folder {names} in {corpus_dir}, with wav.scp. Found "
            f"there: {found_in(corpus_dir)}."
        )

    return assemble(
        f"{folder / 'wav.scp'} and {folder / 'text'}", _entries(folder, corpus_dir)
    )


def _entries(folder: Path, corpus_dir: Path) -> Iterator[ListedUtterance | Rejection]:
    rejections: list[Rejection] = []
    recordings = _table(folder / "wav.scp", 1, rejections)
    texts = _table(folder / "text", 1, rejections)
    speakers = {}
    if (folder / "utt2spk").is_file():
        speakers = _table(folder / "utt2spk", 1, rejections)

    segments = {
        key: _TableLine(key, [key], line.place) for key, line in recordings.items()
    }
    if (folder / "segments").is_file():
        segments = _table(folder / "segments", 4, rejections)

    yield from rejections
    paths: dict[str, Path] = {}
    for key, line in texts.items():
        text = line.fields[0] if line.fields else ""
        if key not in segments:
            detail = f"{line.place}: the utterance is not in segments or wav.scp"
            yield Rejection(key, TRANSCRIPT_WITHOUT_AUDIO, detail)
            continue

        speaker = "".join(speakers[key].fields).strip() if key in speakers else ""
        try:
            recording, segment = _segment(segments[key])
            if recording not in paths:
                paths[recording] = _audio_path(
                    recordings,
                    recording,
                    folder,
                    corpus_dir,
                )
            path = paths[recording]
        except MalformedLineError as error:
            detail = f"{segments[key].place}: {error}"
            yield Rejection(key, TRANSCRIPT_WITHOUT_AUDIO, detail)
            continue

        segment = None if segment == _WHOLE else segment
        yield ListedUtterance(key, path, text, speaker, line.place, segment)

    for key, line in segments.items():
        if key not in texts:
            detail = f"{line.place}: the utterance is not in text"
            yield Rejection(key, AUDIO_WITHOUT_TRANSCRIPT, detail)


def _table(
    path: Path,
    most_fields: int,
    rejections: list[Rejection],
) -> dict[str, _TableLine]:
    """Reads lines of a key and further fields; of equal keys, the first line counts."""

    def parse(line: str) -> list[str]:
        fields = line.split(None, most_fields)
        if not fields:
            raise MalformedLineError("it must begin with an id")

        return fields

    lines: dict[str, _TableLine] = {}
    for place, fields in parsed_lines(path, parse):
        if isinstance(fields, Rejection):
            rejections.append(fields)
            continue

        key = fields[0]
        if key in lines:
            detail = f"{place}; first in {lines[key].place}"
            rejections.append(Rejection(key, DUPLICATE_ID, detail))
            continue

        lines[key] = _TableLine(key, fields[1:], place)

    return lines


def _segment(line: _TableLine) -> tuple[str, Segment]:
    if len(line.fields) == 1:  # without segments, an utterance is a recording
        return line.fields[0], _WHOLE

    if len(line.fields) < 3:
        raise MalformedLineError(
            "a segment must have an id, a recording, a begin and an end"
        )

    recording, begin, end = line.fields[:3]
    channel = line.fields[3].strip() if len(line.fields) > 3 else ""
    if channel and not channel.isdecimal():
        raise MalformedLineError(
            f"a segment's channel must be a number; received {channel!r}"
        )

    end_s = None if end.startswith("-") else seconds_of(end, "a segment's end")
    begin_s = seconds_of(begin, "a segment's begin")

    return recording, segment_of(begin_s, end_s, int(channel) if channel else None)


def _audio_path(
    recordings: dict[str, _TableLine],
    recording: str,
    folder: Path,
    corpus_dir: Path,
) -> Path:
    if recording not in recordings or not recordings[recording].fields:
        raise MalformedLineError(f"the recording {recording} is not in wav.scp")

    name = recordings[recording].fields[0].strip()
    if name.endswith("|"):
        raise MalformedLineError(
            f"wav.scp makes the recording {recording} by a command, which tfasr doesn't run: "
            f"{name[:80]!r}. Write its output to a file, and name that in wav.scp"
        )

    if ".ark:" in name or name.startswith("-"):
        raise MalformedLineError(
            f"wav.scp keeps the recording {recording} in an archive: {name[:80]!r}. Extract it "
            "with Kaldi's wav-copy, and name the file in wav.scp"
        )

    candidates = [
        folder / name,
        corpus_dir / name,
        corpus_dir.parent / name,
        Path.cwd() / name,
    ]

    return next(filter(Path.is_file, candidates), candidates[0])


KALDI = Corpus(read_kaldi, kaldi_splits)
