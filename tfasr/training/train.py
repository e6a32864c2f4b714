"""`tfasr.train`: claims the run folder, builds model and hooks, runs or resumes the loop."""

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from tfasr.alphabet import Alphabet
from tfasr.config import to_json
from tfasr.data.pipeline import BatchSource
from tfasr.data.shard_index import check_shards
from tfasr.data.shards import ShardedSplit, content_hashes, open_split
from tfasr.decoding.choice import DecoderConfig, make_decoder, save_lexicon
from tfasr.decoding.lexicon import lexicon_from_transcripts
from tfasr.durable import write_whole
from tfasr.ledger import Ledger, read_events
from tfasr.plugins import record_plugins, require_plugins
from tfasr.telemetry.energy import EnergySampler
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
from tfasr.training.checkpoint import TrainingState, restore
from tfasr.training.ctc_model import CtcModel
from tfasr.training.epoch_batches import EpochBatches
from tfasr.training.evaluation import make_evaluator
from tfasr.training.experiment import Experiment
from tfasr.training.hooks.checkpoints import SaveCheckpoints
from tfasr.training.hooks.evaluation import EvaluateEpoch
from tfasr.training.hooks.forecasts import ForecastTargets
from tfasr.training.hooks.keras_callbacks import KerasCallbacks
from tfasr.training.hooks.live_line import ShowProgress
from tfasr.training.hooks.progress_file import WriteProgress
from tfasr.training.hooks.sentences import PrintSentences
from tfasr.training.hooks.steps import BookSteps
from tfasr.training.hooks.stop_on_signal import StopOnSignal
from tfasr.training.hooks.targets import AnnounceTargets
from tfasr.training.hooks.traces import BookTraces
from tfasr.training.interruption import Interruption
from tfasr.training.logs.registry import check_logs, open_logs
from tfasr.training.logs.scalar import ScalarLog
from tfasr.training.loop import Hook, RunProgress, train_epochs
from tfasr.training.memory.probe import check_memory
from tfasr.training.placement.devices import leave_to_evaluation
from tfasr.training.placement.make import make_placement
from tfasr.training.run_clock import RunClock
from tfasr.training.run_folder import own_run_folder, record_run_stop, record_sources
from tfasr.training.session import begin_session, book_facts
from tfasr.training.step import TimedStep
from tfasr.tta.costs.hardware import HardwareConfig

log = logging.getLogger("tfasr")

