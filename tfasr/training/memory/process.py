"""Takes training steps of growing batches in a process of its own, to see what they hold.

``python -m tfasr.training.memory.process`` reads an object of `measured_step_bytes` from its
standard input and answers with one line of JSON on its standard output.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from tfasr.alphabet import Alphabet
from tfasr.training.experiment import Experiment

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
        could not be told, as with an optimizer that Keras cannot rebuild from its config.
    """
    question = {
        "experiment": experiment.to_json(),
        "optimizer": keras.optimizers.serialize(experiment.training.optimizer()),
        "alphabet": [alphabet.characters, alphabet.separator],
        "batches": list(batches),
        "frames": frames,
        "labels": labels,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tfasr.training.memory.process"],
        input=json.dumps(question, default=str),
        capture_output=True,
        text=True,
        check=False,
        env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
    )
    if done.returncode > 0:
        log.warning("The longest batch's memory could not be measured: %s", done.stderr[-500:])
        return None
    return [json.loads(line) for line in done.stdout.splitlines()]


def _answer(question: dict[str, Any]) -> None:
    # Should memory run out, this is the process to end, not the run that waits for it.
    adjustment = Path("/proc/self/oom_score_adj")
    if adjustment.is_file():
        adjustment.write_text("1000", encoding="utf-8")
    import dataclasses

    from tfasr.telemetry.memory import peak_bytes
    from tfasr.training.build import build_model
    from tfasr.training.memory.synthetic_batch import batch_spec, synthetic_batch

    experiment = Experiment.from_json(question["experiment"])
    training = dataclasses.replace(
        experiment.training,
        num_replicas=1,
        gradient_accumulation_steps=1,
        optimizer=lambda: keras.optimizers.deserialize(question["optimizer"]),
    )
    experiment = dataclasses.replace(experiment, training=training)
    alphabet = Alphabet(*question["alphabet"])
    model = build_model(experiment, alphabet, compiled=True)
    step = model.global_step(batch_spec(experiment))
    for utterances in question["batches"]:
        sizes = (utterances, question["frames"], question["labels"])
        step(synthetic_batch(experiment, *sizes, alphabet=alphabet))
        print(json.dumps(peak_bytes()), flush=True)


if __name__ == "__main__":
    _answer(json.load(sys.stdin))
