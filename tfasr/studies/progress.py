"""Shows where a study stands: a live line on a terminal, or lines in a log.

`perform` reports to `StudyProgress` which steps begin and end. How long the rest takes
is estimated from steps of the same kind that are done (`time_left_s`); nothing else
reads these estimates.
"""

import heapq
import logging
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfasr.errors import printable, stderr_console

# In a log, where no line can be replaced, a step at work adds a line this often.
_LINE_EVERY_S = 30.0

log = logging.getLogger("tfasr")


@dataclass(frozen=True)
class Lap:
    """What the time of a step can be estimated from.

    Attributes:
        kind: the step's; steps of different kinds take very different times.
        alike: steps of a kind with the same value take about the same time.
        seconds: how long it took, if it is done.
    """

    kind: str
    alike: str = ""
    seconds: float = 0.0


@dataclass
class Running:
    """A step at work, for `time_left_s`.

    Attributes:
        lap: its kind.
        name: the step's.
        where: the host that does it; "" for this machine.
        began_s: when it began, on the monotonic clock.
        share: how much of it is done, from 0 to 1.
        text: how far it is, in words.
    """

    lap: Lap
    name: str = ""
    where: str = ""
    began_s: float = field(default_factory=time.monotonic)
    share: float = 0.0
    text: str = ""

    @property
    def elapsed_s(self) -> float:
        """The seconds since it began."""
        return time.monotonic() - self.began_s


def expected_s(step: Lap, done: Sequence[Lap]) -> float | None:
    """Returns the mean seconds of similar steps, else of its kind, else None.

    Steps of one experiment are similar. Steps of another kind say nothing: a training
    takes hours where scoring takes minutes.

    >>> expected_s(Lap("train", "small"), [Lap("train", "small", 60), Lap("train", "large", 90)])
    60.0
    """
    of_kind = [earlier for earlier in done if earlier.kind == step.kind]
    alike = [earlier for earlier in of_kind if earlier.alike == step.alike] or of_kind

    if not alike:
        return None

    return sum(earlier.seconds for earlier in alike) / len(alike)


def time_left_s(
    done: Sequence[Lap],
    waiting: Sequence[Lap],
    running: Sequence[Running] = (),
    hosts: int = 1,
) -> tuple[float, bool]:
    """Returns the seconds left on so many hosts, and whether all steps were estimated.

    Each waiting step goes to the host that is free first. A step at work whose kind was
    never done is estimated by its share; a step that can't be estimated counts as 0 s.

    Args:
        done: steps that are done, with their seconds.
        waiting: steps that no host has begun, in their order.
        running: steps at work, one on each busy host.
        hosts: how many there are, busy or not.
    """
    all_known = True
    free_at_s: list[float] = []
    # Waiting steps can also be estimated by those at work.
    now = list(done)

    for step in running:
        usual_s = expected_s(step.lap, done)
        if usual_s is None and step.share > 0:
            usual_s = step.elapsed_s / step.share
            now.append(Lap(step.lap.kind, step.lap.alike, usual_s))

        if usual_s is None:
            all_known = False
            usual_s = 0.0

        free_at_s.append(max(0.0, usual_s - step.elapsed_s))

    # Hosts without a step are free now; the first of the heap is free first.
    free_at_s += [0.0] * (hosts - len(free_at_s))
    heapq.heapify(free_at_s)

    for lap in waiting:
        usual_s = expected_s(lap, now)
        if usual_s is None:
            all_known = False
            usual_s = 0.0

        heapq.heapreplace(free_at_s, free_at_s[0] + usual_s)

    return max(free_at_s), all_known


