"""A run for hooks that are tested alone: its place and settings, without model and data."""

from types import SimpleNamespace

import keras
import tensorflow as tf

from tfasr.data.batches import PipelineConfig
from tfasr.training.checkpoint import TrainingState
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.run import TrainingRun
from tfasr.training.team import Team


def bare_run(
    training: TrainingConfig,
    *,
    train_utterances: int = 0,
    batch_size: int = 4,
    epoch: int = 1,
) -> TrainingRun:
    """Returns a run that stands at an epoch's begin."""
    pipeline = PipelineConfig(padding="bucketed", global_batch_size=batch_size)
    splits = {"train": SimpleNamespace(utterances=range(train_utterances))}
    experiment = Experiment(training=training, pipeline=pipeline)
    model = SimpleNamespace(
        recogniser=keras.Sequential(),
        distribute_strategy=tf.distribute.get_strategy(),
        optimizer=keras.optimizers.SGD(),
    )
    return TrainingRun(
        experiment,
        None,
        splits,
        {},
        None,
        Team(),
        None,
        [],
        ledger=None,
        interruption=None,
        model=model,
        batches=None,
        take_step=None,
        state=TrainingState(epoch=epoch),
        own_momentum=0,
    )
