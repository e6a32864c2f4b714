"""The figures of one measured training step."""

import dataclasses
from dataclasses import dataclass
from typing import Any

# The first call traces and compiles, the second may still tune itself.
WARM_UPS = 2


@dataclass(frozen=True)
class StepTiming:
    """A training step, measured on one synthetic batch.

    Seconds are medians over rounds; each round runs the forward pass, the forward and backward
    pass and the whole step once, so that what disturbs the machine disturbs all three.

    Attributes:
        precision: Keras's dtype policy.
        batch: utterances.
        frames: feature frames to which they are padded.
        labels: of the longest transcript.
        length_spread: by what share the shortest utterance is shorter.
        accumulation_steps: parts in which the batch went through the model.
        lstm_kernels: what computed the recurrence.
        parameters: of the model.
        rounds: measured.
        forward_s: the forward pass in training, the loss included.
        forward_backward_s: the loss and its gradients.
        step_s: the whole step.
        audio_s: of the batch.
        flops: of the step's matrix products; None where the model does not tell.
        ceiling_flops_per_s: of large matrix products in the precision's dtype, in the same run.
        first_step_s: the first step, tracing and compilation included.
        warm_up_calls: calls of each of the three before the rounds; they are left out.
        warm_up_s: what they took.
        traces: of the step, after all rounds.
        peak_memory_bytes: the most that the process held, or the GPU's allocator; None if unknown.
        memory_before_bytes: the same before the model was built.
        peak_memory_of: "process" or "GPU".
    """

    precision: str
    batch: int
    frames: int
    labels: int
    length_spread: float
    accumulation_steps: int
    lstm_kernels: list[str]
    parameters: int
    rounds: int
    forward_s: float
    forward_backward_s: float
    step_s: float
    audio_s: float
    flops: int | None
    ceiling_flops_per_s: float
    first_step_s: float
    warm_up_calls: int
    warm_up_s: float
    traces: int
    peak_memory_bytes: int | None
    memory_before_bytes: int | None
    peak_memory_of: str

    @property
    def backward_s(self) -> float:
        """The backward pass: the difference of two medians."""
        return self.forward_backward_s - self.forward_s

    @property
    def update_s(self) -> float:
        """The optimizer's update: the difference of two medians."""
        return self.step_s - self.forward_backward_s

    @property
    def compile_s(self) -> float:
        """What the first step took beyond a later one: tracing, compilation, first allocations."""
        return self.first_step_s - self.step_s

    @property
    def audio_s_per_s(self) -> float:
        """Seconds of audio per second."""
        return self.audio_s / self.step_s

    @property
    def utterances_per_s(self) -> float:
        """Utterances per second."""
        return self.batch / self.step_s

    @property
    def flops_per_s(self) -> float | None:
        """Operations of matrix products per second of the whole step; None if unknown."""
        return None if self.flops is None else self.flops / self.step_s

    @property
    def model_flops_utilisation(self) -> float | None:
        """Achieved over possible operations per second, a fraction; None if unknown."""
        return None if self.flops is None else self.flops_per_s / self.ceiling_flops_per_s

    def to_json(self) -> dict[str, Any]:
        """Returns all figures as one flat JSON object, null for what could not be told."""
        derived = (
            "backward_s",
            "update_s",
            "compile_s",
            "audio_s_per_s",
            "utterances_per_s",
            "flops_per_s",
            "model_flops_utilisation",
        )
        return {**dataclasses.asdict(self), **{name: getattr(self, name) for name in derived}}
