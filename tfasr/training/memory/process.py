"""Takes training steps of growing batches in a process of its own, to see what they hold."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras

from tfasr.alphabet import Alphabet
from tfasr.child import ChildError, stream
from tfasr.errors import RunError, UsageError
from tfasr.training.experiment import Experiment, zeiler_adadelta

log = logging.getLogger("tfasr")


def measured_step_bytes(
    experiment: Experiment, alphabet: Alphabet, batches: Sequence[int], frames: int, labels: int
) -> list[int] | None:
    """Returns the peak memory of a process after a step on each of these batches.

    Args:
        experiment: names model, precision and optimizer.
        alphabet: decides the number of classes.
        batches: ascending numbers of utterances.
        frames: of each utterance.
        labels: of each utterance.

    Returns:
        Bytes; fewer than batches if the system ended the process for want of memory. None where it
        could not be told, as with an optimizer that Keras cannot rebuild from its config, or a
        model that was defined in a script.
    """
    optimizer = keras.optimizers.serialize(experiment.training.optimizer())
    # What makes the optimizer need not be importable; what it made can be written down.
    training = dataclasses.replace(experiment.training, optimizer=zeiler_adadelta)
    experiment = dataclasses.replace(experiment, training=training)
    sizes = [(utterances, frames, labels) for utterances in batches]
    held: list[int] = []
    try:
        for peak in stream(held_bytes, experiment, optimizer, alphabet, sizes, show_messages=False):
            held.append(peak)
    except (RunError, UsageError, TypeError) as error:
        ended_by_signal = isinstance(error, ChildError) and error.exit_code < 0
        if not ended_by_signal:
            log.warning("The longest batch's memory could not be measured: %s", error)
            return None
    return held


def held_bytes(
    experiment: Experiment,
    optimizer: dict[str, Any],
    alphabet: Alphabet,
    sizes: Sequence[tuple[int, int, int]],
) -> Iterator[int]:
    """Takes a step on each batch and yields the most that this process has held.

    Args:
        experiment: names model and precision.
        optimizer: as Keras serialises it.
        alphabet: decides the number of classes.
        sizes: utterances, frames and labels of each batch.
    """
    # Should memory run out, this is the process to end, not the run that waits for it.
    adjustment = Path("/proc/self/oom_score_adj")
    if adjustment.is_file():
        adjustment.write_text("1000", encoding="utf-8")
    from tfasr.telemetry.memory import peak_bytes
    from tfasr.training.build import build_model
    from tfasr.training.memory.synthetic_batch import batch_spec, synthetic_batch

    training = dataclasses.replace(
        experiment.training,
        num_replicas=1,
        gradient_accumulation_steps=1,
        optimizer=lambda: keras.optimizers.deserialize(optimizer),
    )
    experiment = dataclasses.replace(experiment, training=training)
    model = build_model(experiment, alphabet, compiled=True)
    step = model.global_step(batch_spec(experiment))
    for size in sizes:
        step(synthetic_batch(experiment, *size, alphabet=alphabet))
        yield peak_bytes()
