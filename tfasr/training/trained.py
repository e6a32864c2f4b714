"""A run, opened to use its model: to evaluate, transcribe, export and measure it.

`open_trained` returns a `TrainedRun`, from which recognisers, exports, benchmarks and
evaluations get the model with its weights, features and decoder. It reads the files
that `tfasr.training.train` has written into the run's folder; it never writes into it.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfasr.alphabet import Alphabet
from tfasr.data.batches import BatchSource
from tfasr.data.shards import open_split
from tfasr.decoding.choice import (
    DecoderConfig,
    check_beam,
    load_lexicon,
    make_decoder,
    needs_lexicon,
    read_lexicon,
    require_lexicon_use,
)
from tfasr.decoding.decoder import GREEDY, MiddleRescoring, PriorDivision
from tfasr.decoding.hot_words import DEFAULT_WEIGHT, hot_words_of
from tfasr.errors import UsageError, wrong_values_are_wrong_use
from tfasr.kit.files import ALPHABET_FILE, LEXICON_FILE
from tfasr.kit.registry import require_plugins
from tfasr.telemetry.machine import available_bytes
from tfasr.training.build import build_model, check_splits
from tfasr.training.checkpoint import find_checkpoint, restore_for_use
from tfasr.training.ctc import CtcModel
from tfasr.training.evaluation import EvaluationResult, Evaluator, make_evaluator
from tfasr.training.experiment import Experiment
from tfasr.training.run_folder import load_feature_statistics, recorded_shard_dir

if TYPE_CHECKING:
    from tfasr.decoding.hot_words import HotWords
    from tfasr.decoding.language_models import KenlmModel

# How many training utterances the classes' mean probabilities are estimated from. With
# 50, no logarithm differed by 0.3 on mini LibriSpeech.
_PRIOR_UTTERANCES = 200
# The least mean probability. A class that never occurs would otherwise be preferred by
# the division.
_LEAST_PRIOR = 1e-5

# Shows progress over a number of utterances; yields a function to call with how many
# more are done.
Progress = Callable[[int], AbstractContextManager[Callable[[int], None]]]


def no_progress(_: int) -> AbstractContextManager[Callable[[int], None]]:
    """A `Progress` that shows nothing."""
    return contextlib.nullcontext(lambda _: None)


@dataclass(frozen=True)
class TrainedRun:
    """A run's configuration; weights, words and data are read when first needed.

    Every method raises UsageError if something in the folder is missing, damaged, or
    doesn't fit.
    """

    path: Path
    experiment: Experiment
    alphabet: Alphabet

    @cached_property
    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """The features' mean and deviation, both float32 ``(num_features,)``."""
        return load_feature_statistics(self.path, self.experiment.features.num_features)

    def lexicon(self, decoder: DecoderConfig) -> list[str]:
        """Returns the run's dictionary if the decoder needs one, otherwise []."""
        return load_lexicon(self.path) if needs_lexicon(decoder) else []

    def checkpoint(self, which: str = "best") -> Path:
        """Returns the path of the "best" or "last" checkpoint, or of a file."""
        return find_checkpoint(self.path, which)

    def decoder(self, **changes: Any) -> DecoderConfig:
        """Returns the run's decoder config with changes; None keeps the run's value."""
        changes = {name: value for name, value in changes.items() if value is not None}
        with wrong_values_are_wrong_use():
            return dataclasses.replace(self.experiment.decoder, **changes)

    def model(
        self, checkpoint: str = "best", *, precision: str | None = None
    ) -> CtcModel:
        """Returns the model with a checkpoint's weights.

        They are the averaged ones if the checkpoint has any.

        Args:
            checkpoint: "best", "last" or the path of a file.
            precision: Keras's dtype policy; by default the one that the run trains in.
        """
        # A missing checkpoint is found before the model is built, which takes a while.
        path = self.checkpoint(checkpoint)
        model = self.untrained_model(precision=precision)
        restore_for_use(path, model)

        return model

    def untrained_model(self, *, precision: str | None = None) -> CtcModel:
        """Returns a model like the one that the run trains, with random weights."""
        experiment = self.experiment
        if precision is not None:
            training = dataclasses.replace(experiment.training, precision=precision)
            experiment = dataclasses.replace(experiment, training=training)

        return build_model(experiment, self.alphabet, compiled=False)

    def source(
        self,
        split: str,
        shard_dir: str | Path | None = None,
        *,
        checked: bool = True,
        part: int = 0,
    ) -> BatchSource:
        """Returns the batches of a prepared split, normalised as in training.

        Args:
            split: its name, such as "validation".
            shard_dir: the folder with the split; the run's own by default.
            checked: whether to verify its files and that it fits the run.
            part: takes only so many of its utterances, see `ShardedSplit.part`; 0 takes
                all.
        """
        if not shard_dir:
            shard_dir = recorded_shard_dir(self.path)

        prepared = open_split(shard_dir, split, content=checked)
        if checked:
            alphabet = check_splits({split: prepared}, self.experiment)
            if alphabet != self.alphabet:
                raise UsageError(
                    "The split must be prepared with the run's alphabet "
                    f"{self.alphabet}. Received: {prepared.index['alphabet']} in "
                    f"{prepared.folder}."
                )

        if part:
            prepared = prepared.part(part)

        return BatchSource(
            prepared,
            self.experiment.features,
            self.experiment.pipeline,
            statistics=self.statistics,
            evaluated=self.experiment.evaluated_utterances,
        )

    def validation_evaluator(self) -> tuple[CtcModel, Evaluator]:
        """Returns an untrained model and its evaluator, as in the run's evaluations."""
        # The training process has checked the split.
        source = self.source(
            "validation",
            checked=False,
            part=self.experiment.training.evaluation_utterances,
        )
        model = self.untrained_model()
        return model, make_evaluator(
            self.experiment, model, source, self.alphabet, load_lexicon(self.path)
        )

    def evaluate(
        self,
        split: str,
        decoder: DecoderConfig,
        *,
        shard_dir: str | Path | None = None,
        lexicon: str | Path | None = None,
        language_model: "KenlmModel | None" = None,
        hot_words: "HotWords | str | Path | None" = None,
        hot_word_weight: float = DEFAULT_WEIGHT,
        prior_weight: float = 0.0,
        middle_weight: float = 0.0,
        checkpoint: str = "best",
        progress: Progress = no_progress,
    ) -> EvaluationResult:
        """Scores the model on a split; the function `evaluate` has the same parameters.

        In addition, ``hot_words`` are preferred by ``hot_word_weight``, and
        ``progress`` shows how far the evaluation is.
        """
        self._check_weights(decoder, prior_weight, middle_weight)
        if lexicon is None:
            words = self.lexicon(decoder)
        else:
            require_lexicon_use(lexicon, decoder)
            words = read_lexicon(lexicon, self.alphabet)

        weights = hot_words and hot_words_of(hot_words, self.alphabet, hot_word_weight)
        try:
            made = make_decoder(
                decoder,
                self.alphabet,
                words,
                language_model=language_model,
                hot_words=weights,
            )
        except UsageError:
            raise
        except ValueError as error:
            raise UsageError(
                f"{lexicon or self.path / LEXICON_FILE} must fit the run's alphabet and the "
                f"language model: {error}"
            ) from None

        source = self.source(split, shard_dir)
        model = self.model(checkpoint)
        frames = int(model.output_lengths(int(source.split.frames.max(initial=0))))
        check_beam(decoder, self.alphabet.num_classes, frames, available_bytes())

        if prior_weight:
            made = PriorDivision(made, self._log_priors(model, shard_dir), prior_weight)

        if middle_weight:
            # The classes that replace each one in the middle layer.
            labels = [[label] for label in range(self.alphabet.blank_id)]
            if self.experiment.training.intermediate_labels == "characters":
                labels = self.alphabet.spelled_classes

            made = MiddleRescoring(made, self.alphabet, labels, middle_weight)

        with progress(len(source.split.utterances)) as advance:
            evaluator = Evaluator(model, source, made, middle=middle_weight > 0)
            return evaluator.evaluate(advance)

    def _check_weights(
        self, decoder: DecoderConfig, prior_weight: float, middle_weight: float
    ) -> None:
        """Raises UsageError for weights out of range, or unfit for decoder or run."""
        if not 0 <= middle_weight < math.inf:
            raise UsageError(
                "--middle_weight must be a finite number of at least 0. Received: "
                f"{middle_weight}. Leave it out to decode the last layer's outputs alone; "
                "0.5 is a good first try."
            )

        learnt = self.experiment.training.intermediate_loss_weight
        if middle_weight and (decoder.name != "word_beam" or not learnt):
            remedy = "Leave --middle_weight out"
            if learnt:
                remedy += ", or add --decoder word_beam"

            raise UsageError(
                "--middle_weight needs the decoder word_beam and a run trained with a "
                "TrainingConfig.intermediate_loss_weight. Received: the decoder "
                f"{decoder.name} and {self.path}, trained with a weight of {learnt:g}. "
                f"{remedy}."
            )

        if not 0 <= prior_weight <= 1:
            raise UsageError(
                f"--prior_weight must lie in 0..1. Received: {prior_weight}. Leave it out "
                "to decode the model's own probabilities; 0.5 is a good first try with a "
                "language model."
            )

    def _log_priors(self, model: CtcModel, shard_dir: str | Path | None) -> np.ndarray:
        """Returns the logarithms of the classes' mean probabilities, ``(classes,)``.

        They are the means over some training utterances' frames, of ``shard_dir`` if it
        has a training split, otherwise of the run's own shards.
        """
        has_training = shard_dir is not None and (Path(shard_dir) / "train").is_dir()
        if not has_training:
            shard_dir = None

        source = self.source("train", shard_dir, part=_PRIOR_UTTERANCES)
        evaluator = Evaluator(model, source, GREEDY.make(None, self.alphabet, (), None))
        frames = [
            np.exp(of_utterance[:length])
            for _, log_probs, lengths, _ in evaluator.forward_passes()
            for of_utterance, length in zip(log_probs, lengths, strict=True)
        ]
        evaluator.close()

        priors = np.concatenate(frames).mean(axis=0)
        return np.log(np.maximum(priors, _LEAST_PRIOR))


