"""Reads Google Speech Commands: one folder per word; lists or a hash decide the splits.

The lists name the recordings of validation and test, and all others are for training.
So a bad line in a list must never move a test recording into training: most of this
module is about that.
"""

import bisect
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from tfasr.corpora.audio_header import AUDIO_SUFFIXES
from tfasr.corpora.corpus import Corpus
from tfasr.corpora.reading import (
    DUPLICATE_ID,
    TRANSCRIPT_WITHOUT_AUDIO,
    ListedUtterance,
    MalformedLineError,
    assemble,
    found_in,
    numbered_lines,
    parsed_lines,
    require_folder,
    subfolders,
)
from tfasr.corpora.utterance import SPLITS, CorpusSplit, Rejection
from tfasr.errors import UsageError

# What --corpus_dir must be, for messages.
_EXPECTED = (
    "the folder of Speech Commands that holds one folder per word (yes, no, up, ...)"
)

# The corpus's lists of two splits.
_LISTS = {"validation": "validation_list.txt", "test": "testing_list.txt"}

# What follows the speaker in a file's name.
_SPEAKER_END = "_nohash_"

# The last part of a path, without suffix.
_FILE_NAME = re.compile(r"([^/\\\s]+?)(?:\.\w+)?(?=\s|$)")

# Share of a list's names from which on it must have been made by the rule.
_BY_THE_RULE = 0.9

# The names and numbers of the corpus's own rule, ``which_set``.
MAX_NUM_WAVS_PER_CLASS = 2**27 - 1
VALIDATION_PERCENT = 10.0
TESTING_PERCENT = 10.0


def official_split(file_name: str) -> str:
    """Returns a recording's split by the corpus's rule.

    The rule hashes the speaker. So all recordings of a speaker are in one split, and
    stay there if the corpus grows.

    Args:
        file_name: such as ``<speaker>_nohash_<n>.wav``.

    Source: arXiv 1804.03209, section 6 (README.md of the corpus, ``which_set``).
    """
    speaker = file_name.rpartition("/")[2].partition(_SPEAKER_END)[0]
    digest = int(
        hashlib.sha1(os.fsencode(speaker), usedforsecurity=False).hexdigest(), 16
    )
    # As the corpus's own code computes it, rounding included.
    percent = digest % (MAX_NUM_WAVS_PER_CLASS + 1) * (100.0 / MAX_NUM_WAVS_PER_CLASS)
    if percent < VALIDATION_PERCENT:
        return "validation"
    if percent < VALIDATION_PERCENT + TESTING_PERCENT:
        return "test"

    return "train"


def read_speech_commands(corpus_dir: str | Path, split: str) -> CorpusSplit:
    """Returns one split; transcripts are the folders' names.

    Ids are the paths without suffix. Folders whose name begins with an underscore, such
    as ``_background_noise_``, are skipped. Recordings in no list belong to training or,
    if `official_split` says so, to a split whose list is missing. A recording that a
    bad line of a list may mean belongs to that list's split, so that it never gets into
    training.

    Args:
        corpus_dir: the folder with a folder per word.
        split: "train", "validation" or "test".

    Raises:
        UsageError: if the folder has another corpus, or a recording is in both lists.
    """
    corpus_dir = require_folder(corpus_dir, _EXPECTED)
    recordings = _recordings(corpus_dir)
    listed, bad_lines = _read_lists(corpus_dir)
    lists = _Lists(corpus_dir, listed, bad_lines, {name for name, _ in recordings})
    entries = []

    for utterance_id, path in recordings:
        # Decided for each recording, as lists may be incomplete.
        if lists.split_of(utterance_id) == split:
            word = utterance_id.partition("/")[0]
            speaker = path.stem.partition(_SPEAKER_END)[0]
            entries.append(
                ListedUtterance(utterance_id, path, word, speaker, str(path.parent))
            )

    absent = [
        Rejection(
            name,
            TRANSCRIPT_WITHOUT_AUDIO,
            f"{listed[split][name]}: there is no such file",
        )
        for name in lists.absent.get(split, ())
    ]

    return assemble(
        f"the split {split!r} of {corpus_dir}",
        entries,
        absent + bad_lines.get(split, []),
    )


def speech_commands_splits(corpus_dir: str | Path) -> list[str]:
    """Returns which of "train", "validation" and "test" have a recording."""
    corpus_dir = require_folder(corpus_dir, _EXPECTED)
    recordings = _recordings(corpus_dir)
    lists = _Lists(
        corpus_dir, *_read_lists(corpus_dir), {name for name, _ in recordings}
    )
    present = {lists.split_of(utterance_id) for utterance_id, _ in recordings}

    return [split for split in SPLITS if split in present]


