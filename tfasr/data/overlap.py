"""Utterances and speakers that two splits share, which make an evaluation look too good."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.data.shard_index import INDEX_FILE, ShardedUtterance, read_index, read_manifest
from tfasr.errors import UsageError

_SHOWN = 5

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
        """Returns the counts, for a ledger."""
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


def overlap(training: Sequence[ShardedUtterance], held_out: Sequence[ShardedUtterance]) -> Overlap:
    """Returns what a held-out split shares with the training split.

    Two utterances are the same if their features are; where an older tfasr prepared a split and
    noted no features, if id, transcript, duration and number of frames are: short words of equal
    length are not.

    Args:
        training: the utterances of "train".
        held_out: those of another split.
    """
    hashed = all(utterance.content for utterance in (*training, *held_out))
    key: Callable[[ShardedUtterance], Any] = (
        (lambda u: u.content) if hashed else (lambda u: (u.id, u.text, u.duration_s, u.frames))
    )
    known = {key(utterance) for utterance in training}
    speakers = {utterance.speaker for utterance in held_out} - {""}
    return Overlap(
        sorted(utterance.id for utterance in held_out if key(utterance) in known),
        len(held_out),
        sorted(speakers & {utterance.speaker for utterance in training}),
        len(speakers),
    )


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
