"""TensorFlow without what it prints when it is loaded."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Sends what C++ code prints to nowhere; Python's exceptions come through all the same."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a descriptor, no path
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def load_tensorflow() -> None:
    """Imports TensorFlow without its twenty lines on devices, which bury tfasr's own."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with _quiet_stderr():
        import tensorflow as tf

        tf.config.list_physical_devices()
