"""Where a study stands: a live line on a terminal, lines in a log elsewhere."""

import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfasr.errors import printable, stderr_console
from tfasr.kit.files import PROGRESS_FILE, object_or_empty


@dataclass(frozen=True)
class Lap:
    kind: str  # the step's; steps of different kinds take very different times
    alike: str = ""  # steps of a kind with the same value take about the same time
    seconds: float | None = None  # how long it took; None if it is not done yet


def expected_s(step: Lap, done: Sequence[Lap]) -> float | None:
    """Returns the mean seconds of similar steps that are done, else of its kind, or None."""
    of_kind = [
        earlier for earlier in done if earlier.kind == step.kind and earlier.seconds is not None
    ]
    alike = [earlier for earlier in of_kind if earlier.alike == step.alike] or of_kind
    return sum(earlier.seconds for earlier in alike) / len(alike) if alike else None


def time_left_s(
    done: Sequence[Lap],
    waiting: Sequence[Lap],
    running: Lap | None = None,
    elapsed_s: float = 0.0,
    share: float = 0.0,
) -> tuple[float, bool]:
    """Returns the seconds left, and whether each step's time could be estimated.

    ``share`` is the part of ``running`` that is done, from 0 to 1.
    """
    now: list[Lap] = list(done)
    left_s: list[float | None] = []
    if running is not None:
        usual = expected_s(running, done)
        if usual is None and share > 0:
            usual = elapsed_s / share
            now.append(Lap(running.kind, running.alike, usual))
        left_s.append(None if usual is None else max(0.0, usual - elapsed_s))
    left_s += [expected_s(step, now) for step in waiting]
    return sum((s for s in left_s if s is not None), 0.0), None not in left_s


def time_text(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


_LINE_EVERY_S = 30.0
log = logging.getLogger("tfasr")


class StudyProgress:
    def __init__(self, laps: list[Lap]):
        self._all = len(laps)
        self._waiting = list(laps)
        self._done: list[Lap] = []
        self._behind = 0
        self._running: Lap | None = None
        self._name = ""
        self._began_s = self._line_s = 0.0
        self._live = None
        if sys.stderr.isatty():
            self._live = stderr_console(highlight=False, markup=False).status("")
            self._live.start()

    def skip(self, seconds: float | None = None) -> None:
        lap = self._waiting.pop(0)
        self._behind += 1
        if seconds is not None:
            self._done.append(Lap(lap.kind, lap.alike, seconds))

    def begin(self, name: str) -> None:
        self._running, self._name = self._waiting.pop(0), name
        self._began_s = self._line_s = time.monotonic()
        self._show(f"{self._behind + 1}/{self._all} {name}{self._left(0.0)}")

    def watch(self, run_dir: Path | None) -> None:
        now = time.monotonic()
        share, where = _how_far(run_dir)
        text = f"{self._behind + 1}/{self._all} {self._name}: {where}{self._left(share)}"
        if self._live is not None or now - self._line_s >= _LINE_EVERY_S:
            self._line_s = now
            self._show(text)

    def end(self, failed: str = "") -> None:
        took_s = time.monotonic() - self._began_s
        self._behind += 1
        outcome = f"failed. {failed}" if failed else f"done, {time_text(took_s)}"
        if not failed:
            self._done.append(Lap(self._running.kind, self._running.alike, took_s))
        line = f"{self._behind}/{self._all} {self._name}: {outcome}"
        if self._live is not None:  # above the live line, which a log would write over
            self._live.console.print(printable(line))
        else:
            log.info("%s", line)
        self._running = None

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _left(self, share: float) -> str:
        elapsed_s = time.monotonic() - self._began_s
        left_s, known = time_left_s(self._done, self._waiting, self._running, elapsed_s, share)
        if not left_s and not known:
            return ""
        word = "about" if known else "at least"
        if share > 0 and self._running and expected_s(self._running, self._done) is None:
            word = "at most"  # trainings may meet their targets before their last epoch
        return f"; {word} {time_text(left_s)} left of the study"

    def _show(self, text: str) -> None:
        if self._live is not None:
            self._live.update(printable(text))
        else:
            log.info("%s", text)


def _how_far(run_dir: Path | None) -> tuple[float, str]:
    progress = {} if run_dir is None else object_or_empty(run_dir / PROGRESS_FILE)
    epochs, epoch = progress.get("epochs"), progress.get("epoch")
    if not isinstance(epochs, int) or not isinstance(epoch, int) or epochs <= 0:
        return 0.0, "at work"
    where = f"epoch {min(epoch + 1, epochs)} of at most {epochs}"
    evaluation = progress.get("evaluation")
    if isinstance(evaluation, dict):
        rates = [f"{m.upper()} {100 * evaluation[m]:.1f} %" for m in ("cer", "wer")
                 if isinstance(evaluation.get(m), float)]  # fmt: skip
        where += f", {', '.join(rates)}" if rates else ""
    return epoch / epochs, where
