"""Reads NIST's STM files, and TED-LIUM's folders, which consist of them.

An STM file lists segments of long recordings, so each recording is opened for many
utterances.

Sources: NIST's sclite, "stm - Definition of a segment time mark file"; Rousseau et al.,
"TED-LIUM: an automatic speech recognition dedicated corpus", LREC 2012; openslr.org/7,
/19 and /51.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfasr.corpora.audio_header import AUDIO_SUFFIXES
from tfasr.corpora.corpus import Corpus
from tfasr.corpora.reading import (
    Listed,
    ListedUtterance,
    MalformedLineError,
    assemble,
    entries_of,
    found_in,
    numbered_lines,
    parsed_lines,
    require_folder,
    seconds_of,
    segment_of,
)
from tfasr.corpora.utterance import CorpusSplit, Rejection
from tfasr.errors import UsageError

# How a line begins that is for people.
_COMMENT = b";;"

# The text of a segment to leave out.
_IGNORED = "ignore_time_segment_in_scoring"

# Where audio is, next to a list; "" for the list's own folder.
_AUDIO_FOLDERS = ("", "sph", "wav", "audio")

# What --corpus_dir must be, for messages.
_EXPECTED = (
    "the folder of TED-LIUM that holds train/stm, dev/stm and test/stm, with train/sph "
    "etc."
)

# The folders of each split; the first that exists counts.
_FOLDERS = {"train": ("train",), "validation": ("dev", "validation"), "test": ("test",)}

# TED-LIUM writes "it 's" for "it's".
_DETACHED = re.compile(r" '(?=\w)")


def read_stm(manifest: str | Path, corpus_dir: str | Path) -> CorpusSplit:
    """Returns the segments of an STM file as utterances.

    A line has name, channel, speaker, begin, end, labels and text. Audio files have the
    names in the list, with any suffix, and are in the folder of the list or the one
    above, in ``corpus_dir``, or in their folders ``sph``, ``wav`` or ``audio``. The
    channel "1" or "A" of a recording with one channel is all of it. Segments that are
    to be ignored are left out.
    """
    corpus_dir = require_folder(
        corpus_dir, "the folder that holds the list's recordings"
    )
    manifest = Path(manifest).absolute()
    audio = _AudioFiles([manifest.parent, manifest.parent.parent, corpus_dir])

    return assemble(str(manifest), _entries(manifest, audio))


def read_tedlium(corpus_dir: str | Path, split: str) -> CorpusSplit:
    """Returns a split of TED-LIUM, release 1, 2 or 3 (its folder ``legacy``).

    Apostrophes that are detached from their word, as in "it 's", are joined to it.
    """
    folder = require_folder(corpus_dir, _EXPECTED)
    lists = _lists(folder, split)
    if not lists:
        raise UsageError(
            f"--corpus_dir must be {_EXPECTED} Received: {folder}, without the split "
            f"{split!r}. Found there: {found_in(folder)}."
        )

    # The folder of a split holds both ``stm`` and ``sph``.
    audio = _AudioFiles([lists[0].parent.parent])

    def entries() -> Iterator[ListedUtterance | Rejection]:
        """Yields what all lists have."""
        for path in lists:
            yield from _entries(path, audio, joined=True)

    return assemble(f"{lists[0].parent} with {len(lists)} lists", entries())


def tedlium_splits(corpus_dir: str | Path) -> list[str]:
    """Returns which of "train", "validation" and "test" have STM files."""
    folder = require_folder(corpus_dir, _EXPECTED)
    return [split for split in _FOLDERS if _lists(folder, split)]


def _lists(folder: Path, split: str) -> list[Path]:
    """Returns the STM files of a split.

    Release 3 has those of the older releases' splits in ``legacy``.
    """
    for name in _FOLDERS.get(split, (split,)):
        for above in (folder, folder / "legacy"):
            lists = sorted((above / name / "stm").glob("*.stm"))
            if lists:
                return lists

    return []


class _AudioFiles:
    """Finds recordings by their names without suffix; each folder is listed once.

    Args:
        folders: those in which, and in whose `_AUDIO_FOLDERS`, recordings may be.
    """

    def __init__(self, folders: Iterable[Path]):
        self._folders = [
            folder / inner for folder in folders for inner in _AUDIO_FOLDERS
        ]
        self._known: dict[str, Path] | None = None

    def __getitem__(self, name: str) -> Path:
        """Returns a recording's path; a path for messages if it isn't there."""
        if self._known is None:
            self._known = {}
            for folder in self._folders:
                if not folder.is_dir():
                    continue

                for path in sorted(folder.iterdir()):
                    if path.suffix.lower() in AUDIO_SUFFIXES:
                        self._known.setdefault(path.stem, path)
                        # Some lists name files with their suffix.
                        self._known.setdefault(path.name, path)

        return self._known.get(name, self._folders[0] / f"{name}.sph")


def _entries(
    path: Path,
    audio: _AudioFiles,
    joined: bool = False,
) -> Iterator[ListedUtterance | Rejection]:
    """Yields the utterances of an STM file; ``joined`` joins detached apostrophes."""
    lines = (
        (number, line)
        for number, line in numbered_lines(path)
        if not line.startswith(_COMMENT) and _IGNORED.encode() not in line
    )
    yield from entries_of(
        parsed_lines(path, lambda line: _parse(line, audio, joined), lines)
    )


def _parse(line: str, audio: _AudioFiles, joined: bool) -> Listed:
    """Returns the segment of a line.

    Args:
        line: name, channel, speaker, begin, end, labels and text.
        audio: finds the recording.
        joined: whether to join detached apostrophes to their words.

    Raises:
        MalformedLineError: if the line is wrong.
    """
    # The text is the rest of the line.
    fields = line.split(None, 5)
    if len(fields) < 5:
        raise MalformedLineError(
            "it must have a name, channel, speaker, begin, end and text; received "
            f"{line[:80]!r}"
        )

    name, channel, speaker, begin, end, *rest = fields
    text = "".join(rest)

    # Labels, such as <o,f0,female>.
    if text.startswith("<") and ">" in text:
        labels, _, rest = text.partition(">")
        if "," in labels:
            text = rest.strip()

    if joined:
        text = _DETACHED.sub("'", text)

    segment = segment_of(
        seconds_of(begin, "begin"), seconds_of(end, "end"), _channel_number(channel)
    )
    utterance_id = segment.named(name)

    return Listed(utterance_id, audio[name], text, speaker, segment)


def _channel_number(channel: str) -> int | None:
    """Returns a channel from 0: "1" and "A" are the first one."""
    if channel.isdecimal() and int(channel) > 0:
        return int(channel) - 1
    if len(channel) == 1 and "A" <= channel.upper() <= "Z":
        return ord(channel.upper()) - ord("A")

    raise MalformedLineError(
        f"channel must be 1, 2, ... or A, B, ...; received {channel!r}"
    )


STM = Corpus(read_stm, list_suffix=".stm")
TEDLIUM = Corpus(read_tedlium, tedlium_splits)
