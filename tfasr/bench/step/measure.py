"""What a training step costs: seconds of its parts, operations, memory, compilation."""

import dataclasses
import statistics
import time
from collections.abc import Callable

import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.bench.probes.ceiling import matmul_ceiling
from tfasr.bench.probes.computed import after
from tfasr.bench.step.timing import WARM_UPS, StepTiming
from tfasr.data.pipeline import Batch
from tfasr.models.recogniser import kernels, model_flops
from tfasr.telemetry.memory import peak_bytes
from tfasr.training.build import build_model
from tfasr.training.ctc_model import CtcModel
from tfasr.training.experiment import Experiment
from tfasr.training.memory.synthetic_batch import FRAMES_PER_LABEL, batch_spec, synthetic_batch


def measure_step(
    experiment: Experiment,
    *,
    batch: int = 16,
    frames: int = 600,
    labels: int | None = None,
    precision: str | None = None,
    rounds: int = 5,
    length_spread: float = 0.0,
    ceiling_s: float = 2.0,
) -> StepTiming:
    """Trains on a synthetic batch and measures.

    Peak memory is this process's, whatever it did before: call it in a fresh one, or through
    `tfasr bench step`, which does.

    Args:
        experiment: names model, features, optimizer and accumulation; one device trains.
        batch: utterances.
        frames: feature frames to which they are padded.
        labels: of the longest transcript; by default as many as are said in the time.
        precision: Keras's dtype policy; by default the experiment's.
        rounds: how often each part is measured, after warming up.
        length_spread: by what share the shortest utterance is shorter than the longest.
        ceiling_s: how long large matrix products are measured.

    Raises:
        ValueError: if a size makes no batch.
    """
    if batch < 1 or rounds < 1 or not 0 <= length_spread < 1:
        raise ValueError(
            "batch and rounds must be at least 1, and length_spread in 0..1, below 1. Received: "
            f"batch={batch}, rounds={rounds}, length_spread={length_spread}."
        )
    precision = precision or experiment.training.precision
    training = dataclasses.replace(experiment.training, precision=precision)
    experiment = dataclasses.replace(experiment, training=training)
    labels = max(frames // FRAMES_PER_LABEL, 1) if labels is None else labels
    data = synthetic_batch(experiment, batch, frames, labels, length_spread=length_spread)
    before_bytes, _ = _peak_memory()
    model = build_model(experiment, Alphabet(), compiled=True)
    parts = _Parts(model, experiment, data)
    warm_up_s = parts.warm_up()
    seconds = parts.measure(rounds)
    peak, peak_of = _peak_memory(at_least=before_bytes)
    return StepTiming(
        precision=precision,
        batch=batch,
        frames=frames,
        labels=labels,
        length_spread=length_spread,
        accumulation_steps=training.gradient_accumulation_steps,
        lstm_kernels=sorted(kernels(model.recogniser)),
        parameters=int(model.count_params()),
        rounds=rounds,
        forward_s=statistics.median(seconds["forward"]),
        forward_backward_s=statistics.median(seconds["forward_backward"]),
        step_s=statistics.median(seconds["step"]),
        audio_s=float(tf.reduce_sum(data["duration_s"])),
        flops=model_flops(
            experiment.model,
            experiment.features.num_features,
            Alphabet().num_classes,
            batch,
            frames,
            training=True,
        ),
        ceiling_flops_per_s=matmul_ceiling(precision, seconds=ceiling_s),
        first_step_s=parts.first_step_s,
        warm_up_calls=WARM_UPS,
        warm_up_s=warm_up_s,
        traces=parts.step.experimental_get_tracing_count(),
        peak_memory_bytes=peak,
        memory_before_bytes=before_bytes,
        peak_memory_of=peak_of,
    )


class _Parts:
    """The three things that are timed, each one function of the batch's values."""

    def __init__(self, model: CtcModel, experiment: Experiment, data: Batch):
        spec = batch_spec(experiment)

        @tf.function(input_signature=[spec])
        def forward(batch):
            return model.training_losses(batch)[1]

        @tf.function(input_signature=[spec])
        def forward_backward(batch):
            losses, gradients = model.loss_gradients(batch)
            return after(losses, gradients)

        self.step = model.global_step(spec)
        self._data = data
        # The step first: what its first call takes is what a run's first step takes.
        self._functions: dict[str, Callable] = {
            "step": lambda batch: self.step(batch)["utterance_loss"],
            "forward": forward,
            "forward_backward": forward_backward,
        }
        self._end = model.trainable_variables[-1]
        self.first_step_s = float("nan")

    def warm_up(self) -> float:
        """Calls everything until it is compiled; returns the seconds."""
        began = time.perf_counter()
        self.first_step_s = self._seconds("step")
        for name in self._functions:
            for _ in range(WARM_UPS - (name == "step")):
                self._seconds(name)
        return time.perf_counter() - began

    def measure(self, rounds: int) -> dict[str, list[float]]:
        """Returns the seconds of every round, by part."""
        seconds: dict[str, list[float]] = {name: [] for name in self._functions}
        for _ in range(rounds):
            for name in self._functions:
                seconds[name].append(self._seconds(name))
        return seconds

    def _seconds(self, name: str) -> float:
        began = time.perf_counter()
        self._functions[name](self._data).numpy()
        if name == "step":
            # A GPU's loss is there before its weights are updated.
            tf.reduce_sum(self._end.value).numpy()
        return time.perf_counter() - began


def _peak_memory(at_least: int | None = None) -> tuple[int | None, str]:
    """Returns the most that was ever held, and where; it was no less than what was told before."""
    if tf.config.list_logical_devices("GPU"):
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"]), "GPU"
    peak = peak_bytes()
    # Linux's mark is counted to some pages a thread, and can be told lower than it was before.
    return peak if peak is None else max(peak, at_least or 0), "process"