def open_trained(run_dir: str | Path) -> TrainedRun:
    """Opens a run that `tfasr train` wrote, however far it has come.

    Code that only reads a run's ledger, such as reports, uses `tfasr.load_run` instead,
    which needs neither Keras nor the run's plug-ins.
    """
    run_dir = Path(run_dir)
    require_plugins(run_dir, kinds=("model", "decoder"))

    return TrainedRun(
        run_dir, Experiment.load(run_dir), Alphabet.load(run_dir / ALPHABET_FILE)
    )


def evaluate(
    *,
    run_dir: str | Path,
    split: str,
    shard_dir: str | Path | None = None,
    decoder: str | None = None,
    beam_width: int | None = None,
    recombine: bool | None = None,
    lexicon: str | Path | None = None,
    language_model: "KenlmModel | None" = None,
    prior_weight: float = 0.0,
    middle_weight: float = 0.0,
    checkpoint: str = "best",
) -> EvaluationResult:
    """Scores a run's model on a split.

    Args:
        run_dir: a folder that `tfasr train` wrote.
        split: a prepared split.
        shard_dir: the folder with the split; the run's own by default.
        decoder: "greedy", "beam" or "word_beam"; the run's own by default.
        beam_width: of the decoder; the run's own by default.
        recombine: whether word beam search drops beams that can't win; the run's own by
            default.
        lexicon: a text file with one word per line, word beam search's dictionary; by
            default the run's: its training transcripts' words, or those of the lexicon
            that it trained with.
        language_model: scores the words of word beam search in addition to the model.
        prior_weight: 0..1; each class's probability is divided by its mean over some
            training utterances to this power before decoding; see docs/recipes.md.
        middle_weight: at least 0; above 0, word beam search's best hypotheses (up to
            64) are rescored: this times a text's log-probability in the middle layer is
            added. Needs a run with an intermediate loss.
        checkpoint: "best" (by validation CER), "last", or a file.

    Raises:
        UsageError: if the run, its checkpoint or the split is missing or does not fit,
            a weight is out of range, or a language model or ``middle_weight`` doesn't
            suit the decoder or run.
        RunError: if not every utterance was scored.
    """
    trained = open_trained(run_dir)
    return trained.evaluate(
        split,
        trained.decoder(name=decoder, beam_width=beam_width, recombine=recombine),
        shard_dir=shard_dir,
        lexicon=lexicon,
        language_model=language_model,
        prior_weight=prior_weight,
        middle_weight=middle_weight,
        checkpoint=checkpoint,
    )
