"""A trained model with a split to score it on."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tfasr.alphabet import Alphabet
from tfasr.data.pipeline import BatchSource
from tfasr.data.shards import open_split
from tfasr.errors import UsageError, wrong_values_are_wrong_use
from tfasr.plugins import require_plugins
from tfasr.run_files import ALPHABET_FILE, LEXICON_FILE
from tfasr.training.build import build_model, check_splits
from tfasr.training.checkpoint import find_checkpoint, restore_for_use
from tfasr.training.ctc_model import CtcModel
from tfasr.training.experiment import Experiment
from tfasr.training.run_folder import load_feature_statistics, recorded_shard_dir

if TYPE_CHECKING:
    from tfasr.decoding.kenlm_model import KenlmModel
    from tfasr.training.evaluation import EvaluationResult, Evaluator


@dataclass(frozen=True)
class RestoredModel:
    """A run's model with a checkpoint's weights, averaged ones where it holds them.

    Attributes:
        experiment: the run's configs.
        alphabet: the classes.
        model: restored.
        checkpoint: the file that it was restored from.
    """

    experiment: Experiment
    alphabet: Alphabet
    model: CtcModel
    checkpoint: Path


@dataclass(frozen=True)
class TrainedModel:
    """A run's model, restored, and batches for it.

    Attributes:
        experiment: the run's configs.
        alphabet: the classes.
        model: with a checkpoint's variables.
        source: batches of the split, normalised as in training.
    """

    experiment: Experiment
    alphabet: Alphabet
    model: CtcModel
    source: BatchSource


def restored_model(
    run_dir: str | Path, *, checkpoint: str = "best", precision: str | None = None
) -> RestoredModel:
    """Opens a run's model, without any split.

    Args:
        run_dir: a folder that `tfasr train` wrote.
        checkpoint: "best" (by validation CER), "last", or a file.
        precision: Keras's dtype policy of the layers; the run's own by default.

    Raises:
        UsageError: if the run or its checkpoint is missing or does not fit.
    """
    run_dir = Path(run_dir)
    require_plugins(run_dir, kinds=("model", "decoder"))
    experiment = Experiment.load(run_dir)
    alphabet = Alphabet.load(run_dir / ALPHABET_FILE)
    path = find_checkpoint(run_dir, checkpoint)  # before the model is built, which takes a while
    if precision is not None:
        training = dataclasses.replace(experiment.training, precision=precision)
        experiment = dataclasses.replace(experiment, training=training)
    model = build_model(experiment, alphabet, compiled=False)
    restore_for_use(path, model)
    return RestoredModel(experiment, alphabet, model, path)


def open_trained(
    run_dir: str | Path,
    split: str,
    *,
    shard_dir: str | Path | None = None,
    checkpoint: str = "best",
) -> TrainedModel:
    """Opens a run's model and a split.

    Args:
        run_dir: a folder that `tfasr train` wrote.
        split: a prepared split.
        shard_dir: where it is; the run's own by default.
        checkpoint: "best" (by validation CER), "last", or a file.

    Raises:
        UsageError: if the run, its checkpoint or the split is missing or does not fit.
    """
    source = source_of_split(run_dir, split, shard_dir)
    restored = restored_model(run_dir, checkpoint=checkpoint)
    return TrainedModel(restored.experiment, restored.alphabet, restored.model, source)


def source_of_split(
    run_dir: str | Path, split: str, shard_dir: str | Path | None = None
) -> BatchSource:
    """Returns batches of a split, normalised as in a run's training.

    Args:
        run_dir: a folder that `tfasr train` wrote.
        split: a prepared split.
        shard_dir: where it is; the run's own by default.

    Raises:
        UsageError: if the run or the split is missing, or they do not fit.
    """
    run_dir = Path(run_dir)
    require_plugins(run_dir, kinds=("model", "decoder"))
    experiment = Experiment.load(run_dir)
    alphabet = Alphabet.load(run_dir / ALPHABET_FILE)
    prepared = open_split(shard_dir or recorded_shard_dir(run_dir), split, content=True)
    if check_splits({split: prepared}, experiment) != alphabet:
        raise UsageError(
            f"The split must be prepared with the run's alphabet {alphabet}. Received: "
            f"{prepared.index['alphabet']} in {prepared.folder}."
        )
    return BatchSource(
        prepared,
        experiment.features,
        experiment.pipeline,
        statistics=load_feature_statistics(run_dir),
    )


def validation_evaluator(run_dir: Path) -> "tuple[CtcModel, Evaluator]":
    """Returns a model like the one that a run trains, without weights yet, and its evaluator.

    Batches and decoder are those of the evaluations during the training.

    Args:
        run_dir: the run's folder; the run need not have come to a checkpoint.

    Raises:
        UsageError: if the run or its validation split is damaged.
    """
    from tfasr.decoding.choice import load_lexicon
    from tfasr.training.evaluation import make_evaluator

    experiment = Experiment.load(run_dir)
    alphabet = Alphabet.load(run_dir / ALPHABET_FILE)
    source = BatchSource(
        open_split(recorded_shard_dir(run_dir), "validation"),
        experiment.features,
        experiment.pipeline,
        statistics=load_feature_statistics(run_dir),
    )
    model = build_model(experiment, alphabet, compiled=False)
    return model, make_evaluator(experiment, model, source, alphabet, load_lexicon(run_dir))


def evaluate(
    *,
    run_dir: str | Path,
    split: str,
    shard_dir: str | Path | None = None,
    decoder: str | None = None,
    beam_width: int | None = None,
    recombine: bool | None = None,
    language_model: "KenlmModel | None" = None,
    checkpoint: str = "best",
) -> "EvaluationResult":
    """Scores a run's model on a split.

    Args:
        run_dir: a folder that `tfasr train` wrote.
        split: a prepared split.
        shard_dir: where it is; the run's own by default.
        decoder: "greedy", "beam" or "word_beam"; the run's own by default.
        beam_width: of the decoder; the run's own by default.
        recombine: of word beam search; the run's own by default.
        language_model: scores the words of word beam search beside the model; it must know all
            words of the training transcripts.
        checkpoint: "best" (by validation CER), "last", or a file.

    Returns:
        An `tfasr.training.evaluation.EvaluationResult`.

    Raises:
        UsageError: if the run, its checkpoint or the split is missing or does not fit, or a
            language model is given to another decoder or does not know a word.
        RunError: if not every utterance was scored.
    """
    from tfasr.decoding.choice import (
        check_beam,
        load_lexicon,
        make_decoder,
        needs_lexicon,
        with_language_model,
    )
    from tfasr.telemetry.memory import available_bytes
    from tfasr.training.evaluation import Evaluator

    run_dir = Path(run_dir)
    changes = {"name": decoder, "beam_width": beam_width, "recombine": recombine}
    require_plugins(run_dir, kinds=("model", "decoder"))
    # Before the model is built, which takes a while.
    with wrong_values_are_wrong_use():
        chosen = dataclasses.replace(
            Experiment.load(run_dir).decoder, **{k: v for k, v in changes.items() if v is not None}
        )
    if language_model is not None and chosen.name != "word_beam":
        raise UsageError(
            "A language model needs the decoder word_beam, which writes the words that it scores. "
            f"Received: the decoder {chosen.name}. Choose --decoder word_beam."
        )
    trained = open_trained(run_dir, split, shard_dir=shard_dir, checkpoint=checkpoint)
    longest = trained.source.split.frames.max(initial=0)
    frames = int(trained.model.output_lengths(int(longest)))
    check_beam(chosen, trained.alphabet.num_classes, frames, available_bytes())
    lexicon = load_lexicon(run_dir) if needs_lexicon(chosen) else []
    try:
        if language_model is None:
            written_by = make_decoder(chosen, trained.alphabet, lexicon)
        else:
            written_by = with_language_model(chosen, trained.alphabet, lexicon, language_model)
    except ValueError as error:
        raise UsageError(
            f"{run_dir / LEXICON_FILE} must fit the run's alphabet and the language model: {error}"
        ) from None
    return Evaluator(trained.model, trained.source, written_by).evaluate()
