"""A training step, timed: the wait for its batch, its compilation, and the work itself."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tfasr.data.pipeline import Batch
from tfasr.training.ctc_model import CtcModel
from tfasr.training.traces import StepTraces


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimizer update did and how long it took.

    Attributes:
        loss: mean over the global batch.
        utterance_loss: float32 ``(utterances,)``.
        positions: the utterances' places in the split, int64 ``(utterances,)``.
        utterances: of the global batch.
        audio_s: seconds of audio in it.
        frames: feature frames in it, padding aside.
        padded_frames: with padding.
        input_wait_s: seconds until the batch was there.
        compile_s: seconds of the step if anything was traced or compiled in it, else 0.
        train_s: seconds of the step if nothing was, else 0.
    """

    loss: float
    utterance_loss: np.ndarray
    positions: np.ndarray
    utterances: int
    audio_s: float
    frames: int
    padded_frames: int
    input_wait_s: float
    compile_s: float
    train_s: float


class TimedStep:
    """Fetches a batch, updates a model's weights on it and times both.

    Attributes:
        traces: counts what was traced and compiled.
    """

    def __init__(self, model: CtcModel):
        self.traces = StepTraces()
        self._model = model

    def __call__(self, iterator: Iterator[Batch]) -> StepResult | None:
        """Trains on an iterator's next batch; returns None where there is none.

        Args:
            iterator: of a dataset, distributed where there are replicas; all that are given to one
                `TimedStep` have the same ``element_spec``.
        """
        step = self._model.global_step(iterator.element_spec)
        began = time.perf_counter()
        batch = next(iterator, None)
        if batch is None:
            return None
        fetched = time.perf_counter()
        traced = step.experimental_get_tracing_count()
        # Reading the values waits for the device: a step's time is then its own.
        outputs = {name: value.numpy() for name, value in step(batch).items()}
        utterances = len(outputs["positions"])
        traces = step.experimental_get_tracing_count()
        step_s = time.perf_counter() - fetched
        padded_frames = int(outputs["padded_frames"].sum())
        compile_s = step_s if traces > traced else 0.0
        self.traces.record(utterances, padded_frames // utterances, traces, compile_s)
        return StepResult(
            loss=float(np.mean(outputs["utterance_loss"], dtype=np.float64)),
            utterance_loss=outputs["utterance_loss"],
            positions=outputs["positions"],
            utterances=utterances,
            audio_s=float(outputs["duration_s"].sum(dtype=np.float64)),
            frames=int(outputs["feature_lengths"].sum()),
            padded_frames=padded_frames,
            input_wait_s=fetched - began,
            compile_s=compile_s,
            train_s=step_s - compile_s,
        )
