"""`tfasr.train`: claims the run folder, builds model and hooks, runs or resumes the loop.

This module ties the others together. `train` opens the data (`run`), claims the folder
(`run_folder`), builds what trains (`build`), and gives it with its hooks to `loop`. The
order of these steps is what makes times honest: the clock of a run starts when its
model is created, and every second after that is booked in the ledger.

`run_facts` and `comparability` describe a run in its ledger, so that reports rank only
runs that measured the same thing.
"""

import contextlib
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfasr.alphabet import Alphabet
from tfasr.data.manifest import check_shards
from tfasr.data.prepare_corpus import overlap, warn_of_overlap
from tfasr.data.shards import ShardedSplit, content_hashes
from tfasr.decoding.choice import load_lexicon, needs_lexicon, save_lexicon, words_hash
from tfasr.errors import UsageError
from tfasr.kit.config import to_json
from tfasr.kit.files import write_whole
from tfasr.kit.registry import record_plugins, require_plugins
from tfasr.ledger import schema
from tfasr.ledger.events import Ledger, read_events
from tfasr.recording.session import Session
from tfasr.telemetry.compiled import layers_instruction_set, warn_of_missing_extensions
from tfasr.telemetry.energy import EnergySampler
from tfasr.telemetry.host import HostSampler
from tfasr.telemetry.samplers import UtilisationSampler
from tfasr.training.averaging import averaging_rule, weights_for_use
from tfasr.training.build import check_model, on_devices, statistics_rule
from tfasr.training.checkpoint import (
    History,
    newest_checkpoint,
    plain_array,
    read_state,
)
from tfasr.training.decisions import Decides, settings_that_decide
from tfasr.training.experiment import (
    CLOSED,
    Experiment,
    TrainingConfig,
    in_closed_division,
)
from tfasr.training.hooks.evaluate import Evaluate, make_placement
from tfasr.training.hooks.keras import KerasCallbacks
from tfasr.training.hooks.record import (
    CheckData,
    PrintSentences,
    RecordSteps,
    ScalarLog,
)
from tfasr.training.hooks.show import ShowProgress, WriteProgress
from tfasr.training.hooks.targets import WatchTargets
from tfasr.training.logs import check_logs, open_logs
from tfasr.training.loop import Checkpoints, Hook, Loop
from tfasr.training.memory import check_host_memory, check_memory, on_gpu
from tfasr.training.optimizer import inner_optimizer
from tfasr.training.placement import Placement, leave_to_evaluation
from tfasr.training.run import RunData, TrainingRun, build, open_run
from tfasr.training.run_folder import (
    Claim,
    Interruption,
    RunInterruptedError,
    checkpoint_hashes,
    epochs_done,
    log_resumption,
    own_run_folder,
    record_sources,
    recorded_lexicon,
    settings_hashes,
)
from tfasr.training.step import book_traces
from tfasr.training.team import Team
from tfasr.training.warm_start import open_start
from tfasr.tta.costs import HardwareConfig
from tfasr.tta.metrics import METRICS, Metric, computed_metrics

log = logging.getLogger("tfasr")

_FINISHED = (
    "%s is finished: there is nothing to resume, and nothing is written. To train it "
    "longer, bind more TrainingConfig.epochs than the %d that it has done."
)
# Of a SHA-256 in the facts. 64 bits are plenty to tell some runs' data apart.
_HASH_DIGITS = 16


