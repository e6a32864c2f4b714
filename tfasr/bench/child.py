"""Runs a piece of work in a process of its own, on the Keras backend that it asks for.

``python -m tfasr.bench.child FUNCTION REQUEST ANSWER`` calls ``module:function`` with the JSON of
one file and writes what it returns as JSON to another. What it prints goes to standard error.
"""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from tfasr.bench.workload import BACKENDS
from tfasr.errors import RunError, UsageError
from tfasr.telemetry.quiet import load_tensorflow

_STDERR = 2


def run_in_child(
    function: str,
    request: dict[str, Any],
    *,
    backend: str,
    environment: dict[str, str] | None = None,
) -> Any:
    """Calls a function in a new process.

    Args:
        function: ``module:function``; it is given ``request`` and returns JSON values.
        request: JSON values.
        backend: Keras's backend in the new process.
        environment: further variables of its environment.

    Raises:
        UsageError: if the function raised one.
        RunError: if it raised one, or the process died.
    """
    variables = {**os.environ, "KERAS_BACKEND": backend, **(environment or {})}
    variables.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with tempfile.TemporaryDirectory() as scratch:
        asked, answered = Path(scratch, "request.json"), Path(scratch, "answer.json")
        asked.write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-m", "tfasr.bench.child", function, str(asked), str(answered)]
        # What libraries print to standard output must not mix with the results there.
        done = subprocess.run(command, check=False, env=variables, stdout=_STDERR)
        if done.returncode or not answered.is_file():
            raise RunError(
                f"The process of {function} on {backend} must end with exit code 0. Received: "
                f"{done.returncode} (-9 is what a full memory looks like); see its messages above."
            )
        answer = json.loads(answered.read_text(encoding="utf-8"))
    if "usage_error" in answer:
        raise UsageError(answer["usage_error"])
    if "run_error" in answer:
        raise RunError(answer["run_error"])
    return answer["result"]


def main(function: str, asked: str, answered: str) -> None:
    """Calls the function and writes the answer."""
    import logging

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    logging.getLogger("jax").setLevel(logging.WARNING)
    if os.environ.get("KERAS_BACKEND") == "tensorflow":
        load_tensorflow()
    request = json.loads(Path(asked).read_text(encoding="utf-8"))
    try:
        answer = {"result": _named(function)(request)}
    except UsageError as error:
        answer = {"usage_error": str(error)}
    except RunError as error:
        answer = {"run_error": str(error)}
    Path(answered).write_text(json.dumps(answer), encoding="utf-8")


def _named(function: str) -> Any:
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    main(*sys.argv[1:])


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
