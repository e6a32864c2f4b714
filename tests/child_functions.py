"""What tests call in a process of its own; loads no backend."""

import json
import os
import random
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from tfasr.errors import RunError, UsageError


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
