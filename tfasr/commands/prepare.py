"""``tfasr prepare``: a corpus's audio and transcripts to shards of features and labels."""

import argparse
import math
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError

CORPORA = ("librispeech", "speech_commands", "json", "tsv", "synthetic")


def prepare(
    *,
    corpus: str,
    corpus_dir: str | Path,
    shard_dir: str | Path,
    split: str | None = None,
    manifest: str | Path | None = None,
    subsets: list[str] | None = None,
    features: Any = None,
    shards: Any = None,
    model: Any = None,
    alphabet: Any = None,
    max_bad_fraction: float = 0.01,
    num_workers: int | None = None,
    audio_reader: str = "soundfile",
    progress: bool = False,
) -> dict[str, dict[str, Any]]:
    """Prepares one split of a corpus, or all that it has; an interrupted call is resumed.

    Args:
        corpus: "librispeech", "speech_commands", "json", "tsv" or "synthetic".
        corpus_dir: the corpus's folder.
        shard_dir: gets a folder for each split.
        split: "train", "validation" or "test"; all that the corpus has by default.
        manifest: the list of a "json" or "tsv" corpus, relative to ``corpus_dir`` or absolute.
        subsets: folders of LibriSpeech that make up the split, such as ["train-clean-5"].
        features: a `FeatureConfig`; the paper's by default.
        shards: a `ShardConfig`.
        model: an `AcousticModelConfig`; its convolution decides which utterances are too short.
        alphabet: an `Alphabet`; English by default.
        max_bad_fraction: largest share of bad utterances before the split is refused.
        num_workers: threads; all cores by default.
        audio_reader: "soundfile" or "tfio".
        progress: whether to draw a progress bar on stderr.

    Returns:
        Each split's index.

    Raises:
        UsageError: for a wrong folder, split or reader.
        RunError: if too many utterances are bad or the disk is full.
    """
    from tfasr.alphabet import Alphabet
    from tfasr.corpora.manifest import select
    from tfasr.corpora.registry import available_splits, read_split
    from tfasr.data.audio import check_audio_reader
    from tfasr.data.features import FeatureConfig
    from tfasr.data.packing import Packing
    from tfasr.data.prepare import pack_split
    from tfasr.data.shards import ShardConfig
    from tfasr.models.acoustic_model import AcousticModelConfig

    check_audio_reader(audio_reader)
    if not 0 <= max_bad_fraction <= 1:
        raise UsageError(f"max_bad_fraction must lie in 0..1. Received: {max_bad_fraction}.")
    if num_workers is not None and num_workers < 1:
        raise UsageError(f"num_workers must be at least 1. Received: {num_workers}.")
    shards = shards or ShardConfig()
    model = model or AcousticModelConfig()
    packing = Packing(
        alphabet=alphabet or Alphabet(),
        features=features or FeatureConfig(),
        shards=shards,
        conv_kernel=model.conv_kernel,
        conv_stride=model.conv_stride,
        audio_reader=audio_reader,
    )
    if split is None and (manifest or subsets):
        raise UsageError(
            "A manifest or subsets must come with the split they make. Add --split train, "
            "validation or test."
        )
    splits = [split] if split else available_splits(corpus, corpus_dir)
    if not splits:
        raise UsageError(
            f"{corpus_dir} must hold a list named after a split, such as train.{corpus}. Found "
            "none. Name a list with --manifest and its split with --split."
        )
    indexes = {}
    for name in splits:
        found = read_split(corpus, corpus_dir, name, manifest=manifest, subsets=subsets)
        selection = select(
            found,
            packing.alphabet,
            output_frames=packing.output_frames,
            max_duration_s=shards.max_duration_s or math.inf,
        )
        with _Progress(name, progress) as bar:
            indexes[name] = pack_split(
                selection,
                name,
                Path(shard_dir),
                packing,
                max_bad_fraction=max_bad_fraction,
                num_workers=num_workers,
                on_progress=bar.update,
            )
    return indexes


def describe(split: str, index: dict[str, Any], shard_dir: Path) -> str:
    """Returns one line on a prepared split."""
    left_out = f"{index['too_long']} too long, {index['bad']} bad"
    if index["bad"]:
        left_out += f", listed in {shard_dir / split / 'dropped.json'}"
    return (
        f"{split}: {index['utterances']} utterances, {index['duration_s'] / 3600:.2f} h, in "
        f"{len(index['shards'])} shards; left out: {left_out}"
    )


class _Progress:
    """A bar with the time left on stderr, or nothing."""

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
        self._task = self._bar.add_task(f"prepare {split}", total=None)

    def __enter__(self) -> "_Progress":
        self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        self._bar.stop()

    def update(self, done: int, total: int) -> None:
        """Moves the bar."""
        self._bar.update(self._task, completed=done, total=total)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's flags."""
    parser.add_argument("--corpus", required=True, choices=CORPORA, help="the corpus's layout")
    parser.add_argument("--corpus_dir", required=True, help="the corpus's folder")
    parser.add_argument("--shard_dir", required=True, help="gets a folder for each split")
    parser.add_argument("--split", choices=("train", "validation", "test"), help="default: all")
    parser.add_argument("--manifest", help="list of a tsv or json corpus; needs --split")
    parser.add_argument("--subsets", help="folders of LibriSpeech, comma-separated; needs --split")
    parser.add_argument("--gin_file", help="preset or file with features, shards and model")
    parser.add_argument("--gin_binding", action="append", default=[], help="repeatable")
    parser.add_argument("--max_bad_fraction", type=float, default=0.01, help="default: %(default)s")
    parser.add_argument("--num_workers", type=int, help="default: all cores")
    parser.add_argument("--audio_reader", choices=("soundfile", "tfio"), default="soundfile")


def run(arguments: argparse.Namespace) -> None:
    """Runs the command."""
    from tfasr.gin_config import load_config

    config = load_config(arguments.gin_file, arguments.gin_binding)
    indexes = prepare(
        corpus=arguments.corpus,
        corpus_dir=arguments.corpus_dir,
        shard_dir=arguments.shard_dir,
        split=arguments.split,
        manifest=arguments.manifest,
        subsets=arguments.subsets.split(",") if arguments.subsets else None,
        features=config.experiment.features,
        shards=config.shards,
        model=config.experiment.model,
        max_bad_fraction=arguments.max_bad_fraction,
        num_workers=arguments.num_workers,
        audio_reader=arguments.audio_reader,
        progress=True,
    )
    for name, index in indexes.items():
        print(describe(name, index, Path(arguments.shard_dir)))
