"""Reads Common Voice, FLEURS and Multilingual LibriSpeech (MLS) as they are unpacked.

All three come as a folder per language with a list per split, which differ only in the
names of columns and folders: a `Release` describes each.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.corpora.corpus import Corpus
from tfasr.corpora.reading import (
    Listed,
    MalformedLineError,
    assemble,
    entries_of,
    found_in,
    numbered_lines,
    parsed_lines,
    require_folder,
)
from tfasr.corpora.utterance import CorpusSplit
from tfasr.errors import UsageError

# The releases' names of the usual splits.
_NAMES = {"train": "train", "validation": "dev", "test": "test"}

# Only in Common Voice.
_NAMES |= {name: name for name in ("validated", "other", "invalidated")}

# MLS is released in two formats, FLAC and Opus; others are often converted copies.
_AUDIO_OF_MLS = (".flac", ".opus", ".ogg", ".mp3")


@dataclass(frozen=True)
class Release:
    """How a corpus's release lists the utterances of one language.

    Attributes:
        expected: describes the language's folder, for messages.
        list_of: path of a split's list in it; {} stands for the release's name of the
            split.
        row: makes an utterance of a folder, a split and a line's fields.
        columns: names of the list's columns; empty if its first line has them.
    """

    expected: str
    list_of: str
    row: Callable[[Path, str, dict[str, str]], Listed]
    columns: tuple[str, ...] = ()

    def splits(self, corpus_dir: str | Path) -> list[str]:
        """Returns the splits with lists in a folder; UsageError without any list."""
        folder = require_folder(corpus_dir, self.expected)
        present = []

        for split, name in _NAMES.items():
            if (folder / self.list_of.format(name)).is_file():
                present.append(split)

        if not present:
            raise UsageError(
                f"--corpus_dir must be {self.expected}, with "
                f"{self.list_of.format('train')}. Received: {folder}. Found there: "
                f"{found_in(folder)}."
            )

        return present

    def read(self, corpus_dir: str | Path, split: str) -> CorpusSplit:
        """Returns the utterances of a split.

        Args:
            corpus_dir: the folder of a language.
            split: one of `splits`.

        Raises:
            UsageError: if the folder has no such split.
        """
        known = self.splits(corpus_dir)
        if split not in known:
            raise UsageError(
                f"--split must be one of {', '.join(known)}. Received: {split!r}."
            )

        folder = Path(corpus_dir).absolute()
        name = _NAMES[split]
        path = folder / self.list_of.format(name)

        return assemble(str(path), self._entries(folder, name, path))

    def _entries(self, folder: Path, name: str, path: Path) -> Iterator[Any]:
        """Yields the utterances of a list, and its malformed lines.

        Args:
            folder: of the language.
            name: the release's name of the split.
            path: of the list.
        """
        lines = numbered_lines(path)
        columns = self.columns
        if not columns:
            columns = tuple(
                next(lines, (1, b""))[1].decode(errors="replace").split("\t")
            )

        def parse(line: str) -> Listed:
            """Returns the utterance of a line."""
            fields = line.split("\t")
            if len(fields) != len(columns):
                raise MalformedLineError(
                    f"it must have {len(columns)} columns, not {len(fields)}"
                )

            try:
                return self.row(folder, name, dict(zip(columns, fields, strict=True)))
            except KeyError as error:
                raise UsageError(
                    f"{path} must have a column {error}. It has {columns}."
                ) from None

        return entries_of(parsed_lines(path, parse, lines))


def _common_voice(folder: Path, split: str, row: dict[str, str]) -> Listed:
    """Returns a row of Common Voice; older releases leave out the suffix .mp3."""
    name = row["path"]
    if not Path(name).suffix:
        name += ".mp3"

    return Listed(
        Path(name).stem,
        folder / "clips" / name,
        row["sentence"],
        row["client_id"],
    )


def _fleurs(folder: Path, split: str, row: dict[str, str]) -> Listed:
    """Returns a row of FLEURS, whose audio may be unpacked to several places."""
    places = [
        folder / place / row["file"] for place in (f"audio/{split}", split, "audio")
    ]
    return Listed(Path(row["file"]).stem, _first_file(places), row["transcription"], "")


def _mls(folder: Path, split: str, row: dict[str, str]) -> Listed:
    """Returns a row of MLS, whose ids begin with the speaker and the book."""
    speaker, book, _ = (*row["id"].split("_"), "", "")[:3]
    stem = folder / split / "audio" / speaker / book / row["id"]
    paths = [stem.with_name(stem.name + suffix) for suffix in _AUDIO_OF_MLS]

    return Listed(row["id"], _first_file(paths), row["text"], speaker)


def _first_file(paths: list[Path]) -> Path:
    """Returns the first path that exists; the first one for messages if none does."""
    return next(filter(Path.is_file, paths), paths[0])


_COMMON_VOICE = Release(
    "a language's folder of Common Voice, such as cv-corpus-17.0-2024-03-15/de",
    "{}.tsv",
    _common_voice,
)
_FLEURS = Release(
    "a language's folder of FLEURS, such as de_de, with its archives of audio unpacked",
    "{}.tsv",
    _fleurs,
    (
        "sentence",
        "file",
        "raw_transcription",
        "transcription",
        "phonemes",
        "samples",
        "gender",
    ),
)
_MLS = Release(
    "a language's folder of Multilingual LibriSpeech, such as mls_german",
    "{}/transcripts.txt",
    _mls,
    ("id", "text"),
)
COMMON_VOICE, FLEURS, MLS = (
    Corpus(r.read, r.splits) for r in (_COMMON_VOICE, _FLEURS, _MLS)
)