def run_facts(run: TrainingRun, hardware: dict[str, Any]) -> dict[str, Any]:
    """Returns the facts that describe a run and decide with which runs it is comparable.

    Each becomes an event of the ledger, in this order.

    Args:
        run: built.
        hardware: the description of the machine, as a fact; may be empty.
    """
    experiment = run.experiment
    training = run.training
    validation = run.splits["validation"]
    facts = {
        "global_batch_size": experiment.pipeline.global_batch_size,
        "num_replicas": training.num_replicas,
        "seed": training.seed,
        "train_samples": len(run.splits["train"].utterances),
        "eval_samples": len(validation.utterances),
        "opt_name": inner_optimizer(run.model.optimizer).name,
        "opt_base_learning_rate": float(plain_array(run.model.optimizer.learning_rate)),
        "evaluation_placement": {
            "name": training.evaluation_placement,
            "devices": list(training.evaluation_devices),
        },
    }
    facts |= _declared_metrics(training.second_decoder)

    if run.alphabet.units:
        facts["units"] = run.alphabet.units_fact

    if run.dictionary is not None:
        facts["dictionary_words"] = len(run.dictionary)

    averaged = averaging_rule(training)
    if averaged:
        facts["evaluated_weights"] = averaged

    facts["targets"] = [list(target) for target in training.targets]
    facts["target_rule"] = target_rule(training)
    facts["parameters"] = int(run.model.count_params())

    start = None
    if run.started_from is not None:
        start = run.started_from["sha256"][:_HASH_DIGITS]

    facts["comparability"] = comparability(
        experiment,
        validation,
        run.alphabet,
        run.lexicon,
        run.own_momentum,
        training=run.splits["train"],
        of_team=run.team.comparability(training),
        extended=run.extended,
        start=start,
    )
    return facts | hardware | run.team.facts(run)


def target_rule(training: TrainingConfig) -> dict[str, Any]:
    """Returns the event `TargetRule` of a run, which is also part of its comparability."""
    rule = schema.TargetRule(
        window=training.target_window,
        evaluations_per_epoch=training.evaluations_per_epoch,
    )
    return schema.to_json(rule)


def _declared_metrics(second_decoder: str) -> dict[str, Any]:
    """Returns the facts ``metrics`` and ``second_decoder``.

    Readers of the ledger need the former to know whether a metric is a rate, and what
    to call it. It lists the users' metrics and those of the second decoder.
    """
    facts = {}
    declared = {name: METRICS[name].to_json() for name in computed_metrics()}
    if second_decoder:
        facts["second_decoder"] = second_decoder
        for rate in ("wer", "cer"):
            label = f"{second_decoder.replace('_', ' ')} {rate.upper()}"
            declared[f"{second_decoder}_{rate}"] = Metric(
                rate=True, label=label
            ).to_json()

    if declared:
        facts["metrics"] = declared

    return facts


def comparability(
    experiment: Experiment,
    validation: ShardedSplit,
    alphabet: Alphabet,
    lexicon: list[str],
    own_momentum: int = 0,
    *,
    training: ShardedSplit | None = None,
    of_team: Mapping[str, Any] | None = None,
    extended: Sequence[dict[str, Any]] = (),
    start: str | None = None,
) -> dict[str, Any]:
    """Returns the facts that must be equal for times to be comparable, and their hash.

    `tfasr.training.decisions` states which settings they follow from. Splits count by
    what they contain, not by how they were prepared.

    Args:
        experiment: the run's configs.
        validation: the split that the run is scored on.
        alphabet: the characters or units of the transcripts.
        lexicon: the words that word beam search may write.
        own_momentum: how many batch normalisations keep their own momentum.
        training: the training split; without it, the runs to compare must share it.
        of_team: what the exchange between workers changes about a result.
        extended: how the run was trained longer, if it was.
        start: a hash of the weights that the run began with, if it was warm-started.
    """
    facts = {
        **_validation_facts(validation),
        "text_normalisation": alphabet.text_rule,
        "alphabet": [alphabet.characters, alphabet.separator],
        "decoder": settings_that_decide(experiment.decoder, Decides.MEASUREMENT),
        "lexicon": words_hash(lexicon) if needs_lexicon(experiment.decoder) else None,
        "batch_statistics": statistics_rule(experiment.training, own_momentum),
        "target_rule": target_rule(experiment.training),
    }

    # Noise that was mixed in makes a training split another one.
    as_recorded = True
    if training is not None:
        facts |= _training_facts(training)
        as_recorded = "noise" not in training.index

    by_characters = alphabet.separator is not None and not alphabet.units
    if in_closed_division(experiment) and by_characters and as_recorded:
        facts["division"] = CLOSED

    if of_team:
        facts |= of_team

    if extended:
        facts["extended"] = list(extended)

    # These features are normalised with the speaker's other utterances, so that an
    # utterance's score depends on which others the split has.
    if experiment.features.normalisation == "speaker":
        facts["normalised_over"] = "speaker"

    if start is not None:
        facts["start_from"] = start

    content = json.dumps(facts, sort_keys=True).encode()
    return {**facts, "hash": hashlib.sha256(content).hexdigest()[:_HASH_DIGITS]}


