"""tfasr's side of the PyTorch twin's run, in its own process: gin file and batches.

Some wheels of PyTorch and TensorFlow can't be loaded into one process: both register
options of the same LLVM. So the twin's process (`twin.torch_training`) imports no
TensorFlow and starts this one, which imports no PyTorch. `Feeder` is its end there.
Batches travel as NumPy arrays through a pipe, and are read ahead while the twin trains.
"""

import dataclasses
import json
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np

from twin.worker import environment

_READ_AHEAD = 2  # batches
_END = None  # comes after an epoch's last batch
Arrays = dict[str, np.ndarray]


class Feeder:
    """The twin's end: what the run needs to know, and its batches.

    Args:
        gin_file: a file or preset, as ``tfasr train --gin_file``.
        gin_bindings: as ``tfasr train --gin_binding``.
        shard_dir: has the prepared splits "train" and "validation".

    Attributes:
        plan: `_plan`'s answer.

    Raises:
        tfasr.errors.UsageError: if the experiment or the shards can't be used.
    """

    def __init__(self, gin_file: str | None, gin_bindings: list[str], shard_dir: str):
        self._kept: list[Arrays] = []  # the validation split's batches
        self._training, training = Pipe()
        self._validation, validation = Pipe()
        ends = [training.fileno(), validation.fileno()]
        task = {
            "gin_file": gin_file,
            "gin_bindings": gin_bindings,
            "shard_dir": str(shard_dir),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "twin.feeder", json.dumps(task), *map(str, ends)],
            pass_fds=ends,
            env=environment() | {"KERAS_BACKEND": "tensorflow"},
        )
        training.close()
        validation.close()

        try:
            self.plan: dict[str, Any] = _answer(self._validation)
        except BaseException:
            self.close()
            raise

    def training(self, epoch: int) -> Iterator[Arrays]:
        """Begins to read an epoch, counted from 1, and returns its batches."""
        self._training.send(epoch)
        ahead: queue.Queue = queue.Queue(_READ_AHEAD)
        threading.Thread(target=self._read, args=(ahead,), daemon=True).start()

        return _until_end(ahead.get)

    def _read(self, ahead: queue.Queue) -> None:
        while True:
            try:
                batch = _answer(self._training)
            except BaseException as error:
                ahead.put(error)
                return

            ahead.put(batch)
            if batch is _END:
                return

    def evaluation(self) -> Iterator[Arrays]:
        """Returns the batches of the validation split, read once and kept, as tfasr does."""
        if not self._kept:
            self._validation.send(0)
            self._kept = list(_until_end(lambda: _answer(self._validation)))

        return iter(self._kept)

    def close(self) -> None:
        """Ends the process, in the middle of an epoch too."""
        self._process.terminate()
        self._process.wait()


def _answer(end: Connection) -> Any:
    try:
        answer = end.recv()
    except EOFError:
        answer = RuntimeError(
            "The process that reads the twin's batches has died; see above."
        )

    if isinstance(answer, Exception):
        raise answer

    return answer


def _until_end(receive) -> Iterator[Arrays]:
    while (batch := receive()) is not _END:
        if isinstance(batch, BaseException):
            raise batch

        yield batch


