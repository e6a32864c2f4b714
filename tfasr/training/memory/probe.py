"""Checks before a run that its longest batch fits into memory, and says what does if not."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.data.pipeline import BatchSource
from tfasr.errors import RunError
from tfasr.models.recogniser import estimated_step_bytes, least_parameters
from tfasr.telemetry.memory import available_bytes
from tfasr.training.checkpoint import state_variables, values_kept
from tfasr.training.ctc_model import CtcModel
from tfasr.training.experiment import Experiment
from tfasr.training.memory.buffer import BufferNeed, buffer_need, check_buffer
from tfasr.training.memory.process import measured_step_bytes
from tfasr.training.memory.synthetic_batch import synthetic_batch

log = logging.getLogger("tfasr")

# Above this share of the memory an estimate is not enough.
_CERTAIN_SHARE = 0.5
_PROBED_BATCHES = (2, 4)


@dataclass(frozen=True)
class LongestBatch:
    """The batch that takes the most memory.

    Attributes:
        utterances: of the global batch.
        frames: to which they are padded.
        labels: of the transcript among them that needs the most output frames.
    """

    utterances: int
    frames: int
    labels: int


@dataclass(frozen=True)
class MemoryNeed:
    """What the longest batch takes of the host's memory.

    Attributes:
        batch: the longest.
        needed_bytes: of the whole process; None where it was tried on a GPU instead, or could
            not be told.
        limit_bytes: what the process may hold.
        measured: whether steps were taken; otherwise it is an estimate.
    """

    batch: LongestBatch
    needed_bytes: int | None
    limit_bytes: int | None
    measured: bool

    def __str__(self) -> str:
        size = f"the longest batch ({self.batch.utterances} x {self.batch.frames} frames)"
        if self.needed_bytes is None:
            fits = "was tried on the GPU and fits"
            return f"{size} {fits if self.measured else 'needs memory that could not be told'}"
        return (
            f"{size} needs about {self.needed_bytes / 2**30:.1f} of "
            f"{self.limit_bytes / 2**30:.1f} GiB ({'measured' if self.measured else 'estimated'})"
        )


def longest_batch(source: BatchSource, global_batch_size: int, alphabet: Alphabet) -> LongestBatch:
    """Returns the training batch with the most padded frames."""
    split, batches, above = source.split, [], 0
    (fewest, most), needed = source.frame_ranges, split.frames_needed
    for boundary in source.boundaries:
        inside = np.flatnonzero((above < most) & (fewest <= boundary))
        above = boundary
        if len(inside):
            wordiest = split.utterances[int(inside[needed[inside].argmax()])]
            utterances = min(len(inside), global_batch_size)
            batches.append(LongestBatch(utterances, boundary, len(alphabet.spell(wordiest.text))))
    return max(batches, key=lambda batch: batch.utterances * batch.frames)


def on_gpu() -> bool:
    """Returns whether a model is trained on a GPU, where the longest batch is tried itself."""
    return bool(tf.config.list_logical_devices("GPU"))


def check_memory(
    experiment: Experiment,
    model: CtcModel,
    source: BatchSource,
    alphabet: Alphabet,
    element_spec: Callable[[], Any],
    *,
    available: int | None = None,
) -> MemoryNeed:
    """Makes sure that the longest batch fits, and leaves the model as it was.

    On a GPU the step is taken. On a CPU, where too large a step would be killed without a word, it
    is estimated; if that is more than half of the memory, or the model gives no estimate, another
    process takes steps of 2 and 4 utterances, and a straight line through what they held tells
    what the batch will hold.

    Args:
        experiment: what is trained.
        model: compiled, in the scope of the current strategy.
        source: training batches.
        alphabet: of the transcripts.
        element_spec: returns that of the dataset that the model will be trained on.
        available: bytes that this process may take more; by default what the system says.

    First of all the batches that are held ready must fit into the host's memory, on whatever
    device they are trained.

    Raises:
        RunError: if the batch does not fit, and names the batch that does; or the buffer of
            batches does not, and names the one that does.
    """
    if not on_gpu():
        parameters = model.count_params()
        return check_host_memory(
            experiment, source, alphabet, parameters=parameters, available=available
        )
    batch = longest_batch(source, max(experiment.pipeline.batch_sizes), alphabet)
    buffer = buffer_need(experiment, batch.utterances, batch.frames)
    check_buffer(buffer, available_bytes() if available is None else available)
    try_on_device(experiment, model, batch, _step_on_device(model, alphabet, element_spec()))
    return MemoryNeed(batch, None, None, measured=True)


def check_host_memory(
    experiment: Experiment,
    source: BatchSource,
    alphabet: Alphabet,
    *,
    parameters: int | None = None,
    available: int | None = None,
) -> MemoryNeed:
    """Makes sure that the longest batch fits where no GPU is; it needs no model in this process.

    Args:
        experiment: what is trained.
        source: training batches.
        alphabet: of the transcripts.
        parameters: of the model; by default the close lower bound that its config tells.
        available: bytes that this process may take more; by default what the system says.

    Raises:
        RunError: as `check_memory` does.
    """
    batch = longest_batch(source, max(experiment.pipeline.batch_sizes), alphabet)
    buffer = buffer_need(experiment, batch.utterances, batch.frames)
    if parameters is None:
        features, classes = experiment.features.num_features, alphabet.num_classes
        # Whose config does not tell them mostly gives no estimate either, and is tried.
        parameters = least_parameters(experiment.model, features, classes) or 0
    need = _need_on_host(experiment, parameters, batch, alphabet, available, buffer)
    log.info("memory: %s", need)
    return need


def try_on_device(
    experiment: Experiment,
    model: CtcModel,
    batch: LongestBatch,
    step: Callable[[Experiment, LongestBatch], None],
) -> None:
    """Takes a step on the longest batch and, if it does not fit, on smaller ones.

    Args:
        experiment: what is trained.
        model: gets all its variables back.
        batch: the longest.
        step: trains on a batch of noise of this size.

    Raises:
        RunError: if the batch does not fit.
    """

    def fits(utterances: int) -> bool:
        try:
            step(experiment, LongestBatch(utterances, batch.frames, batch.labels))
        except tf.errors.ResourceExhaustedError:
            return False
        return True

    with preserved(model):
        if fits(batch.utterances):
            return
        replicas = experiment.training.num_replicas
        least, most = 0, batch.utterances // replicas  # of one device: fits, does not fit
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if fits(middle * replicas) else (least, middle)
    raise RunError(_remedy(experiment, batch, least * replicas, "the device's memory"))


@contextlib.contextmanager
def preserved(model: CtcModel) -> Iterator[None]:
    """Gives a model and its optimizer all their variables back, random states included."""
    with values_kept(state_variables(model).values()):
        yield


def _step_on_device(
    model: CtcModel, alphabet: Alphabet, element_spec: Any
) -> Callable[[Experiment, LongestBatch], None]:
    strategy = model.distribute_strategy
    replicas = strategy.num_replicas_in_sync

    def step(experiment: Experiment, batch: LongestBatch) -> None:
        each = max(batch.utterances // replicas, 1)
        share = synthetic_batch(experiment, each, batch.frames, batch.labels, alphabet=alphabet)
        data = share
        if replicas > 1:
            data = strategy.experimental_distribute_values_from_function(lambda _: share)
        model.global_step(element_spec)(data)["utterance_loss"].numpy()

    return step


def _need_on_host(
    experiment: Experiment,
    parameters: int,
    batch: LongestBatch,
    alphabet: Alphabet,
    available: int | None,
    buffer: BufferNeed,
) -> MemoryNeed:
    free = available_bytes() if available is None else available
    limit = free + psutil.Process().memory_info().rss
    check_buffer(buffer, limit)
    parts = experiment.training.gradient_accumulation_steps
    together = -(-batch.utterances // parts)
    queue = buffer.needed_bytes
    features = experiment.features.num_features
    sizes = (features, parameters, together, batch.frames)
    of_step = estimated_step_bytes(experiment.model, *sizes)
    needed = None if of_step is None else of_step + queue
    estimated = MemoryNeed(batch, needed, limit, measured=False)
    if needed is not None and needed <= _CERTAIN_SHARE * limit:
        return estimated
    held = measured_step_bytes(experiment, alphabet, _PROBED_BATCHES, batch.frames, batch.labels)
    if held is None:
        return estimated
    memory = f"{limit / 2**30:.1f} GiB"
    few, more = _PROBED_BATCHES
    if len(held) < len(_PROBED_BATCHES):
        raise RunError(_remedy(experiment, batch, few * len(held) * parts, memory))
    each = max((held[1] - held[0]) / (more - few), 1)
    needed = int(held[0] + each * (together - few)) + queue
    if needed > limit:
        fitting = max(int((limit - queue - held[0]) / each) + few, 0)
        refusal = _remedy(experiment, batch, fitting * parts, memory, needed)
        raise RunError(f"{refusal} Of it are {buffer}.")
    return MemoryNeed(batch, needed, limit, measured=True)


def _remedy(
    experiment: Experiment,
    batch: LongestBatch,
    fitting: int,
    limit: str,
    needed: int | None = None,
) -> str:
    """Says what does not fit, and the batch that does."""
    needs = f", and needs about {needed / 2**30:.1f} GiB" if needed else ""
    replicas = experiment.training.num_replicas
    message = (
        f"The longest batch must fit into {limit}. It has {batch.utterances} utterances of "
        f"{batch.frames} frames{needs}. "
    )
    size = fitting // replicas * replicas
    if size < 1:
        return message + (
            "Not even one utterance a device fits: prepare with a shorter "
            "ShardConfig.max_duration_s, or make the model smaller. "
            "--no_memory_probe skips this check."
        )
    parts = -(-experiment.training.gradient_accumulation_steps * batch.utterances // size)
    return message + (
        f"{size} fit: bind PipelineConfig.global_batch_size = {size}, or leave it and bind "
        f"TrainingConfig.gradient_accumulation_steps = {parts}. "
        "--no_memory_probe skips this check."
    )
