"""From the steps of all numbers of devices to efficiencies, beside what was predicted."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfasr.bench.scaling.prediction import Link, ScalingModel, fit_link, fit_single_device

if TYPE_CHECKING:
    from tfasr.bench.scaling.config import ScalingConfig


@dataclass(frozen=True)
class ScalingRow:
    """One way of scaling on one number of devices.

    Attributes:
        mode: "weak" (a full batch on each device) or "strong" (one batch for all).
        loader: whether batches were read from shards; else one lay in memory.
        devices: how many shared the work.
        per_device_batch: utterances on each.
        first_s: seconds of the first steps, input wait included; left out of everything else.
        step_s: median seconds of the other steps, input wait included.
        input_wait_s: median seconds of them spent waiting for the batch.
        single_s: the same on one device.
        predicted_s: what the model says of ``step_s``; None with a loader, or without a link.
    """

    mode: str
    loader: bool
    devices: int
    per_device_batch: int
    first_s: list[float]
    step_s: float
    input_wait_s: float
    single_s: float
    predicted_s: float | None

    @property
    def utterances_per_s(self) -> float:
        """Utterances of all devices per second."""
        return self.devices * self.per_device_batch / self.step_s

    @property
    def efficiency(self) -> float:
        """Throughput over that of one device times the number of devices: 1 is ideal."""
        return self.speedup / self.devices

    @property
    def speedup(self) -> float:
        """Throughput over that of one device."""
        ratio = self.single_s / self.step_s
        return ratio * self.devices if self.mode == "weak" else ratio

    @property
    def prediction_error(self) -> float | None:
        """Predicted over measured step, minus 1."""
        return None if self.predicted_s is None else self.predicted_s / self.step_s - 1


@dataclass(frozen=True)
class ScalingAnalysis:
    """Everything that the scaling workload found.

    Attributes:
        rows: weak without and with loader, then strong, each over the numbers of devices.
        answers: of the measuring processes, one a number of devices.
        model: the prediction; None where no link was given and none measured.
        link_source: what its link was taken from, for readers.
        warmup_steps: left out of each row.
        strong_utterances: the global batch of strong scaling.
        predicted_devices: numbers of devices to predict beyond the measured.
    """

    rows: list[ScalingRow]
    answers: list[dict[str, Any]]
    model: ScalingModel | None
    link_source: str
    warmup_steps: int
    strong_utterances: int
    predicted_devices: tuple[int, ...]

    @classmethod
    def of(cls, answers: Sequence[dict[str, Any]], config: "ScalingConfig") -> "ScalingAnalysis":
        """Analyses what `tfasr.bench.scaling.measure.measure` answered, one device first."""
        warmup = config.warmup_steps
        link, source = _link(answers, config)
        model = link and _model(answers[0], link, config)
        rows = []
        for mode, loader in (("weak", False), ("weak", True), ("strong", False)):
            single_s: float | None = None
            for answer in answers:
                for load in answer["loads"]:
                    if (load["name"], load["loader"]) != (mode, loader):
                        continue
                    row = _row(answer["devices"], load, warmup, single_s, model)
                    single_s = single_s or row.step_s
                    rows.append(row)
        return cls(
            rows,
            list(answers),
            model,
            source,
            warmup,
            config.strong_utterances,
            config.predicted_devices,
        )

    @property
    def shared_cores(self) -> bool:
        """Whether the devices were slices of one processor."""
        return self.answers[0]["kind"] != "GPU"

    def separate(self) -> ScalingModel | None:
        """Returns the prediction for devices that share nothing but the link."""
        return self.model and dataclasses.replace(self.model, shared_cores=False)

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values; rates are fractions."""
        return {
            "rows": [_row_to_json(row) for row in self.rows],
            "shared_cores": self.shared_cores,
            "prediction": self.model and dataclasses.asdict(self.model),
            "link_source": self.link_source,
        }


def steady_s(load: dict[str, Any], warmup_steps: int) -> float:
    """Returns the median seconds of a load's steps after the first, input wait included."""
    return statistics.median(_whole_s(load)[warmup_steps:])


def _whole_s(load: dict[str, Any]) -> list[float]:
    return [sum(both) for both in zip(load["step_s"], load["input_wait_s"], strict=True)]


def _row(
    devices: int,
    load: dict[str, Any],
    warmup: int,
    single_s: float | None,
    model: ScalingModel | None,
) -> ScalingRow:
    batch, step_s = load["per_device_batch"], steady_s(load, warmup)
    return ScalingRow(
        mode=load["name"],
        loader=load["loader"],
        devices=devices,
        per_device_batch=batch,
        first_s=_whole_s(load)[:warmup],
        step_s=step_s,
        input_wait_s=statistics.median(load["input_wait_s"][warmup:]),
        single_s=single_s or step_s,
        predicted_s=None if load["loader"] or model is None else model.step_s(devices, batch),
    )


def _link(answers, config: "ScalingConfig") -> tuple[Link | None, str]:
    if config.link_gigabytes_per_s:
        link = Link(config.link_gigabytes_per_s * 1e9, config.link_latency_us * 1e-6)
        return link, "given"
    measured = next((answer for answer in answers if answer.get("all_reduce")), None)
    if measured is None:
        return None, "n/a"
    found = measured["all_reduce"]
    link = fit_link(
        [measured["devices"]] * len(found),
        [one["size_bytes"] for one in found],
        [one["seconds"] for one in found],
    )
    return link, f"all-reduces measured over {measured['devices']} devices"


def _model(answer: dict[str, Any], link: Link, config: "ScalingConfig") -> ScalingModel:
    held = [load for load in answer["loads"] if not load["loader"]]
    single = fit_single_device(
        [load["per_device_batch"] for load in held],
        [steady_s(load, config.warmup_steps) for load in held],
    )
    return ScalingModel(
        single=single,
        gradient_bytes=answer["gradient_bytes"],
        link=link,
        overlap=config.overlap,
        shared_cores=answer["kind"] != "GPU",
    )


def _row_to_json(row: ScalingRow) -> dict[str, Any]:
    derived = ("utterances_per_s", "efficiency", "speedup", "prediction_error")
    return {**dataclasses.asdict(row), **{name: getattr(row, name) for name in derived}}