def time_text(seconds: float) -> str:
    """Returns a duration in the unit that fits it: "75 s", "42 min" or "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"

    return f"{seconds / 3600:.1f} h"


def how_far(progress: Mapping[str, Any] | None) -> tuple[float, str]:
    """Returns how much of a training is done, from 0 to 1, and the same in words.

    Args:
        progress: the content of the run's progress.json, which training writes after
            each epoch; None or incomplete before the first.
    """
    progress = progress or {}
    epochs = progress.get("epochs")
    epoch = progress.get("epoch")
    if not isinstance(epochs, int) or not isinstance(epoch, int) or epochs <= 0:
        return 0.0, "at work"

    # `epoch` counts the epochs that are done, so the one at work has the next number.
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
        # Steps that are done or failed; None if the time is unknown or says nothing.
        self._done: dict[str, Lap | None] = {}
        self._running: dict[str, Running] = {}
        self._hosts = 1
        self._line_s = time.monotonic()
        # On a terminal, a line below the log is replaced instead of repeated.
        self._live = None
        if sys.stderr.isatty():
            self._live = stderr_console(highlight=False, markup=False).status("")
            self._live.start()

    def hosts(self, number: int) -> None:
        """Says how many hosts do steps at the same time."""
        self._hosts = max(1, number)

    def skip(self, name: str, seconds: float | None = None) -> None:
        """Counts a step that was done before, with its seconds if they are known."""
        with self._mutex:
            lap = self._waiting.pop(name, None)
            if lap is None:
                return

            self._done[name] = None
            if seconds is not None:
                self._done[name] = Lap(lap.kind, lap.alike, seconds)

    def begin(self, name: str, where: str = "") -> None:
        """Notes that a step is at work.

        Args:
            name: the step's.
            where: the host that does it; "" for this machine.
        """
        with self._mutex:
            self._running[name] = Running(self._waiting.pop(name), name, where)
            self._line_s = time.monotonic()
            number = len(self._done) + len(self._running)
            self._show(
                f"{number}/{len(self._laps)} {named_at(name, where)}{self._left()}"
            )

    def watch(self, name: str, progress: Mapping[str, Any] | None) -> None:
        """Shows how far a step is.

        Args:
            name: the step's.
            progress: the content of its run's progress.json; None without one.
        """
        with self._mutex:
            step = self._running[name]
            step.share, step.text = how_far(progress)
            now_s = time.monotonic()

            if self._live is not None or now_s - self._line_s >= _LINE_EVERY_S:
                self._line_s = now_s
                self._show(self._state())

    def end(self, name: str, failed: str = "") -> None:
        """Says that a step is done, or why it failed.

        Args:
            name: the step's.
            failed: the reason; "" for a step that is done.
        """
        with self._mutex:
            step = self._running.pop(name)
            outcome = f"done, {time_text(step.elapsed_s)}"
            self._done[name] = Lap(step.lap.kind, step.lap.alike, step.elapsed_s)

            if failed:
                outcome = f"failed. {failed}"
                self._done[name] = None

            place = f"{len(self._done)}/{len(self._laps)}"
            self.say(f"{place} {named_at(name, step.where)}: {outcome}")

    def again(self, name: str) -> None:
        """Puts a step back among the waiting ones, at work, done or waiting before."""
        with self._mutex:
            self._running.pop(name, None)
            self._done.pop(name, None)
            self._waiting[name] = self._laps[name]

    def say(self, line: str) -> None:
        """Writes a line that stays."""
        with self._mutex:
            # A log would write over the live line; the console writes above it.
            if self._live is not None:
                self._live.console.print(printable(line))
            else:
                log.info("%s", line)

    def close(self) -> None:
        """Removes the live line from the terminal."""
        if self._live is not None:
            self._live.stop()

    def _state(self) -> str:
        """Returns how far each step at work is, in one line if there is one step.

        In a log, several steps share a line, so that each line stands alone.
        """
        steps = list(self._running.values())
        done = len(self._done)
        everything = len(self._laps)

        if len(steps) == 1 and self._hosts == 1:
            (step,) = steps
            where = named_at(step.name, step.where)
            return f"{done + 1}/{everything} {where}: {step.text}{self._left()}"

        lines = [f"{named_at(step.name, step.where)}: {step.text}" for step in steps]
        at_work = f"{len(steps)} at work on {self._hosts} hosts"
        counts = f"{done}/{everything} done, {at_work}"
        waiting = ""
        if self._waiting:
            waiting = f", {len(self._waiting)} wait"

        # A terminal has room for a line each.
        separator = "; "
        if self._live is not None:
            separator = "\n  "

        return separator.join([f"{counts}{waiting}{self._left()}", *lines])

    def _left(self) -> str:
        """Returns the end of a progress line, such as "; about 48 min left".

        It is "" while nothing can be estimated. "At least" means that some steps could
        not be.
        """
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
        """Replaces the live line, or adds a line to the log."""
        if self._live is not None:
            self._live.update(printable(text))
        else:
            log.info("%s", text)


def named_at(name: str, where: str) -> str:
    """Returns a step's name with its host, if it isn't the study's own machine.

    >>> named_at("train sys1", "10.0.0.7"), named_at("train sys1", "")
    ('train sys1 on 10.0.0.7', 'train sys1')
    """
    if not where:
        return name

    return f"{name} on {where}"
