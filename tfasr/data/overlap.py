"""Utterances and speakers that two splits share, which make an evaluation look too good."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfasr.data.shard_index import (
    INDEX_FILE,
    HeldUtterances,
    PackedUtterances,
    ShardedUtterance,
    read_index,
    read_manifest,
)
from tfasr.errors import UsageError

_SHOWN = 5
_AT_ONCE = 1 << 20

log = logging.getLogger("tfasr")


@dataclass(frozen=True)
class Overlap:
    """What a held-out split shares with the training split.

    Attributes:
        utterances: ids of the held-out utterances whose audio is trained on too.
        of_utterances: how many the held-out split has.
        speakers: speakers of both, by name.
        of_speakers: how many the held-out split names.
    """

    utterances: list[str]
    of_utterances: int
    speakers: list[str]
    of_speakers: int

    def to_json(self) -> dict[str, int]:
        return {
            "utterances": len(self.utterances),
            "of_utterances": self.of_utterances,
            "speakers": len(self.speakers),
            "of_speakers": self.of_speakers,
        }

    def __str__(self) -> str:
        said = []
        if self.utterances:
            said.append(
                f"{len(self.utterances)} of {self.of_utterances} utterances are trained on too "
                f"({_first(self.utterances)})"
            )
        if self.speakers:
            said.append(
                f"{len(self.speakers)} of {self.of_speakers} speakers are heard in training too "
                f"({_first(self.speakers)})"
            )
        return "; ".join(said)


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def overlap(
    training: HeldUtterances | PackedUtterances, held_out: HeldUtterances | PackedUtterances
) -> Overlap:
    """Returns what a held-out split shares with the training split.

    Two utterances are the same if their features are; where an older tfasr prepared a split and
    noted no features, if id, transcript, duration and number of frames are: short words of equal
    length are not.
    """
    content, known = held_out.column("content"), training.column("content")
    if content.all() and known.all():
        same = _among(content, known)
    else:
        both = set(map(_described, held_out)).intersection(map(_described, training))
        same = np.array([_described(utterance) in both for utterance in held_out], bool)
    named, first = np.unique(held_out.column("speaker"), return_index=True)
    heard = first[(named != 0) & _among(named, training.column("speaker"))]
    return Overlap(
        sorted(held_out[int(number)].id for number in np.flatnonzero(same)),
        len(held_out),
        sorted(held_out[int(number)].speaker for number in heard),
        int(np.count_nonzero(named)),
    )


def _described(utterance: ShardedUtterance) -> tuple[str, str, float, int]:
    return utterance.id, utterance.text, utterance.duration_s, utterance.frames


def _among(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    # The known ones are too many to be sorted, as `np.isin` would.
    distinct, which = np.unique(values, return_inverse=True)
    found = np.zeros(len(distinct), bool)
    for begin in range(0, len(known) if len(distinct) else 0, _AT_ONCE):
        part = known[begin : begin + _AT_ONCE]
        place = np.minimum(np.searchsorted(distinct, part), len(distinct) - 1)
        found[place[distinct[place] == part]] = True
    return found[which]


def warn_of_overlap(shared: Overlap, split: str) -> None:
    """Logs what a split shares with the training split, if anything."""
    if shared.utterances or shared.speakers:
        log.warning("%s: %s. Its error rates are lower than those on new data.", split, shared)


def warn_of_overlaps(shard_dir: Path) -> None:
    """Logs what each finished split of a folder shares with its training split."""
    splits = {}
    for folder in sorted(path.parent for path in shard_dir.glob(f"*/{INDEX_FILE}")):
        try:
            splits[folder.name] = read_manifest(folder, read_index(folder))
        except UsageError as error:
            log.warning("%s", error)
    training = splits.pop("train", None)
    for name, utterances in splits.items() if training is not None else ():
        warn_of_overlap(overlap(training, utterances), name)
