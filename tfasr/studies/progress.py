"""Shows where a study stands: a live line on a terminal, or lines in a log."""

import heapq
import logging
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfasr.errors import printable, stderr_console

_LINE_EVERY_S = 30.0
log = logging.getLogger("tfasr")


@dataclass(frozen=True)
class Lap:
    kind: str  # the step's; steps of different kinds take very different times
    alike: str = ""  # steps of a kind with the same value take about the same time
    seconds: float = 0.0  # how long it took, if it is done


@dataclass
class Running:
    """A step at work, for `time_left_s`."""

    lap: Lap
    name: str = ""
    where: str = ""  # the host that does it; "" for this machine
    began_s: float = field(default_factory=time.monotonic)
    share: float = 0.0  # how much of it is done, from 0 to 1
    text: str = ""  # how far it is, in words

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began_s


def expected_s(step: Lap, done: Sequence[Lap]) -> float | None:
    """Returns the mean seconds of similar steps that are done, else of its kind, or None.

    >>> expected_s(Lap("train", "small"), [Lap("train", "small", 60), Lap("train", "large", 90)])
    60.0
    """
    of_kind = [earlier for earlier in done if earlier.kind == step.kind]
    alike = [earlier for earlier in of_kind if earlier.alike == step.alike] or of_kind
    return sum(earlier.seconds for earlier in alike) / len(alike) if alike else None


def time_left_s(
    done: Sequence[Lap],
    waiting: Sequence[Lap],
    running: Sequence[Running] = (),
    hosts: int = 1,
) -> tuple[float, bool]:
    """Returns the seconds left on so many hosts, and whether each step's time could be
    estimated.

    Each waiting step goes to the host that is free first.

    Args:
        done: steps that are done, with their seconds.
        waiting: steps that no host has begun, in their order.
        running: steps at work, one on each busy host.
        hosts: how many there are, busy or not.
    """
    known = True
    now: list[Lap] = list(done)
    free_at_s: list[float] = []
    for step in running:
        usual_s = expected_s(step.lap, done)
        if usual_s is None and step.share > 0:
            usual_s = step.elapsed_s / step.share
            now.append(Lap(step.lap.kind, step.lap.alike, usual_s))

        if usual_s is None:
            known = False
            usual_s = 0.0

        free_at_s.append(max(0.0, usual_s - step.elapsed_s))

    free_at_s += [0.0] * (hosts - len(free_at_s))
    heapq.heapify(free_at_s)
    for lap in waiting:
        usual_s = expected_s(lap, now)
        if usual_s is None:
            known = False
            usual_s = 0.0

        heapq.heapreplace(free_at_s, free_at_s[0] + usual_s)

    return max(free_at_s), known


