"""Checks before a run that its longest batch fits into memory, or names a size that does."""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.data.batches import Batch, BatchSource
from tfasr.errors import RunError, UsageError
from tfasr.kit.process import ChildError, stream
from tfasr.models.model import estimated_step_bytes, least_parameters, output_frames
from tfasr.telemetry.machine import available_bytes
from tfasr.training.checkpoint import state_variables, values_kept
from tfasr.training.ctc import CtcModel
from tfasr.training.experiment import Experiment, zeiler_adadelta

# Batches of features in addition to those held ready: one in training, one being
# filled.
BATCHES_BESIDE = 2

# The share of memory that a suggested size may fill: model, optimizer and runtime need
# some, too.
_USABLE_SHARE = 0.8


@dataclass(frozen=True)
class BufferNeed:
    """The host memory of the batches held ready.

    Source: the paper, Table 2 and section 4.4.1.
    """

    prefetch: int  # global batches held ready
    utterances: int  # of the longest global batch
    frames: int  # to which it is padded
    features: int  # float32 values of a frame

    @property
    def batch_bytes(self) -> int:
        return 4 * self.utterances * self.frames * self.features

    @property
    def needed_bytes(self) -> int:
        return self.batch_bytes * (max(self.prefetch, 1) + BATCHES_BESIDE)

    def __str__(self) -> str:
        return (
            f"{max(self.prefetch, 1)} batches held ready (PipelineConfig.prefetch) and "
            f"{BATCHES_BESIDE} under way, of at most {self.utterances} x {self.frames} frames x "
            f"{self.features} features: {self.needed_bytes / 2**30:.2f} GiB of host memory"
        )

    def refusal(self, available: int) -> str | None:
        """Why the buffer doesn't fit into ``available`` bytes and what does, or None if
        it fits.
        """
        if self.needed_bytes <= available:
            return None

        problem = (
            f"The batches held ready must fit into {available / 2**30:.2f} GiB of the host's "
            f"memory. {self}."
        )
        fitting = int(_USABLE_SHARE * available / self.batch_bytes) - BATCHES_BESIDE
        if fitting >= 1:
            return f"{problem} Bind PipelineConfig.prefetch = {fitting}, which fits."

        size = int(_USABLE_SHARE * available * self.utterances / self.batch_bytes)
        size //= BATCHES_BESIDE + 1
        if size < 1:
            return f"{problem} Not even one utterance a batch fits: train on a larger machine."

        return (
            f"{problem} Bind PipelineConfig.prefetch = 1 and PipelineConfig.global_batch_size = "
            f"{size} or less, which fit."
        )


def buffer_need(experiment: Experiment, utterances: int, frames: int) -> BufferNeed:
    features = experiment.training.views * experiment.features.num_features
    return BufferNeed(experiment.pipeline.prefetch, utterances, frames, features)


def check_buffer(need: BufferNeed, available: int) -> None:
    refusal = need.refusal(available)
    if refusal is not None:
        raise RunError(f"{refusal} --no_memory_probe skips this check.")


def buffer_of_preset(gin_files: Sequence[str], bindings: Sequence[str]) -> BufferNeed:
    """The largest buffer that a gin file's run can need, whatever its shards."""
    from tfasr.training.from_gin import load_config

    loaded = load_config(list(gin_files), list(bindings))
    experiment = loaded.experiment
    pipeline = loaded.experiment.pipeline
    frames = pipeline.max_frames
    if pipeline.padding == "bucketed":
        step_s = experiment.features.step_samples / experiment.features.sample_rate_hz
        # Without a limit on length: `max_frames`, about the paper's longest utterance.
        frames = round(loaded.shards.max_duration_s / step_s) or pipeline.max_frames

    return buffer_need(experiment, max(pipeline.batch_sizes), frames)


log = logging.getLogger("tfasr")


