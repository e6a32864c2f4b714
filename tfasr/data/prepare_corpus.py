"""Prepares a corpus's splits, and warns of what they share with the training split.

`prepare` is the function behind ``tfasr prepare`` and ``tfasr.prepare``: it checks what
the user gave, chooses the alphabet and packs the splits one after the other. `overlap`
then compares the finished splits, because error rates on utterances or speakers of the
training split say little about new ones.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfasr.alphabet import Alphabet
from tfasr.data.features import FeatureConfig
from tfasr.data.manifest import (
    INDEX_FILE,
    HeldUtterances,
    PackedUtterances,
    ShardedUtterance,
    read_index,
    read_manifest,
)
from tfasr.errors import UsageError, stderr_console

if TYPE_CHECKING:
    from tfasr.data.alphabets import AlphabetConfig
    from tfasr.data.augmentation import NoiseConfig
    from tfasr.data.shards import ShardConfig
    from tfasr.models.model import RecogniserConfig

_SHOWN = 5  # names in a warning
_AT_ONCE = 1 << 20  # values to look up at once: 8 MB

log = logging.getLogger("tfasr")


@dataclass(frozen=True)
class Overlap:
    """What a held-out split shares with the training split; as a string, a sentence."""

    # Ids of held-out utterances whose audio is in the training split too.
    utterances: list[str]
    of_utterances: int  # number of utterances in the held-out split
    speakers: list[str]  # names of the speakers in both splits
    of_speakers: int  # number of speakers named in the held-out split
    recordings: list[str]  # names of the recordings with segments in both splits
    of_recordings: int  # number of recordings with segments in the held-out split

    def to_json(self) -> dict[str, int]:
        """Returns the numbers without names, for a run's record."""
        return {
            "utterances": len(self.utterances),
            "of_utterances": self.of_utterances,
            "speakers": len(self.speakers),
            "of_speakers": self.of_speakers,
        }

    def __str__(self) -> str:
        of_utterances = f"{self.of_utterances} utterances are in the training split too"
        of_speakers = f"{self.of_speakers} speakers are in the training split too"
        of_recordings = (
            f"{self.of_recordings} recordings have segments in the training split too"
        )
        parts = []

        for names, text in (
            (self.utterances, of_utterances),
            (self.speakers, of_speakers),
            (self.recordings, of_recordings),
        ):
            if names:
                first = ", ".join(names[:_SHOWN])
                more = ", ..." if len(names) > _SHOWN else ""
                parts.append(f"{len(names)} of {text} ({first}{more})")

        return "; ".join(parts)


def overlap(
    training: HeldUtterances | PackedUtterances,
    held_out: HeldUtterances | PackedUtterances,
) -> Overlap:
    """Returns the overlap of a held-out split with the training split.

    Utterances count as the same if the hashes of their audio are equal or, if one of
    the splits lacks such hashes, if ids, texts, durations and frames are equal.
    """
    content = held_out.column("content")
    training_content = training.column("content")
    if content.all() and training_content.all():
        same = _among(content, training_content)
    else:
        shared = set(map(_described, held_out)).intersection(map(_described, training))
        same = np.array(
            [_described(utterance) in shared for utterance in held_out], bool
        )

    speakers, of_speakers = _shared_names(training, held_out, "speaker")
    recordings, of_recordings = _shared_names(training, held_out, "recording")

    return Overlap(
        utterances=sorted(held_out[int(number)].id for number in np.flatnonzero(same)),
        of_utterances=len(held_out),
        speakers=speakers,
        of_speakers=of_speakers,
        recordings=recordings,
        of_recordings=of_recordings,
    )


def _shared_names(
    training: HeldUtterances | PackedUtterances,
    held_out: HeldUtterances | PackedUtterances,
    column: str,
) -> tuple[list[str], int]:
    """Returns the names that both splits have in a column, "speaker" or "recording".

    Also returns how many different names the held-out split has.
    """
    # Codes of names, and one utterance with each.
    named, first = np.unique(held_out.column(column), return_index=True)
    shared = first[(named != 0) & _among(named, training.column(column))]
    names = sorted(getattr(held_out[int(number)], column) for number in shared)

    return names, int(np.count_nonzero(named))


