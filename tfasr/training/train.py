"""The recipe: builds a model, trains it under its strategy, books every second, resumes."""

import contextlib
import logging
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from tfasr.alphabet import Alphabet
from tfasr.config import to_json
from tfasr.data.overlap import overlap, warn_of_overlap
from tfasr.data.pipeline import BatchSource
from tfasr.data.shards import ShardedSplit, content_hashes, open_split
from tfasr.decoding.choice import make_decoder, save_lexicon
from tfasr.decoding.greedy import GreedyDecoder
from tfasr.decoding.lexicon import lexicon_from_transcripts
from tfasr.durable import write_whole
from tfasr.ledger import Ledger
from tfasr.plugins import record_plugins, require_plugins
from tfasr.telemetry.compiled import warn_of_missing_parts
from tfasr.telemetry.energy import EnergySampler
from tfasr.telemetry.process import process_age_s
from tfasr.telemetry.utilisation import UtilisationSampler
from tfasr.training.batch_statistics import moving_momentum, set_moving_momentum
from tfasr.training.build import (
    build_model,
    check_batch_size,
    check_decoder,
    check_model,
    check_splits,
    make_strategy,
)
from tfasr.training.callbacks import (
    BookSteps,
    EvaluateEpoch,
    PrintSentences,
    RunProgress,
    SaveCheckpoints,
)
from tfasr.training.checkpoint import (
    TrainingState,
    newest_checkpoint,
    plain_array,
    read_state,
    restore,
)
from tfasr.training.comparability import comparability
from tfasr.training.ctc_model import CtcModel
from tfasr.training.epoch_batches import EpochBatches
from tfasr.training.evaluation import Evaluator
from tfasr.training.experiment import Experiment
from tfasr.training.logs.registry import check_logs
from tfasr.training.logs.scalar import ScalarLog
from tfasr.training.memory.probe import check_memory
from tfasr.training.optimizer.make import inner_optimizer
from tfasr.training.run_folder import booked, own_run_folder, record_sources, say_resumption
from tfasr.training.sentences import SentenceSampler
from tfasr.training.traces import book_traces
from tfasr.tta.costs.hardware import HardwareConfig
from tfasr.tta.time_to_accuracy import rule_met

log = logging.getLogger("tfasr")


def train(
    experiment: Experiment,
    *,
    shard_dir: str | Path,
    run_dir: str | Path,
    resume: bool = False,
    gin_texts: dict[str, str] | None = None,
    hardware: HardwareConfig | None = None,
    memory_probe: bool = True,
    log_to: Sequence[str] = (),
    own_process: bool = False,
) -> list[dict[str, float]]:
    """Trains a model and records the run.

    Args:
        experiment: what is measured.
        shard_dir: holds the prepared splits "train" and "validation".
        run_dir: gets the ledger, configs, checkpoints and hypotheses; it must hold no run unless
            ``resume`` is set.
        resume: continues an interrupted run from its newest checkpoint, in the middle of an epoch
            too, with the batches that remained.
        gin_texts: files to write beside them, by name: the config as given and as used.
        hardware: what the machine costs, for the ledger.
        memory_probe: whether the longest batch is tried or estimated first, see
            `tfasr.training.memory.probe.check_memory`.
        log_to: of `tfasr.training.logs.registry.LOGS`, such as "tensorboard": also write scalars
            there as they come.
        own_process: whether this process was started for this training alone, as the command line
            does: what its start took, such as imports, is then booked too.

    Returns:
        Validation metrics of each epoch: "cer", "cer_reference", "wer" and "loss".

    Raises:
        UsageError: if shards, folder or configuration do not fit together, or what a log needs
            is not installed.
        RunError: if the longest batch does not fit into memory, the loss is no number or the disk
            is full; checkpoints are kept.
    """
    run_dir = Path(run_dir)
    if resume:
        require_plugins(run_dir)
        experiment = experiment.continued(run_dir)
    check_logs(log_to)
    splits = {
        name: open_split(shard_dir, name, content=name == "validation")
        for name in ("train", "validation")
    }
    alphabet = check_splits(splits, experiment)
    check_batch_size(experiment)
    check_decoder(experiment, splits["validation"], alphabet)
    check_model(experiment, alphabet)
    with own_run_folder(run_dir, experiment, content_hashes(splits), resume=resume) as claim:
        if claim.history is not None:
            log.info("%s is finished: there is nothing to resume, and nothing is written.", run_dir)
            return claim.history
        with contextlib.closing(Ledger(run_dir, claim.session)) as ledger:
            # After the ledger, which tells that the folder is a run's from here on.
            if not claim.session:
                experiment.save(run_dir, alphabet)
            for name, text in (gin_texts or {}).items():
                write_whole(run_dir / name, text)
            lexicon = lexicon_from_transcripts(u.text for u in splits["train"].utterances)
            save_lexicon(run_dir, lexicon)
            record_plugins(run_dir)
            record_sources(run_dir, Path(shard_dir), splits["train"].feature_statistics())
            facts = {} if hardware is None else {"hardware": to_json(hardware)}
            with (
                UtilisationSampler(run_dir),
                EnergySampler(run_dir, claim.session),
                booked(ledger),
            ):
                run = _Run(experiment, run_dir, ledger, splits, alphabet, lexicon, facts, log_to)
                return run.train(memory_probe, own_process=own_process)