def measured_step_bytes(
    experiment: Experiment,
    alphabet: Alphabet,
    batches: Sequence[int],
    frames: int,
    labels: int,
) -> list[int] | None:
    """Returns the peak memory of another process after a step on each of ever larger batches.

    ``batches`` are numbers of utterances. The result is shorter if the process ran out
    of memory, and None if it can't be measured, as with a model defined in a script or
    an optimizer that Keras cannot rebuild from its config.
    """
    optimizer = keras.optimizers.serialize(experiment.training.optimizer())
    # The other process may be unable to import the function that makes the optimizer.
    training = dataclasses.replace(experiment.training, optimizer=zeiler_adadelta)
    experiment = dataclasses.replace(experiment, training=training)
    sizes = [(utterances, frames, labels) for utterances in batches]
    held: list[int] = []
    try:
        for peak in stream(
            held_bytes, experiment, optimizer, alphabet, sizes, show_messages=False
        ):
            held.append(peak)
    except (RunError, UsageError, TypeError) as error:
        ended_by_signal = isinstance(error, ChildError) and error.exit_code < 0
        if not ended_by_signal:
            log.warning("The longest batch's memory could not be measured: %s", error)
            return None

    return held


def held_bytes(
    experiment: Experiment,
    optimizer: dict[str, Any],
    alphabet: Alphabet,
    sizes: Sequence[tuple[int, int, int]],
) -> Iterator[int]:
    """Takes a step on each batch (utterances, frames, labels); yields the process's
    peak memory.
    """
    # If memory runs out, the kernel should kill this process, not the run that waits
    # for it.
    adjustment = Path("/proc/self/oom_score_adj")
    if adjustment.is_file():
        adjustment.write_text("1000", encoding="utf-8")

    from tfasr.telemetry.machine import peak_bytes
    from tfasr.training.build import build_model

    training = dataclasses.replace(
        experiment.training,
        num_replicas=1,
        gradient_accumulation_steps=1,
        optimizer=lambda: keras.optimizers.deserialize(optimizer),
    )
    experiment = dataclasses.replace(experiment, training=training)
    model = build_model(experiment, alphabet, compiled=True)
    step = model.global_step(batch_spec(experiment))
    for size in sizes:
        step(synthetic_batch(experiment, *size, alphabet=alphabet))
        yield peak_bytes()


# LibriSpeech's readers say some 14 characters a second, and a feature frame is 10 ms.
FRAMES_PER_LABEL = 7


