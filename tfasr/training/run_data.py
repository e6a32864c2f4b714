"""What a run reads: its splits, opened and checked, and the batches made of them."""

from dataclasses import dataclass
from pathlib import Path

from tfasr.alphabet import Alphabet
from tfasr.data.pipeline import BatchSource
from tfasr.data.shards import ShardedSplit, open_split
from tfasr.decoding.lexicon import lexicon_from_transcripts
from tfasr.training.averaging.averages import check_averaging
from tfasr.training.build import check_batch_size, check_decoder, check_splits
from tfasr.training.experiment import Experiment


@dataclass(frozen=True)
class RunData:
    """The data of a run.

    Attributes:
        splits: "train" and "validation".
        sources: the batches of each.
        alphabet: of the transcripts.
    """

    splits: dict[str, ShardedSplit]
    sources: dict[str, BatchSource]
    alphabet: Alphabet

    def lexicon(self) -> list[str]:
        """Returns the words of the training transcripts."""
        return lexicon_from_transcripts(self.splits["train"].transcripts())


def open_data(experiment: Experiment, shard_dir: str | Path) -> RunData:
    """Opens what an experiment is trained and evaluated on.

    Raises:
        UsageError: if shards and configuration do not fit together.
    """
    splits = {name: open_split(shard_dir, name) for name in ("train", "validation")}
    alphabet = check_splits(splits, experiment)
    check_batch_size(experiment)
    check_averaging(experiment.training)
    check_decoder(experiment, splits["validation"], alphabet)
    return RunData(splits, _sources(experiment, splits), alphabet)


def _sources(experiment: Experiment, splits: dict[str, ShardedSplit]) -> dict[str, BatchSource]:
    statistics = splits["train"].feature_statistics()
    return {
        name: BatchSource(
            split,
            experiment.features,
            experiment.pipeline,
            experiment.augmentation,
            statistics,
            experiment.model.output_lengths,
        )
        for name, split in splits.items()
    }
