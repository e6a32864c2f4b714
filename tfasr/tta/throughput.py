"""How fast a run trained once it was warm, and how much of its batches was padding."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfasr.tta.intervals import useful_mask
from tfasr.tta.timeline import Event, session_ranges

WARMUP_STEPS = 10


@dataclass(frozen=True)
class Throughput:
    """The steady speed of a run; None where nothing was left to measure.

    Attributes:
        utterances_per_s: utterances over the seconds of training and waiting for input.
        audio_s_per_s: seconds of audio over the same seconds.
        input_wait_share: the share of those seconds spent waiting for input.
        padding_efficiency: real over padded frames, of all steps.
        steps: the steps that were measured.
        warmup_steps: the first steps of each session, which were left out.
        traced_steps: further steps that were left out because they compiled a new shape.
    """

    utterances_per_s: float | None
    audio_s_per_s: float | None
    input_wait_share: float | None
    padding_efficiency: float | None
    steps: int
    warmup_steps: int
    traced_steps: int


def throughput(events: Sequence[Event], warmup_steps: int = WARMUP_STEPS) -> Throughput:
    """Returns a run's steady throughput.

    Steps of lost work do not count, nor the first steps of each session, nor steps that traced a
    new shape.

    Args:
        events: all of a run's events in file order.
        warmup_steps: how many steps at the beginning of each session are left out.

    Raises:
        ValueError: if ``warmup_steps`` is negative.
    """
    if warmup_steps < 0:
        raise ValueError(f"warmup_steps must be 0 or more. Received: {warmup_steps}.")
    return throughput_of(events, useful_mask(events), warmup_steps)


def throughput_of(
    events: Sequence[Event], useful: Sequence[bool], warmup_steps: int = WARMUP_STEPS
) -> Throughput:
    """Returns `throughput` of events whose use is known already."""
    kept: list[dict[str, Any]] = []
    every: list[dict[str, Any]] = []
    warmup = traced = 0
    for session in session_ranges(events):
        steps = [
            _stats(events[index])
            for index in session
            if useful[index] and events[index]["key"] == "train_step"
        ]
        warm = steps[warmup_steps:]
        steady = [stats for stats in warm if not _seconds(stats.get("compile_s"))]
        every.extend(steps)
        kept.extend(steady)
        warmup += len(steps) - len(warm)
        traced += len(warm) - len(steady)
    wait_s = _sum(kept, "input_wait_s")
    seconds = wait_s + _sum(kept, "train_s")
    return Throughput(
        utterances_per_s=_rate(kept, "utterances", seconds),
        audio_s_per_s=_rate(kept, "audio_s", seconds),
        input_wait_share=_ratio(wait_s, seconds),
        padding_efficiency=_ratio(_sum(every, "frames"), _sum(every, "padded_frames")),
        steps=len(kept),
        warmup_steps=warmup,
        traced_steps=traced,
    )


def _stats(event: Event) -> dict[str, Any]:
    value = event.get("value")
    return value if isinstance(value, dict) else {}


def _sum(steps: Sequence[dict[str, Any]], name: str) -> float:
    values = [stats.get(name) for stats in steps]
    # Only where one is no finite number is each looked at: there are many, and many sums.
    usual = set(map(type, values)) <= {int, float} and math.isfinite(sum(values))
    return math.fsum(values if usual else map(_seconds, values))


def _seconds(value: Any) -> float:
    return value if isinstance(value, (int, float)) and -math.inf < value < math.inf else 0.0


def _ratio(amount: float, total: float) -> float | None:
    return amount / total if total > 0 else None


def _rate(steps: Sequence[dict[str, Any]], name: str, seconds: float) -> float | None:
    # Logs of other makers know no utterances: that is unknown, not none.
    stated = any(name in stats for stats in steps)
    return _ratio(_sum(steps, name), seconds) if stated else None
