"""Keras's backends: which are installed, and what the running one is."""

import importlib.util
from importlib import metadata
from typing import Any

from tfasr.bench.workload import BACKENDS
from tfasr.errors import UsageError

_PACKAGES = {"tensorflow": ("tensorflow",), "jax": ("jax", "jaxlib"), "torch": ("torch",)}


def installed_backends() -> list[str]:
    """Returns the backends whose package can be imported, without importing it."""
    return [name for name in BACKENDS if importlib.util.find_spec(name) is not None]


def check_backend(name: str) -> None:
    """Raises UsageError unless a backend is installed."""
    if name not in installed_backends():
        raise UsageError(
            f"--backend must be one that is installed: {', '.join(installed_backends())}. "
            f"Received: {name!r}; install it by pip install {name}."
        )


def describe_backend() -> dict[str, Any]:
    """Returns Keras's running backend, its devices and versions as JSON values."""
    import keras

    name = keras.backend.backend()
    packages = ("keras", *_PACKAGES[name])
    return {
        "name": name,
        "devices": _devices(name),
        "versions": {package: metadata.version(package) for package in packages},
    }


def visible_gpus() -> int:
    """Returns how many GPUs Keras's running backend sees."""
    named = describe_backend()["devices"]
    return sum("gpu" in device.lower() or "cuda" in device.lower() for device in named)


def _devices(name: str) -> list[str]:
    if name == "tensorflow":
        import tensorflow as tf

        return [device.name for device in tf.config.list_logical_devices()]
    if name == "jax":
        import jax

        return [str(device) for device in jax.devices()]
    import torch

    count = torch.cuda.device_count()
    return [f"cuda:{index}" for index in range(count)] or ["cpu"]
