"""A training run in this process: its data, model and current state."""

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.data.batches import Batch, BatchSource, Reading, Share
from tfasr.data.shards import ShardedSplit, open_split
from tfasr.decoding.choice import read_lexicon, require_lexicon_use
from tfasr.decoding.decoder import lexicon_from_transcripts
from tfasr.errors import UsageError
from tfasr.ledger.events import Ledger, last_value, read_events
from tfasr.ledger.intervals import Event, kept_index
from tfasr.ledger.timeline import Timeline
from tfasr.recording.session import extensions
from tfasr.training.averaging import check_averaging
from tfasr.training.build import (
    build_model,
    check_batch_size,
    check_decoder,
    check_loss_and_targets,
    check_splits,
    evaluated_part,
    make_strategy,
    moving_momentum,
    set_moving_momentum,
    synchronise,
)
from tfasr.training.checkpoint import TrainingState, restore
from tfasr.training.ctc import CtcModel
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.optimizer import inner_optimizer
from tfasr.training.run_folder import Interruption, finished_history
from tfasr.training.step import TimedStep
from tfasr.training.team import Team
from tfasr.training.warm_start import open_start


@dataclass
class EpochBatches:
    """Creates each epoch's iterator, and starts the next epoch's in a thread before an
    evaluation.

    An epoch's first batch waits for a full shuffle buffer (0.24 s with AN4), so start
    it early. Starting takes some 0.05 s itself.
    """

    source: BatchSource
    training: TrainingConfig
    strategy: tf.distribute.Strategy
    share: Share | None = None  # of each batch; None for all of it
    _prefetched: tuple[int, Future[Reading]] | None = None
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "reading")
    )

    def prefetch(self, epoch: int) -> None:
        """Starts to read an epoch's batches, unless the run ends before it."""
        if epoch <= self.training.epochs:
            reading = self._thread.submit(self._reading, TrainingState(epoch=epoch))
            # If an evaluation's iterator ends while one for several devices is being
            # created, TensorFlow 2.21 sometimes raises OutOfRangeError (9 times in 39),
            # so wait.
            if self.training.replicas > 1:
                wait([reading])
            self._prefetched = epoch, reading

    def iterator(self, state: TrainingState) -> Iterator[Batch]:
        """Starts to read the remaining batches of a state's epoch."""
        prefetched = self._prefetched
        self._prefetched = None
        if prefetched and prefetched[0] == state.epoch and not state.step_in_epoch:
            return prefetched[1].result()
        return self._reading(state)

    def dataset(self, state: TrainingState) -> Any:
        """Returns the remaining batches of a state's epoch, for all replicas; reads
        nothing yet.
        """
        replicas = self.training.replicas
        position = self.training.seed, state.epoch, state.step_in_epoch
        if self.share is not None:
            return self.source.training(*position, share=self.share)
        batches = self.source.training(*position, replicas)
        if replicas == 1:
            return batches
        return self.strategy.distribute_datasets_from_function(lambda _: batches)

    def _reading(self, state: TrainingState) -> Reading:
        return Reading(self.dataset(state), self.source.split)


class NoBatches(EpochBatches):
    """Yields no batches, for a training step that reads them by itself."""

    def prefetch(self, epoch: int) -> None:
        pass

    def iterator(self, state: TrainingState) -> Iterator[Batch]:
        return iter(())


class RunClock:
    """Counts seconds since the model's creation, except for the time between sessions."""

    def __init__(self, events: Sequence[Event]):
        self._zero_s = events[-1]["metadata"]["mono_s"] - Timeline(events).elapsed_s[-1]

    def elapsed_s(self) -> float:
        return time.monotonic() - self._zero_s


@dataclass(eq=False)
class RunData:
    """What is known of a run before its folder is claimed and its model is built."""

    experiment: Experiment
    run_dir: Path
    splits: dict[str, ShardedSplit]  # "train" and "validation"
    sources: dict[str, BatchSource]  # each split's batches
    alphabet: Alphabet
    team: Team
    dictionary: list[str] | None  # the words of the user's lexicon file, if any
    lexicon: list[str]  # these, or else the words of the training split

    @property
    def training(self) -> TrainingConfig:
        return self.experiment.training


