"""The host memory of the batches that are held ready, on whatever device they are trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfasr.errors import RunError

if TYPE_CHECKING:
    from tfasr.training.experiment import Experiment

# Batches of features that exist beside those held ready: in training, and being filled.
BATCHES_BESIDE = 2
_BYTES_PER_NUMBER = 4
# What a remedy may fill of the memory: there are a model, its optimizer and a runtime, too.
_USABLE_SHARE = 0.8


@dataclass(frozen=True)
class BufferNeed:
    """What the buffer of whole batches takes of the host's memory.

    Attributes:
        prefetch: of `tfasr.data.pipeline.PipelineConfig`: global batches held ready.
        utterances: of the longest global batch.
        frames: to which it is padded.
        features: values of a frame, in float32.

    Source: the paper, Table 2 (buffer) and section 4.4.1 ("each element in the buffer is an entire
    batch").
    """

    prefetch: int
    utterances: int
    frames: int
    features: int

    @property
    def batch_bytes(self) -> int:
        """Bytes of one batch."""
        return _BYTES_PER_NUMBER * self.utterances * self.frames * self.features

    @property
    def needed_bytes(self) -> int:
        """Bytes of all that exist at once."""
        return self.batch_bytes * (max(self.prefetch, 1) + BATCHES_BESIDE)

    def __str__(self) -> str:
        return (
            f"{max(self.prefetch, 1)} batches held ready (PipelineConfig.prefetch) and "
            f"{BATCHES_BESIDE} under way, of at most {self.utterances} x {self.frames} frames x "
            f"{self.features} features: {self.needed_bytes / 2**30:.2f} GiB of host memory"
        )

    def refusal(self, available: int) -> str | None:
        """Returns why the buffer does not fit and what does, or None where it fits.

        Args:
            available: bytes that the process may take more.
        """
        if self.needed_bytes <= available:
            return None
        said = (
            f"The batches held ready must fit into {available / 2**30:.2f} GiB of the host's "
            f"memory. {self}. "
        )
        fitting = int(_USABLE_SHARE * available / self.batch_bytes) - BATCHES_BESIDE
        if fitting >= 1:
            return f"{said}Bind PipelineConfig.prefetch = {fitting}, which fits."
        size = int(_USABLE_SHARE * available * self.utterances / self.batch_bytes)
        size //= BATCHES_BESIDE + 1
        if size < 1:
            return f"{said}Not even one utterance a batch fits: train on a larger machine."
        return (
            f"{said}Bind PipelineConfig.prefetch = 1 and PipelineConfig.global_batch_size = {size} "
            "or less, which fit."
        )


def buffer_need(experiment: "Experiment", utterances: int, frames: int) -> BufferNeed:
    """Returns what a run's buffer takes.

    Args:
        experiment: names the pipeline and the features.
        utterances: of the longest global batch.
        frames: to which it is padded.
    """
    features = experiment.features.num_features
    return BufferNeed(experiment.pipeline.prefetch, utterances, frames, features)


def check_buffer(need: BufferNeed, available: int) -> None:
    """Raises RunError where the buffer does not fit; it names the binding that shrinks it."""
    refusal = need.refusal(available)
    if refusal is not None:
        raise RunError(f"{refusal} --no_memory_probe skips this check.")


def buffer_of_preset(gin_files: Sequence[str], bindings: Sequence[str]) -> BufferNeed:
    """Returns what the buffer of a gin file takes at most, on whatever shards it is trained.

    Args:
        gin_files: presets or files.
        bindings: lines of gin that override them.

    Raises:
        UsageError: if they are wrong.
    """
    from tfasr.training.from_gin import load_config

    loaded = load_config(list(gin_files), list(bindings))
    experiment, pipeline = loaded.experiment, loaded.experiment.pipeline
    frames = pipeline.max_frames
    if pipeline.padding == "bucketed":
        step_s = experiment.features.step_samples / experiment.features.sample_rate_hz
        # Without a limit of the length, about that of the longest in the paper.
        frames = round(loaded.shards.max_duration_s / step_s) or pipeline.max_frames
    return buffer_need(experiment, max(pipeline.batch_sizes), frames)
