"""Reads Kaldi's data folders: ``wav.scp``, ``text``, ``segments``, ``utt2spk``.

The last two are optional. Tables are read whole, as their order and completeness may
differ.

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
    SPLIT_NAMES,
    TRANSCRIPT_WITHOUT_AUDIO,
    ListedUtterance,
    MalformedLineError,
    assemble,
    channel_of,
    found_in,
    parsed_lines,
    require_folder,
    seconds_of,
    segment_of,
)
from tfasr.corpora.utterance import CorpusSplit, Rejection, Segment
from tfasr.errors import UsageError

# What --corpus_dir must be, for messages.
_EXPECTED = (
    "a folder of Kaldi's data folders, such as data with data/train/wav.scp, or one of "
    "them"
)

# All of a recording.
_WHOLE = Segment()


@dataclass(frozen=True)
class _TableLine:
    """A line of one of Kaldi's tables.

    Attributes:
        key: what it is about: an utterance or a recording.
        fields: the others.
        place: its file and line, for messages.
    """

    key: str
    fields: list[str]
    place: str


def kaldi_splits(corpus_dir: str | Path) -> list[str]:
    """Returns which of "train", "validation" and "test" have a folder."""
    folder = require_folder(corpus_dir, _EXPECTED)
    return [split for split in SPLIT_NAMES if _folder_of(folder, split) is not None]


def _folder_of(folder: Path, split: str) -> Path | None:
    """Returns a split's folder with ``wav.scp``, or None if it is missing."""
    for name in SPLIT_NAMES.get(split, (split,)):
        if (folder / name / "wav.scp").is_file():
            return folder / name

    return None


def read_kaldi(corpus_dir: str | Path, split: str) -> CorpusSplit:
    """Returns the utterances of ``corpus_dir/split``.

    Or those of ``corpus_dir`` itself, if it has ``wav.scp``. Relative paths in
    ``wav.scp`` are relative to that folder, to ``corpus_dir``, or to the working
    directory, where Kaldi looks. A segment's fifth field is its channel, from 0; an end
    below 0 is the recording's end. Recordings that ``wav.scp`` makes by a command, or
    keeps in an archive, are rejected: tfasr starts no programs that a list names.
    """
    corpus_dir = require_folder(corpus_dir, _EXPECTED)
    folder = _folder_of(corpus_dir, split)
    if folder is None and (corpus_dir / "wav.scp").is_file():
        folder = corpus_dir

    if folder is None:
        names = " or ".join(SPLIT_NAMES.get(split, (split,)))
        raise UsageError(
            f"The split {split!r} must be the folder {names} in {corpus_dir}, with "
            f"wav.scp. Found there: {found_in(corpus_dir)}."
        )

    return assemble(
        f"{folder / 'wav.scp'} and {folder / 'text'}", _entries(folder, corpus_dir)
    )


def _entries(folder: Path, corpus_dir: Path) -> Iterator[ListedUtterance | Rejection]:
    """Yields the utterances of a data folder, and what is wrong in its tables.

    Ids in ``text`` without audio are rejected, and so is audio without text.
    """
    rejections: list[Rejection] = []
    recordings = _table(folder / "wav.scp", 1, rejections)
    texts = _table(folder / "text", 1, rejections)
    speakers = {}
    if (folder / "utt2spk").is_file():
        speakers = _table(folder / "utt2spk", 1, rejections)

    # Without the table, each recording is an utterance.
    segments = {
        key: _TableLine(key, [key], line.place) for key, line in recordings.items()
    }
    if (folder / "segments").is_file():
        segments = _table(folder / "segments", 4, rejections)

    # Of malformed lines in any of the tables.
    yield from rejections
    paths: dict[str, Path] = {}

    for key, line in texts.items():
        # An empty transcript is rejected later, like that of any corpus.
        text = next(iter(line.fields), "")
        if key not in segments:
            detail = f"{line.place}: the utterance is not in segments or wav.scp"
            yield Rejection(key, TRANSCRIPT_WITHOUT_AUDIO, detail)
            continue

        speaker = ""
        if key in speakers:
            speaker = "".join(speakers[key].fields).strip()

        try:
            recording, segment = _segment(segments[key])
            # A recording is looked for once, though it may have thousands of segments.
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

        if segment == _WHOLE:
            segment = None

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
    """Reads lines of a key and further fields; of equal keys, the first line counts.

    Args:
        path: of the table.
        most_fields: the last one contains the rest of the line, such as a transcript.
        rejections: get the lines that can't be used.
    """

    def parse(line: str) -> list[str]:
        """Returns the fields of a line."""
        # Kaldi separates by any white space.
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
    """Returns the recording and the part of it that a line of ``segments`` names.

    Raises:
        MalformedLineError: if the line breaks the format.
    """
    # Without segments, an utterance is a recording.
    if len(line.fields) == 1:
        return line.fields[0], _WHOLE

    if len(line.fields) < 3:
        raise MalformedLineError(
            "a segment must have an id, a recording, a begin and an end"
        )

    recording, begin, end, *rest = line.fields
    channel = None
    if rest:
        channel = channel_of(rest[0])

    # Kaldi writes -1 for the recording's end.
    end_s = None
    if not end.startswith("-"):
        end_s = seconds_of(end, "a segment's end")

    begin_s = seconds_of(begin, "a segment's begin")

    return recording, segment_of(begin_s, end_s, channel)


def _audio_path(
    recordings: dict[str, _TableLine],
    recording: str,
    folder: Path,
    corpus_dir: Path,
) -> Path:
    """Returns a recording's file, or where it should be.

    Args:
        recordings: the lines of ``wav.scp``.
        recording: the key of one of them.
        folder: the split's.
        corpus_dir: the corpus's.

    Raises:
        MalformedLineError: if ``wav.scp`` doesn't name a plain file.
    """
    if recording not in recordings or not recordings[recording].fields:
        raise MalformedLineError(f"the recording {recording} is not in wav.scp")

    name = recordings[recording].fields[0].strip()
    if name.endswith("|"):
        raise MalformedLineError(
            f"wav.scp makes the recording {recording} by a command, which tfasr "
            f"doesn't run: {name[:80]!r}. Write its output to a file, and name that in "
            "wav.scp"
        )

    if ".ark:" in name or name.startswith("-"):
        raise MalformedLineError(
            f"wav.scp keeps the recording {recording} in an archive: {name[:80]!r}. "
            "Extract it with Kaldi's wav-copy, and name the file in wav.scp"
        )

    candidates = [
        folder / name,
        corpus_dir / name,
        # Kaldi's scripts run in the folder above ``data``.
        corpus_dir.parent / name,
        Path.cwd() / name,
    ]

    return next(filter(Path.is_file, candidates), candidates[0])


KALDI = Corpus(read_kaldi, kaldi_splits)