def _described(utterance: ShardedUtterance) -> tuple[str, str, float, int]:
    """Returns the values that identify an utterance without a hash of its audio."""
    return utterance.id, utterance.text, utterance.duration_s, utterance.frames


def _among(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Returns which values occur in ``known``, bool ``(values,)``."""
    # `np.isin` would sort all known values, of which there may be too many.
    distinct, which = np.unique(values, return_inverse=True)
    is_known = np.zeros(len(distinct), bool)

    for begin in range(0, len(known) if len(distinct) else 0, _AT_ONCE):
        part = known[begin : begin + _AT_ONCE]
        place = np.minimum(np.searchsorted(distinct, part), len(distinct) - 1)
        is_known[place[distinct[place] == part]] = True

    return is_known[which]


def warn_of_overlap(shared: Overlap, split: str) -> None:
    """Logs a warning if a split shares anything with the training split."""
    if shared.utterances or shared.speakers or shared.recordings:
        log.warning(
            "%s: %s. Its error rates are lower than those on new data.", split, shared
        )


def warn_of_overlaps(shard_dir: Path) -> None:
    """Warns of what finished splits in a shard folder share with the training split there.

    A damaged split gets a warning instead of a comparison. Splits with the same files
    of noise get one, too: a recogniser may learn those noises.
    """
    # Only finished splits have an index.
    folders = {
        path.parent.name: path.parent for path in shard_dir.glob(f"*/{INDEX_FILE}")
    }
    training_folder = folders.pop("train", None)
    if training_folder is None or not folders:
        return

    try:
        training, training_noise = _utterances_and_noise(training_folder)
    except UsageError as error:
        log.warning("%s", error)
        return

    for name, folder in sorted(folders.items()):
        try:
            utterances, noise = _utterances_and_noise(folder)
        except UsageError as error:
            log.warning("%s", error)
            continue

        warn_of_overlap(overlap(training, utterances), name)
        if noise and noise == training_noise:
            log.warning(
                "%s: its noise and rooms are those of training, so its error rates are lower than "
                "in other noise. Prepare it with another --noise_dir and --impulse_dir.",
                name,
            )


def _utterances_and_noise(
    folder: Path,
) -> tuple[HeldUtterances | PackedUtterances, str | None]:
    """Reads a finished split's utterances, and the hash of its noise (None if clean)."""
    index = read_index(folder)
    utterances = read_manifest(folder, index)
    return utterances, index.get("noise", {}).get("files")


def prepare(
    *,
    corpus: str,
    corpus_dir: str | Path,
    shard_dir: str | Path,
    split: str | None = None,
    manifest: str | Path | None = None,
    subsets: list[str] | None = None,
    features: FeatureConfig | None = None,
    shards: "ShardConfig | None" = None,
    model: "RecogniserConfig | None" = None,
    alphabet: "Alphabet | AlphabetConfig | None" = None,
    max_bad_fraction: float = 0.01,
    num_workers: int | None = None,
    executor: Executor | None = None,
    audio_reader: str = "soundfile",
    progress: bool = False,
    noise: "NoiseConfig | None" = None,
    noise_dir: str | Path | None = None,
    impulse_dir: str | Path | None = None,
) -> dict[str, dict[str, Any]]:
    """Prepares one split of a corpus, or all; the same call after an interruption continues.

    Args:
        corpus: a name in `tfasr.corpora.corpus.CORPORA`: "librispeech",
            "speech_commands", "json", "tsv", "synthetic", or one that an imported
            module has registered.
        corpus_dir: the corpus's folder.
        shard_dir: gets a folder for each split.
        split: "train", "validation", "test" or another that the corpus has, such as
            "test-other". By default, those of the first three that it has.
        manifest: the list of a "json" or "tsv" corpus, relative to ``corpus_dir`` or
            absolute.
        subsets: folders of LibriSpeech that make up the split, such as
            ["train-clean-5"].
        features: a `FeatureConfig`, by default that of the paper (arXiv 2003.12366).
        shards: a `ShardConfig`.
        model: config of a model, by default the paper's. The number of output frames
            that it computes decides which utterances are too short.
        alphabet: an `Alphabet`, or a `tfasr.data.alphabets.AlphabetConfig` to make one
            from. By default that of the training split if it is prepared, otherwise
            English.
        max_bad_fraction: with a larger share of bad utterances, the split isn't
            prepared.
        num_workers: threads; all cores by default.
        executor: does the work instead of threads, such as a ``ProcessPoolExecutor``,
            or what ``get_executor`` of a Dask client returns. Its workers must see the
            corpus and ``shard_dir`` under the same absolute paths and run the same
            software. The shards are then the same as with threads, bit for bit.
        audio_reader: "soundfile" or "tfio".
        progress: whether to draw a progress bar on stderr.
        noise: a `NoiseConfig`: which copies of utterances are packed too; by default,
            one noisy copy of each training utterance if ``noise_dir`` or
            ``impulse_dir`` is given.
        noise_dir: a folder of noise recordings, which are mixed into copies.
        impulse_dir: a folder of rooms' impulse responses, with which copies are
            convolved.

    Returns:
        Each split's index, by its name.

    Raises:
        UsageError: for a wrong folder, split or reader, or if ``shard_dir`` contains
            other files or another process is preparing the split.
        RunError: if too many utterances are bad, the disk is full, or the executor or
            one of its workers fails.
    """
    from tfasr.corpora.corpus import available_splits, read_split
    from tfasr.corpora.utterance import check_split
    from tfasr.data.alphabets import TRAINING, AlphabetConfig, alphabet_of
    from tfasr.data.audio import check_audio_reader
    from tfasr.data.augmentation import copies_of
    from tfasr.data.packing import Packing, check_split_folder
    from tfasr.data.prepare import pack_split
    from tfasr.data.shards import ShardConfig
    from tfasr.models.model import MODELS, ModelConfig

    check_audio_reader(audio_reader)
    if split is None and (manifest or subsets):
        raise UsageError(
            "A manifest or subsets must come with the split they make. Add --split train, "
            "validation or test."
        )

    if not 0 <= max_bad_fraction <= 1:
        raise UsageError(
            f"max_bad_fraction must lie in 0..1. Received: {max_bad_fraction}."
        )
    if num_workers is not None and num_workers < 1:
        raise UsageError(f"num_workers must be at least 1. Received: {num_workers}.")

    packing = Packing(
        alphabet=alphabet if isinstance(alphabet, Alphabet) else Alphabet(),
        features=features or FeatureConfig(),
        shards=shards or ShardConfig(),
        model=model or MODELS[ModelConfig().name](),
        audio_reader=audio_reader,
    )
    if split is not None:
        check_split(split)

    splits = available_splits(corpus, corpus_dir) if split is None else [split]
    if not splits:
        raise UsageError(
            f"{corpus_dir} must hold a list named after a split, such as train.{corpus}. Found "
            "none. Name a list with --manifest and its split with --split."
        )

    copies = copies_of(noise, noise_dir, impulse_dir, splits)
    for name in splits:
        check_split_folder(Path(shard_dir) / name)

    reading = functools.partial(
        read_split,
        corpus,
        corpus_dir,
        manifest=manifest,
        subsets=subsets,
    )
    if not isinstance(alphabet, Alphabet):
        training = functools.partial(reading, TRAINING) if TRAINING in splits else None
        chosen = alphabet_of(alphabet or AlphabetConfig(), Path(shard_dir), training)
        packing = replace(packing, alphabet=chosen)

    indexes = {}
    for name in splits:
        with _progress(name, progress) as callbacks:
            indexes[name] = pack_split(
                reading(name),
                name,
                Path(shard_dir),
                replace(packing, copies=copies.get(name)),
                max_bad_fraction=max_bad_fraction,
                num_workers=num_workers,
                executor=executor,
                **callbacks,
            )

    warn_of_overlaps(Path(shard_dir))

    return indexes


@contextlib.contextmanager
def _progress(split: str, shown: bool) -> Iterator[dict[str, Callable[..., None]]]:
    """Draws a progress bar during the block; yields the callbacks of `pack_split`."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        "utterances, time left",
        TimeRemainingColumn(),
    )
    bar = Progress(
        "{task.description}",
        *columns,
        console=stderr_console(),
        disable=not shown,
    )
    task = bar.add_task(f"list {split}", total=None)

    def packed(done: int, total: int) -> None:
        bar.update(task, description=f"prepare {split}", completed=done, total=total)

    with bar:
        yield {
            "on_listed": lambda entries: bar.update(task, completed=entries),
            "on_progress": packed,
        }
