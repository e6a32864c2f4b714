"""A rehearsal: builds everything, takes a few steps, estimates time and memory, writes nothing."""

import math
import time
from pathlib import Path

import psutil

from tfasr.data.batches import BatchSource
from tfasr.data.shards import ShardedSplit, open_split
from tfasr.models.model import model_name
from tfasr.training.averaging import check_averaging
from tfasr.training.build import (
    build_model,
    check_batch_size,
    check_decoder,
    check_splits,
    make_strategy,
)
from tfasr.training.experiment import Experiment
from tfasr.training.memory import BufferNeed, MemoryNeed, buffer_need, check_memory, longest_batch
from tfasr.training.step import TimedStep

_STEPS = 3
_ENOUGH_S = 30.0  # of measured steps: those of a large model take minutes on processors


def dry_run(experiment: Experiment, *, shard_dir: str | Path, memory_probe: bool = True) -> str:
    """Trains a few steps in memory; describes parameters, steps, estimated hours and memory.

    Raises:
        UsageError: for whatever would stop the run before its first step.
        RunError: if the longest batch does not fit into memory (unless ``memory_probe`` is False).
    """
    splits = {name: open_split(shard_dir, name) for name in ("train", "validation")}
    alphabet = check_splits(splits, experiment)
    check_batch_size(experiment)
    check_averaging(experiment.training)
    check_decoder(experiment, splits["validation"], alphabet)
    training = experiment.training
    strategy = make_strategy(training.num_replicas)
    with strategy.scope():
        model = build_model(experiment, alphabet, compiled=True)
    source = BatchSource(
        splits["train"],
        experiment.features,
        experiment.pipeline,
        experiment.augmentation,
        splits["train"].feature_statistics(),
        experiment.model.output_lengths,
    )
    # The second epoch, because the first may go from short batches to long ones.
    dataset = source.training(training.seed, 2, replicas=training.num_replicas)
    if training.num_replicas > 1:
        dataset = strategy.distribute_datasets_from_function(lambda _: dataset)
    need = None
    if memory_probe:
        need = check_memory(experiment, model, source, alphabet, lambda: dataset.element_spec)
    step = TimedStep(model)
    frames, seconds, steps = 0, 0.0, 0
    iterator = iter(dataset)
    began = time.perf_counter()
    for number in range(_STEPS):
        result = step(iterator)
        if result is None:
            break
        steps += 1
        if number or not result.compile_s:
            frames += result.frames
            seconds += result.train_s + result.compile_s
        if seconds > _ENOUGH_S:
            break
    rate = frames / seconds if seconds else frames / (time.perf_counter() - began)
    longest = longest_batch(source, max(experiment.pipeline.batch_sizes), alphabet)
    buffer = buffer_need(experiment, longest.utterances, longest.frames)
    return _describe(experiment, splits["train"], model.count_params(), rate, steps, need, buffer)


def _describe(
    experiment: Experiment,
    split: ShardedSplit,
    parameters: int,
    frames_per_s: float,
    measured_steps: int,
    need: MemoryNeed | None,
    buffer: BufferNeed,
) -> str:
    training = experiment.training
    utterances = len(split.utterances)
    steps = math.ceil(utterances / experiment.pipeline.global_batch_size)
    epoch_s = int(split.frames.sum()) / max(frames_per_s, 1e-9)
    memory_bytes = psutil.Process().memory_info().rss
    return "\n".join(
        [
            f"model: {model_name(experiment.model)}",
            f"parameters: {parameters:,}",
            f"training utterances: {utterances:,}",
            f"steps an epoch: about {steps:,} of "
            f"{experiment.pipeline.global_batch_size} utterances",
            f"training time: about {epoch_s / 60:.1f} min an epoch, "
            f"{training.epochs * epoch_s / 3600:.1f} h for {training.epochs} epochs, evaluations "
            f"aside (from {measured_steps} steps)",
            f"memory: {memory_bytes / 2**30:.1f} GiB in this process after {measured_steps} steps"
            + (f"; {need}" if need else ""),
            f"buffer: {buffer}",
        ]
    )
