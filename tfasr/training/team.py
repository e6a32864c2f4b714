"""The processes that train a run together; the class here is a single process.

`tfasr.training.workers.team` has those of a cluster. Training asks its team wherever
several processes would have to agree, so that it need not know how many there are.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfasr.data.batches import Share
from tfasr.ledger.events import Ledger
from tfasr.training.build import batch_normalisations
from tfasr.training.checkpoint import History, TrainingState
from tfasr.training.ctc import CtcModel
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.run_folder import Claim, Interruption
from tfasr.training.step import TimedStep
from tfasr.training.workers.exchange import Workers

# What processes agree on, whatever it is.
_Value = TypeVar("_Value")


class Team:
    """A single process, which trains alone.

    It agrees with itself at once, so most methods here do nothing. ``run`` is a
    `tfasr.training.run.TrainingRun`, or the `RunData` before it is built. That module
    imports this one, so the annotations can't name them.

    Attributes:
        rank: 0 leads the run: it decides, and it alone writes the run.
        size: how many processes there are.
        share: which part of each batch this process trains on; None for all of it.
        strategy: places the model; None for the devices of this process.
        workers: share each evaluation; None if this process evaluates alone.
    """

    rank = 0
    size = 1
    share: Share | None = None
    strategy: tf.distribute.Strategy | None = None
    workers: Workers | None = None

    def checked(self, experiment: Experiment, callbacks: Sequence[Any]) -> Experiment:
        """Returns the experiment as this team trains it; UsageError if it can't."""
        return experiment

    def follow(
        self,
        experiment: Experiment,
        shard_dir: Path,
        run_dir: Path,
        lexicon: str | Path | None,
    ) -> History | None:
        """Trains a run that another process leads.

        Args:
            experiment: as `checked` returned it.
            shard_dir: holds the splits.
            run_dir: gets this process's events.
            lexicon: a file of words, see `tfasr.training.train.train`.

        Returns:
            What `tfasr.training.train.train` returns; None in the leading process,
            which has nothing to follow.
        """
        return None

    def meet(self, run: Any, hashes: dict[str, str], claim: Claim) -> None:
        """Waits for the others, before anything is built.

        Args:
            run: this process's data.
            hashes: of the splits' contents, by name.
            claim: of the run's folder.

        Raises:
            UsageError: if a process has other data or settings than the leading one.
        """

    def agreed(self, value: _Value) -> _Value:
        """Returns the leading process's value. All processes call this at once."""
        return value

    def interruption(self, own: Interruption) -> Any:
        """Returns an object that notes a signal to any of the processes."""
        return own

    def share_signals(self, interruption: Any) -> None:
        """Lets all know of a signal that one received between two steps."""

    def same_start(self, model: CtcModel, state: TrainingState) -> TrainingState:
        """Gives all models the leading process's variables; returns its state."""
        return state

    def average_statistics(self, model: CtcModel) -> None:
        """Averages moving statistics over replicas, before a checkpoint or an evaluation.

        Each replica's batch normalisations see only its share of the batches, and Keras
        doesn't average them over mirrored replicas. Averaging and moving averages are
        both linear, so it doesn't matter when this is done.
        """
        if model.distribute_strategy.num_replicas_in_sync > 1:
            averaged_over_replicas(model, lambda means: means)

    def step(self, model: CtcModel, interruption: Any, training: TrainingConfig) -> Any:
        """Returns the training step."""
        return TimedStep(model)

    def connect(
        self, model: CtcModel, training: TrainingConfig, ledger: Ledger
    ) -> None:
        """Measures how fast the processes exchange gradients, as the interval ``link``."""

    def begin(self, run: Any) -> None:
        """Called once the run is built; a team may replace how it takes steps."""

    def hooks(self, run: Any) -> list[Any]:
        """Returns hooks that record what each process does."""
        return []

    def facts(self, run: Any) -> dict[str, Any]:
        """Returns the ledger's description of the team."""
        return {}

    def comparability(self, training: TrainingConfig) -> dict[str, Any]:
        """Returns the team's settings that decide which runs can be compared."""
        return {}

    def leave(self) -> None:
        """Waits at the end until nobody needs this process any more."""


def averaged_over_replicas(
    model: CtcModel, over_team: Callable[[list[np.ndarray]], list[np.ndarray]]
) -> None:
    """Sets a model's moving statistics to their means over its replicas.

    Args:
        model: whose layers learn statistics on each replica.
        over_team: averages a list of arrays over several processes.
    """
    strategy = model.distribute_strategy
    statistics = [
        variable
        for layer in batch_normalisations(model.recogniser)
        if layer.trainable and not layer.synchronized
        for variable in layer.non_trainable_variables
    ]
    if not statistics:
        return

    means = []
    for variable in statistics:
        replicas = strategy.experimental_local_results(variable.value)
        means.append(np.mean([replica.numpy() for replica in replicas], axis=0))

    for variable, mean in zip(statistics, over_team(means), strict=True):
        variable.assign(mean)