# The paper, Figure 6: sentences are generated with a beam width of one.
_SENTENCE_DECODER = DecoderConfig(name="beam", beam_width=1)


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
    callbacks: Sequence[keras.callbacks.Callback] = (),
    own_process: bool = False,
) -> list[dict[str, float]]:
    """Trains a model and records the run.

    A first SIGTERM or SIGINT lets the current step end, saves a checkpoint and ends the run; a
    second one has its usual effect at once, as without tfasr.

    Args:
        experiment: what is measured.
        shard_dir: holds the prepared splits "train" and "validation".
        run_dir: gets the ledger, configs, checkpoints and hypotheses; it must hold no run unless
            ``resume`` is set.
        resume: continues an interrupted run from its newest checkpoint; in the middle of an epoch,
            with the batches that remain.
        gin_texts: text files to write into ``run_dir`` too, by file name: gin's configuration as
            given and as used.
        hardware: what the machine costs, for the ledger.
        memory_probe: whether to check first, by a trial or an estimate, that the longest batch fits
            into memory, see `tfasr.training.memory.probe.check_memory`.
        log_to: names in `tfasr.training.logs.registry.LOGS`, such as "tensorboard", of logs that
            get the scalars too while the run trains.
        callbacks: ordinary Keras callbacks, called as `fit` calls them. See
            `tfasr.training.hooks.keras_callbacks.KerasCallbacks` for the ``logs`` they are given
            and for what a resumed run restores.
        own_process: whether this process was started for this training alone, as the command line
            does. Its age, which includes the imports, is then written into the ledger.

    Returns:
        Validation metrics of each epoch: "cer", "cer_reference", "wer" and "loss".

    Raises:
        UsageError: if shards, folder or configuration do not fit together, or what a log needs
            is not installed.
        RunError: if the longest batch does not fit into memory, the loss is not finite or the disk
            is full; checkpoints are kept.
        RunInterruptedError: a RunError; a signal ended the run and a checkpoint was saved.
    """
    run_dir = Path(run_dir)
    if resume:
        require_plugins(run_dir)
        experiment = experiment.continued(run_dir)
    check_logs(log_to)
    leave_to_evaluation(experiment.training.evaluation_devices)
    splits = {name: open_split(shard_dir, name) for name in ("train", "validation")}
    alphabet = check_splits(splits, experiment)
    check_batch_size(experiment)
    check_decoder(experiment, splits["validation"], alphabet)
    check_model(experiment, alphabet)
    sources = _sources(experiment, splits)
    with own_run_folder(run_dir, experiment, content_hashes(splits), resume=resume) as claim:
        if claim.history is not None:
            log.info("%s is finished: there is nothing to resume, and nothing is written.", run_dir)
            return claim.history
        with contextlib.closing(Ledger(run_dir, claim.session)) as ledger:
            # Only now, because the ledger is what marks a folder as a run's.
            if not claim.session:
                experiment.save(run_dir, alphabet)
            for name, text in (gin_texts or {}).items():
                write_whole(run_dir / name, text)
            lexicon = lexicon_from_transcripts(u.text for u in splits["train"].utterances)
            save_lexicon(run_dir, lexicon)
            record_plugins(run_dir)
            record_sources(run_dir, Path(shard_dir), splits["train"].feature_statistics())
            run = _Run(experiment, run_dir, ledger, splits, sources, alphabet, lexicon)
            facts = {} if hardware is None else {"hardware": to_json(hardware)}
            with (
                Interruption() as interruption,
                UtilisationSampler(run_dir),
                EnergySampler(run_dir, claim.session),
                record_run_stop(ledger),
            ):
                checkpoint = begin_session(run_dir, ledger, splits, own_process=own_process)
                requests = _Requests(callbacks, log_to, interruption)
                return _train(run, checkpoint, requests, facts, memory_probe=memory_probe)


def _sources(experiment: Experiment, splits: dict[str, ShardedSplit]) -> dict[str, BatchSource]:
    statistics = splits["train"].feature_statistics()
    return {
        name: BatchSource(
            split, experiment.features, experiment.pipeline, experiment.augmentation, statistics
        )
        for name, split in splits.items()
    }


@dataclass(frozen=True)
class _Run:
    """What a run is given before its model is built."""

    experiment: Experiment
    run_dir: Path
    ledger: Ledger
    splits: dict[str, ShardedSplit]
    sources: dict[str, BatchSource]
    alphabet: Alphabet
    lexicon: list[str]


@dataclass(frozen=True)
class _Requests:
    """What the caller, or a signal, asks of the hooks."""

    callbacks: Sequence[keras.callbacks.Callback]
    log_to: Sequence[str]
    interruption: Interruption


@dataclass(frozen=True)
class _Parts:
    """What a session builds in its own process; ``own_momentum``: how many layers keep theirs."""

    model: CtcModel
    progress: RunProgress
    batches: EpochBatches
    step: TimedStep
    own_momentum: int


def _train(
    run: _Run,
    checkpoint: Path | None,
    requests: _Requests,
    facts: dict[str, Any],
    *,
    memory_probe: bool,
) -> list[dict[str, float]]:
    ledger, experiment = run.ledger, run.experiment
    with contextlib.ExitStack() as open_hooks:
        with ledger.interval("init"):
            parts = _build(run, checkpoint)
            hooks = _hooks(run, parts, checkpoint, requests)
            for hook in hooks:
                open_hooks.callback(hook.close)
            if memory_probe:
                _check_memory(run, parts)
        # MLPerf's rules: no data may be read before run_start. So far only the indices were.
        ledger.event("run_start", event_type="INTERVAL_START")
        book_facts(
            ledger,
            experiment,
            parts.model,
            run.splits,
            run.alphabet,
            run.lexicon,
            facts,
            parts.own_momentum,
        )
        validation = run.splits["validation"]
        check_shards(validation.folder, validation.index, content=True)
        epochs = experiment.training.epochs
        train_epochs(parts.step, parts.batches.iterator, parts.progress, hooks, ledger, epochs)
    return parts.progress.state.history


