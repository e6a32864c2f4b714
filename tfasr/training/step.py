"""A training step, timed: the wait for its batch, its compilation, and the work itself.

The training loop calls `TimedStep` once a batch. What it returns, a `StepResult`, goes
to all hooks and into the ledger. `StepTraces` counts what compiling cost, because each
trace of the step takes seconds that a reader would otherwise look for in vain.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfasr.data.batches import Batch
from tfasr.ledger.events import Ledger
from tfasr.training.ctc import CtcModel

log = logging.getLogger("tfasr")

# How often TensorFlow should trace a function whose signature leaves the shapes open.
EXPECTED_TRACES = 1


class StepTraces:
    """Counts how often the training step was traced and compiled, by the batches' shapes.

    A signature that leaves the number of utterances and of frames open needs one trace.
    A second one logs a warning.
    """

    def __init__(self):
        self.traced = 0
        # By utterances and frames: the steps, the steps that compiled, and the seconds
        # of those.
        self._shapes: dict[tuple[int, int], np.ndarray] = defaultdict(
            lambda: np.zeros(3)
        )

    def record(
        self, utterances: int, frames: int, traced: int, compile_s: float
    ) -> None:
        """Notes a step on a padded batch.

        Args:
            utterances: in the batch.
            frames: to which each of them is padded.
            traced: how often the step has been traced so far.
            compile_s: the step's seconds if it traced or compiled anything, else 0.
        """
        self._shapes[utterances, frames] += (1, compile_s > 0, compile_s)
        if traced > EXPECTED_TRACES >= self.traced:
            log.warning(
                "The training step must be traced once. It was traced %d times, the last time for "
                "%d utterances x %d frames, and each costs seconds: let PipelineConfig make fewer "
                "shapes (fewer num_buckets, or padding 'fixed'), and look for code in the model "
                "that depends on a shape.",
                traced,
                utterances,
                frames,
            )

        self.traced = traced

    def to_json(self) -> dict[str, Any]:
        """Returns the counts in all, and by the number of frames, as in the ledger."""
        by_frames = defaultdict(lambda: np.zeros(3))
        for (_, frames), counts in self._shapes.items():
            by_frames[frames] += counts

        def compiled(counts: np.ndarray) -> dict[str, Any]:
            _, compiling, compile_s = counts.tolist()
            return {
                "compiling_steps": int(compiling),
                "compile_s": round(compile_s, 6),
            }

        content = {"traces": self.traced}
        content |= compiled(sum(self._shapes.values(), np.zeros(3)))
        content["shapes"] = len(self._shapes)
        content["by_frames"] = {
            str(frames): {"steps": int(counts[0])} | compiled(counts)
            for frames, counts in sorted(by_frames.items())
        }

        return content


def book_traces(
    ledger: Ledger, training: StepTraces, evaluation_traces: int | None
) -> None:
    """Writes how often functions were traced into the ledger, and logs it.

    Args:
        ledger: of the process that trains.
        training: the counts of the training step.
        evaluation_traces: of the evaluation's forward pass; None if another process
            evaluated.
    """
    counts = training.to_json()
    ledger.event(
        "traces", {"training": counts, "evaluation": {"traces": evaluation_traces}}
    )

    shown = "n/a" if evaluation_traces is None else evaluation_traces

    log.info(
        f"traces: training {counts['traces']}, evaluation {shown}; "
        f"{counts['shapes']} shapes of batches, {counts['compiling_steps']} steps "
        f"compiled ({counts['compile_s']:.1f} s)"
    )

    if evaluation_traces is not None and evaluation_traces > EXPECTED_TRACES:
        log.warning(
            "The evaluation must be traced once. It was traced %d times: look for code in the "
            "model that depends on a shape.",
            evaluation_traces,
        )


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step's loss, what it was trained on, and its seconds by kind.

    The field list is long because the ledger has each of them.
    """

    loss: float  # mean over the global batch
    utterance_loss: np.ndarray  # float32 (utterances,)
    positions: np.ndarray  # the utterances' places in the split, int64 (utterances,)
    utterances: int  # of the global batch
    audio_s: float
    frames: int  # feature frames, without padding
    padded_frames: int  # with padding
    input_wait_s: float  # until the batch arrived
    compile_s: float  # the step's time if it traced or compiled anything, else 0
    train_s: float  # the step's time if it didn't, else 0
    # Utterances of the workers that were left out since the last step: not trained on.
    lost_utterances: int = 0


class TimedStep:
    """Fetches a batch, updates a model's weights on it and times both.

    Subclasses of clusters replace the step (`tfasr.training.workers.step`) or take
    blocks of steps at a time (`tfasr.training.workers.rounds`).
    """

    # Whether a checkpoint may be saved now. False within a block of a cluster's steps.
    settled = True

    def __init__(self, model: CtcModel):
        self.traces = StepTraces()
        self._model = model

    def __call__(self, iterator: Iterator[Batch]) -> StepResult | None:
        """Trains on the next batch; returns None after the last one.

        All iterators must have the same ``element_spec``, or the step is traced anew.
        """
        step = self._traced(iterator.element_spec)

        began = time.perf_counter()
        batch = next(iterator, None)
        if batch is None:
            return None

        fetched = time.perf_counter()
        traced_before = step.experimental_get_tracing_count()
        outputs = self._outputs(step, batch)
        traced = step.experimental_get_tracing_count()
        step_s = time.perf_counter() - fetched

        compile_s = step_s if traced > traced_before else 0.0

        utterances = len(outputs["positions"])
        padded_frames = int(outputs["padded_frames"].sum())
        self.traces.record(utterances, padded_frames // utterances, traced, compile_s)

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

    def _traced(self, element_spec: Any) -> Callable:
        return self._model.global_step(element_spec)

    def _outputs(self, step: Callable, batch: Batch) -> dict[str, np.ndarray]:
        # `numpy` waits for the device, so that the step's time includes all its work.
        return {name: value.numpy() for name, value in step(batch).items()}
