"""Checks before a run that its longest batch fits into memory, or names a size that does.

Two things must fit: the batches that are held ready, in the host's memory (`BufferNeed`),
and a training step on the longest batch, in that of the device (`MemoryNeed`). A GPU
reports a step that is too large, so it is tried. On a CPU the kernel would end the whole
process, so a step's memory is estimated or measured in another process. `check_memory`
does all of this before a run begins, because the longest batch may come hours later.
"""

import dataclasses
import logging
import math
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

log = logging.getLogger("tfasr")

# Batches of features in addition to those held ready: one in training, one being
# filled.
BATCHES_BESIDE = 2

# The share of memory that a suggested size may fill: model, optimizer and runtime need
# some, too.
_USABLE_SHARE = 0.8

# Of a label in a batch of noise. LibriSpeech's readers say some 14 characters a second,
# and a feature frame is 10 ms.
FRAMES_PER_LABEL = 7

# If an estimate exceeds this share of the memory, the need is measured, by steps on two
# small batches of so many utterances.
_CERTAIN_SHARE = 0.5
_PROBED_BATCHES = (2, 4)


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
        """The size of the longest batch's features."""
        return 4 * self.utterances * self.frames * self.features

    @property
    def needed_bytes(self) -> int:
        """The size of all batches that are in memory at a time."""
        return self.batch_bytes * (max(self.prefetch, 1) + BATCHES_BESIDE)

    def __str__(self) -> str:
        return (
            f"{max(self.prefetch, 1)} batches held ready (PipelineConfig.prefetch) and "
            f"{BATCHES_BESIDE} under way, of at most {self.utterances} x {self.frames} frames x "
            f"{self.features} features: {self.needed_bytes / 2**30:.2f} GiB of host memory"
        )

    def refusal(self, available: int) -> str | None:
        """Says why the buffer doesn't fit into ``available`` bytes, and what does.

        None if it fits.
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

        # Not even one batch held ready fits, so batches must be smaller.
        size = int(_USABLE_SHARE * available * self.utterances / self.batch_bytes)
        size //= BATCHES_BESIDE + 1
        if size < 1:
            return f"{problem} Not even one utterance a batch fits: train on a larger machine."

        return (
            f"{problem} Bind PipelineConfig.prefetch = 1 and PipelineConfig.global_batch_size = "
            f"{size} or less, which fit."
        )


def buffer_need(experiment: Experiment, utterances: int, frames: int) -> BufferNeed:
    """Returns what holding batches ready needs.

    Args:
        experiment: how many batches are held ready, and what a frame contains.
        utterances: of the longest global batch.
        frames: to which its utterances are padded.
    """
    features = experiment.training.views * experiment.features.num_features
    return BufferNeed(experiment.pipeline.prefetch, utterances, frames, features)


def check_buffer(need: BufferNeed, available: int) -> None:
    """Raises RunError if the buffer doesn't fit into ``available`` bytes."""
    refusal = need.refusal(available)
    if refusal is not None:
        raise RunError(f"{refusal} --no_memory_probe skips this check.")


def buffer_of_preset(gin_files: Sequence[str], bindings: Sequence[str]) -> BufferNeed:
    """Returns the largest buffer that a gin file's run can need, whatever its shards.

    Args:
        gin_files: files and presets, as for `tfasr.training.from_gin.load_config`.
        bindings: lines of gin.
    """
    from tfasr.training.from_gin import load_config

    loaded = load_config(list(gin_files), list(bindings))
    experiment = loaded.experiment
    pipeline = experiment.pipeline
    frames = pipeline.max_frames

    if pipeline.padding == "bucketed":
        step_s = experiment.features.step_samples / experiment.features.sample_rate_hz
        # Without a limit on length: `max_frames`, about the paper's longest utterance.
        frames = round(loaded.shards.max_duration_s / step_s) or pipeline.max_frames

    return buffer_need(experiment, max(pipeline.batch_sizes), frames)


