"""Seconds of each kernel, from what TensorFlow's profiler wrote."""

import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# "convolution/Conv2D:Conv2D", an operation's name and type; not "ExecutorState::Process".
_OPERATION = re.compile(r"[^:\s]+:([A-Za-z_]\w*)$")
# A whole program of XLA, whose parts have names of their own. In these models TensorFlow 2.21 runs
# convolutions so on processors, nothing else.
_PROGRAM = "CpuExecutable::ExecuteAsyncOnStream"
PROGRAM_NAME = "XLA program"
_KINDS = (
    ("convolution", re.compile("conv|xla", re.IGNORECASE)),
    ("recurrence", re.compile("pyfunc|rnn|lstm|recurrence", re.IGNORECASE)),
    ("matmul", re.compile(r"matmul|gemm|einsum|mm\b", re.IGNORECASE)),
)


@dataclass(frozen=True)
class Kernel:
    """All calls of one kind of kernel in a step.

    Attributes:
        name: the operation's type on a processor, the kernel's own name on a GPU.
        calls: how many.
        seconds: in sum over threads or streams, without the kernels that ran within.
        flops: floating-point operations, where the profiler tells them; None elsewhere.
    """

    name: str
    calls: float
    seconds: float
    flops: float | None = None

    @property
    def kind(self) -> str:
        """Which of `tfasr.models.costs.KINDS` it computes, as far as its name tells."""
        return next((kind for kind, names in _KINDS if names.search(self.name)), "elementwise")


@dataclass(frozen=True)
class Kernels:
    """The kernels of a step.

    Attributes:
        kernels: by falling time.
        reason: why there are none, or "".
    """

    kernels: list[Kernel]
    reason: str = ""

    @property
    def seconds(self) -> float:
        """Seconds of all of them."""
        return sum(kernel.seconds for kernel in self.kernels)

    def of_kind(self, kind: str) -> float:
        """Returns the seconds of all kernels of a kind."""
        return sum(kernel.seconds for kernel in self.kernels if kernel.kind == kind)


def profile(step: Callable[[], Any], steps: int) -> Kernels:
    """Runs steps under TensorFlow's profiler.

    Args:
        step: takes a step and waits for its end; it was called before.
        steps: how many.

    Returns:
        Kernels with calls and seconds for one step, or the reason why there are none.
    """
    import tensorflow as tf

    try:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2
    except ImportError as error:
        return Kernels([], f"the profiler's format cannot be read: {error}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            tf.profiler.experimental.start(folder)
        except tf.errors.OpError as error:
            return Kernels([], f"the profiler did not start: {error.message}")
        for _ in range(steps):
            step()
        tf.profiler.experimental.stop()
        traces = sorted(Path(folder).rglob("*.xplane.pb"))
        space = xplane_pb2.XSpace()
        for trace in traces:
            space.MergeFromString(trace.read_bytes())
    kernels = kernels_of(space, steps)
    return Kernels(kernels, "" if kernels else "the profiler recorded no kernel")


def kernels_of(space: Any, steps: int = 1) -> list[Kernel]:
    """Returns the kernels of a trace by falling time.

    Args:
        space: an ``XSpace``. Where it holds GPUs, theirs count, else the processor's operations.
        steps: that the trace is of; calls and seconds are those of one.
    """
    gpus = [plane for plane in space.planes if plane.name.startswith("/device:GPU")]
    gpus = [plane for plane in gpus if any(line.events for line in plane.lines)]
    calls: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for plane in gpus or [plane for plane in space.planes if plane.name == "/host:CPU"]:
        for line in plane.lines:
            if gpus and not line.name.startswith("Stream"):
                continue
            for name, own_ps in _own_times(_events(plane, line, on_gpu=bool(gpus))):
                calls[name] = calls.get(name, 0) + 1
                seconds[name] = seconds.get(name, 0.0) + own_ps / 1e12
    kernels = [Kernel(name, calls[name] / steps, seconds[name] / steps) for name in calls]
    return sorted(kernels, key=lambda kernel: -kernel.seconds)


def _events(plane: Any, line: Any, on_gpu: bool) -> list[tuple[str, int, int]]:
    """Returns name, beginning and end in picoseconds of a line's kernels."""
    found = []
    for event in line.events:
        name = plane.event_metadata[event.metadata_id].name
        own = name if on_gpu else _operation(name)
        if own is not None:
            found.append((own, event.offset_ps, event.offset_ps + event.duration_ps))
    return found


def _operation(name: str) -> str | None:
    if name == _PROGRAM:
        return PROGRAM_NAME
    operation = _OPERATION.match(name)
    return operation and operation[1]


def _own_times(events: Iterable[tuple[str, int, int]]) -> list[tuple[str, int]]:
    """Returns each event's name and its time without the events within it."""
    own: list[list[Any]] = []
    open_: list[tuple[int, int]] = []  # (end, index) of the events around the present one
    for name, began, ended in sorted(events, key=lambda event: (event[1], -event[2])):
        while open_ and open_[-1][0] <= began:
            open_.pop()
        if open_:
            own[open_[-1][1]][1] -= min(ended, open_[-1][0]) - began
        open_.append((ended, len(own)))
        own.append([name, ended - began])
    return [(name, max(time_ps, 0)) for name, time_ps in own]
