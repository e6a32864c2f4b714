"""Values for functions that an executor calls in other processes, perhaps on other hosts."""

import pickle
import platform
import socket
from typing import Any

import numpy as np
import soundfile
import soxr
import tensorflow as tf

from tfasr._version import __version__
from tfasr.errors import RunError
from tfasr.plugins import load_plugin, loaded_plugins


def software() -> dict[str, str]:
    """Returns the versions of what decides a shard's bytes."""
    return {
        "tfasr": __version__,
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
        "soxr": soxr.__version__,
        "libsndfile": soundfile.__libsndfile_version__,
        "processor": platform.machine(),
    }


def exported(value: Any) -> bytes:
    """Returns a value that `imported` reads in another process, with the plug-ins it needs."""
    return pickle.dumps((loaded_plugins(), software(), pickle.dumps(value)))


def imported(content: bytes) -> Any:
    """Returns the value of what this program's `exported` returned in the process that prepares.

    Raises:
        RunError: if other software is here, whose shards could differ in their last bits.
        UsageError: if a plug-in is not here.
    """
    plugins, wanted, value = pickle.loads(content)
    here = software()
    other = [
        f"{name} {here[name]} for {wanted[name]}" for name in here if here[name] != wanted[name]
    ]
    if other:
        raise RunError(
            "Every worker must run the software of the process that prepares, or shards would "
            f"depend on who made them. The worker on {socket.gethostname()} has "
            f"{', '.join(other)}: install the same, and run tfasr prepare again; it resumes."
        )
    for plugin in plugins:
        load_plugin(plugin)
    return pickle.loads(value)