def _recordings(corpus_dir: Path) -> list[tuple[str, Path]]:
    """Returns the id and path of all recordings; UsageError if it's another corpus."""
    recordings = [
        (f"{word}/{path.stem}", path)
        for word in subfolders(corpus_dir)
        if not word.startswith(("_", "."))
        for path in sorted((corpus_dir / word).iterdir())
        if path.suffix.lower() in AUDIO_SUFFIXES
    ]
    # Another corpus may also keep audio in folders, but their names aren't transcripts.
    native = any(_SPEAKER_END in path.name for _, path in recordings)
    listed = any((corpus_dir / name).is_file() for name in _LISTS.values())
    if not recordings or not (native or listed):
        raise UsageError(
            f"--corpus_dir must be {_EXPECTED} with recordings "
            f"<speaker>_nohash_<n>.wav, or with {' and '.join(_LISTS.values())}. "
            f"Received: {corpus_dir}. Found there: {found_in(corpus_dir)}."
        )

    return recordings


def _read_lists(
    corpus_dir: Path,
) -> tuple[dict[str, dict[str, str]], dict[str, list[Rejection]]]:
    """Reads the lists that are there.

    Returns:
        The ids of each list by its split, with their places; and malformed lines and
        duplicates.

    Raises:
        UsageError: if a recording is in both lists.
    """
    listed: dict[str, dict[str, str]] = {}
    rejections: dict[str, list[Rejection]] = {split: [] for split in _LISTS}

    for split, name in _LISTS.items():
        path = corpus_dir / name
        if not path.is_file():
            continue

        listed[split] = {}
        for place, utterance_id in parsed_lines(path, _id_in):
            if isinstance(utterance_id, Rejection):
                rejections[split].append(utterance_id)
            elif listed[split].setdefault(utterance_id, place) != place:
                rejections[split].append(Rejection(utterance_id, DUPLICATE_ID, place))

    twice = sorted(set(listed.get("validation", {})) & set(listed.get("test", {})))
    if twice:
        raise UsageError(
            f"A recording may be in only one of {' and '.join(_LISTS.values())}. "
            f"Received: {len(twice)} in both in {corpus_dir}: {', '.join(twice[:5])}."
        )

    return listed, rejections


def _id_in(line: str) -> str:
    """Returns the id in a line; MalformedLineError if it isn't a path of the corpus."""
    text = line.strip()
    word, slash, name = text.partition("/")
    if not (word and slash and Path(name).stem):
        raise MalformedLineError(f"it must read <word>/<file>.wav; received {text!r}")

    return f"{word}/{Path(name).with_suffix('').as_posix()}"


def _follows_rule(names: dict[str, str], split: str) -> bool:
    """Whether a list was made by `official_split`, which can then stand in for bad lines.

    Args:
        names: the ids in the list.
        split: the list's.
    """
    by_rule = sum(official_split(f"{name}.wav") == split for name in names)
    return by_rule >= _BY_THE_RULE * len(names)


def _names_in_bad_lines(path: Path) -> Iterator[str]:
    """Yields all that may be file names in the malformed lines of a list."""
    for _, line in numbered_lines(path):
        try:
            _id_in(line.decode())
        except ValueError:
            yield from _FILE_NAME.findall(line.decode(errors="replace"))


class _Lists:
    """Decides the splits of recordings by the corpus's lists, of which lines may be bad.

    Args:
        corpus_dir: the corpus's folder.
        listed: the ids in each split's list, with their places.
        bad_lines: of each list.
        present: the ids of all recordings.

    Attributes:
        absent: by split, the sorted ids in its list that have no recording.
    """

    def __init__(
        self,
        corpus_dir: Path,
        listed: dict[str, dict[str, str]],
        bad_lines: dict[str, list[Rejection]],
        present: set[str],
    ):
        self._listed = listed
        self.absent = {
            split: sorted(set(names) - present) for split, names in listed.items()
        }
        self._is_faulty = {
            split
            for split, names in listed.items()
            if (bad_lines[split] or self.absent[split]) and _follows_rule(names, split)
        }
        # By a file's name in a bad line: the list's split.
        self._meant: dict[str, str] = {}

        for split, names in self.absent.items():
            for name in names:
                self._meant[name.rpartition("/")[2]] = split

            if bad_lines[split]:
                for name in _names_in_bad_lines(corpus_dir / _LISTS[split]):
                    self._meant[name] = split

    def split_of(self, utterance_id: str) -> str:
        """Returns the split of a recording, "train" if nothing says otherwise."""
        for split, names in self._listed.items():
            if utterance_id in names:
                return split

        meant = self._meant.get(utterance_id.rpartition("/")[2])
        if meant is not None:
            return meant

        # A name in the list that was cut off.
        for split, names in self.absent.items():
            place = bisect.bisect(names, utterance_id)
            if place and utterance_id.startswith(names[place - 1]):
                return split

        derived = official_split(f"{utterance_id}.wav")
        if derived not in self._listed or derived in self._is_faulty:
            return derived

        return "train"


SPEECH_COMMANDS = Corpus(read_speech_commands, speech_commands_splits)