def measured_step_bytes(
    experiment: Experiment,
    alphabet: Alphabet,
    batches: Sequence[int],
    frames: int,
    labels: int,
) -> list[int] | None:
    """Measures the peak memory of steps on ever larger batches, in another process.

    Args:
        experiment: the configs of model, features and training.
        alphabet: the classes of the model's output.
        batches: numbers of utterances.
        frames: of each utterance.
        labels: of each utterance.

    Returns:
        The bytes of the process after each step; fewer values if the process ran out of
        memory. None if it can't be measured, as with a model defined in a script, or an
        optimizer that Keras cannot rebuild from its config.
    """
    optimizer = keras.optimizers.serialize(experiment.training.optimizer())
    # The other process may be unable to import the function that makes the optimizer.
    training = dataclasses.replace(experiment.training, optimizer=zeiler_adadelta)
    experiment = dataclasses.replace(experiment, training=training)
    sizes = [(utterances, frames, labels) for utterances in batches]
    held = []

    try:
        # Not a comprehension, which would lose the values before an error.
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
    """Takes a step on each batch; yields the peak memory of this process after it.

    It runs in a separate process, see `measured_step_bytes`.

    Args:
        experiment: the configs of model, features and training.
        optimizer: as `keras.optimizers.serialize` returns it.
        alphabet: the classes of the model's output.
        sizes: of the batches: utterances, frames and labels.
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

    for utterances, frames, labels in sizes:
        batch = synthetic_batch(
            experiment, utterances, frames, labels, alphabet=alphabet
        )
        step(batch)
        yield peak_bytes()


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

    The first utterance has all ``frames``, to which others are padded, and all
    ``labels``. From the first to the last utterance, lengths fall evenly. The
    parameters are the sizes that a step's time depends on.

    Args:
        experiment: the configs of model, features and training.
        utterances: in the batch.
        frames: of the longest utterance.
        labels: of the longest utterance, by default as many as are spoken in its time.
        alphabet: whose characters the labels are.
        length_spread: by what fraction the last utterance is shorter than the first.
        seed: of the noise and the labels.

    Raises:
        ValueError: if an utterance has fewer output frames than labels.
    """
    rng = np.random.default_rng(seed)
    model = experiment.model
    features = experiment.features

    if labels is None:
        labels = max(frames // FRAMES_PER_LABEL, 1)

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
    steps = rng.integers(1, characters, (utterances, labels))
    spoken = np.cumsum(steps, axis=1) % characters

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
    """Returns the signature of batches like those of `synthetic_batch`."""
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


@dataclass(frozen=True)
class LongestBatch:
    """The sizes of the training batch with the most padded frames."""

    utterances: int
    frames: int  # to which they are padded
    labels: int  # of the transcript among them that needs the most output frames


@dataclass(frozen=True)
class MemoryNeed:
    """What a step on the longest batch needs, and how that is known."""

    batch: LongestBatch
    # Bytes of the whole process; None if tried on a GPU instead, or unknown.
    needed_bytes: int | None
    limit_bytes: int | None  # what the process may use
    measured: bool  # by steps; otherwise it is an estimate

    def __str__(self) -> str:
        size = (
            f"the longest batch ({self.batch.utterances} x {self.batch.frames} frames)"
        )
        if self.needed_bytes is None:
            if self.measured:
                return f"{size} was tried on the GPU and fits"

            return f"{size} needs an unknown amount of memory"

        needed = self.needed_bytes / 2**30
        limit = self.limit_bytes / 2**30
        how = "measured" if self.measured else "estimated"

        return f"{size} needs about {needed:.1f} of {limit:.1f} GiB ({how})"


def longest_batch(
    source: BatchSource, global_batch_size: int, alphabet: Alphabet
) -> LongestBatch:
    """Returns the training batch with the most padded frames.

    A bucket's longest batch has the padding of its upper boundary.

    Args:
        source: the training split's batches.
        global_batch_size: utterances of a full batch.
        alphabet: of the labels.
    """
    split = source.split
    fewest, most = source.frame_ranges
    needed = split.frames_needed
    batches = []
    above = 0

    for boundary in source.boundaries:
        inside = np.flatnonzero((above < most) & (fewest <= boundary))
        above = boundary
        if not len(inside):
            continue

        wordiest = split.utterances[int(inside[needed[inside].argmax()])]
        batch = LongestBatch(
            utterances=min(len(inside), global_batch_size),
            frames=boundary,
            labels=len(alphabet.encode(wordiest.text)),
        )
        batches.append(batch)

    return max(batches, key=lambda batch: batch.utterances * batch.frames)


def longest_of(
    experiment: Experiment, source: BatchSource, alphabet: Alphabet
) -> LongestBatch:
    """Returns the longest batch of an experiment, at its largest batch size."""
    return longest_batch(source, max(experiment.pipeline.batch_sizes), alphabet)


def on_gpu() -> bool:
    """Whether this process trains on GPUs."""
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

    Args:
        experiment: the run's configs.
        model: compiled.
        source: the training split's batches.
        alphabet: the classes of the model's output.
        element_spec: returns the signature of the run's batches; called on a GPU only.
        available: how many more bytes this process may use, by default what the system
            reports.

    Raises:
        RunError: if the batch or the buffer does not fit; the message suggests a size
            that does.
    """
    if not on_gpu():
        return check_host_memory(
            experiment,
            source,
            alphabet,
            parameters=model.count_params(),
            available=available,
        )

    if available is None:
        available = available_bytes()

    batch = longest_of(experiment, source, alphabet)
    buffer = buffer_need(experiment, batch.utterances, batch.frames)
    check_buffer(buffer, available)
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
    """Does what `check_memory` does without a GPU; needs no model in this process.

    ``parameters`` is by default the model config's lower bound, which is close to their
    number.
    """
    if available is None:
        available = available_bytes()
    batch = longest_of(experiment, source, alphabet)
    buffer = buffer_need(experiment, batch.utterances, batch.frames)
    limit = available + psutil.Process().memory_info().rss
    check_buffer(buffer, limit)

    features = experiment.features.num_features
    if parameters is None:
        # Models without this number mostly lack `step_bytes`, too; then steps are
        # measured.
        parameters = (
            least_parameters(experiment.model, features, alphabet.num_classes) or 0
        )

    parts = experiment.training.gradient_accumulation_steps
    utterances = experiment.training.views * math.ceil(batch.utterances / parts)
    step_bytes = estimated_step_bytes(
        experiment.model, features, parameters, utterances, batch.frames
    )
    needed = step_bytes + buffer.needed_bytes if step_bytes is not None else None

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
    """Predicts what the longest batch needs from steps on two small ones.

    Returns None if that can't be measured. Raises RunError if it doesn't fit.
    """
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
        # Only the batches before the one that ran out of memory fit.
        raise RunError(_remedy(experiment, batch, few * len(held) * parts, memory))

    each = max((held[1] - held[0]) / (more - few), 1)
    others = math.ceil(batch.utterances / parts) - few
    needed = int(held[0] + each * others) + buffer.needed_bytes
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
    """Tries a step on the longest batch, and keeps the model's values.

    Args:
        experiment: the run's configs.
        model: whose variables the step may change.
        batch: the longest.
        step: takes a step on a batch of these sizes.

    Raises:
        RunError: if it doesn't fit, with the largest size that does.
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
        # Searches by halving for the size of one device's share: least fits, most
        # doesn't.
        least = 0
        most = batch.utterances // replicas
        while most - least > 1:
            middle = (least + most) // 2
            if fits(middle * replicas):
                least = middle
            else:
                most = middle

    raise RunError(_remedy(experiment, batch, least * replicas, "the device's memory"))


def _step_on_device(
    model: CtcModel, alphabet: Alphabet, element_spec: Any
) -> Callable[[Experiment, LongestBatch], None]:
    """Returns a function that takes a step on a batch of these sizes, on all devices."""
    strategy = model.distribute_strategy
    replicas = strategy.num_replicas_in_sync

    def step(experiment: Experiment, batch: LongestBatch) -> None:
        share = synthetic_batch(
            experiment,
            max(batch.utterances // replicas, 1),
            batch.frames,
            batch.labels,
            alphabet=alphabet,
        )
        data = share

        if replicas > 1:
            data = strategy.experimental_distribute_values_from_function(
                lambda _: share
            )
        outputs = model.global_step(element_spec)(data)
        # Waits for the device, which raises its errors only then.
        outputs["utterance_loss"].numpy()

    return step


def _remedy(
    experiment: Experiment,
    batch: LongestBatch,
    fitting: int,
    limit: str,
    needed: int = 0,
) -> str:
    """Says how large a batch may be that fits.

    Args:
        experiment: the run's configs.
        batch: the longest, which doesn't fit.
        fitting: how many of its utterances do.
        limit: the memory, in words.
        needed: the bytes that the batch needs; 0 if unknown.
    """
    needs = f", and needs about {needed / 2**30:.1f} GiB" if needed else ""

    replicas = experiment.training.replicas
    size = fitting // replicas * replicas
    if size < 1:
        remedy = (
            "Not even one utterance a device fits: prepare with a shorter "
            "ShardConfig.max_duration_s, or make the model smaller."
        )
    else:
        parts_now = experiment.training.gradient_accumulation_steps
        parts = math.ceil(parts_now * batch.utterances / size)
        remedy = (
            f"{size} fit: bind PipelineConfig.global_batch_size = {size}, or leave it and bind "
            f"TrainingConfig.gradient_accumulation_steps = {parts}."
        )

    return (
        f"The longest batch must fit into {limit}. It has {batch.utterances} utterances of "
        f"{batch.frames} frames{needs}. {remedy} --no_memory_probe skips this check."
    )
