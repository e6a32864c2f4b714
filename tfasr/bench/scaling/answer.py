"""What a measuring process of the scaling analysis answers."""

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tfasr.bench.probes.device_use import PROCESS, DeviceUse
from tfasr.bench.scaling.config import Load

if TYPE_CHECKING:
    from tfasr.bench.probes.module_timing import ModuleTimes
    from tfasr.bench.scaling.replicas import AllReduce


@dataclass(frozen=True)
class LoadTimes:
    """Training steps on batches of one size from one source.

    Attributes:
        load: what they were.
        step_s: seconds of every step, the first ones too.
        input_wait_s: seconds that every step waited for its batch.
        use: how busy the devices were meanwhile.
    """

    load: Load
    step_s: list[float]
    input_wait_s: list[float]
    use: list[DeviceUse] = field(default_factory=list)

    @property
    def whole_s(self) -> list[float]:
        """Seconds of every step, input wait included."""
        return [sum(both) for both in zip(self.step_s, self.input_wait_s, strict=True)]

    def steady_s(self, warmup_steps: int) -> float:
        """Returns the median seconds of the steps after the first, input wait included."""
        return statistics.median(self.whole_s[warmup_steps:])


@dataclass(frozen=True)
class ScalingAnswer:
    """Everything on one number of devices.

    Attributes:
        devices: how many.
        kind: "GPU" or "logical CPU".
        loads: training steps.
        peak_device_bytes: the most that TensorFlow used on each; None where it cannot be told.
        peak_memory_mib: the most that the process held.
        gradient_bytes: of all gradients in float32.
        modules: where the step's seconds went; None where it was not asked.
        replica_s: each device's seconds of forward and backward pass, ``(rounds, devices)``.
        all_reduce: all-reduces of different sizes.
    """

    devices: int
    kind: str
    loads: list[LoadTimes]
    peak_device_bytes: list[int | None]
    peak_memory_mib: float | None
    gradient_bytes: int
    modules: "ModuleTimes | None" = None
    replica_s: list[list[float]] = field(default_factory=list)
    all_reduce: "list[AllReduce]" = field(default_factory=list)

    def gpu_percents(self) -> list[float]:
        """Returns how busy each GPU was on average over all loads."""
        by_device: dict[str, list[float]] = {}
        for times in self.loads:
            for use in times.use:
                if use.device != PROCESS:
                    by_device.setdefault(use.device, []).extend(use.percent)
        return [sum(own) / len(own) for own in by_device.values() if own]