def time_text(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def how_far(progress: Mapping[str, Any] | None) -> tuple[float, str]:
    """Returns a training's share of its epochs and a text, from the content of
    progress.json.
    """
    progress = progress or {}
    epochs = progress.get("epochs")
    epoch = progress.get("epoch")
    if not isinstance(epochs, int) or not isinstance(epoch, int) or epochs <= 0:
        return 0.0, "at work"
    where = f"epoch {min(epoch + 1, epochs)} of at most {epochs}"
    evaluation = progress.get("evaluation")
    if isinstance(evaluation, dict):
        for metric in ("cer", "wer"):
            rate = evaluation.get(metric)
            if isinstance(rate, float):
                where += f", {metric.upper()} {100 * rate:.1f} %"

    return epoch / epochs, where


class StudyProgress:
    """What is done, at work and waiting. Several threads may report to it.

    Args:
        laps: all steps by name, in the order in which they are likely to be done.
    """

    def __init__(self, laps: Mapping[str, Lap]):
        self._mutex = threading.RLock()
        self._laps = dict(laps)
        self._waiting = dict(laps)
        # None if it failed, or took an unknown time
        self._done: dict[str, Lap | None] = {}
        self._running: dict[str, Running] = {}
        self._hosts = 1
        self._line_s = time.monotonic()
        self._live = None
        if sys.stderr.isatty():
            self._live = stderr_console(highlight=False, markup=False).status("")
            self._live.start()

    def hosts(self, number: int) -> None:
        """Says how many hosts do steps at the same time."""
        self._hosts = max(1, number)

    def skip(self, name: str, seconds: float | None = None) -> None:
        """Counts a step that was done before, in so many seconds if that is known."""
        with self._mutex:
            lap = self._waiting.pop(name, None)
            if lap is not None:
                known = None if seconds is None else Lap(lap.kind, lap.alike, seconds)
                self._done[name] = known

    def begin(self, name: str, where: str = "") -> None:
        """Says that a step is at work, on a host named ``where`` ("": on this machine)."""
        with self._mutex:
            self._running[name] = Running(self._waiting.pop(name), name, where)
            self._line_s = time.monotonic()
            number = len(self._done) + len(self._running)
            self._show(f"{number}/{len(self._laps)} {_at(name, where)}{self._left()}")

    def watch(self, name: str, progress: Mapping[str, Any] | None) -> None:
        """Shows how far a step is, from the content of its run's progress.json."""
        with self._mutex:
            step = self._running[name]
            step.share, step.text = how_far(progress)
            now_s = time.monotonic()
            if self._live is not None or now_s - self._line_s >= _LINE_EVERY_S:
                self._line_s = now_s
                self._show(self._state())

    def end(self, name: str, failed: str = "") -> None:
        """Says that a step is done, or why it ``failed``."""
        with self._mutex:
            step = self._running.pop(name)
            outcome = f"done, {time_text(step.elapsed_s)}"
            self._done[name] = Lap(step.lap.kind, step.lap.alike, step.elapsed_s)
            if failed:
                outcome = f"failed. {failed}"
                self._done[name] = None

            place = f"{len(self._done)}/{len(self._laps)}"
            self.say(f"{place} {_at(name, step.where)}: {outcome}")

    def again(self, name: str) -> None:
        """Puts a step back among the waiting ones, whether it was at work, done or waiting."""
        with self._mutex:
            self._running.pop(name, None)
            self._done.pop(name, None)
            self._waiting[name] = self._laps[name]

    def say(self, line: str) -> None:
        """Writes a line that stays."""
        with self._mutex:
            # Above the live line, which a log would write over.
            if self._live is not None:
                self._live.console.print(printable(line))
            else:
                log.info("%s", line)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _state(self) -> str:
        steps = list(self._running.values())
        done = len(self._done)
        everything = len(self._laps)
        if len(steps) == 1 and self._hosts == 1:
            (step,) = steps
            where = _at(step.name, step.where)
            return f"{done + 1}/{everything} {where}: {step.text}{self._left()}"

        lines = [f"{_at(step.name, step.where)}: {step.text}" for step in steps]
        counts = (
            f"{done}/{everything} done, {len(steps)} at work on {self._hosts} hosts"
        )
        waiting = f", {len(self._waiting)} wait" if self._waiting else ""
        separator = "\n  " if self._live is not None else "; "
        return separator.join([f"{counts}{waiting}{self._left()}", *lines])

    def _left(self) -> str:
        done = [lap for lap in self._done.values() if lap is not None]
        running = list(self._running.values())
        waiting = list(self._waiting.values())
        left_s, known = time_left_s(done, waiting, running, self._hosts)
        if not left_s and not known:
            return ""
        word = "about" if known else "at least"
        new = [step for step in running if expected_s(step.lap, done) is None]
        if any(step.share > 0 for step in new):
            word = "at most"  # trainings may meet their targets before their last epoch
        return f"; {word} {time_text(left_s)} left of the study"

    def _show(self, text: str) -> None:
        if self._live is not None:
            self._live.update(printable(text))
        else:
            log.info("%s", text)


def _at(name: str, where: str) -> str:
    return f"{name} on {where}" if where else name
