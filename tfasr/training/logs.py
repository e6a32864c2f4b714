"""Logs that a run's scalars can go to while it trains: TensorBoard, MLflow, W&B, your own.

`tfasr.training.hooks.record.ScalarLog` writes to the logs that ``--log_to`` names. The
run's ledger has all of these numbers too, so a log that fails costs no measurement.
"""

import importlib
import math
import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from tfasr.errors import UsageError
from tfasr.kit.files import write_whole
from tfasr.kit.registry import Registry


class Log(Protocol):
    """A destination of scalars, such as a TensorBoard file.

    Its class is called with the run's folder and the events that its ledger has so far.
    An attribute ``package`` may name a package that must be installed for it.
    """

    def write(self, scalars: dict[str, float], step: int, useful_s: float) -> None:
        """Writes the values of an optimizer step.

        Args:
            scalars: values by name, such as "train/loss".
            step: the optimizer's updates so far.
            useful_s: seconds since the creation of the model, with lost work, without
                the time between sessions.
        """

    def flush(self) -> None:
        """Makes written values survive a crash.

        It may do nothing if `write` sends them at once.
        """

    def close(self) -> None:
        """Ends the log."""


def _check(cls: type) -> None:
    """Raises TypeError for a class that can't be a log."""
    lacking = [
        name
        for name in ("write", "flush", "close")
        if not callable(getattr(cls, name, 0))
    ]
    if lacking:
        raise TypeError(f"it must be a class with the methods {', '.join(lacking)}.")


LOGS: Registry[type] = Registry(
    "log",
    {
        "tensorboard": f"{__name__}:TensorBoardLog",
        "mlflow": f"{__name__}:MlflowLog",
        "wandb": f"{__name__}:WandbLog",
    },
    check=_check,
)
"""Classes of logs by name, as ``tfasr train --log_to`` takes them; see `Log`."""


