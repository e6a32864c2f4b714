"""Reads LibriSpeech's folders ``<subset>/<speaker>/<chapter>/``.

Each has the chapter's audio and one file of transcripts, with an id at the beginning of
each line.
"""

import fnmatch
from collections.abc import Sequence
from pathlib import Path

from tfasr.corpora.audio_header import AUDIO_SUFFIXES
from tfasr.corpora.corpus import Corpus
from tfasr.corpora.reading import (
    AUDIO_WITHOUT_TRANSCRIPT,
    DUPLICATE_ID,
    ListedUtterance,
    assemble,
    found_in,
    parsed_lines,
    require_folder,
    subfolders,
    walk,
)
from tfasr.corpora.utterance import SPLITS, CorpusSplit, Rejection
from tfasr.errors import UsageError

# What --corpus_dir must be, for messages.
_EXPECTED = (
    "the folder that holds train-clean-100, dev-clean, test-clean or other subsets"
)

# The subsets of the usual splits; noisier speech is in dev-other and test-other.
_SUBSETS = {"train": "train-*", "validation": "dev-clean", "test": "test-clean"}

# How all subsets' names begin, and how files of transcripts end.
_PREFIXES = ("train-", "dev-", "test-")
_TRANSCRIPT = ".trans.txt"


def read_librispeech(
    corpus_dir: str | Path,
    split: str,
    subsets: Sequence[str] | None = None,
) -> CorpusSplit:
    """Returns the utterances of a split.

    Args:
        corpus_dir: the folder of the subsets.
        split: "train", "validation" or "test", or the name of a subset, such as
            "test-other".
        subsets: the folders to read instead of the split's usual ones.

    Raises:
        UsageError: if a subset is missing.

    Source: openslr.org/12, README.TXT: section "File structure".
    """
    corpus_dir = require_folder(corpus_dir, _EXPECTED)
    entries: list[ListedUtterance] = []
    rejections: list[Rejection] = []
    chosen = _chosen_subsets(corpus_dir, split, subsets)

    for subset in chosen:
        for folder, files in walk(corpus_dir / subset):
            # The folder below the subset; "" for files in the subset itself.
            speaker = folder.relative_to(corpus_dir / subset).parts[:1]
            _read_chapter(files, "".join(speaker), entries, rejections)

    return assemble(f"{', '.join(chosen)} of {corpus_dir}", entries, rejections)


def librispeech_splits(corpus_dir: str | Path) -> list[str]:
    """Returns the splits whose default subsets are in the folder."""
    corpus_dir = require_folder(corpus_dir, _EXPECTED)
    present = _present_subsets(corpus_dir)

    return [split for split in SPLITS if fnmatch.filter(present, _SUBSETS[split])]


def _present_subsets(corpus_dir: Path) -> list[str]:
    """Returns the subsets in a folder; UsageError, with advice, if it has no subsets.

    People often give the folder above, or that of a single subset.
    """
    names = subfolders(corpus_dir)
    present = [name for name in names if name.startswith(_PREFIXES)]
    if present:
        return present

    advice = ""
    if corpus_dir.name.startswith(_PREFIXES):
        advice = (
            f" Give --corpus_dir {corpus_dir.parent} instead, the folder above this "
            "subset."
        )

    # Or the corpus may lie one folder below.
    for name in names:
        if any(inner.startswith(_PREFIXES) for inner in subfolders(corpus_dir / name)):
            advice = f" Give --corpus_dir {corpus_dir / name} instead."

    raise UsageError(
        f"--corpus_dir must be {_EXPECTED}. Received: {corpus_dir}. "
        f"Found there: {found_in(corpus_dir)}.{advice}"
    )


def _chosen_subsets(
    corpus_dir: Path,
    split: str,
    subsets: Sequence[str] | None,
) -> list[str]:
    """Returns the subsets to read; UsageError if one is missing."""
    if subsets:
        missing = [name for name in subsets if not (corpus_dir / name).is_dir()]
        if missing:
            raise UsageError(
                f"Every subset must be a folder in {corpus_dir}. Missing: "
                f"{', '.join(missing)}. Found there: {found_in(corpus_dir)}."
            )

        return list(dict.fromkeys(subsets))

    present = _present_subsets(corpus_dir)
    # A subset is also a split.
    pattern = _SUBSETS.get(split, split)
    chosen = fnmatch.filter(present, pattern)

    if not chosen:
        raise UsageError(
            f"The split {split!r} of LibriSpeech must be there as the subset {pattern} "
            f"in {corpus_dir}. Found there: {', '.join(present)}. Download it, or name "
            "the subsets to read with --subsets."
        )

    return chosen


def _read_chapter(
    files: list[Path],
    speaker: str,
    entries: list[ListedUtterance],
    rejections: list[Rejection],
) -> None:
    """Adds a chapter's utterances, and what is wrong with its files.

    A transcript without audio gets the path that its audio would have, so that the
    checks of all corpora report it.

    Args:
        files: all in the chapter's folder.
        speaker: the name of the speaker's folder.
        entries: gets the utterances.
        rejections: gets what is wrong.
    """
    audio: dict[str, Path] = {}
    for path in files:
        if path.suffix.lower() not in AUDIO_SUFFIXES:
            continue

        # The same id with another suffix.
        if audio.setdefault(path.stem, path) != path:
            detail = f"{path} next to {audio[path.stem].name}"
            rejections.append(Rejection(path.stem, DUPLICATE_ID, detail))

    transcribed = set()
    for path in files:
        if not path.name.endswith(_TRANSCRIPT):
            continue

        for origin, line in parsed_lines(path, str.strip):
            if isinstance(line, Rejection):
                rejections.append(line)
                continue

            utterance_id, _, text = line.partition(" ")
            transcribed.add(utterance_id)
            audio_path = audio.get(utterance_id, path.parent / f"{utterance_id}.flac")
            entries.append(
                ListedUtterance(utterance_id, audio_path, text, speaker, origin)
            )

    for stem, path in audio.items():
        if stem not in transcribed:
            detail = f"{path} is in no {_TRANSCRIPT} of its folder"
            rejections.append(Rejection(stem, AUDIO_WITHOUT_TRANSCRIPT, detail))


LIBRISPEECH = Corpus(read_librispeech, librispeech_splits, has_subsets=True)