class _Source:
    """The feeder's own end: everything of tfasr's that needs TensorFlow."""

    def __init__(self, task: dict[str, Any]):
        from tfasr.data.batches import BatchSource
        from tfasr.data.shards import open_split
        from tfasr.training.build import check_splits
        from tfasr.training.from_gin import load_config

        config = load_config(task["gin_file"], task["gin_bindings"])
        self._config = config
        self._experiment = config.experiment
        check_twin(self._experiment)

        names = ("train", "validation")
        self._splits = {name: open_split(task["shard_dir"], name) for name in names}

        self._alphabet = check_splits(self._splits, self._experiment)
        statistics = self._splits["train"].feature_statistics()
        self._train, validation = (
            BatchSource(
                self._splits[name],
                self._experiment.features,
                self._experiment.pipeline,
                self._experiment.augmentation,
                statistics,
                self._experiment.model.output_lengths,
            )
            for name in names
        )
        self._validation = validation.evaluation()

    def plan(self) -> dict[str, Any]:
        """Returns what the twin needs of the experiment, without types of TensorFlow's
        side.
        """
        import keras

        from tfasr.decoding.decoder import lexicon_from_transcripts
        from tfasr.training.build import moving_momentum
        from tfasr.training.train import comparability

        experiment = self._experiment
        training = self._experiment.training
        train = self._splits["train"]
        validation = self._splits["validation"]
        lexicon = lexicon_from_transcripts(u.text for u in train.utterances)
        optimizer = training.optimizer()
        model = experiment.model
        names = (
            "epochs",
            "seed",
            "precision",
            "targets",
            "target_window",
            "stop_at_targets",
            "zero_output_layer",
        )

        return {
            "training": {name: getattr(training, name) for name in names},
            "global_batch_size": experiment.pipeline.global_batch_size,
            "model": {**dataclasses.asdict(model), "directions": model.directions},
            "num_features": experiment.features.num_features,
            "alphabet": self._alphabet,
            "train_utterances": len(train.utterances),
            "references": {u.position: u.text for u in validation.utterances},
            "momentum": moving_momentum(experiment, len(train.utterances)),
            "comparability": comparability(
                experiment, validation, self._alphabet, lexicon
            ),
            "optimizer": serialised(optimizer),
            "optimizer_name": optimizer.name,
            "files": {
                "config.gin": self._config.given,
                "operative_config.gin": self._config.operative,
            },
            "keras": keras.__version__,
        }

    def send_training(self, end: Connection) -> None:
        """Sends the epochs that are asked for, one after the other, until the twin is gone."""
        self._serve(
            end,
            lambda epoch: self._train.training(self._experiment.training.seed, epoch),
        )

    def send_validation(self, end: Connection) -> None:
        """Sends the validation split whenever it is asked for."""
        self._serve(end, lambda _: self._validation)

    def _serve(self, end: Connection, batches) -> None:
        try:
            while True:
                asked = end.recv()
                try:
                    for batch in batches(asked):
                        end.send({name: value.numpy() for name, value in batch.items()})

                    end.send(_END)
                except ValueError as error:
                    end.send(error)
        except (EOFError, OSError):
            os._exit(0)


def check_twin(experiment) -> None:
    """Refuses an experiment that the twin can't train, with a `UsageError`."""
    from tfasr.errors import UsageError

    training = experiment.training
    asked = (training.precision, training.num_replicas, experiment.decoder.name)
    if asked[0] not in ("float32", "mixed_bfloat16") or asked[1:] != (1, "greedy"):
        raise UsageError(
            "The PyTorch twin trains in float32 or mixed_bfloat16 on one device and decodes "
            f"greedily. Received: precision, num_replicas, decoder = {asked}."
        )

    for name in ("intermediate_loss_weight", "consistency_weight"):
        if weight := getattr(training, name):
            raise UsageError(
                "The PyTorch twin has the last layer's CTC loss alone: "
                f"TrainingConfig.{name} must be 0. Received: {weight}."
            )


def serialised(optimizer) -> dict[str, Any]:
    """Returns a Keras optimizer's class ("Adadelta", "AdamW", "Adam" or another) and
    settings.
    """
    import keras

    # tfasr's own versions are subclasses, and AdamW is an Adam in Keras.
    kinds = ("AdamW", "Adam", "Adadelta")
    present = [
        kind for kind in kinds if isinstance(optimizer, getattr(keras.optimizers, kind))
    ]
    name = present[0] if present else type(optimizer).__name__

    return {
        "class_name": name,
        "config": keras.optimizers.serialize(optimizer)["config"],
    }


def main() -> None:
    """Serves the twin that started this process."""
    task, *ends = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    training, validation = (Connection(int(number)) for number in ends)

    try:
        source = _Source(json.loads(task))
        validation.send(source.plan())
    except ValueError as error:
        validation.send(error)
        return

    threading.Thread(target=source.send_training, args=(training,), daemon=True).start()
    source.send_validation(validation)


if __name__ == "__main__":
    main()
