"""A rehearsal of a run: builds everything, takes a few steps and writes nothing.

``tfasr train --dry_run`` shows what `dry_run` returns. It finds mistakes in settings
and data, and batches that don't fit into memory, in the time that a run takes to start.
"""

import math
from pathlib import Path

import psutil

from tfasr.data.batches import Reading
from tfasr.models.model import model_name
from tfasr.training.build import build_model, make_strategy, on_devices
from tfasr.training.checkpoint import TrainingState
from tfasr.training.experiment import Experiment
from tfasr.training.memory import buffer_need, check_memory, longest_of
from tfasr.training.placement import leave_to_evaluation
from tfasr.training.run import EpochBatches, FirstWeights, open_run
from tfasr.training.step import TimedStep
from tfasr.training.team import Team
from tfasr.training.warm_start import named_layers

# The second step shows that the first left usable weights.
_STEPS = 2


def dry_run(
    experiment: Experiment,
    *,
    shard_dir: str | Path,
    lexicon: str | Path | None = None,
    memory_probe: bool = True,
) -> str:
    """Trains a few steps in memory; describes the model, the data and the memory.

    The arguments are those of `tfasr.training.train.train`.

    Raises:
        UsageError: for whatever would stop the run before its first step.
        RunError: if the longest batch does not fit into memory (unless ``memory_probe``
            is False).
    """
    leave_to_evaluation(experiment.training.evaluation_devices)
    experiment = on_devices(experiment)
    run = open_run(experiment, shard_dir, Path(), Team(), lexicon)

    source = run.sources["train"]
    alphabet = run.alphabet

    strategy = make_strategy(experiment.training.replicas)
    first_weights = FirstWeights(run)

    with strategy.scope():
        model = build_model(experiment, alphabet, compiled=True, begin=first_weights)

    start = first_weights.fact or {"layers": []}
    # The second epoch, because the first may go from short batches to long ones.
    dataset = EpochBatches(source, experiment.training, strategy).dataset(
        TrainingState(epoch=2)
    )
    memory_note = ""

    if memory_probe:
        need = check_memory(
            experiment, model, source, alphabet, lambda: dataset.element_spec
        )
        if need:
            memory_note = f"; {need}"

    step = TimedStep(model)
    iterator = Reading(dataset, source.split)
    steps = 0
    while steps < _STEPS and step(iterator):
        steps += 1

    longest = longest_of(experiment, source, alphabet)
    buffer = buffer_need(experiment, longest.utterances, longest.frames)

    batch_size = experiment.pipeline.global_batch_size
    utterances = len(source.split.utterances)
    steps_an_epoch = math.ceil(utterances / batch_size)
    memory_bytes = psutil.Process().memory_info().rss

    return (
        f"model: {model_name(experiment.model)}\n"
        f"parameters: {model.count_params():,}\n"
        f"layers: {', '.join(named_layers(model.recogniser))}\n"
        f"layers from a trained run: {', '.join(start['layers']) or 'none'}\n"
        f"training utterances: {utterances:,}\n"
        f"steps an epoch: about {steps_an_epoch:,} of {batch_size} utterances\n"
        f"memory: {memory_bytes / 2**30:.1f} GiB in this process after {steps} steps"
        f"{memory_note}\n"
        f"buffer: {buffer}\n"
        "how long it will take: tfasr estimate, with the same --gin_file and --shard_dir"
    )