def synthetic_batch(
    experiment: Experiment,
    utterances: int,
    frames: int,
    labels: int | None = None,
    *,
    alphabet: Alphabet | None = None,
    length_spread: float = 0.0,
    seed: int = 0,
) -> Batch:
    """Makes a batch of noise in the shape of speech, like those of `BatchSource`.

    The first utterance has all ``frames``, to which others are padded, and ``labels``
    characters of ``alphabet``, by default as many as are spoken in that time. From the
    first to the last utterance, lengths fall evenly, by the fraction ``length_spread``
    in all. The parameters are the sizes that a step's time depends on. Raises
    ValueError if an utterance has fewer output frames than labels.
    """
    rng = np.random.default_rng(seed)
    model = experiment.model
    features = experiment.features
    labels = max(frames // FRAMES_PER_LABEL, 1) if labels is None else labels
    shares = 1 - length_spread * np.arange(utterances) / max(utterances - 1, 1)
    lengths = np.maximum(np.round(frames * shares), 1).astype(np.int32)
    label_lengths = np.maximum(np.round(labels * shares), 1).astype(np.int32)
    outputs = np.array([output_frames(model, n) for n in lengths.tolist()])
    if (outputs < label_lengths).any():
        raise ValueError(
            "Utterances must have at least as many output frames as labels. Received: "
            f"{lengths.min()} frames, {outputs.min()} through the model, and "
            f"{label_lengths[outputs.argmin()]} labels. Ask for more frames or fewer labels."
        )

    characters = (alphabet or Alphabet()).blank_id
    # Steps of at least 1 make neighbours differ: equal ones would need a blank between
    # them.
    spoken = (
        np.cumsum(rng.integers(1, characters, (utterances, labels)), axis=1)
        % characters
    )
    noise = rng.standard_normal((utterances, frames, features.num_features), np.float32)
    noise *= np.arange(frames)[None, :, None] < lengths[:, None, None]
    step_s = features.step_samples / features.sample_rate_hz
    batch = {
        "features": tf.constant(noise),
        "feature_lengths": tf.constant(lengths),
        "labels": tf.constant(spoken, tf.int32),
        "label_lengths": tf.constant(label_lengths),
        "positions": tf.range(utterances, dtype=tf.int64),
        "duration_s": tf.constant(lengths * step_s, tf.float32),
    }
    if experiment.training.views > 1:
        batch["second_features"] = batch["features"]

    return batch


def batch_spec(experiment: Experiment) -> dict[str, tf.TensorSpec]:
    spec = tf.TensorSpec
    names = ("features", "second_features")[: experiment.training.views]
    features = spec([None, None, experiment.features.num_features], tf.float32)
    return {
        **dict.fromkeys(names, features),
        "feature_lengths": spec([None], tf.int32),
        "labels": spec([None, None], tf.int32),
        "label_lengths": spec([None], tf.int32),
        "positions": spec([None], tf.int64),
        "duration_s": spec([None], tf.float32),
    }


# If an estimate exceeds this share of the memory, the need is measured.
_CERTAIN_SHARE = 0.5
_PROBED_BATCHES = (2, 4)


@dataclass(frozen=True)
class LongestBatch:
    utterances: int
    frames: int  # to which they are padded
    labels: int  # of the transcript among them that needs the most output frames


@dataclass(frozen=True)
class MemoryNeed:
    batch: LongestBatch
    # Of the whole process; None if tried on a GPU instead, or unknown.
    needed_bytes: int | None
    limit_bytes: int | None  # what the process may hold
    measured: bool  # by steps; otherwise it is an estimate

    def __str__(self) -> str:
        size = (
            f"the longest batch ({self.batch.utterances} x {self.batch.frames} frames)"
        )
        if self.needed_bytes is None:
            fits = "was tried on the GPU and fits"
            return f"{size} {fits if self.measured else 'needs an unknown amount of memory'}"

        needed = self.needed_bytes / 2**30
        limit = self.limit_bytes / 2**30
        how = "measured" if self.measured else "estimated"
        return f"{size} needs about {needed:.1f} of {limit:.1f} GiB ({how})"


def longest_batch(
    source: BatchSource, global_batch_size: int, alphabet: Alphabet
) -> LongestBatch:
    """The training batch with the most padded frames."""
    split = source.split
    batches = []
    above = 0
    (fewest, most), needed = source.frame_ranges, split.frames_needed
    for boundary in source.boundaries:
        inside = np.flatnonzero((above < most) & (fewest <= boundary))
        above = boundary
        if len(inside):
            wordiest = split.utterances[int(inside[needed[inside].argmax()])]
            utterances = min(len(inside), global_batch_size)
            batches.append(
                LongestBatch(utterances, boundary, len(alphabet.encode(wordiest.text)))
            )

    return max(batches, key=lambda batch: batch.utterances * batch.frames)


def longest_of(
    experiment: Experiment, source: BatchSource, alphabet: Alphabet
) -> LongestBatch:
    return longest_batch(source, max(experiment.pipeline.batch_sizes), alphabet)


def on_gpu() -> bool:
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

    First it checks that the prefetched batches fit into the host's memory. On a GPU, it
    then tries a step on the longest batch. On a CPU, the kernel would kill a process
    whose step is too large, without a message, so the memory is only estimated. If the
    estimate is missing, or more than half of the memory, another process takes steps on
    2 and 4 utterances, and a straight line through their peaks predicts the need of the
    longest batch.

    ``available`` is how many more bytes this process may use, by default what the
    system reports. Raises RunError if the batch or the buffer does not fit; the message
    suggests a size that does.
    """
    if not on_gpu():
        sizes = {"parameters": model.count_params(), "available": available}
        return check_host_memory(experiment, source, alphabet, **sizes)

    batch = longest_of(experiment, source, alphabet)
    buffer = buffer_need(experiment, batch.utterances, batch.frames)
    check_buffer(buffer, available_bytes() if available is None else available)
    try_on_device(
        experiment, model, batch, _step_on_device(model, alphabet, element_spec())
    )
    return MemoryNeed(batch, None, None, measured=True)


def check_host_memory(
    experiment: Experiment,
    source: BatchSource,
    alphabet: Alphabet,
    *,
    parameters: int | None = None,
    available: int | None = None,
) -> MemoryNeed:
    """`check_memory` without a GPU; it needs no model in this process.

    ``parameters`` is by default the model config's lower bound, which is close to their
    number.
    """
    batch = longest_of(experiment, source, alphabet)
    buffer = buffer_need(experiment, batch.utterances, batch.frames)
    free = available_bytes() if available is None else available
    limit = free + psutil.Process().memory_info().rss
    check_buffer(buffer, limit)
    features = experiment.features.num_features
    if parameters is None:
        # Models without this number mostly lack `step_bytes`, too; then steps are
        # measured.
        parameters = (
            least_parameters(experiment.model, features, alphabet.num_classes) or 0
        )

    parts = experiment.training.gradient_accumulation_steps
    utterances = experiment.training.views * -(-batch.utterances // parts)
    step_bytes = estimated_step_bytes(
        experiment.model, features, parameters, utterances, batch.frames
    )
    needed = None if step_bytes is None else step_bytes + buffer.needed_bytes
    need = MemoryNeed(batch, needed, limit, measured=False)
    if needed is None or needed > _CERTAIN_SHARE * limit:
        need = _measured_need(experiment, alphabet, buffer, need) or need

    log.info("memory: %s", need)
    return need


def _measured_need(
    experiment: Experiment,
    alphabet: Alphabet,
    buffer: BufferNeed,
    estimated: MemoryNeed,
) -> MemoryNeed | None:
    batch = estimated.batch
    limit = estimated.limit_bytes
    held = measured_step_bytes(
        experiment, alphabet, _PROBED_BATCHES, batch.frames, batch.labels
    )
    if held is None:
        return None

    parts = experiment.training.gradient_accumulation_steps
    memory = f"{limit / 2**30:.1f} GiB"
    few, more = _PROBED_BATCHES
    if len(held) < len(_PROBED_BATCHES):
        raise RunError(_remedy(experiment, batch, few * len(held) * parts, memory))

    each = max((held[1] - held[0]) / (more - few), 1)
    needed = (
        int(held[0] + each * (-(-batch.utterances // parts) - few))
        + buffer.needed_bytes
    )
    if needed > limit:
        fitting = max(int((limit - buffer.needed_bytes - held[0]) / each) + few, 0)
        refusal = _remedy(experiment, batch, fitting * parts, memory, needed)
        raise RunError(f"{refusal} That includes {buffer}.")

    return MemoryNeed(batch, needed, limit, measured=True)


def try_on_device(
    experiment: Experiment,
    model: CtcModel,
    batch: LongestBatch,
    step: Callable[[Experiment, LongestBatch], None],
) -> None:
    """Tries a ``step`` on the longest batch; RunError, with a size that fits, if it
    doesn't fit.
    """

    def fits(utterances: int) -> bool:
        try:
            step(experiment, LongestBatch(utterances, batch.frames, batch.labels))
        except tf.errors.ResourceExhaustedError:
            return False

        return True

    with values_kept(state_variables(model).values()):
        if fits(batch.utterances):
            return

        replicas = experiment.training.replicas
        # Of one device: least fits, most doesn't.
        least = 0
        most = batch.utterances // replicas
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if fits(middle * replicas) else (least, middle)

    raise RunError(_remedy(experiment, batch, least * replicas, "the device's memory"))


def _step_on_device(
    model: CtcModel, alphabet: Alphabet, element_spec: Any
) -> Callable[[Experiment, LongestBatch], None]:
    strategy = model.distribute_strategy
    replicas = strategy.num_replicas_in_sync

    def step(experiment: Experiment, batch: LongestBatch) -> None:
        each = max(batch.utterances // replicas, 1)
        share = synthetic_batch(
            experiment, each, batch.frames, batch.labels, alphabet=alphabet
        )
        data = share
        if replicas > 1:
            data = strategy.experimental_distribute_values_from_function(
                lambda _: share
            )

        model.global_step(element_spec)(data)["utterance_loss"].numpy()

    return step


def _remedy(
    experiment: Experiment,
    batch: LongestBatch,
    fitting: int,
    limit: str,
    needed: int = 0,
) -> str:
    needs = f", and needs about {needed / 2**30:.1f} GiB" if needed else ""
    replicas = experiment.training.replicas
    size = fitting // replicas * replicas
    if size < 1:
        remedy = (
            "Not even one utterance a device fits: prepare with a shorter "
            "ShardConfig.max_duration_s, or make the model smaller."
        )
    else:
        parts = -(
            -experiment.training.gradient_accumulation_steps * batch.utterances // size
        )
        remedy = (
            f"{size} fit: bind PipelineConfig.global_batch_size = {size}, or leave it and bind "
            f"TrainingConfig.gradient_accumulation_steps = {parts}."
        )

    return (
        f"The longest batch must fit into {limit}. It has {batch.utterances} utterances of "
        f"{batch.frames} frames{needs}. {remedy} --no_memory_probe skips this check."
    )
