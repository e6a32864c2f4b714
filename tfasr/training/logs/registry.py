"""Where a run's scalars can go while it trains, by name."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Protocol

from tfasr.errors import UsageError
from tfasr.registry import Registry


class Log(Protocol):
    """Where scalars go; a class that is called with the run's folder and its ledger's events.

    An attribute ``package`` may name what must be installed for it.
    """

    def write(self, scalars: dict[str, float], step: int, useful_s: float) -> None:
        """Takes values that belong to an optimizer step and to a time of the run."""

    def flush(self) -> None:
        """Makes what was written safe from a crash; not needed where it is sent at once."""

    def close(self) -> None:
        """Ends the log."""


def _check(cls: type) -> None:
    lacking = [name for name in ("write", "flush", "close") if not callable(getattr(cls, name, 0))]
    if lacking:
        raise TypeError(f"it must be a class with the methods {', '.join(lacking)}.")


_HOME = "tfasr.training.logs"
LOGS: Registry[type] = Registry(
    "log",
    {
        "tensorboard": f"{_HOME}.tensorboard:TensorBoardLog",
        "mlflow": f"{_HOME}.mlflow:MlflowLog",
        "wandb": f"{_HOME}.wandb:WandbLog",
    },
    check=_check,
)
"""Classes of logs by name, as ``tfasr train --log_to`` takes them; see `Log`."""


def required(package: str) -> ModuleType:
    """Returns a package that a log needs.

    Raises:
        UsageError: if it is not installed.
    """
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
            raise UsageError(f"A log must be one of {sorted(LOGS)}. Received: {name!r}.")
        package = getattr(LOGS[name], "package", None)
        if package is not None:
            required(package)


def open_logs(names: Sequence[str], run_dir: Path, events: Sequence[dict]) -> list[Log]:
    """Returns the logs of those names, once each."""
    return [LOGS[name](run_dir, events) for name in dict.fromkeys(names)]
