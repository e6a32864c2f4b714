"""From a corpus to shards."""

from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfasr.errors import UsageError

if TYPE_CHECKING:
    from tfasr.alphabet import Alphabet
    from tfasr.data.features import FeatureConfig
    from tfasr.data.shards import ShardConfig
    from tfasr.models.recogniser import RecogniserConfig


def prepare(
    *,
    corpus: str,
    corpus_dir: str | Path,
    shard_dir: str | Path,
    split: str | None = None,
    manifest: str | Path | None = None,
    subsets: list[str] | None = None,
    features: "FeatureConfig | None" = None,
    shards: "ShardConfig | None" = None,
    model: "RecogniserConfig | None" = None,
    alphabet: "Alphabet | None" = None,
    max_bad_fraction: float = 0.01,
    num_workers: int | None = None,
    executor: Executor | None = None,
    audio_reader: str = "soundfile",
    progress: bool = False,
) -> dict[str, dict[str, Any]]:
    """Prepares one split of a corpus, or all that it has; an interrupted call is resumed.

    Args:
        corpus: of `tfasr.corpora.registry.CORPORA`: "librispeech", "speech_commands", "json",
            "tsv", "synthetic", or one that an imported module has registered.
        corpus_dir: the corpus's folder.
        shard_dir: gets a folder for each split.
        split: "train", "validation" or "test"; all that the corpus has by default.
        manifest: the list of a "json" or "tsv" corpus, relative to ``corpus_dir`` or absolute.
        subsets: folders of LibriSpeech that make up the split, such as ["train-clean-5"].
        features: a `FeatureConfig`; the paper's by default.
        shards: a `ShardConfig`.
        model: config of a model, the paper's by default; its output frames decide which utterances
            are too short.
        alphabet: an `Alphabet`; English by default.
        max_bad_fraction: largest share of bad utterances before the split is refused.
        num_workers: threads; all cores by default.
        executor: does the work instead, such as a ``ProcessPoolExecutor``, or what
            ``get_executor`` of a Dask client returns. Its workers must see the corpus and
            ``shard_dir`` under the same absolute paths and run the same software; then the shards
            are the same, bit for bit.
        audio_reader: "soundfile" or "tfio".
        progress: whether to draw a progress bar on stderr.

    Returns:
        Each split's index.

    Raises:
        UsageError: for a wrong folder, split or reader, a folder that holds files which are not
            tfasr's, or one that another process is preparing.
        RunError: if too many utterances are bad, the disk is full, or the executor or one of its
            workers cannot do the work.
    """
    from tfasr.alphabet import Alphabet
    from tfasr.corpora.registry import read_split
    from tfasr.data.audio import check_audio_reader
    from tfasr.data.features import FeatureConfig
    from tfasr.data.overlap import warn_of_overlaps
    from tfasr.data.packing import Packing
    from tfasr.data.prepare import pack_split
    from tfasr.data.shards import ShardConfig
    from tfasr.models.recogniser import MODELS, ModelConfig

    check_audio_reader(audio_reader)
    _check(split, manifest or subsets, max_bad_fraction, num_workers)
    packing = Packing(
        alphabet=alphabet or Alphabet(),
        features=features or FeatureConfig(),
        shards=shards or ShardConfig(),
        model=model or MODELS[ModelConfig().name](),
        audio_reader=audio_reader,
    )
    indexes = {}
    for name in _splits(split, corpus, corpus_dir, Path(shard_dir)):
        found = read_split(corpus, corpus_dir, name, manifest=manifest, subsets=subsets)
        with _Progress(name, progress) as bar:
            indexes[name] = pack_split(
                found,
                name,
                Path(shard_dir),
                packing,
                max_bad_fraction=max_bad_fraction,
                num_workers=num_workers,
                executor=executor,
                on_listed=bar.listed,
                on_progress=bar.packed,
            )
    warn_of_overlaps(Path(shard_dir))
    return indexes


def _check(
    split: str | None, selected: Any, max_bad_fraction: float, num_workers: int | None
) -> None:
    if split is None and selected:
        raise UsageError(
            "A manifest or subsets must come with the split they make. Add --split train, "
            "validation or test."
        )
    if not 0 <= max_bad_fraction <= 1:
        raise UsageError(f"max_bad_fraction must lie in 0..1. Received: {max_bad_fraction}.")
    if num_workers is not None and num_workers < 1:
        raise UsageError(f"num_workers must be at least 1. Received: {num_workers}.")


def _splits(split: str | None, corpus: str, corpus_dir: str | Path, shard_dir: Path) -> list[str]:
    from tfasr.data.split_folder import check_split_folder

    names = [split] if split else _splits_of(corpus, corpus_dir)
    for name in names:
        check_split_folder(shard_dir / name)
    return names


def _splits_of(corpus: str, corpus_dir: str | Path) -> list[str]:
    from tfasr.corpora.registry import available_splits

    splits = available_splits(corpus, corpus_dir)
    if not splits:
        raise UsageError(
            f"{corpus_dir} must hold a list named after a split, such as train.{corpus}. Found "
            "none. Name a list with --manifest and its split with --split."
        )
    return splits


class _Progress:
    def __init__(self, split: str, shown: bool):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        self._bar = Progress(
            "{task.description}",
            BarColumn(),
            MofNCompleteColumn(),
            "utterances, time left",
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._split = split
        self._task = self._bar.add_task(f"list {split}", total=None)

    def __enter__(self) -> "_Progress":
        self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        self._bar.stop()

    def listed(self, entries: int) -> None:
        """Counts while nobody knows how many there will be."""
        self._bar.update(self._task, completed=entries)

    def packed(self, done: int, total: int) -> None:
        """Moves the bar."""
        name = f"prepare {self._split}"
        self._bar.update(self._task, description=name, completed=done, total=total)