class _Run:
    """One process's part of a run."""

    def __init__(
        self,
        experiment: Experiment,
        run_dir: Path,
        ledger: Ledger,
        splits: dict[str, ShardedSplit],
        alphabet: Alphabet,
        lexicon: list[str],
        facts: dict[str, Any],
        log_to: Sequence[str],
    ):
        self._log_to = log_to
        self._experiment = experiment
        self._given_facts = facts
        self._training = experiment.training
        self._run_dir = run_dir
        self._ledger = ledger
        self._splits = splits
        self._alphabet = alphabet
        self._lexicon = lexicon
        statistics_ = splits["train"].feature_statistics()
        self._sources = {
            name: BatchSource(
                split,
                experiment.features,
                experiment.pipeline,
                experiment.augmentation,
                statistics_,
            )
            for name, split in splits.items()
        }

    def train(self, memory_probe: bool, *, own_process: bool) -> list[dict[str, float]]:
        """Trains from where the run stands to its end."""
        ledger = self._ledger
        checkpoint = self._begin_session(own_process)
        ledger.start("init")
        self._strategy = make_strategy(self._training.num_replicas)
        with self._strategy.scope():
            model, progress = self._build(checkpoint)
        self._batches = EpochBatches(
            self._sources["train"], self._training, self._strategy, progress
        )
        callbacks = self._callbacks(model, progress, checkpoint)
        if memory_probe:
            check_memory(
                self._experiment,
                model,
                self._sources["train"],
                self._alphabet,
                lambda: self._batches.of(progress.state).element_spec,
            )
        ledger.stop("init")
        ledger.event("run_start", event_type="INTERVAL_START")
        self._book_facts(model)
        evaluation, scalars = callbacks[-2:]
        with contextlib.closing(scalars):
            epochs = self._training.epochs
            while progress.state.epoch <= epochs and not self._reached(progress.state):
                epoch = progress.state.epoch
                ledger.start("epoch", epoch_num=epoch)
                self._train_epoch(model, progress, callbacks)
                ledger.stop("epoch", epoch_num=epoch)
            evaluation.finish()
            scalars.write_evaluations()
            book_traces(ledger, model.traces, evaluation.traces)
        return progress.state.history

    def _begin_session(self, own_process: bool) -> Path | None:
        """Books the session's beginning and returns the checkpoint it goes on from."""
        ledger, session = self._ledger, self._ledger.session
        checkpoint = newest_checkpoint(self._run_dir, set_aside=True) if session else None
        step = read_state(checkpoint).step if checkpoint else None
        age = {"process_age_s": round(process_age_s(), 6)} if own_process else {}
        ledger.event(
            "session_start",
            {
                "session": session,
                "resumed_from_step": step,
                "alive_until_ms": ledger.alive_until_ms if session else None,
            },
            pid=os.getpid(),
            **age,
        )
        ledger.event("shards", content_hashes(self._splits))
        shared = overlap(*(self._splits[name].utterances for name in ("train", "validation")))
        warn_of_overlap(shared, "validation")
        ledger.event("shared_with_training", shared.to_json())
        ledger.event("missing_compiled_parts", warn_of_missing_parts())
        if session:
            say_resumption(self._run_dir, step)
        return checkpoint

    def _build(self, checkpoint: Path | None) -> tuple[CtcModel, RunProgress]:
        self._ledger.event("model_creation")
        model = build_model(self._experiment, self._alphabet, compiled=True)
        utterances = len(self._splits["train"].utterances)
        set_moving_momentum(model.recogniser, moving_momentum(self._experiment, utterances))
        state = restore(checkpoint, model) if checkpoint else TrainingState()
        return model, RunProgress(state)

    def _train_epoch(
        self, model: CtcModel, progress: RunProgress, callbacks: list[keras.callbacks.Callback]
    ) -> None:
        state = progress.state
        if state.epoch_trained:  # a crash came between training and evaluation
            for callback in callbacks:
                callback.set_model(model)
                callback.on_epoch_end(state.epoch - 1, {})
            return
        with warnings.catch_warnings():
            # How many batches bucketing makes is only known at the end: no reason to warn.
            warnings.filterwarnings("ignore", "Your input ran out of data")
            model.fit(
                self._batches.of(state),
                initial_epoch=state.epoch - 1,
                epochs=state.epoch,
                callbacks=callbacks,
                shuffle=False,  # the dataset is, already
                verbose=0,
            )

    def _callbacks(
        self, model: CtcModel, progress: RunProgress, checkpoint: Path | None
    ) -> list[keras.callbacks.Callback]:
        training, ledger = self._training, self._ledger
        validation = self._sources["validation"]
        greedy = GreedyDecoder(self._alphabet)
        sampler = SentenceSampler(model, validation, greedy, training.num_sentences)
        decoder = make_decoder(self._experiment.decoder, self._alphabet, self._lexicon)
        evaluator = Evaluator(model, validation, decoder)
        checkpoints = SaveCheckpoints(
            self._run_dir,
            training.checkpoint_every_steps,
            training.keep_checkpoints,
            ledger,
            progress,
        )
        checkpoints.newest = checkpoint
        evaluation = EvaluateEpoch(
            evaluator, self._run_dir, checkpoints, ledger, progress, training.overlap_evaluation
        )
        return [
            BookSteps(ledger, progress, self._splits["train"]),
            PrintSentences(sampler, training.sentences_every_steps, ledger, progress),
            checkpoints,
            self._batches,  # before the evaluation
            evaluation,
            ScalarLog(self._log_to, self._run_dir, ledger, progress),
        ]

    def _reached(self, state: TrainingState) -> bool:
        training = self._training
        if not training.stop_at_targets:
            return False
        return rule_met(state.history, training.targets, training.target_window)

    def _book_facts(self, model: CtcModel) -> None:
        experiment = self._experiment
        optimizer = model.optimizer
        facts: dict[str, Any] = {
            "global_batch_size": experiment.pipeline.global_batch_size,
            "num_replicas": self._training.num_replicas,
            "seed": self._training.seed,
            "train_samples": len(self._splits["train"].utterances),
            "eval_samples": len(self._splits["validation"].utterances),
            "opt_name": inner_optimizer(optimizer).name,
            "opt_base_learning_rate": float(plain_array(optimizer.learning_rate)),
            "targets": [list(target) for target in self._training.targets],
            "parameters": int(model.count_params()),
            "comparability": comparability(
                experiment, self._splits["validation"], self._alphabet, self._lexicon
            ),
            **self._given_facts,
        }
        for key, value in facts.items():
            self._ledger.event(key, value)
