"""How often training and evaluation were traced and compiled, and for which shapes."""

import logging
from dataclasses import dataclass
from typing import Any

from tfasr.ledger import Ledger

log = logging.getLogger("tfasr")

EXPECTED_TRACES = 1


@dataclass
class _Shape:
    steps: int = 0
    compilations: int = 0
    compile_s: float = 0.0


class StepTraces:
    """Counts a training function's traces, and steps and compilations by the shape of the batch.

    A warning comes once, at the first trace too many: a function whose signature leaves batch and
    time open is traced once.

    Attributes:
        traced: traces of the function.
    """

    def __init__(self):
        self.traced = 0
        self._shapes: dict[tuple[int, int], _Shape] = {}

    def record(self, utterances: int, frames: int, traced: int, compile_s: float) -> None:
        """Notes a step.

        Args:
            utterances: of the batch.
            frames: to which they were padded.
            traced: traces of the function so far.
            compile_s: the step's seconds if anything was traced or compiled in it, else 0.
        """
        shape = self._shapes.setdefault((utterances, frames), _Shape())
        shape.steps += 1
        shape.compilations += compile_s > 0
        shape.compile_s += compile_s
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
        """Returns traces, compilations and their seconds, and the shapes by their frames."""
        by_frames: dict[int, _Shape] = {}
        for (_, frames), shape in self._shapes.items():
            total = by_frames.setdefault(frames, _Shape())
            total.steps += shape.steps
            total.compilations += shape.compilations
            total.compile_s += shape.compile_s
        return {
            "traces": self.traced,
            "compiling_steps": sum(shape.compilations for shape in self._shapes.values()),
            "compile_s": round(sum(shape.compile_s for shape in self._shapes.values()), 6),
            "shapes": len(self._shapes),
            "by_frames": {
                str(frames): {
                    "steps": shape.steps,
                    "compiling_steps": shape.compilations,
                    "compile_s": round(shape.compile_s, 6),
                }
                for frames, shape in sorted(by_frames.items())
            },
        }


def book_traces(ledger: Ledger, training: StepTraces, evaluation_traces: int | None) -> None:
    """Writes the counts into the ledger and the log.

    Args:
        ledger: gets the event ``traces``, see `tfasr.ledger`.
        training: counts of the training function.
        evaluation_traces: traces of the evaluation's forward pass; None where they are not known.
    """
    counts = training.to_json()
    ledger.event("traces", {"training": counts, "evaluation": {"traces": evaluation_traces}})
    log.info(
        "traces: training %d, evaluation %s; %d shapes of batches, %d steps compiled (%.1f s)",
        counts["traces"],
        "n/a" if evaluation_traces is None else evaluation_traces,
        counts["shapes"],
        counts["compiling_steps"],
        counts["compile_s"],
    )
    if evaluation_traces is not None and evaluation_traces > EXPECTED_TRACES:
        log.warning(
            "The evaluation must be traced once. It was traced %d times: look for code in the "
            "model that depends on a shape.",
            evaluation_traces,
        )
