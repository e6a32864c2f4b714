"""A training run in this process: its data, model and current state.

A run comes about in two steps, because its folder is claimed between them: `open_run`
opens and checks the data and settings (`RunData`), and `build` adds the model, the
training step and the state (`TrainingRun`). `tfasr.training.loop.Loop` then trains it.
"""

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
    """Creates the iterator over each epoch's training batches.

    An epoch's first batch has to wait until the shuffle buffer is full (0.24 s with
    AN4), and creating the iterator takes some 0.05 s itself. `prefetch` therefore
    starts the next epoch's in a thread, while the current epoch is evaluated.
    """

    source: BatchSource
    training: TrainingConfig
    strategy: tf.distribute.Strategy
    share: Share | None = None  # of each batch; None for all of it
    # The epoch that is being prefetched, and its iterator.
    _prefetched: tuple[int, Future[Reading]] | None = None
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "reading")
    )

    def prefetch(self, epoch: int) -> None:
        """Starts to read an epoch's batches, unless the run ends before it."""
        if epoch > self.training.epochs:
            return

        reading = self._thread.submit(self._reading, TrainingState(epoch=epoch))
        # If an evaluation's iterator ends while one for several devices is being
        # created, TensorFlow 2.21 sometimes raises OutOfRangeError (9 times in 39).
        if self.training.replicas > 1:
            wait([reading])

        self._prefetched = epoch, reading

    def iterator(self, state: TrainingState) -> Iterator[Batch]:
        """Starts to read the remaining batches of a state's epoch."""
        prefetched = self._prefetched
        self._prefetched = None
        if prefetched is not None and state.step_in_epoch == 0:
            epoch, reading = prefetched
            if epoch == state.epoch:
                return reading.result()

        return self._reading(state)

    def dataset(self, state: TrainingState) -> Any:
        """Returns the dataset of the remaining batches of a state's epoch.

        Its elements are for all replicas. Nothing is read before it is iterated.
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
    """The batches of a training step that reads them by itself, so none here."""

    def prefetch(self, epoch: int) -> None:
        pass

    def iterator(self, state: TrainingState) -> Iterator[Batch]:
        return iter(())


class RunClock:
    """Counts seconds since the model's creation, except for the time between sessions.

    Args:
        events: the ledger's, the last of them written in this session.
    """

    def __init__(self, events: Sequence[Event]):
        # The time of the model's creation, by the monotonic clock of this session.
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
    """The data, model and state of a run in training.

    The loop works on it, and every hook is called with it. `build` makes it. Only the
    loop changes the state; hooks may call `request_stop`. It has many fields because a
    hook may need any of them.
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
    # How the run was extended after it had finished, once for each extension.
    extended: Sequence[dict[str, Any]] = ()
    stop_requested: bool = False

    @property
    def part_ended(self) -> float | None:
        """The point within an epoch, such as 2.5, at which a part of it ends now.

        None if no part ends at this step. The last part ends with the epoch itself, so
        it never counts here.
        """
        state = self.state
        parts = self.training.evaluations_per_epoch
        if parts == 1:
            return None

        utterances = len(self.splits["train"].utterances)
        size = self.experiment.pipeline.batch_size(state.epoch)
        steps = state.step_in_epoch
        ended_before = min(parts * (steps - 1) * size // utterances, parts - 1)
        ended_now = min(parts * steps * size // utterances, parts - 1)
        if ended_now <= max(ended_before, 0):
            return None

        return round(state.epoch - 1 + ended_now / parts, 4)

    def request_stop(self) -> None:
        """Ends training after the current step.

        Its epoch is still evaluated, and no other follows.
        """
        self.stop_requested = True

    def goes_on(self) -> bool:
        """Whether training continues with another epoch."""
        if self.state.epoch > self.training.epochs:
            return False

        return not self.team.agreed(self.stop_requested)

    def advance(self, **changes: Any) -> None:
        """Replaces fields of the state. Only the loop and evaluations may call this."""
        self.state = dataclasses.replace(self.state, **changes)


def open_run(
    experiment: Experiment,
    shard_dir: str | Path,
    run_dir: Path,
    team: Team,
    lexicon: str | Path | None = None,
) -> RunData:
    """Opens the data on which an experiment is trained and evaluated.

    Nothing is written.

    Args:
        experiment: the run's configs.
        shard_dir: holds the splits "train" and "validation".
        run_dir: the run's folder, which may be missing yet.
        team: the processes that train the run.
        lexicon: a file of words, see `tfasr.training.train.train`.

    Raises:
        UsageError: if data and settings do not fit together.
    """
    splits = {name: open_split(shard_dir, name) for name in ("train", "validation")}
    alphabet = check_splits(splits, experiment)

    check_batch_size(experiment)
    splits["validation"] = evaluated_part(experiment, splits)
    check_loss_and_targets(experiment.training)
    check_averaging(experiment.training)
    check_decoder(experiment, splits["validation"], alphabet)

    statistics = splits["train"].feature_statistics()
    # All workers share an evaluation batch, as they share a training batch.
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
        dictionary = read_lexicon(lexicon, alphabet)
        words = dictionary

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
    """Restores a checkpoint into a model; returns the state from which the run goes on.

    If the run had finished and is now trained longer, that is the next epoch, with the
    learning rate that its optimizer has been given now.
    """
    optimizer = inner_optimizer(model.optimizer)
    rate = optimizer.get_config()["learning_rate"]
    state = restore(checkpoint, model)

    events = read_events(run_dir)
    saved = kept_index(events, Timeline(events).indices, len(events), state.step)
    if saved is None or events[saved]["key"] != "run_stop":
        return state

    # The run had finished. Its last evaluation came after its last checkpoint, so only
    # the ledger has its scores.
    if isinstance(rate, float):
        optimizer.learning_rate = rate

    return TrainingState(
        state.step, state.epoch + 1, history=finished_history(events[: saved + 1])
    )


class FirstWeights:
    """Gives a new recogniser the weights that `TrainingConfig.start_from` names, if any.

    Args:
        data: the run's alphabet and settings.
        recorded: the ledger's description of an earlier session's start.

    Attributes:
        fact: what the ledger records of the start; None before the weights are copied
            and without a start.

    Raises:
        UsageError: if the weights are no longer those of the earlier session.
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
        """Copies the weights into a recogniser; does nothing without a start."""
        if self._start is None:
            return

        self.fact = self._start.copied_into(recogniser, self._alphabet, self._layers)


def build(
    data: RunData,
    ledger: Ledger,
    interruption: Interruption,
    checkpoint: Path | None = None,
) -> TrainingRun:
    """Builds a run's model, batches and training step.

    The ledger gets ``model_creation``, at which the clock of the run starts. Without a
    ``checkpoint``, the run starts from initial weights, or from those that
    `TrainingConfig.start_from` names.

    Args:
        data: from `open_run`.
        ledger: of this process.
        interruption: notes the signals that this process receives.
        checkpoint: the file from which the run is resumed, if any.
    """
    experiment = data.experiment
    training = data.training
    team = data.team
    strategy = team.strategy or make_strategy(training.replicas)
    ledger.event("model_creation")
    started_from = last_value(data.run_dir, "start_from")
    # Nobody needs first weights that are replaced at once: by a checkpoint, or by the
    # weights of the chief.
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

        own_momentum = set_moving_momentum(
            model.recogniser,
            moving_momentum(experiment, len(data.splits["train"].utterances)),
            experiment.model,
        )
        if training.batch_norm_synchronised:
            synchronise(model.recogniser)

        state = TrainingState()
        if checkpoint is not None:
            state = _restored(data.run_dir, model, checkpoint)

        state = team.same_start(model, state)

    interruption = team.interruption(interruption)
    take_step = team.step(model, interruption, training)
    team.connect(model, training, ledger)

    # Only the chief's process has the run's ledger, so only it has the run's clock.
    clock = None
    extended = []
    if not team.rank:
        events = read_events(data.run_dir)
        clock = RunClock(events)
        extended = extensions(events)

    run = TrainingRun(
        **vars(data),
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
