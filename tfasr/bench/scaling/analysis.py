"""From the steps of all numbers of devices to efficiencies, beside what was predicted."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfasr.bench.scaling.answer import LoadTimes, ScalingAnswer
from tfasr.bench.scaling.config import IN_MEMORY, LOADERS
from tfasr.bench.scaling.prediction import Link, ScalingModel, fit_link, fit_single_device

if TYPE_CHECKING:
    from tfasr.bench.scaling.config import ScalingConfig


@dataclass(frozen=True)
class ScalingRow:
    """One way of scaling on one number of devices.

    Attributes:
        mode: "weak" (a full batch on each device) or "strong" (one batch for all).
        loader: where batches came from, of `tfasr.bench.scaling.config.LOADERS`.
        devices: how many shared the work.
        per_device_batch: utterances on each.
        steps: how many were taken, the first included.
        first_s: seconds of the first steps, input wait included; left out of everything else.
        step_s: median seconds of the other steps, input wait included.
        mean_step_s: their mean, which a loader that stops training now and then raises.
        input_wait_s: mean seconds of them spent waiting for the batch.
        use_percent: how busy the devices were on average, by device.
        single_s: ``mean_step_s`` on one device with a loader, ``step_s`` without.
        predicted_s: what the model says of ``step_s``; None with a loader, or without a link.
    """

    mode: str
    loader: str
    devices: int
    per_device_batch: int
    steps: int
    first_s: list[float]
    step_s: float
    mean_step_s: float
    input_wait_s: float
    use_percent: dict[str, float | None]
    single_s: float
    predicted_s: float | None

    @property
    def counted_s(self) -> float:
        """Seconds of a step that rates are made of: the mean where a loader makes steps uneven."""
        return self.mean_step_s if self.loader else self.step_s

    @property
    def utterances_per_s(self) -> float:
        """Utterances of all devices per second."""
        return self.devices * self.per_device_batch / self.counted_s

    @property
    def efficiency(self) -> float:
        """Throughput over that of one device times the number of devices: 1 is ideal."""
        return self.speedup / self.devices

    @property
    def speedup(self) -> float:
        """Throughput over that of one device."""
        ratio = self.single_s / self.counted_s
        return ratio * self.devices if self.mode == "weak" else ratio

    @property
    def prediction_error(self) -> float | None:
        """Predicted over measured step, minus 1."""
        return None if self.predicted_s is None else self.predicted_s / self.step_s - 1


@dataclass(frozen=True)
class ScalingAnalysis:
    """Everything that the scaling workload found.

    Attributes:
        rows: weak without and with loaders, then strong, each over the numbers of devices.
        answers: of the measuring processes, one a number of devices.
        model: the prediction; None where no link was given and none measured.
        link_source: what its link was taken from, for readers.
        warmup_steps: left out of each row.
        strong_utterances: the global batch of strong scaling.
        predicted_devices: numbers of devices to predict beyond the measured.
    """

    rows: list[ScalingRow]
    answers: list[ScalingAnswer]
    model: ScalingModel | None
    link_source: str
    warmup_steps: int
    strong_utterances: int
    predicted_devices: tuple[int, ...]

    @classmethod
    def of(cls, answers: Sequence[ScalingAnswer], config: "ScalingConfig") -> "ScalingAnalysis":
        """Analyses what `tfasr.bench.scaling.measure.measure` answered, one device first."""
        warmup = config.warmup_steps
        link, source = _link(answers, config)
        model = link and _model(answers[0], link, config)
        rows = []
        for mode, loader in (*(("weak", loader) for loader in LOADERS), ("strong", IN_MEMORY)):
            single_s: float | None = None
            for answer in answers:
                for times in answer.loads:
                    if (times.load.name, times.load.loader) != (mode, loader):
                        continue
                    row = _row(answer.devices, times, warmup, single_s, model)
                    single_s = single_s or row.counted_s
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
        return self.answers[0].kind != "GPU"

    @property
    def timed(self) -> list[ScalingAnswer]:
        """The numbers of devices whose modules were timed."""
        return [answer for answer in self.answers if answer.modules is not None]

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
            "processes": [dataclasses.asdict(answer) for answer in self.answers],
        }


def _row(
    devices: int,
    times: LoadTimes,
    warmup: int,
    single_s: float | None,
    model: ScalingModel | None,
) -> ScalingRow:
    load, after = times.load, times.whole_s[warmup:]
    mean_s, step_s = statistics.fmean(after), times.steady_s(warmup)
    predicted = None
    if load.loader == IN_MEMORY and model is not None:
        predicted = model.step_s(devices, load.per_device_batch)
    return ScalingRow(
        mode=load.name,
        loader=load.loader,
        devices=devices,
        per_device_batch=load.per_device_batch,
        steps=len(times.step_s),
        first_s=times.whole_s[:warmup],
        step_s=step_s,
        mean_step_s=mean_s,
        input_wait_s=statistics.fmean(times.input_wait_s[warmup:]),
        use_percent={use.device: use.mean_percent for use in times.use},
        single_s=single_s or (mean_s if load.loader else step_s),
        predicted_s=predicted,
    )


def _link(answers: Sequence[ScalingAnswer], config: "ScalingConfig") -> tuple[Link | None, str]:
    if config.link_gigabytes_per_s:
        link = Link(config.link_gigabytes_per_s * 1e9, config.link_latency_us * 1e-6)
        return link, "given"
    measured = next((answer for answer in answers if answer.all_reduce), None)
    if measured is None:
        return None, "n/a"
    found = measured.all_reduce
    link = fit_link(
        [measured.devices] * len(found),
        [one.size_bytes for one in found],
        [one.seconds for one in found],
    )
    return link, f"all-reduces measured over {measured.devices} devices"


def _model(answer: ScalingAnswer, link: Link, config: "ScalingConfig") -> ScalingModel:
    held = [times for times in answer.loads if times.load.loader == IN_MEMORY]
    single = fit_single_device(
        [times.load.per_device_batch for times in held],
        [times.steady_s(config.warmup_steps) for times in held],
    )
    return ScalingModel(
        single=single,
        gradient_bytes=answer.gradient_bytes,
        link=link,
        overlap=config.overlap,
        shared_cores=answer.kind != "GPU",
    )


def _row_to_json(row: ScalingRow) -> dict[str, Any]:
    derived = ("utterances_per_s", "efficiency", "speedup", "prediction_error")
    return {**dataclasses.asdict(row), **{name: getattr(row, name) for name in derived}}
