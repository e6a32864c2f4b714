"""What tests call in a process of its own; loads no backend."""

import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tfasr.errors import RunError, UsageError
from tfasr.kit.process import received


@dataclass(frozen=True)
class Parcel:
    """Something typed to send there and back."""

    name: str
    sizes: tuple[int, ...]
    path: Path | None = None
    inner: "Parcel | None" = None


def send_back(value):
    print("said on the way")
    return value


def fail(kind: str):
    print("a complaint", file=sys.stderr)
    raise {"usage": UsageError, "run": RunError, "other": KeyError}[kind]("said so")


def count_and_die(most: int):
    yield from range(most)
    os.kill(os.getpid(), signal.SIGKILL)


def work_for_long():
    yield os.getpid()
    time.sleep(100)


def leave() -> None:
    sys.exit(0)


def where_from() -> dict[str, str]:
    """Files of modules that a working directory may shadow, and the environment."""
    return {
        "json": json.__file__,
        "random": random.__file__,
        "backend": os.environ.get("KERAS_BACKEND", ""),
        "flavour": os.environ.get("FLAVOUR", ""),
        "path": os.pathsep.join(sys.path),
        "plugin": os.environ.get("PLUGIN", ""),
        "tfasr": sys.modules["tfasr"].__file__,
    }


def double_each(name: str):
    """Answers each parcel that it is sent, and does what it is told."""
    for value in received():
        if value == "pid":
            yield os.getpid()
        elif isinstance(value, str):
            fail(value)
        else:
            yield name, 2 * value.sizes[0]


def score_after_a_death(run_dir: Path, processors: tuple[int, ...]):
    """Stands for an evaluation: dies over its first checkpoint, the first time."""
    marker = run_dir / "died"
    for job in received():
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

        yield scored(job["epoch"])


def die_at_once(run_dir: Path, processors: tuple[int, ...]):
    """Stands for an evaluation that memory never suffices for."""
    yield os.kill(os.getpid(), signal.SIGKILL)


BEHIND_EPOCHS = 3
"""How many epochs `score_one_behind` is given."""


def score_one_behind(run_dir: Path, processors: tuple[int, ...]):
    """Stands for an evaluation that ends a little after the next epoch; the last one
    does too.
    """
    before = None
    for job in received():
        if before is not None:
            time.sleep(0.3)
            yield scored(before)

        before = job["epoch"]
        if before == BEHIND_EPOCHS:
            yield scored(before)


def scored(epoch: int) -> dict:
    values = dict.fromkeys(("wer", "cer", "cer_reference", "loss"), epoch / 10)
    work = {"load_s": 0.1, "forward_s": 0.1, "decode_s": 0.1}
    return {"epoch": epoch, "values": values, "work": work, "traces": 1}
