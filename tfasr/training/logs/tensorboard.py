"""TensorBoard's event files: the same scalars over steps and over useful seconds."""

import math
import os
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow as tf

from tfasr.tta.clock import Event
from tfasr.tta.timeline import Timeline

FOLDER = "tensorboard"
_PATTERN = "events.out.tfevents.*"


class TensorBoardLog:
    """Writes ``tensorboard/steps`` and ``tensorboard/useful_seconds`` in the run's folder.

    TensorBoard shows the two as two runs: ``tensorboard --logdir RUN_DIR/tensorboard``. Over
    useful seconds there is one value a second, the mean where there were several steps. A resumed
    run goes on where its checkpoint was: what was lost is taken out of the files, so that no step
    stands there twice.

    Args:
        run_dir: the run's folder.
        events: of its ledger; they say what was lost.
    """

    def __init__(self, run_dir: Path, events: Sequence[Event]):
        kept_until_s, kept_step = math.inf, 0
        for lost in Timeline(events).lost[-1:]:
            kept_until_s = events[lost.start]["time_ms"] / 1000
            kept_step = events[lost.stop]["value"]["resumed_from_step"] or 0
        self._steps = _EventFile(run_dir / FOLDER / "steps", kept_until_s, kept_step)
        self._seconds = _EventFile(run_dir / FOLDER / "useful_seconds", kept_until_s)
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
        if self._values:
            means = {tag: statistics.fmean(values) for tag, values in self._values.items()}
            self._seconds.write(means, self._second)
        self._values = {}


class _EventFile:
    """One folder's event file, begun with what its predecessors hold up to a time.

    Steps up to ``kept_step`` stay too: the last one is written after its checkpoint.
    """

    def __init__(self, folder: Path, kept_until_s: float, kept_step: int = 0):
        folder.mkdir(parents=True, exist_ok=True)
        old = sorted(folder.glob(_PATTERN))
        # A process killed right here leaves its predecessor's file beside its own: once is enough.
        kept = dict.fromkeys(
            record
            for path in old
            for record in _records(path)
            for event in [tf.compat.v1.Event.FromString(record)]
            for value in event.summary.value[:1]
            if event.wall_time <= kept_until_s
            or (value.tag.startswith("train/") and event.step <= kept_step)
        )
        name = _PATTERN.replace("*", f"{time.time():.6f}.{socket.gethostname()}.{os.getpid()}")
        self._writer = tf.io.TFRecordWriter(str(folder / name))
        version = tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2")
        self._writer.write(version.SerializeToString())
        for record in kept:
            self._writer.write(record)
        self._writer.flush()
        for path in old:
            path.unlink()

    def write(self, scalars: dict[str, float], step: int) -> None:
        values = [
            tf.compat.v1.Summary.Value(tag=tag, simple_value=value)
            for tag, value in scalars.items()
        ]
        event = tf.compat.v1.Event(
            wall_time=time.time(), step=step, summary=tf.compat.v1.Summary(value=values)
        )
        self._writer.write(event.SerializeToString())

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _records(path: Path) -> Iterator[bytes]:
    try:
        yield from tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    except tf.errors.DataLossError:
        return
