"""How long the rest of a study will take, from what its steps have taken so far."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Lap:
    kind: str  # of the step; kinds differ by far in what they take
    alike: str = ""  # steps of a kind with the same value take about the same time
    seconds: float | None = None  # None of what is not done yet


def expected_s(step: Lap, done: Sequence[Lap]) -> float | None:
    """Returns the mean seconds of steps alike, else of its kind; None where there was none yet."""
    of_kind = [one for one in done if one.kind == step.kind and one.seconds is not None]
    alike = [one for one in of_kind if one.alike == step.alike] or of_kind
    return sum(one.seconds for one in alike) / len(alike) if alike else None


def time_left_s(
    done: Sequence[Lap],
    waiting: Sequence[Lap],
    running: Lap | None = None,
    elapsed_s: float = 0.0,
    share: float = 0.0,
) -> tuple[float, bool]:
    """Returns the seconds that are left, and whether every step's were known.

    ``share`` is how much of the running step is done at least, 0 if unknown; a training that stops
    at its targets may be nearer to its end.
    """
    now: list[Lap] = list(done)
    total, known = 0.0, True
    if running is not None:
        usual = expected_s(running, done)
        if usual is None and share > 0:
            usual = elapsed_s / share
            now.append(Lap(running.kind, running.alike, usual))
        if usual is None:
            known = False
        else:
            total += max(0.0, usual - elapsed_s)
    for step in waiting:
        usual = expected_s(step, now)
        if usual is None:
            known = False
        else:
            total += usual
    return total, known


def time_text(seconds: float) -> str:
    """Returns seconds as people say them: "40 s", "3 min", "5.2 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
