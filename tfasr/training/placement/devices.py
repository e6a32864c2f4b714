"""The devices that an evaluation beside the training works on, and training leaves alone."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from tfasr.errors import UsageError


@dataclass(frozen=True)
class Devices:
    """What ``TrainingConfig.evaluation_devices`` names.

    Attributes:
        processors: logical processors, as the operating system numbers them; none for all.
        gpus: as this process numbers them; none to evaluate on processors.
    """

    processors: tuple[int, ...]
    gpus: tuple[int, ...]

    def environment(self) -> dict[str, str]:
        """Returns what makes a process see these GPUs alone."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        own = visible.split(",") if visible else None
        names = [own[gpu] if own else str(gpu) for gpu in self.gpus]
        return {"CUDA_VISIBLE_DEVICES": ",".join(names) or "-1"}


def named_devices(names: Sequence[str]) -> Devices:
    """Returns devices by their names, see `tfasr.training.experiment.TrainingConfig`."""
    found: dict[str, list[int]] = {"cpu": [], "gpu": []}
    for name in names:
        kind, _, number = name.partition(":")
        found[kind].append(int(number))
    return Devices(tuple(found["cpu"]), tuple(found["gpu"]))


def leave_to_evaluation(names: Sequence[str]) -> None:
    """Checks that devices are there, and hides GPUs among them from this process.

    TensorFlow takes the memory of every GPU that it sees. Call it before it has looked at them.

    Raises:
        UsageError: if a device is not there, or this process holds the GPUs already.
    """
    devices = named_devices(names)
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    missing = [f"cpu:{number}" for number in devices.processors if number not in usable]
    gpus = tf.config.list_physical_devices("GPU") if devices.gpus else []
    missing += [f"gpu:{number}" for number in devices.gpus if number >= len(gpus)]
    if missing:
        raise UsageError(
            "TrainingConfig.evaluation_devices must name devices that this process may use. "
            f"Received: {list(names)}, of which {missing} are not among the processors "
            f"{sorted(usable)} and {len(gpus)} GPUs."
        )
    if not devices.gpus:
        return
    own = [gpu for number, gpu in enumerate(gpus) if number not in devices.gpus]
    try:
        tf.config.set_visible_devices(own, "GPU")
    except RuntimeError as error:
        raise UsageError(
            "GPUs of TrainingConfig.evaluation_devices must be left alone by the training process, "
            f"which has begun to use them: {error}. Train in a process of its own, as tfasr train "
            "does."
        ) from error
