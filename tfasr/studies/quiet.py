"""Quiet machines for a study: it waits for one, and trains disturbed runs again.

`StudyConfig.most_taken` declares both before the first run. Whether a run is trained
again depends only on what the machine took from its steps, never on its result: the
second try counts even if it is slower or disturbed too. The first try moves to
``disturbed/``, the list of starts notes it, and the report shows it. ``tfasr verify``
checks all of this.

docs/quiet_machine.md has simulations of how often verdicts are false without this.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfasr.data.manifest import file_sha256
from tfasr.errors import UsageError
from tfasr.kit.files import HOST_FILE, make_folder
from tfasr.ledger.declared import (
    Starts,
    StudyCheck,
    check_study,
    declarations,
    first_try,
)
from tfasr.ledger.events import ledger_mark
from tfasr.reports.numbers import target_label
from tfasr.studies.plan import LONGEST_WAIT_S, Step, StudyConfig, finished, plan_of
from tfasr.telemetry.host import taken_now
from tfasr.tta.host import host_use, read_host_file
from tfasr.tta.metrics import hardest
from tfasr.tta.policies import UTTERANCES
from tfasr.tta.run import load_run
from tfasr.verifying.form import must

# Each look samples the kernel's counters for a second, as runs themselves do; between
# looks the machine is left alone for some seconds.
LOOK_S = 1.0
LOOK_EVERY_S = 5.0

log = logging.getLogger("tfasr")


class Patience:
    """Waits until others take little of the machine, at most for some time in all.

    The limit holds for all waits together: on a machine that never becomes quiet, a
    study of 40 runs ends only that much later.

    Args:
        most_taken: the part of all processors that others may take, from 0 to 1.
        longest_s: how long all waits together may last, in seconds.
    """

    def __init__(self, most_taken: float, longest_s: float):
        self._most_taken = most_taken
        self._left_s = longest_s

    def wait(
        self,
        look: Callable[[], float] | None = None,
        ending: threading.Event | None = None,
    ) -> None:
        """Returns once the machine is quiet, or when the time is up.

        Args:
            look: returns what others take of the machine; by default, of this one.
            ending: is set when nobody wants to wait any longer.
        """
        announced = False
        if look is None:

            def look() -> float:
                return taken_now(LOOK_S).together

        while self._left_s > 0 and self._most_taken < 1:
            began_s = time.monotonic()
            taken = look()
            if taken <= self._most_taken:
                return

            if not announced:
                log.info(
                    (
                        "Waiting for a quiet machine, at most %.0f s: others take %.0f "
                        "%% of it now."
                    ),
                    self._left_s,
                    100 * taken,
                )
                announced = True

            pause_s = min(LOOK_EVERY_S, self._left_s)
            if ending is None:
                time.sleep(pause_s)
            elif ending.wait(pause_s):
                return

            self._left_s -= time.monotonic() - began_s
            if self._left_s <= 0:
                log.warning(
                    "The machine did not become quiet: others take %.0f %% of it. "
                    "Trainings go on, and the report names those that it disturbs.",
                    100 * taken,
                )


def taken_of(run_dir: Path) -> float | None:
    """Returns the part of what a run's steps could use that the machine took, or None.

    It is None for a run without samples of load, as where the kernel has no counters.
    Four digits are kept, since the list of starts notes the number and ``tfasr verify``
    compares it exactly.
    """
    use = host_use(read_host_file(run_dir), load_run(run_dir).timeline)
    if use is None:
        return None

    return round(1 - use.share, 4)


def most_taken_of(study: StudyConfig) -> float:
    """Returns the part that a machine may take from a run, by the study's plan.

    It is 1, that is anything, in a study that counts utterances instead of seconds.
    """
    if study.policy == UTTERANCES.name:
        return 1.0

    return study.most_taken


class QuietMachine:
    """Has a study's trainings wait for a quiet machine, and repeats disturbed ones.

    Args:
        study: declares what the machine may take.
        folder: the study's.
        starts: notes which runs are trained again; None without a sealed plan, and then
            nothing waits or is repeated, since nothing was declared.
    """

    def __init__(self, study: StudyConfig, folder: Path, starts: Starts | None):
        self._most_taken = 1.0 if starts is None else most_taken_of(study)
        # By host, since each has its own time to become quiet; "" is this machine.
        self._patience: dict[str, Patience] = {}
        self._folder = folder
        self._starts = starts

    def trained(
        self,
        step: Step,
        command: Callable[[], str],
        host: str = "",
        look: Callable[[], float] | None = None,
        ending: threading.Event | None = None,
    ) -> str:
        """Does a step, a disturbed training twice; returns why it failed, or "".

        Args:
            step: what is done.
            command: does it, and returns why that failed, or "".
            host: the name of the machine that does it; "" is this one.
            look: as in `Patience.wait`.
            ending: as in `Patience.wait`.
        """
        if step.kind != "train":
            return command()

        if host not in self._patience:
            self._patience[host] = Patience(self._most_taken, LONGEST_WAIT_S)

        patience = self._patience[host]
        patience.wait(look, ending)

        reason = command()
        if not reason and self.set_aside(step):
            patience.wait(look, ending)
            reason = command()

        return reason

    def set_aside(self, step: Step) -> bool:
        """Moves a run that was disturbed too much to ``disturbed/``; whether it did.

        The second try of a run stays where it is, whatever the machine took from it.

        The list of starts notes the run before it is moved. If the study is killed
        between the two, the next call finds the note and only moves the run.
        """
        if step.kind != "train" or self._most_taken >= 1 or not finished(step.run_dir):
            return False

        place = first_try(self._folder, step.alike, step.seed)
        if place.exists():
            return False

        if (step.alike, step.seed) not in self._starts.repeated:
            taken = taken_of(step.run_dir)
            if taken is None or taken <= self._most_taken:
                return False

            log.info(
                "%s is trained again: the machine took %.0f %% of what its steps could "
                "use. Its first try is kept in %s.",
                step.name,
                100 * taken,
                place,
            )
            samples = file_sha256(step.run_dir / HOST_FILE)
            mark = ledger_mark(step.run_dir)
            self._starts.again(step.alike, step.seed, mark, taken, samples)

        make_folder(place.parent)
        step.run_dir.rename(place)

        return True


def first_tries(folder: Path) -> list[str]:
    """Returns a sentence for the report about each run that was trained again.

    Each says how much the machine took, and the times of the first try and of the one
    that counts, so that readers see what the repetition changed.
    """
    try:
        study = check_study(folder)
    except (UsageError, KeyError, TypeError, OSError, ValueError):
        return []  # the sentence on the sealed plan says why

    sentences = []
    for run, again in study.repeated.items():
        name = f"{run[0]} seed {run[1]}"
        text = (
            f"{name} was trained again, as declared, because the machine took "
            f"{100 * again['taken']:.0f} % of what its steps could use"
        )
        times = [_time_text(first_try(folder, *run))]

        if run in study.runs:
            times.append(_time_text(study.runs[run]))
            text += f". First try: {times[0]}; the one that counts: {times[1]}."
        else:
            text += f". First try: {times[0]}."

        sentences.append(text)

    return sentences


def _time_text(run_dir: Path) -> str:
    """Returns when a run met its hardest target, or how long it ran without one."""
    try:
        run = load_run(run_dir)
    except UsageError:
        return "it can't be read"

    if not run.targets:
        return f"{run.wall_s / 60:.3g} min"

    metric, value = hardest(run.targets, run.metrics)
    reached = run.time_to_accuracy(**{metric: value})
    label = target_label(metric, value, run.metrics)
    if reached.reached:
        return f"{label} after {reached.minutes:.3g} min"

    return f"{label} never met"


def check_quiet(study: StudyCheck, folder: Path) -> str | None:
    """Checks for ``tfasr verify`` that just the disturbed runs were trained again.

    Args:
        study: its plans and runs, as the list of starts has them.
        folder: the study's.

    Returns:
        How many were; None if the study declared no limit.

    Raises:
        UsageError: if a run lacks samples of what the machine gave it, if they are not
            those that were noted, or if they demand something else than what was done.
    """
    plans = list(study.plans.values())
    tries = {run: first_try(folder, *run) for run in study.repeated}
    if all(_most_taken(plan) >= 1 for plan in plans) and not tries:
        return None

    for run, run_dir in tries.items():
        name = f"the first try of {run[0]} seed {run[1]}"
        again = study.repeated[run]
        same = file_sha256(run_dir / HOST_FILE) == again["samples"]
        must(same, f"{name} has other samples of load than those that were noted")
        taken = _stated_taken(name, run_dir)
        must(
            taken == again["taken"],
            f"{name} lost {taken}, but {again['taken']} was noted",
        )
        most = _most_taken(study.plans[declarations(run_dir)[-1]["plan"]])
        must(taken > most, f"{name} lost only {taken}, so it had to count")

    # Runs that count must have lost less than the limit, unless they are second tries.
    for run, run_dir in study.runs.items():
        if run in tries or not finished(run_dir):
            continue

        name = f"{run[0]} seed {run[1]}"
        most = _most_taken(study.plans[declarations(run_dir)[-1]["plan"]])
        if most < 1:
            taken = _stated_taken(name, run_dir)
            must(taken <= most, f"{name} lost {taken}, so it had to be trained again")

    return (
        f"{len(tries)} of {len(study.runs)} runs were trained again, as what they lost "
        "demands"
    )


def _most_taken(plan: dict[str, Any]) -> float:
    """Returns what a machine may take from a run by a sealed plan."""
    return most_taken_of(plan_of(plan).config)


def _stated_taken(name: str, run_dir: Path) -> float:
    """Returns the part that a run lost, from 0 to 1.

    Args:
        name: of the run, for the error.
        run_dir: its folder.

    Raises:
        UsageError: if samples that show it are missing.
    """
    taken = taken_of(run_dir)
    must(taken is not None, f"{name} has no samples of load in {HOST_FILE}")

    return taken
