"""Where layers, steps and kernels stand below the ceilings."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfasr.models.costs import KINDS, ModuleCost, total_cost

if TYPE_CHECKING:
    from tfasr.bench.roofline.config import RooflineConfig


@dataclass(frozen=True)
class Point:
    """Something that computes and moves.

    Attributes:
        model: whose part it is.
        name: of the part.
        flops: floating-point operations.
        moved_bytes: bytes moved, caches left out of account.
        seconds: it took.
    """

    model: str
    name: str
    flops: float
    moved_bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        """Floating-point operations for each byte moved."""
        return self.flops / self.moved_bytes

    @property
    def flops_per_s(self) -> float:
        """Floating-point operations per second."""
        return self.flops / self.seconds


@dataclass(frozen=True)
class ModelPoints:
    """A model's part of the roofline.

    Attributes:
        name: "model" or "small model".
        modules: front end, recurrent blocks, head, loss and update, each alone.
        step: all of them as one step.
        kernels: by falling time, as `tfasr.bench.roofline.measure.measure_model` gives them.
        most_used: the kernel that took the most time, with all of its kind, for whose sum the
            operations are known; None without kernels.
        average: all kernels' operations over all kernels' seconds; None without kernels.
        no_kernels: why there are none, or "".
        lstm_kernels: what computed the recurrence.
    """

    name: str
    modules: list[Point]
    step: Point
    kernels: list[dict[str, Any]]
    most_used: Point | None
    average: Point | None
    no_kernels: str
    lstm_kernels: list[str]

    @classmethod
    def of(cls, found: dict[str, Any]) -> "ModelPoints":
        """Makes the points of what was measured and counted of a model."""
        name, costs = found["name"], found["costs"]
        whole = total_cost("whole step", costs)
        seconds = [module["alone_s"] for module in found["modules"]]
        modules = [
            Point(name, cost.name, cost.total_flops, cost.total_bytes, alone_s)
            for cost, alone_s in zip(costs, seconds, strict=True)
        ]
        step_s = sum(module["in_step_s"] for module in found["modules"])
        return cls(
            name,
            modules,
            Point(name, whole.name, whole.total_flops, whole.total_bytes, step_s),
            found["kernels"],
            _most_used(name, whole, found["kernels"], found["lstm_kernels"]),
            _average(name, whole, found["kernels"]),
            found["no_kernels"],
            found["lstm_kernels"],
        )


@dataclass(frozen=True)
class RooflineAnalysis:
    """Ceilings and what stands below them.

    Attributes:
        ceilings: as `tfasr.bench.roofline.measure.measure_ceilings` gives them, fewest threads
            first.
        models: their points.
        precision: of the models' steps.
        batch: utterances of a step.
        frames: feature frames of each.
    """

    ceilings: list[dict[str, Any]]
    models: list[ModelPoints]
    precision: str
    batch: int
    frames: int

    @classmethod
    def of(
        cls,
        ceilings: Sequence[dict[str, Any]],
        found: Sequence[dict[str, Any]],
        config: "RooflineConfig",
    ) -> "RooflineAnalysis":
        """Puts together what the processes answered."""
        models = [ModelPoints.of(one) for one in found]
        return cls(list(ceilings), models, config.precision, config.batch, config.frames)

    @property
    def highest(self) -> dict[str, Any]:
        """The ceilings with the most threads."""
        return self.ceilings[-1]

    @property
    def peak(self) -> float:
        """Floating-point operations per second of the models' precision, with the most threads."""
        return self.highest["flops_per_s"][self.precision]

    @property
    def memory(self) -> float:
        """Bytes per second of memory: the faster of copy and triad, with the most threads."""
        return max(self.highest["bytes_per_s"]["memory"].values())

    def attainable(self, intensity: float) -> float:
        """Returns the operations per second that the roofline allows at an intensity.

        Source: S. Williams et al., Roofline, CACM 2009, section 3.
        """
        return min(self.peak, self.memory * intensity)

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {
            "ceilings": self.ceilings,
            "ridge_flops_per_byte": self.peak / self.memory,
            "models": [
                {**dataclasses.asdict(model), "points": list(map(self._point, model.modules))}
                for model in self.models
            ],
        }

    def _point(self, point: Point) -> dict[str, Any]:
        return {
            "name": point.name,
            "flops_per_byte": point.intensity,
            "flops_per_s": point.flops_per_s,
            "share_of_roof": point.flops_per_s / self.attainable(point.intensity),
        }


def _most_used(
    model: str, whole: ModuleCost, kernels: Sequence[dict[str, Any]], lstm_kernels: Sequence[str]
) -> Point | None:
    """Returns the kernel with the most time: its kind's operations over its kind's seconds."""
    seconds = dict.fromkeys(KINDS, 0.0)
    for kernel in kernels:
        seconds[kernel["kind"]] += kernel["seconds"]
    flops, moved = dict(whole.flops), dict(whole.moved)
    if not any(name in ("fused CPU", "cuDNN") for name in lstm_kernels):
        # The loop is no kernel of its own: its matmuls are among all others.
        flops["matmul"] += flops.pop("recurrence")
        moved["matmul"] += moved.pop("recurrence")
    longest = max(kernels, key=lambda kernel: kernel["seconds"], default=None)
    kind = longest and longest["kind"]
    if not kind or not flops.get(kind):
        return None
    return Point(model, longest["name"], flops[kind], moved[kind], seconds[kind])


def _average(model: str, whole: ModuleCost, kernels: Sequence[dict[str, Any]]) -> Point | None:
    seconds = sum(kernel["seconds"] for kernel in kernels)
    if not seconds:
        return None
    return Point(model, "average kernel", whole.total_flops, whole.total_bytes, seconds)
