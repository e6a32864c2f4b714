"""How fast a run trained once it was warm, and how much of its batches was padding."""

import math
from dataclasses import dataclass

import numpy as np

from tfasr.tta.timeline import Timeline

WARMUP_STEPS = 10


@dataclass(frozen=True)
class Throughput:
    """The steady speed of a run, or of its beginning; None where nothing was left to measure.

    Steady are the steps that count (those of lost work do not), without the first steps of each
    session and without those that traced a new shape. All rates of a report are those of
    steady steps over their own seconds (``train_s``); what they waited for input is apart.

    Attributes:
        utterances_per_s: utterances over the seconds of training.
        audio_s_per_s: seconds of audio over the same seconds.
        input_wait_share: of the seconds of training and of waiting for input together, the share
            spent waiting.
        padding_efficiency: real over padded frames, of all steps that count.
        mean_batch: utterances per step, of all steps that count: the last batches of an epoch are
            smaller than the nominal batch.
        steps: the steady steps, which were measured.
        warmup_steps: the first steps of each session, which were left out.
        traced_steps: further steps that were left out because they compiled a new shape.
    """

    utterances_per_s: float | None
    audio_s_per_s: float | None
    input_wait_share: float | None
    padding_efficiency: float | None
    mean_batch: float | None
    steps: int
    warmup_steps: int
    traced_steps: int


def throughput(
    timeline: Timeline, *, until_s: float | None = None, warmup_steps: int = WARMUP_STEPS
) -> Throughput:
    """Returns a run's steady throughput.

    Args:
        until_s: leave out steps that ended after this time, in seconds since the model's
            creation; None takes the whole run.
        warmup_steps: how many steps at the beginning of each session are left out.

    Raises:
        ValueError: if ``warmup_steps`` is negative.
    """
    if warmup_steps < 0:
        raise ValueError(f"warmup_steps must be 0 or more. Received: {warmup_steps}.")
    steps = timeline.steps
    counted = steps_until(timeline, until_s)
    warm = counted & (steps.places >= warmup_steps)
    steady = warm & ~steps.compiled
    train_s = _sum(steps.amounts("train_s"), steady)
    wait_s = _sum(steps.amounts("input_wait_s"), steady)
    rates = [
        # Logs of other makers know no utterances: that is unknown, not none.
        _ratio(_sum(steps.amounts(name), steady), train_s) if steps.states(name) else None
        for name in ("utterances", "audio_s")
    ]
    frames = [_sum(steps.amounts(name), counted) for name in ("frames", "padded_frames")]
    number = int(counted.sum())
    utterances = _sum(steps.amounts("utterances"), counted)
    return Throughput(
        *rates,
        input_wait_share=_ratio(wait_s, wait_s + train_s),
        padding_efficiency=_ratio(*frames),
        mean_batch=_ratio(utterances, number) if steps.states("utterances") else None,
        steps=int(steady.sum()),
        warmup_steps=number - int(warm.sum()),
        traced_steps=int(warm.sum() - steady.sum()),
    )


def steps_until(timeline: Timeline, until_s: float | None) -> np.ndarray:
    """Returns which of the steps that count ended by a time since the model's creation."""
    steps = timeline.steps
    if until_s is None:
        return np.ones(len(steps), dtype=bool)
    return steps.at_us <= timeline.zero_us + round(until_s * 1e6)


def _sum(values: np.ndarray, chosen: np.ndarray) -> float:
    return math.fsum(values[chosen].tolist())


def _ratio(amount: float, total: float) -> float | None:
    return amount / total if total > 0 else None
