"""Scaling of data parallelism: weak and strong, over devices, with a prediction beside it."""

from typing import Any, Literal

from tfasr.bench.child import run_in_child
from tfasr.bench.scaling_analysis import ScalingAnalysis
from tfasr.bench.workload import Context, Result
from tfasr.config import config_class, require, to_json
from tfasr.data.features import FeatureConfig
from tfasr.errors import UsageError
from tfasr.models.acoustic_model import AcousticModelConfig


@config_class
class ScalingConfig:
    """What is scaled, over what.

    Attributes:
        device_counts: numbers of devices, 1 among them; empty for 1, 2, 4 and so on up to all
            GPUs, and for 1 and 2 slices of the processor where there is none.
        weak_utterances: of the batch on each device in weak scaling.
        strong_utterances: of the global batch in strong scaling; a multiple of each count.
        steps: training steps of every measurement.
        warmup_steps: the first of them, shown and left out of every figure.
        frames: feature frames of each utterance.
        labels: labels of each.
        precision: Keras's dtype policy of the layers.
        loader: whether weak scaling is also measured with batches read from shards.
        module_rounds: repetitions of each module's time; 0 leaves modules out.
        link_gigabytes_per_s: of each device's link, for the prediction; 0 to measure all-reduces
            over the fewest devices above 1.
        link_latency_us: of a message on it, where the bandwidth is given.
        overlap: share of the all-reduce hidden behind the backward pass in the prediction.
        predicted_devices: further numbers of devices to predict.
    """

    device_counts: tuple[int, ...] = ()
    weak_utterances: int = 150
    strong_utterances: int = 160
    steps: int = 180
    warmup_steps: int = 4
    frames: int = 1670
    labels: int = 200
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"
    loader: bool = True
    module_rounds: int = 10
    link_gigabytes_per_s: float = 0.0
    link_latency_us: float = 0.0
    overlap: float = 0.0
    predicted_devices: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)

    def check(self) -> None:
        """Raises ValueError for sizes that scale nothing."""
        for field in ("weak_utterances", "strong_utterances", "frames", "labels"):
            require(getattr(self, field) > 0, self, field, "positive")
        require(self.warmup_steps > 0, self, "warmup_steps", "at least 1: the first step compiles")
        require(self.steps > self.warmup_steps, self, "steps", "more than the warm-up steps")
        counts = self.device_counts
        fits = all(n > 0 and self.strong_utterances % n == 0 for n in counts)
        rule = "positive divisors of strong_utterances, 1 among them"
        require(not counts or (fits and 1 in counts), self, "device_counts", rule)
        require(all(n > 0 for n in self.predicted_devices), self, "predicted_devices", "positive")
        require(0 <= self.overlap <= 1, self, "overlap", "in 0..1")
        for field in ("module_rounds", "link_gigabytes_per_s", "link_latency_us"):
            require(getattr(self, field) >= 0, self, field, "at least 0")


def run(
    config: ScalingConfig,
    model: AcousticModelConfig,
    features: FeatureConfig,
    context: Context,
) -> Result:
    """Runs the workload: a process for each number of devices.

    Raises:
        UsageError: if the backend is another than TensorFlow, or devices are too few.
    """
    from tfasr.bench.scaling_figure import scaling_figure
    from tfasr.bench.scaling_tables import scaling_tables

    if context.backend != "tensorflow":
        raise UsageError(
            "The scaling analysis runs tfasr's own training under tf.distribute, which is "
            f"TensorFlow's. Received: --backend {context.backend}. Leave it out."
        )
    counts = sorted(set(config.device_counts)) or default_counts(config.strong_utterances)
    answers = [
        run_in_child(
            "tfasr.bench.scaling_process:measure",
            _request(config, model, features, count, counts, context.fraction),
            backend="tensorflow",
        )
        for count in counts
    ]
    analysis = ScalingAnalysis.of(answers, config)
    return Result(
        tables=scaling_tables(analysis),
        values={**analysis.to_json(), "processes": answers},
        warmup_steps=config.warmup_steps,
        figures={"scaling": lambda: scaling_figure(analysis)},
    )


def default_counts(strong_utterances: int) -> list[int]:
    """Returns 1, 2, 4 and so on up to all GPUs, as far as they divide the global batch."""
    from tfasr.bench.devices import num_gpus

    most = num_gpus() or 2
    powers = {2**power for power in range(most.bit_length())} | {most}
    return sorted(n for n in powers if n <= most and strong_utterances % n == 0)


def _request(
    config: ScalingConfig, model, features, count: int, counts: list[int], fraction: float
) -> dict[str, Any]:
    steps = max(config.warmup_steps + 1, round(config.steps * fraction))
    loads = [_load("weak", config.weak_utterances, steps)]
    if config.loader:
        loads.append(_load("weak", config.weak_utterances, steps, loader=True))
    loads.append(_load("strong", config.strong_utterances // count, steps))
    if count == 1:
        # The prediction is made of one device's steps on the batches that it predicts for.
        few = max(config.warmup_steps + 1, min(steps, config.warmup_steps + 12))
        loads += [_load("single", config.strong_utterances // n, few) for n in counts if n > 1]
    timed = config.module_rounds and count in (counts[0], counts[-1])
    return {
        "devices": count,
        "model": to_json(model),
        "features": to_json(features),
        "precision": config.precision,
        "frames": config.frames,
        "labels": config.labels,
        "loads": loads,
        "module_batch": config.weak_utterances if timed else 0,
        "rounds": max(config.module_rounds, 5),
        "all_reduce": not config.link_gigabytes_per_s,
    }


def _load(name: str, per_device_batch: int, steps: int, loader: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "per_device_batch": per_device_batch,
        "steps": steps,
        "loader": loader,
    }