def _build(run: _Run, checkpoint: Path | None) -> _Parts:
    training = run.experiment.training
    strategy = make_strategy(training.num_replicas)
    with strategy.scope():
        run.ledger.event("model_creation")
        model = build_model(run.experiment, run.alphabet, compiled=True)
        utterances = len(run.splits["train"].utterances)
        momentum = moving_momentum(run.experiment, utterances)
        own_momentum = set_moving_momentum(model.recogniser, momentum, run.experiment.model)
        state = restore(checkpoint, model) if checkpoint else TrainingState()
    batches = EpochBatches(run.sources["train"], training, strategy)
    return _Parts(model, RunProgress(state), batches, TimedStep(model), own_momentum)


def _check_memory(run: _Run, parts: _Parts) -> None:
    check_memory(
        run.experiment,
        parts.model,
        run.sources["train"],
        run.alphabet,
        lambda: parts.batches.dataset(parts.progress.state).element_spec,
    )


def _hooks(run: _Run, parts: _Parts, checkpoint: Path | None, requests: _Requests) -> list[Hook]:
    """Returns the run's hooks, in the order in which the loop calls them."""
    training, ledger, run_dir = run.experiment.training, run.ledger, run.run_dir
    model, progress = parts.model, parts.progress
    events = read_events(run_dir)
    clock = RunClock(events)
    sentences = PrintSentences(
        model,
        run.sources["train"],
        make_decoder(_SENTENCE_DECODER, run.alphabet),
        count=training.num_sentences,
        every_steps=training.sentences_every_steps,
        ledger=ledger,
        progress=progress,
    )
    checkpoints = SaveCheckpoints(
        model,
        run_dir,
        training.checkpoint_every_steps,
        training.keep_checkpoints,
        ledger,
        progress,
        checkpoint,
    )
    placement = make_placement(
        training,
        run_dir=run_dir,
        model=model,
        build=lambda: build_model(run.experiment, run.alphabet, compiled=False),
        evaluator=lambda model: make_evaluator(
            run.experiment, model, run.sources["validation"], run.alphabet, run.lexicon
        ),
        ledger=ledger,
    )
    evaluation = EvaluateEpoch(placement, run_dir, checkpoints, ledger, progress)
    targets = AnnounceTargets(training, progress, clock, run_dir)
    forecasts = ForecastTargets(training, progress, clock, ledger, run_dir)
    keras_callbacks = KerasCallbacks(
        requests.callbacks, model, progress, evaluation, training.epochs
    )
    return [
        BookSteps(model, ledger, progress, run.splits["train"]),
        _shown(run, progress),
        sentences,
        # Before the checkpoint, so that it holds what they change of model and optimizer.
        *([keras_callbacks] if requests.callbacks else []),
        checkpoints,
        parts.batches,  # before the evaluation, so that the next epoch's are read during it
        evaluation,
        targets,
        forecasts,
        ScalarLog(open_logs(requests.log_to, run_dir, events), model, ledger, progress, clock),
        WriteProgress(run_dir, training.epochs, progress, targets, clock, forecasts),
        StopOnSignal(requests.interruption, checkpoints, progress),
        BookTraces(ledger, parts.step, placement),
    ]


def _shown(run: _Run, progress: RunProgress) -> ShowProgress:
    training = run.experiment.training
    return ShowProgress(
        epochs=training.epochs,
        utterances=len(run.splits["train"].utterances),
        batch=run.experiment.pipeline.global_batch_size,
        progress=progress,
        stops_at_targets=training.stop_at_targets,
    )
