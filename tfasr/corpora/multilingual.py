"""Corpora of many languages, as their releases unpack: Common Voice, FLEURS and MLS."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tfasr.corpora.corpus import Corpus
from tfasr.corpora.reading import (
    Entry,
    MalformedLineError,
    assemble,
    found_in,
    numbered_lines,
    parsed_lines,
    require_folder,
)
from tfasr.corpora.utterance import CorpusSplit, Rejection
from tfasr.errors import UsageError

_OFFICIAL = {"train": "train", "validation": "dev", "test": "test"}
_AUDIO_OF_MLS = (".flac", ".opus", ".ogg", ".mp3")


@dataclass(frozen=True)
class Release:
    """One language's folder in a release.

    Attributes:
        expected: describes the folder, for messages.
        list_of: a split's list, relative to the folder, by the release's name of the split.
        others: names of further splits that only some releases have.
        row: returns id, audio, text and speaker of a line's fields.
        header: whether a list's first line names its columns.
    """

    expected: str
    list_of: str
    row: Callable[[Path, str, dict[str, str]], tuple[str, Path, str, str]]
    columns: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def splits(self, corpus_dir: str | Path) -> list[str]:
        folder = require_folder(corpus_dir, self.expected)
        names = {**_OFFICIAL, **{name: name for name in self.others}}
        present = [s for s, n in names.items() if (folder / self.list_of.format(n)).is_file()]
        if not present:
            raise UsageError(
                f"--corpus_dir must be {self.expected}, with {self.list_of.format('train')}. "
                f"Received: {folder}. Found there: {found_in(folder)}."
            )
        return present

    def read(self, corpus_dir: str | Path, split: str) -> CorpusSplit:
        if split not in (known := self.splits(corpus_dir)):
            raise UsageError(
                f"--split must be one that {corpus_dir} has: {', '.join(known)}. "
                f"Received: {split!r}."
            )
        folder, name = Path(corpus_dir).absolute(), _OFFICIAL.get(split, split)
        path = folder / self.list_of.format(name)
        return assemble(str(path), self._entries(folder, name, path))

    def _entries(self, folder: Path, name: str, path: Path) -> Iterator[Entry | Rejection]:
        lines = numbered_lines(path)
        columns = self.columns or tuple(
            next(lines, (1, b""))[1].decode(errors="replace").split("\t")
        )

        def parse(line: str) -> tuple[str, Path, str, str]:
            fields = line.split("\t")
            if len(fields) != len(columns):
                raise MalformedLineError(
                    f"it must have {len(columns)} columns; it has {len(fields)}"
                )
            try:
                return self.row(folder, name, dict(zip(columns, fields, strict=True)))
            except KeyError as error:
                raise UsageError(f"{path} must have a column {error}. It has {columns}.") from None

        for origin, row in parsed_lines(path, parse, lines):
            yield row if isinstance(row, Rejection) else Entry(*row, origin)


def _common_voice(folder: Path, split: str, row: dict[str, str]) -> tuple[str, Path, str, str]:
    name = row["path"] if Path(row["path"]).suffix else f"{row['path']}.mp3"
    return Path(name).stem, folder / "clips" / name, row["sentence"], row["client_id"]


def _fleurs(folder: Path, split: str, row: dict[str, str]) -> tuple[str, Path, str, str]:
    name = row["file"]
    places = (folder / "audio" / split / name, folder / split / name, folder / "audio" / name)
    path = next(filter(Path.is_file, places), places[0])
    return Path(name).stem, path, row["transcription"], ""


def _mls(folder: Path, split: str, row: dict[str, str]) -> tuple[str, Path, str, str]:
    speaker, _, rest = row["id"].partition("_")
    stem = folder / split / "audio" / speaker / rest.rpartition("_")[0] / row["id"]
    paths = [stem.with_name(stem.name + suffix) for suffix in _AUDIO_OF_MLS]
    return row["id"], next(filter(Path.is_file, paths), paths[0]), row["text"], speaker


_COMMON_VOICE = Release(
    "a language's folder of Common Voice, such as cv-corpus-17.0-2024-03-15/de",
    "{}.tsv",
    _common_voice,
    others=("validated", "other", "invalidated"),
)
_FLEURS = Release(
    "a language's folder of FLEURS, such as de_de, with the archives of audio unpacked",
    "{}.tsv",
    _fleurs,
    ("sentence", "file", "raw_transcription", "transcription", "phonemes", "samples", "gender"),
)
_MLS = Release(
    "a language's folder of Multilingual LibriSpeech, such as mls_german",
    "{}/transcripts.txt",
    _mls,
    ("id", "text"),
)
COMMON_VOICE, FLEURS, MLS = (Corpus(r.read, r.splits) for r in (_COMMON_VOICE, _FLEURS, _MLS))
