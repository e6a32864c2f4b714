"""`tfasr.train`: claims the run folder, builds model and hooks, runs or resumes the loop."""

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from tfasr.config import to_json
from tfasr.data.shard_index import check_shards
from tfasr.data.shards import content_hashes
from tfasr.decoding.choice import DecoderConfig, make_decoder, save_lexicon
from tfasr.durable import write_whole
from tfasr.ledger import Ledger, read_events
from tfasr.plugins import record_plugins, require_plugins
from tfasr.telemetry.energy import EnergySampler
from tfasr.telemetry.utilisation import UtilisationSampler
from tfasr.training.averaging.weights_for_use import weights_for_use
from tfasr.training.build import build_model, check_model
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
from tfasr.training.memory.probe import check_host_memory, check_memory, on_gpu
from tfasr.training.parts import Parts, build_parts
from tfasr.training.placement.devices import leave_to_evaluation
from tfasr.training.placement.make import make_placement
from tfasr.training.run_clock import RunClock
from tfasr.training.run_data import RunData, open_data
from tfasr.training.run_folder import own_run_folder, record_run_stop, record_sources
from tfasr.training.session import begin_session, book_facts
from tfasr.training.workers.follow import follow
from tfasr.training.workers.meetings import meetings_of, open_worker_notes
from tfasr.training.workers.offer import check_offers, offered
from tfasr.training.workers.team import Team, check_clustered
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
    team: Team | None = None,
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
        team: of `tfasr.training.workers.team.joined`, where several workers train together. Each
            calls this function with the same configuration and data; the chief alone writes the
            run, the others ``events-worker-<rank>.jsonl`` beside it or in a folder of their own.

    Returns:
        Validation metrics of each epoch: "cer", "cer_reference", "wer" and "loss".

    Raises:
        UsageError: if shards, folder or configuration do not fit together, or what a log needs
            is not installed.
        RunError: if the longest batch does not fit into memory, the loss is not finite or the disk
            is full, or another worker fails; checkpoints are kept.
        RunInterruptedError: a RunError; a signal ended the run and a checkpoint was saved.
    """
    given = _Given(
        Path(shard_dir),
        Path(run_dir),
        resume,
        gin_texts or {},
        {} if hardware is None else {"hardware": to_json(hardware)},
        memory_probe,
        log_to,
        callbacks,
        own_process,
    )
    team = team or Team()
    if team.share is not None:
        check_clustered(experiment, callbacks)
    if team.workers.rank:
        return follow(experiment, given.shard_dir, given.run_dir, team, resume=resume)
    return _lead(experiment, given, team)


@dataclass(frozen=True)
class _Given:
    """What `train` was given beside the experiment and the cluster."""

    shard_dir: Path
    run_dir: Path
    resume: bool
    gin_texts: dict[str, str]
    facts: dict[str, Any]
    memory_probe: bool
    log_to: Sequence[str]
    callbacks: Sequence[keras.callbacks.Callback]
    own_process: bool


def _lead(experiment: Experiment, given: _Given, team: Team) -> list[dict[str, float]]:
    """Trains as the chief, or as the one process that there is; see `train`."""
    run_dir = given.run_dir
    with contextlib.ExitStack() as held:
        if given.resume:
            require_plugins(run_dir)
            experiment = experiment.continued(run_dir)
        check_logs(given.log_to)
        leave_to_evaluation(experiment.training.evaluation_devices)
        data = open_data(experiment, given.shard_dir)
        if team.share is None:  # in a cluster nothing may be built before the workers have met
            check_model(experiment, data.alphabet)
        hashes = content_hashes(data.splits)
        claim = held.enter_context(own_run_folder(run_dir, experiment, hashes, resume=given.resume))
        offer = offered(experiment, hashes, claim)
        check_offers(team.workers, team.gate.passed(offer))
        if claim.history is not None:
            log.info("%s is finished: there is nothing to resume, and nothing is written.", run_dir)
            return claim.history
        ledger = held.enter_context(contextlib.closing(Ledger(run_dir, claim.session)))
        # Only now, because the ledger is what marks a folder as a run's.
        if not claim.session:
            experiment.save(run_dir, data.alphabet)
        for name, text in given.gin_texts.items():
            write_whole(run_dir / name, text)
        lexicon = data.lexicon()
        save_lexicon(run_dir, lexicon)
        record_plugins(run_dir)
        record_sources(run_dir, given.shard_dir, data.splits["train"].feature_statistics())
        interruption = held.enter_context(Interruption())
        held.enter_context(UtilisationSampler(run_dir))
        held.enter_context(EnergySampler(run_dir, claim.session))
        held.enter_context(record_run_stop(ledger))
        checkpoint = begin_session(run_dir, ledger, data.splits, own_process=given.own_process)
        run = _Run(experiment, given, ledger, data, lexicon, team, interruption)
        return _train(run, checkpoint)


@dataclass(frozen=True)
class _Run:
    """What a run is given before its model is built."""

    experiment: Experiment
    given: _Given
    ledger: Ledger
    data: RunData
    lexicon: list[str]
    team: Team
    interruption: Interruption


def _train(run: _Run, checkpoint: Path | None) -> list[dict[str, float]]:
    ledger, experiment, data = run.ledger, run.experiment, run.data
    with contextlib.ExitStack() as open_hooks:
        with ledger.interval("init"):
            # A trial step would need all workers, and one that fails would leave them waiting.
            probed = run.given.memory_probe and run.team.share is None
            if probed and not on_gpu():
                # Another process may take steps for it, which are no part of a time to accuracy:
                # its clock starts when the model is created.
                check_host_memory(experiment, data.sources["train"], data.alphabet)
            parts = build_parts(experiment, data, run.team, ledger, checkpoint, run.interruption)
            hooks = _hooks(run, parts, checkpoint)
            for hook in hooks:
                open_hooks.callback(hook.close)
            if probed and on_gpu():
                _check_memory(run, parts)
        # MLPerf's rules: no data may be read before run_start. So far only the indices were.
        ledger.event("run_start", event_type="INTERVAL_START")
        book_facts(
            ledger,
            experiment,
            parts.model,
            data.splits,
            data.alphabet,
            run.lexicon,
            {
                **run.given.facts,
                **run.team.facts(parts.model, experiment.training.gradient_exchange, parts.link),
            },
            parts.own_momentum,
        )
        validation = data.splits["validation"]
        check_shards(validation.folder, validation.index, content=True)
        epochs = experiment.training.epochs
        train_epochs(parts.step, parts.batches.iterator, parts.progress, hooks, ledger, epochs)
        run.team.part()
    return parts.progress.state.history


def _check_memory(run: _Run, parts: Parts) -> None:
    check_memory(
        run.experiment,
        parts.model,
        run.data.sources["train"],
        run.data.alphabet,
        lambda: parts.batches.dataset(parts.progress.state).element_spec,
    )


def _hooks(run: _Run, parts: Parts, checkpoint: Path | None) -> list[Hook]:
    """Returns the run's hooks, in the order in which the loop calls them."""
    training, ledger, run_dir = run.experiment.training, run.ledger, run.given.run_dir
    model, progress, data = parts.model, parts.progress, run.data
    events = read_events(run_dir)
    clock = RunClock(events)
    for_use = weights_for_use(run.experiment, model, data.sources["train"])
    checkpoints = SaveCheckpoints(
        model,
        run_dir,
        training.checkpoint_every_steps,
        training.keep_checkpoints,
        ledger,
        progress,
        checkpoint,
        for_use,
    )
    placement = make_placement(
        training,
        run_dir=run_dir,
        model=model,
        build=lambda: build_model(run.experiment, data.alphabet, compiled=False),
        evaluator=lambda model: make_evaluator(
            run.experiment,
            model,
            data.sources["validation"],
            data.alphabet,
            run.lexicon,
            run.team.workers if run.team.share else None,
        ),
        ledger=ledger,
        averaged=for_use is not None,
    )
    evaluation = EvaluateEpoch(placement, run_dir, checkpoints, ledger, progress)
    targets = AnnounceTargets(training, progress, clock, run_dir)
    forecasts = ForecastTargets(training, progress, clock, ledger, run_dir)
    keras_callbacks = KerasCallbacks(
        run.given.callbacks, model, progress, evaluation, training.epochs
    )
    meetings = None
    if run.team.share is not None:
        own = open_worker_notes(run_dir, ledger.session, run.team)
        meetings = meetings_of(run.team, parts, training, own)
    return [
        BookSteps(model, ledger, progress, data.splits["train"]),
        *([meetings.steps, meetings.statistics] if meetings else []),
        _shown(run, progress),
        _sentences(run, parts),
        # Before the checkpoint, so that it holds what they change of model and optimizer.
        *([keras_callbacks] if run.given.callbacks else []),
        checkpoints,
        parts.batches,  # before the evaluation, so that the next epoch's are read during it
        evaluation,
        targets,
        forecasts,
        ScalarLog(open_logs(run.given.log_to, run_dir, events), model, ledger, progress, clock),
        WriteProgress(run_dir, training.epochs, progress, targets, clock, forecasts),
        *([meetings.agreement] if meetings else []),
        StopOnSignal(parts.interruption, checkpoints, progress, run.team.workers),
        BookTraces(ledger, parts.step, placement),
    ]


def _shown(run: _Run, progress: RunProgress) -> ShowProgress:
    training = run.experiment.training
    return ShowProgress(
        epochs=training.epochs,
        utterances=len(run.data.splits["train"].utterances),
        batch_size=run.experiment.pipeline.batch_size,
        progress=progress,
        stops_at_targets=training.stop_at_targets,
    )


def _sentences(run: _Run, parts: Parts) -> PrintSentences:
    training = run.experiment.training
    return PrintSentences(
        parts.model,
        run.data.sources["train"],
        make_decoder(_SENTENCE_DECODER, run.data.alphabet),
        count=training.num_sentences,
        every_steps=training.sentences_every_steps,
        ledger=run.ledger,
        progress=parts.progress,
    )
