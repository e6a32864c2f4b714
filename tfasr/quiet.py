"""Imports TensorFlow without the messages that it prints."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Discards what C++ code prints to standard error; Python's exceptions are not affected."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a descriptor, no path
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def load_tensorflow() -> None:
    """Imports TensorFlow without its twenty lines on devices, which would hide tfasr's messages."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with quiet_stderr():
        import tensorflow as tf

        tf.config.list_physical_devices()
