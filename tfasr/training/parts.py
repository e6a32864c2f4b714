"""What a session builds in its own process: model, state, batches and step."""

from dataclasses import dataclass
from pathlib import Path

from tfasr.ledger import Ledger
from tfasr.training.batch_statistics import moving_momentum, set_moving_momentum, synchronise
from tfasr.training.build import build_model, make_strategy
from tfasr.training.checkpoint import TrainingState, restore
from tfasr.training.ctc_model import CtcModel
from tfasr.training.epoch_batches import EpochBatches
from tfasr.training.experiment import Experiment
from tfasr.training.interruption import Interruption
from tfasr.training.loop import RunProgress
from tfasr.training.run_data import RunData
from tfasr.training.step import TimedStep
from tfasr.training.workers.interruption import AgreedInterruption
from tfasr.training.workers.link import Link
from tfasr.training.workers.state import from_chief
from tfasr.training.workers.step import SharedStep
from tfasr.training.workers.team import Team


@dataclass(frozen=True)
class Parts:
    """What a session builds.

    Attributes:
        model: compiled.
        progress: where the run stands.
        batches: of each epoch.
        step: the training step, this worker's part of it where there are several.
        own_momentum: how many batch normalisations keep a momentum of their own.
        interruption: signals, of any worker.
        link: what was measured between the workers; None for one process.
    """

    model: CtcModel
    progress: RunProgress
    batches: EpochBatches
    step: TimedStep | SharedStep
    own_momentum: int
    interruption: Interruption | AgreedInterruption
    link: Link | None = None


def build_parts(
    experiment: Experiment,
    data: RunData,
    team: Team,
    ledger: Ledger,
    checkpoint: Path | None,
    interruption: Interruption,
) -> Parts:
    """Builds what a session trains with; all workers call it.

    Args:
        experiment: what is trained.
        data: on what.
        team: by whom.
        ledger: gets ``model_creation`` and, of several workers, the interval ``link``.
        checkpoint: from which the run is resumed; None for a new run, and for all but the chief.
        interruption: this process's signals.
    """
    training = experiment.training
    strategy = team.strategy or make_strategy(training.num_replicas)
    with strategy.scope():
        ledger.event("model_creation")
        model = build_model(experiment, data.alphabet, compiled=True)
        momentum = moving_momentum(experiment, len(data.splits["train"].utterances))
        own_momentum = set_moving_momentum(model.recogniser, momentum, experiment.model)
        if training.batch_norm_synchronised:
            synchronise(model.recogniser)
        state = restore(checkpoint, model) if checkpoint else TrainingState()
        state = from_chief(team.workers, model, state)
    batches = EpochBatches(data.sources["train"], training, strategy, team.share)
    progress = RunProgress(state)
    if team.share is None:
        return Parts(model, progress, batches, TimedStep(model), own_momentum, interruption)
    agreed = AgreedInterruption(interruption)
    step = SharedStep(model, agreed, training.gradient_exchange)
    with ledger.interval("link"):
        link = team.link(model, training.gradient_exchange)
    return Parts(model, progress, batches, step, own_momentum, agreed, link)
