"""A rehearsal: builds everything, takes a few steps, estimates time and memory, writes nothing."""

import math
import time
from pathlib import Path

import psutil

from tfasr.data.batches import Reading
from tfasr.models.model import model_name
from tfasr.training.build import build_model, make_strategy, on_devices
from tfasr.training.checkpoint import TrainingState
from tfasr.training.experiment import Experiment
from tfasr.training.layer_groups import named_layers
from tfasr.training.memory import buffer_need, check_memory, longest_of
from tfasr.training.placement import leave_to_evaluation
from tfasr.training.run import EpochBatches, first_weights, open_run
from tfasr.training.step import TimedStep
from tfasr.training.workers.team import Team

_STEPS = 3
_ENOUGH_S = 30.0  # no further step after so many seconds: a large model's may take minutes


def dry_run(
    experiment: Experiment,
    *,
    shard_dir: str | Path,
    lexicon: str | Path | None = None,
    memory_probe: bool = True,
) -> str:
    """Trains a few steps in memory; describes parameters, steps, estimated hours and memory.

    Raises UsageError for whatever would stop the run before its first step; RunError if the longest
    batch does not fit into memory (unless ``memory_probe`` is False).
    """
    leave_to_evaluation(experiment.training.evaluation_devices)
    experiment = on_devices(experiment)
    run = open_run(experiment, shard_dir, Path(), Team(), lexicon)
    source, alphabet = run.sources["train"], run.alphabet
    strategy = make_strategy(experiment.training.replicas)
    begin = first_weights(run)
    with strategy.scope():
        model = build_model(experiment, alphabet, compiled=True, begin=begin)
    start = run.started_from or {"layers": []}
    model.groups.enter(1, 0)
    # The second epoch, because the first may go from short batches to long ones.
    dataset = EpochBatches(source, experiment.training, strategy).dataset(TrainingState(epoch=2))
    need = None
    if memory_probe:
        need = check_memory(experiment, model, source, alphabet, lambda: dataset.element_spec)
    step = TimedStep(model)
    frames, seconds, steps = 0, 0.0, 0
    iterator = Reading(dataset, source.split)
    began = time.perf_counter()
    while steps < _STEPS and (result := step(iterator)):
        steps += 1
        if steps > 1 or not result.compile_s:
            frames += result.frames
            seconds += result.train_s + result.compile_s
        if seconds > _ENOUGH_S:
            break
    rate = frames / seconds if seconds else frames / (time.perf_counter() - began)
    longest = longest_of(experiment, source, alphabet)
    buffer = buffer_need(experiment, longest.utterances, longest.frames)
    epochs, batch_size = experiment.training.epochs, experiment.pipeline.global_batch_size
    utterances = len(source.split.utterances)
    epoch_s = int(source.split.frames.sum()) / max(rate, 1e-9)
    hours = experiment.training.stop_after_hours
    limit = f" or the {hours:g} h after which it ends" if hours else ""
    memory_bytes = psutil.Process().memory_info().rss
    return (
        f"model: {model_name(experiment.model)}\n"
        f"parameters: {model.count_params():,}\n"
        f"layers: {', '.join(named_layers(model.recogniser))}\n"
        f"layers from a trained run: {', '.join(start['layers']) or 'none'}\n"
        f"training utterances: {utterances:,}\n"
        f"steps an epoch: about {math.ceil(utterances / batch_size):,} of {batch_size} utterances\n"
        f"training time: about {epoch_s / 60:.1f} min an epoch, {epochs * epoch_s / 3600:.1f} h "
        f"for {epochs} epochs{limit}, without evaluations (from {steps} steps)\n"
        f"memory: {memory_bytes / 2**30:.1f} GiB in this process after {steps} steps"
        f"{f'; {need}' if need else ''}\n"
        f"buffer: {buffer}"
    )
