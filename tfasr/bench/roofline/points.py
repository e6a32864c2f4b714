"""Where layers, steps and kernels stand below the ceilings."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tfasr.bench.roofline.kernels import Kernel, Kernels
from tfasr.bench.roofline.specified import Specified
from tfasr.models.costs import ModuleCost, total_cost

if TYPE_CHECKING:
    from tfasr.bench.roofline.config import RooflineConfig
    from tfasr.bench.roofline.measure import Ceilings, ModelMeasured


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
        kernels: of a step.
        most_used: the kernel that took the most time, with all of its kind, for whose sum the
            operations are known; None without kernels.
        average: all kernels' operations over all kernels' seconds; None without kernels.
        lstm_kernels: what computed the recurrence.
    """

    name: str
    modules: list[Point]
    step: Point
    kernels: Kernels
    most_used: Point | None
    average: Point | None
    lstm_kernels: list[str]

    @classmethod
    def of(cls, name: str, costs: Sequence[ModuleCost], measured: "ModelMeasured") -> "ModelPoints":
        """Makes the points of what was measured and counted of a model."""
        whole = total_cost("whole step", costs)
        modules = [
            Point(name, cost.name, cost.total_flops, cost.total_bytes, module.alone_s)
            for cost, module in zip(costs, measured.modules, strict=True)
        ]
        step_s = sum(module.in_step_s for module in measured.modules)
        return cls(
            name,
            modules,
            Point(name, whole.name, whole.total_flops, whole.total_bytes, step_s),
            measured.kernels,
            _most_used(name, whole, measured),
            _average(name, whole, measured.kernels),
            measured.lstm_kernels,
        )


@dataclass(frozen=True)
class RooflineAnalysis:
    """Ceilings and what stands below them.

    Attributes:
        ceilings: fewest threads first.
        models: their points.
        precision: of the models' steps.
        batch: utterances of a step.
        frames: feature frames of each.
        specified: what the machine should do.
        spotter: kernels of the keyword spotter by framework.
        spotter_batch: utterances of its step.
    """

    ceilings: "list[Ceilings]"
    models: list[ModelPoints]
    precision: str
    batch: int
    frames: int
    specified: Specified = Specified({}, None, "")
    spotter: Mapping[str, Kernels] = field(default_factory=dict)
    spotter_batch: int = 0

    @classmethod
    def of(
        cls,
        ceilings: "Sequence[Ceilings]",
        models: Sequence[ModelPoints],
        config: "RooflineConfig",
        **more: Any,
    ) -> "RooflineAnalysis":
        """Puts together what the processes answered; ``more``: specified and spotter."""
        sizes = (config.precision, config.batch, config.frames)
        return cls(list(ceilings), list(models), *sizes, spotter_batch=config.spotter_batch, **more)

    @property
    def highest(self) -> "Ceilings":
        """The ceilings with the most threads."""
        return self.ceilings[-1]

    @property
    def peak(self) -> float:
        """Floating-point operations per second of the models' precision, with the most threads."""
        return self.highest.flops_per_s[self.precision]

    @property
    def memory(self) -> float:
        """Bytes per second of memory, with the most threads."""
        return self.highest.memory

    def attainable(self, intensity: float) -> float:
        """Returns the operations per second that the roofline allows at an intensity.

        Source: S. Williams et al., Roofline, CACM 2009, section 3.
        """
        return min(self.peak, self.memory * intensity)

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {
            "ceilings": [dataclasses.asdict(one) for one in self.ceilings],
            "ridge_flops_per_byte": self.peak / self.memory,
            "specified": dataclasses.asdict(self.specified),
            "models": [
                {
                    **dataclasses.asdict(model),
                    "kernels": _kernels_to_json(model.kernels),
                    "no_kernels": model.kernels.reason,
                    "points": list(map(self._point, model.modules)),
                }
                for model in self.models
            ],
            "spotter_kernels": {
                framework: {"kernels": _kernels_to_json(found), "reason": found.reason}
                for framework, found in self.spotter.items()
            },
        }

    def _point(self, point: Point) -> dict[str, Any]:
        return {
            "name": point.name,
            "flops_per_byte": point.intensity,
            "flops_per_s": point.flops_per_s,
            "share_of_roof": point.flops_per_s / self.attainable(point.intensity),
        }


def _kernels_to_json(kernels: Kernels) -> list[dict[str, Any]]:
    return [{**dataclasses.asdict(one), "kind": one.kind} for one in kernels.kernels]


def _most_used(model: str, whole: ModuleCost, measured: "ModelMeasured") -> Point | None:
    """Returns the kernel with the most time: its kind's operations over its kind's seconds."""
    flops, moved = dict(whole.flops), dict(whole.moved)
    if not any(name in ("fused CPU", "cuDNN") for name in measured.lstm_kernels):
        # The loop is no kernel of its own: its matmuls are among all others.
        flops["matmul"] += flops.pop("recurrence")
        moved["matmul"] += moved.pop("recurrence")
    kernels = measured.kernels
    longest: Kernel | None = max(kernels.kernels, key=lambda one: one.seconds, default=None)
    if longest is None or not flops.get(longest.kind):
        return None
    kind = longest.kind
    return Point(model, longest.name, flops[kind], moved[kind], kernels.of_kind(kind))


def _average(model: str, whole: ModuleCost, kernels: Kernels) -> Point | None:
    if not kernels.seconds:
        return None
    return Point(model, "average kernel", whole.total_flops, whole.total_bytes, kernels.seconds)