@dataclass(eq=False, kw_only=True)
class TrainingRun(RunData):
    """The data, model and state of a run; the loop works on it, and hooks are called with it.

    `build` makes it. Only the loop changes the state; hooks may call `request_stop`. It
    has many fields because a hook may need any of them.
    """

    ledger: Ledger  # of this process
    interruption: Any  # the `Interruption` of the run's team
    model: CtcModel
    batches: EpochBatches
    take_step: TimedStep
    state: TrainingState
    own_momentum: int  # how many batch normalisations keep their own momentum
    # The weights it began with, as in the ledger.
    started_from: dict[str, Any] | None = None
    clock: RunClock | None = None  # only in the process that writes the run
    # how the run was extended after it had finished
    extended: Sequence[dict[str, Any]] = ()
    stop_requested: bool = False

    @property
    def part_ended(self) -> float | None:
        """The point within an epoch, such as 2.5, if a part of it ends there now, else
        None.
        """
        state = self.state
        parts = self.training.evaluations_per_epoch
        if parts == 1:
            return None
        utterances = len(self.splits["train"].utterances)
        size = self.experiment.pipeline.batch_size(state.epoch)
        before, now = (
            min(parts * steps * size // utterances, parts - 1)
            for steps in (state.step_in_epoch - 1, state.step_in_epoch)
        )
        if now <= max(before, 0):
            return None

        return round(state.epoch - 1 + now / parts, 4)

    def request_stop(self) -> None:
        """Ends training after the current step: its epoch is still evaluated, and none
        follows.
        """
        self.stop_requested = True

    def goes_on(self) -> bool:
        """Whether training continues with another epoch."""
        if self.state.epoch > self.training.epochs:
            return False
        return not self.team.agreed(self.stop_requested)

    def advance(self, **changes: Any) -> None:
        """Replaces fields of the state; for the loop and the evaluations alone."""
        self.state = dataclasses.replace(self.state, **changes)


def open_run(
    experiment: Experiment,
    shard_dir: str | Path,
    run_dir: Path,
    team: Team,
    lexicon: str | Path | None = None,
) -> RunData:
    """Opens the data on which an experiment is trained and evaluated; writes nothing."""
    splits = {name: open_split(shard_dir, name) for name in ("train", "validation")}
    alphabet = check_splits(splits, experiment)
    check_batch_size(experiment)
    splits["validation"] = evaluated_part(experiment, splits)
    check_loss_and_targets(experiment.training)
    check_averaging(experiment.training)
    check_decoder(experiment, splits["validation"], alphabet)
    statistics = splits["train"].feature_statistics()
    # An evaluation batch of all devices is shared, as a training batch is.
    parts = 1 if team.share is None else team.share.count
    of_devices = experiment.evaluated_utterances * experiment.training.replicas
    sources = {
        name: BatchSource(
            split,
            features=experiment.features,
            pipeline=experiment.pipeline,
            augmentation=experiment.augmentation,
            statistics=statistics,
            output_lengths=experiment.model.output_lengths,
            second_view=experiment.training.views > 1,
            evaluated=math.ceil(of_devices / parts),
        )
        for name, split in splits.items()
    }

    if lexicon is not None:
        require_lexicon_use(lexicon, experiment.decoder, experiment.second_decoder)
    dictionary = None
    if lexicon is None:
        words = lexicon_from_transcripts(splits["train"].transcripts())
    else:
        dictionary = words = read_lexicon(lexicon, alphabet)

    return RunData(
        experiment=experiment,
        run_dir=run_dir,
        splits=splits,
        sources=sources,
        alphabet=alphabet,
        team=team,
        dictionary=dictionary,
        lexicon=words,
    )


def _restored(run_dir: Path, model: CtcModel, checkpoint: Path) -> TrainingState:
    """Restores a checkpoint into a model; returns where the run goes on.

    That is the next epoch if the run had finished and is trained longer.
    """
    optimizer = inner_optimizer(model.optimizer)
    rate = optimizer.get_config()["learning_rate"]
    state = restore(checkpoint, model)
    events = read_events(run_dir)
    saved = kept_index(events, Timeline(events).indices, len(events), state.step)
    if saved is None or events[saved]["key"] != "run_stop":
        return state
    # The run had finished: its last evaluation came after its last checkpoint, and
    # still counts.
    if isinstance(rate, float):
        optimizer.learning_rate = rate
    return TrainingState(
        state.step, state.epoch + 1, history=finished_history(events[: saved + 1])
    )


class FirstWeights:
    """Gives a new recogniser the weights that `TrainingConfig.start_from` names, if any.

    ``fact`` is then what the ledger records of them. ``recorded`` is its description of
    an earlier session's start, which must be the same, or UsageError is raised.
    """

    def __init__(self, data: RunData, recorded: dict[str, Any] | None = None):
        self.fact = recorded
        self._start = open_start(data.experiment)
        self._alphabet = data.alphabet
        if self._start is None:
            return
        if recorded and recorded.get("sha256") != self._start.fact["sha256"]:
            raise UsageError(
                "A resumed run must start from the same weights. "
                f"{self._start.file} has changed since, and the run has no checkpoint to resume "
                "from: restore the file, or begin a new run."
            )

        self._layers = self._start.layers()

    def __call__(self, recogniser: keras.Model) -> None:
        if self._start is not None:
            self.fact = self._start.copied_into(
                recogniser, self._alphabet, self._layers
            )


def build(
    data: RunData,
    ledger: Ledger,
    interruption: Interruption,
    checkpoint: Path | None = None,
) -> TrainingRun:
    """Builds a run's model, batches and training step; the ledger gets ``model_creation``.

    Without a ``checkpoint``, the run starts from initial weights, or from those that
    `TrainingConfig.start_from` names.
    """
    experiment = data.experiment
    training = data.training
    team = data.team
    strategy = team.strategy or make_strategy(training.replicas)
    ledger.event("model_creation")
    started_from = last_value(data.run_dir, "start_from")
    # A checkpoint, and the weights of the process that leads, replace whatever a model
    # begins with.
    first_weights = None
    if checkpoint is None and not team.rank:
        first_weights = FirstWeights(data, started_from)
    with strategy.scope():
        model = build_model(
            experiment, data.alphabet, compiled=True, begin=first_weights
        )
        if first_weights is not None and first_weights.fact is not None:
            started_from = first_weights.fact
            ledger.event("start_from", started_from)

        momentum = moving_momentum(experiment, len(data.splits["train"].utterances))
        own_momentum = set_moving_momentum(model.recogniser, momentum, experiment.model)
        if training.batch_norm_synchronised:
            synchronise(model.recogniser)
        state = TrainingState()
        if checkpoint is not None:
            state = _restored(data.run_dir, model, checkpoint)
        state = team.same_start(model, state)

    interruption = team.interruption(interruption)
    take_step = team.step(model, interruption, training)
    team.connect(model, training, ledger)

    clock = None
    extended = []
    if not team.rank:
        events = read_events(data.run_dir)
        clock = RunClock(events)
        extended = extensions(events)

    run = TrainingRun(
        experiment=experiment,
        run_dir=data.run_dir,
        splits=data.splits,
        sources=data.sources,
        alphabet=data.alphabet,
        team=team,
        dictionary=data.dictionary,
        lexicon=data.lexicon,
        ledger=ledger,
        interruption=interruption,
        model=model,
        batches=EpochBatches(data.sources["train"], training, strategy, team.share),
        take_step=take_step,
        state=state,
        own_momentum=own_momentum,
        started_from=started_from,
        clock=clock,
        extended=extended,
    )
    team.begin(run)
    return run