def _validation_facts(split: ShardedSplit) -> dict[str, Any]:
    """Returns hashes of the transcripts and of the audio that a run is scored on.

    Utterances are taken in the order of their ids, so that the order of a split's
    shards doesn't matter.
    """
    references = hashlib.sha256()
    audio = hashlib.sha256()

    for utterance in sorted(split.utterances, key=lambda utterance: utterance.id):
        references.update(f"{utterance.id}\0{utterance.text}\n".encode())
        audio.update(f"{utterance.id}\0{utterance.content}\n".encode())

    facts = {
        "validation_references": references.hexdigest()[:_HASH_DIGITS],
        "validation_audio": audio.hexdigest()[:_HASH_DIGITS],
        "validation_utterances": len(split.utterances),
    }
    if "noise" in split.index:
        facts["validation_noise"] = split.index["noise"]

    return facts


def _training_facts(split: ShardedSplit) -> dict[str, Any]:
    """Returns which recordings a run learns from; copies of a recording count once.

    The hash is of the split's column of content hashes, not of objects per utterance,
    so that a million utterances take a fraction of a second.
    """
    recordings = np.unique(split.utterances.column("content"))
    return {
        "training_recordings": len(recordings),
        "training_audio": _audio_hash(recordings),
    }


def training_audio(split: ShardedSplit) -> str:
    """Returns the hash of a split's recordings that a run's comparability states."""
    return _audio_hash(np.unique(split.utterances.column("content")))