def required(package: str) -> ModuleType:
    """Imports a package that a log needs; raises UsageError if it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UsageError(
            f"--log_to {package} needs the package {package}, which is not installed "
            f"({error}). Install it with: pip install {package}, or leave --log_to {package} out."
        ) from error


def check_logs(names: Sequence[str]) -> None:
    """Raises UsageError for a log that is unknown or whose package is missing."""
    for name in names:
        if name not in LOGS:
            raise UsageError(
                f"A log must be one of {sorted(LOGS)}. Received: {name!r}."
            )

        package = getattr(LOGS[name], "package", None)
        if package is not None:
            required(package)


def open_logs(
    names: Sequence[str], run_dir: Path, events: Sequence[dict[str, Any]]
) -> list[Log]:
    """Opens logs of a run by their names, each once.

    ``events`` are those that the run's ledger has so far.
    """
    return [LOGS.call(name, run_dir, events) for name in dict.fromkeys(names)]


class MlflowLog(Log):
    """Logs scalars and ``useful_seconds`` by optimizer step to ``MLFLOW_TRACKING_URI``.

    A resumed run continues the MLflow run that it began, whose id is kept in its
    folder; steps that were lost and repeated appear there twice.
    """

    package = "mlflow"

    def __init__(self, run_dir: Path, events: Sequence[dict[str, Any]]):
        self._mlflow = required("mlflow")
        id_file = run_dir / "mlflow_run_id"
        if id_file.is_file():
            self._mlflow.start_run(run_id=id_file.read_text(encoding="utf-8").strip())
        else:
            run = self._mlflow.start_run(run_name=run_dir.resolve().name)
            write_whole(id_file, run.info.run_id + "\n")

    def write(self, scalars: dict[str, float], step: int, useful_s: float) -> None:
        self._mlflow.log_metrics({**scalars, "useful_seconds": useful_s}, step=step)

    def close(self) -> None:
        self._mlflow.end_run()


# Where TensorBoard's files are, in the run's folder, and how TensorBoard knows them.
FOLDER = "tensorboard"
_PATTERN = "events.out.tfevents.*"


class TensorBoardLog:
    """Writes ``tensorboard/steps`` and ``tensorboard/useful_seconds`` in the run's folder.

    TensorBoard shows the two as two runs: ``tensorboard --logdir RUN_DIR/tensorboard``.
    Over useful seconds there is one value a second, the mean of its steps. A resumed
    run continues from its checkpoint: steps that were lost are removed from the files.
    """

    def __init__(self, run_dir: Path, events: Sequence[dict[str, Any]]):
        # Imported here, so that `tfasr train --help` lists the logs without NumPy.
        from tfasr.ledger.timeline import Timeline

        # What earlier sessions wrote counts up to the work that this one repeats.

        kept_until_s = math.inf
        kept_step = 0

        for lost in Timeline(events).lost[-1:]:
            kept_until_s = events[lost.start]["time_ms"] / 1000
            kept_step = events[lost.stop]["value"]["resumed_from_step"] or 0

        self._steps = _EventFile(run_dir / FOLDER / "steps", kept_until_s, kept_step)
        self._seconds = _EventFile(run_dir / FOLDER / "useful_seconds", kept_until_s)
        # The second that is being filled, and its values so far, by scalar.
        self._second = 0
        self._values: dict[str, list[float]] = {}

    def write(self, scalars: dict[str, float], step: int, useful_s: float) -> None:
        self._steps.write(scalars, step)
        if int(useful_s) != self._second:
            self._write_second()
            self._second = int(useful_s)

        for tag, value in scalars.items():
            self._values.setdefault(tag, []).append(value)

    def flush(self) -> None:
        self._steps.flush()
        self._seconds.flush()

    def close(self) -> None:
        self._write_second()
        self._steps.close()
        self._seconds.close()

    def _write_second(self) -> None:
        """Writes the means of the second that is over."""
        if not self._values:
            return

        means = {
            tag: math.fsum(values) / len(values) for tag, values in self._values.items()
        }
        self._seconds.write(means, self._second)
        self._values = {}


class _EventFile:
    """A file of TensorBoard's that replaces those of earlier sessions.

    Args:
        folder: where it is.
        kept_until_s: by the wall clock; the earlier files' records up to then stay.
        kept_step: steps up to this one stay too: the last one was written after the
            checkpoint of that step.
    """

    def __init__(self, folder: Path, kept_until_s: float, kept_step: int = 0):
        # Imported here, so that `tfasr train --help` lists the logs without TensorFlow.
        import tensorflow as tf

        folder.mkdir(parents=True, exist_ok=True)
        self._protos = tf.compat.v1
        old = sorted(folder.glob(_PATTERN))
        # A process killed in here leaves two files with the same records, of which only
        # one may stay.
        records = [record for path in old for record in _records(path)]

        name = _PATTERN.replace(
            "*", f"{time.time():.6f}.{platform.node()}.{os.getpid()}"
        )
        self._writer = tf.io.TFRecordWriter(str(folder / name))
        version = self._protos.Event(
            wall_time=time.time(), file_version="brain.Event:2"
        )
        self._writer.write(version.SerializeToString())

        for record in dict.fromkeys(records):
            if self._stays(record, kept_until_s, kept_step):
                self._writer.write(record)

        self._writer.flush()

        for path in old:
            path.unlink()

    def write(self, scalars: dict[str, float], step: int) -> None:
        """Writes the scalars of a step."""
        value = self._protos.Summary.Value
        values = [
            value(tag=tag, simple_value=scalar) for tag, scalar in scalars.items()
        ]
        event = self._protos.Event(
            wall_time=time.time(), step=step, summary=self._protos.Summary(value=values)
        )
        self._writer.write(event.SerializeToString())

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _stays(self, record: bytes, kept_until_s: float, kept_step: int) -> bool:
        """Whether an earlier file's record is no lost work; see the class."""
        event = self._protos.Event.FromString(record)
        values = event.summary.value
        if not values:
            return False

        if event.wall_time <= kept_until_s:
            return True

        return values[0].tag.startswith("train/") and event.step <= kept_step


def _records(path: Path) -> Iterator[bytes]:
    """Yields the records of an event file, up to one that was not written to its end."""
    import tensorflow as tf

    try:
        yield from tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    except tf.errors.DataLossError:
        return


class WandbLog(Log):
    """Logs scalars with ``step`` and ``useful_seconds``.

    Either can be a chart's axis. A resumed run continues the W&B run that it began,
    known by its name and the time of its first event; steps that were lost and repeated
    appear there twice.
    """

    package = "wandb"

    def __init__(self, run_dir: Path, events: Sequence[dict[str, Any]]):
        name = run_dir.resolve().name
        identity = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{name}-{events[0]['time_ms']}")
        self._run = required("wandb").init(
            project="tfasr", name=name, id=identity, dir=str(run_dir), resume="allow"
        )
        self._run.define_metric("step")
        self._run.define_metric("useful_seconds")
        self._run.define_metric("*", step_metric="step")

    def write(self, scalars: dict[str, float], step: int, useful_s: float) -> None:
        self._run.log({**scalars, "step": step, "useful_seconds": useful_s})

    def close(self) -> None:
        self._run.finish()