def _audio_hash(recordings: np.ndarray) -> str:
    return hashlib.sha256(recordings.tobytes()).hexdigest()[:_HASH_DIGITS]


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
    lexicon: str | Path | None = None,
    own_process: bool = False,
    team: Team | None = None,
) -> History:
    """Trains a model and records the run.

    A first SIGTERM or SIGINT lets the current step end, saves a checkpoint and ends the
    run; a second one has its usual effect at once, as without tfasr.

    Args:
        experiment: the run's configs.
        shard_dir: holds the prepared splits "train" and "validation".
        run_dir: gets ledger, configs, checkpoints and hypotheses; without ``resume`` it
            must not hold a run.
        resume: continues an interrupted run from its newest checkpoint; in the middle
            of an epoch, with the batches that remain. A finished run is trained longer
            if the experiment has more epochs; targets, limits of time and the learning
            rate may change then too, and reports refuse to rank it with runs that were
            not extended in the same way.
        gin_texts: text files for ``run_dir``, by file name: gin's configuration as
            given and used.
        hardware: the machine's description, with its price, for the ledger.
        memory_probe: whether to check first, by a trial or an estimate, that the
            longest batch fits into memory, see `tfasr.training.memory.check_memory`.
        log_to: names in `tfasr.training.logs.LOGS`, such as "tensorboard", of logs that
            also get the scalars while the run trains.
        callbacks: ordinary Keras callbacks, called as `fit` calls them. See
            `tfasr.training.hooks.keras.KerasCallbacks` for the ``logs`` they are given
            and for what a resumed run restores.
        lexicon: a text file with one word per line, word beam search's dictionary; by
            default the training transcripts' words. A resumed run keeps the words that
            it began with.
        own_process: whether this process was started for this training alone, as by the
            command line. Its age, which includes the imports, is then written into the
            ledger.
        team: from `tfasr.training.workers.team.joined`, if several processes train
            together. Each calls this function with the same configuration and data; one
            alone writes the run, the others ``events-worker-<rank>.jsonl`` in its
            folder or another one.

    Returns:
        Validation metrics of each epoch: "cer", "cer_reference", "wer", "loss" and your
        own. With several evaluations an epoch, those of each of them, and "epoch", such
        as 2.5.

    Raises:
        UsageError: if shards, folder or configuration do not fit together, or a package
            that a log needs is not installed.
        RunError: if the longest batch does not fit into memory, the loss is not finite
            or the disk is full, or another process of the team fails; checkpoints are
            kept.
        RunInterruptedError: a RunError; a signal ended the run, which can be resumed.
    """
    team = team or Team()
    run_dir = Path(run_dir)
    words_file = recorded_lexicon(run_dir) if resume and lexicon is None else lexicon
    experiment = team.checked(experiment, callbacks)
    followed = team.follow(experiment, Path(shard_dir), run_dir, words_file)
    if followed is not None:
        return followed

    with contextlib.ExitStack() as held:
        if resume:
            require_plugins(run_dir)

        check_logs(log_to)
        leave_to_evaluation(experiment.training.evaluation_devices)
        experiment = on_devices(experiment)
        run = open_run(experiment, shard_dir, run_dir, team, words_file)

        if not resume:
            # Reports errors in start_from before anything is written.
            open_start(experiment)

        # Processes that share each batch may build nothing before they have met.
        if team.share is None:
            check_model(experiment, run.alphabet)

        hashes = content_hashes(run.splits)
        claim = held.enter_context(
            own_run_folder(run_dir, experiment, hashes, resume=resume)
        )
        team.meet(run, hashes, claim)

        if claim.history is not None:
            log.info(_FINISHED, run_dir, epochs_done(claim.history))
            return claim.history

        if claim.session and lexicon is not None:
            _check_same_words(run, lexicon)

        ledger = held.enter_context(contextlib.closing(Ledger(run_dir, claim.session)))
        # Only now, because the ledger is what marks a folder as a run's.
        _write_settings(run, Path(shard_dir), gin_texts or {}, claim)

        interruption = held.enter_context(Interruption())
        held.enter_context(UtilisationSampler(run_dir))
        held.enter_context(EnergySampler(run_dir, claim.session))
        held.enter_context(HostSampler(run_dir, claim.session))
        session = Session(ledger, interruptions=(RunInterruptedError,))
        held.enter_context(session)
        checkpoint = _begin(
            run, session, hashes, claim.extended, own_process=own_process
        )

        with ledger.interval("init"):
            # If a trial step failed in one of several processes that share each batch,
            # the others would wait for it.
            probed = memory_probe and team.share is None
            if probed and not on_gpu():
                # This may take steps in another process. They don't count towards the
                # time to accuracy: its clock starts when the model is created.
                check_host_memory(experiment, run.sources["train"], run.alphabet)

            run = build(run, ledger, interruption, checkpoint)
            for_use = weights_for_use(experiment, run.model, run.sources["train"])

            placement = make_placement(run, averaged=for_use is not None)
            checkpoints = Checkpoints(run, checkpoint, for_use)
            loop = Loop(run, _hooks(run, placement, callbacks, log_to), checkpoints)
            held.enter_context(contextlib.closing(loop))

            if probed and on_gpu():
                source = run.sources["train"]
                spec = run.batches.dataset(run.state).element_spec
                check_memory(experiment, run.model, source, run.alphabet, lambda: spec)

        machine = {} if hardware is None else {"hardware": to_json(hardware)}
        session.begin_training(run_facts(run, machine))

        # MLPerf's rules forbid reading data before run_start. So far only the shards'
        # indices were read. A resumed run checks its training shards too.
        for name in ("train", "validation") if claim.session else ("validation",):
            check_shards(run.splits[name].folder, run.splits[name].index, content=True)

        loop.train()

        book_traces(ledger, run.take_step.traces, placement.traces)
        ledger.event("checkpoints", checkpoint_hashes(run_dir))

        team.leave()
        return run.state.history


def _check_same_words(run: RunData, lexicon: str | Path) -> None:
    """Raises UsageError if the lexicon has other words than those a run began with."""
    if run.lexicon != load_lexicon(run.run_dir):
        raise UsageError(
            f"A resumed run must keep its dictionary. {lexicon} has other words than {run.run_dir} "
            "was begun with: leave --lexicon out, or choose another --run_dir."
        )


def _write_settings(
    run: RunData,
    shard_dir: Path,
    gin_texts: dict[str, str],
    claim: Claim,
) -> None:
    """Writes the settings that a resumed session and `tfasr.training.trained` read."""
    if not claim.session or claim.extended:
        run.experiment.save(run.run_dir, run.alphabet)

    for name, text in gin_texts.items():
        write_whole(run.run_dir / name, text)

    save_lexicon(run.run_dir, run.lexicon)
    record_plugins(run.run_dir)
    record_sources(
        run.run_dir,
        shard_dir,
        run.splits["train"].feature_statistics(),
        run.dictionary is not None,
    )


def _begin(
    run: RunData,
    session: Session,
    hashes: dict[str, str],
    extended: dict[str, Any] | None,
    *,
    own_process: bool,
) -> Path | None:
    """Writes a session's first events; returns the checkpoint that it resumes from.

    Args:
        run: its splits and folder.
        session: not yet started.
        hashes: of the splits' contents, by name.
        extended: how a finished run is trained longer; None if it isn't.
        own_process: whether the process's age counts, see `train`.
    """
    checkpoint = None
    if session.ledger.session:
        checkpoint = newest_checkpoint(run.run_dir, set_aside=True)

    step = None if checkpoint is None else read_state(checkpoint).step

    session.start(step, own_process=own_process)

    ledger = session.ledger
    ledger.event("shards", hashes)
    ledger.event("files", settings_hashes(run.run_dir))

    shared = overlap(
        run.splits["train"].utterances, run.splits["validation"].utterances
    )
    warn_of_overlap(shared, "validation")

    ledger.event("shared_with_training", shared.to_json())
    ledger.event("missing_compiled_parts", warn_of_missing_extensions())
    ledger.event("instruction_set", layers_instruction_set())

    if extended:
        ledger.event("extended", extended)
        log.info("training longer, after epoch %(after_epoch)d: %(schedule)s", extended)

    if ledger.session:
        log_resumption(run.run_dir, step)

    return checkpoint


def _hooks(
    run: TrainingRun,
    placement: Placement,
    callbacks: Sequence[keras.callbacks.Callback],
    log_to: Sequence[str],
) -> list[Hook]:
    """Returns the hooks of the process that writes the run, in their order of calls."""
    # Recorded and checked first: nothing else works with a loss that is not finite.
    hooks: list[Hook] = [RecordSteps(), CheckData()]
    hooks += run.team.hooks(run)
    hooks += [ShowProgress(), PrintSentences(run)]

    if callbacks:
        hooks.append(KerasCallbacks(callbacks, run))

    targets = WatchTargets()
    hooks.append(targets)
    hooks.append(ScalarLog(open_logs(log_to, run.run_dir, read_events(run.run_dir))))
    hooks.append(WriteProgress(run, targets))
    # Called before all others, so that they see the scores.
    evaluate = Evaluate(placement, wait=any(hook.needs_scores for hook in hooks))

    return [evaluate, *hooks]
