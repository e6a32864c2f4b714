"""Runs a study: every step in a process of its own; steps that are done are skipped.

A live line on a terminal, or lines in a log, show where it stands.
"""

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from tfasr.errors import RunError, UsageError, printable, stderr_console
from tfasr.kit.files import (
    PROGRESS_FILE,
    acquire_lock,
    make_folder,
    object_or_empty,
    read_object,
    write_whole,
)
from tfasr.kit.process import call, start_module
from tfasr.ledger.declared import DECISION_FILE, SEALED_FILE, Starts
from tfasr.recording.session import claimed
from tfasr.studies.plan import (
    Plan,
    PlannedRun,
    Step,
    begin,
    check_runs,
    finished,
    grow,
    load_plan,
    sealed_content,
    study_steps,
)
from tfasr.studies.quiet import QuietMachine
from tfasr.tta.comparison import LEVEL, LOOKS, Decision, decide, looks_of
from tfasr.tta.host import read_host_file, undisturbed_part
from tfasr.tta.metrics import hardest
from tfasr.tta.policies import PAPER, UTTERANCES, Bracket, bracket
from tfasr.tta.ranks import least_p
from tfasr.tta.run import load_run

DECIDED = "decided"  # the only value of ``--until``
log = logging.getLogger("tfasr")


def load_until_plan(gin_file: str, bindings: Sequence[str]) -> Plan:
    """Reads a study's gin file, and gives it seeds for all looks unless it has them."""
    plan = load_plan(gin_file, bindings)
    if len(plan.config.seeds) >= LOOKS[-1]:
        return plan
    seeds = tuple(range(1, LOOKS[-1] + 1))
    return load_plan(gin_file, [*bindings, f"StudyConfig.seeds = {seeds}"])


def planned(
    gin_file: str, bindings: Sequence[str], until: str, folder: Path, shard_dir: Path | None
) -> tuple[Plan, list[Step]]:
    """Reads a study's gin file and lists its steps; raises `UsageError` if one can't be done."""
    plan = (load_until_plan if until else load_plan)(gin_file, bindings)
    if until:
        check_until(until, plan)
    steps = study_steps(plan, folder, shard_dir)
    return plan, alternating(plan, folder, steps) if until else steps


def check_until(until: str, plan: Plan) -> None:
    """Raises `UsageError` unless a study has two experiments with enough seeds for all looks."""
    if until != DECIDED:
        raise UsageError(f"--until must be {DECIDED!r}. Received: {until!r}.")
    names = list(plan.experiments)
    if len(names) != 2:
        raise UsageError(
            "--until decided compares two experiments. StudyConfig.experiments has "
            f"{len(names)}: {', '.join(names)}. Bind two of them."
        )
    of_each = [[run.seed for run in _runs(plan, name)] for name in names]
    if plan.config.test != "groups" and of_each[0] != of_each[1]:
        raise UsageError(
            f"StudyConfig.test = {plan.config.test!r} compares runs of equal seeds. {names[0]} has "
            f"the seeds {of_each[0]}, {names[1]} {of_each[1]}: leave ExperimentConfig.seeds out."
        )
    times = ", ".join(map(str, looks_of(plan.config.test, plan.config.level)))
    for name, seeds in zip(names, of_each, strict=True):
        if len(seeds) < LOOKS[-1]:
            raise UsageError(
                f"--until decided looks after {times} runs of each experiment. {name} has "
                f"{len(seeds)} seeds of its own: leave {name}/ExperimentConfig.seeds out."
            )


def alternating(plan: Plan, folder: Path, steps: Sequence[Step]) -> list[Step]:
    """Orders the steps so that the second experiment trains first at every other seed."""
    rounds = zip(*(_runs(plan, name) for name in plan.experiments), strict=False)
    turns = [pair[:: -1 if number % 2 else 1] for number, pair in enumerate(rounds)]
    order = [folder / run.folder for pair in turns for run in pair]
    kinds = list(dict.fromkeys(step.kind for step in steps))
    place = {path: number for number, path in enumerate(order)}
    return sorted(steps, key=lambda s: (kinds.index(s.kind), place.get(s.run_dir, len(order))))


def undecidable(plan: Plan) -> list[str]:
    """Returns a warning for each part whose seeds are too few for any verdict."""
    sentences = []
    for part, names in plan.parts().items():
        runs = min(len(_runs(plan, name)) for name in names)
        comparisons = (len(names) - 1) * plan.number_of_targets(names[0])
        smallest = least_p(plan.config.test, runs, runs)
        if runs > 1 and comparisons * smallest >= LEVEL:
            sentences.append(
                f"{part}: {runs} seeds can't decide {comparisons} comparisons, as the smallest "
                f"possible p is {smallest:.2g}, adjusted {min(1.0, comparisons * smallest):.2g}. "
                "Take more seeds or fewer targets."
            )
    return sentences


def decision(plan: Plan, folder: Path) -> Decision:
    """Returns what two experiments' finished runs, up to the first unfinished seed, decide."""
    groups = (_brackets(plan, folder, name) for name in plan.experiments)
    return decide(*groups, test=plan.config.test, level=plan.config.level)


def decision_text(plan: Plan, look: Decision) -> str:
    first, second = (plan.label(name) for name in plan.experiments)
    verdict = look.verdict.replace("the first group", first).replace("the second group", second)
    return f"{first} against {second}: {verdict}."


def perform_until_decided(
    plan: Plan, folder: Path, steps: Sequence[Step], perform: Callable[[Sequence[Step]], list[str]]
) -> list[str]:
    """Does a study's steps look by look until it is decided; returns the failed steps' names."""
    failed = perform([step for step in steps if step.kind not in ("train", "score", "widths")])
    wanted: set[Path] = set()
    begun = any(finished(folder / run.folder) for run in plan.runs)
    declared = {"test": plan.config.test, "level": plan.config.level}
    look = decision(plan, folder) if begun else decide([], [], **declared)
    while not failed and not look.over:
        for name in plan.experiments:
            wanted |= {folder / run.folder for run in _runs(plan, name)[: look.next_look]}
        failed += perform([step for step in steps if step.run_dir in wanted])
        if not failed:
            look = decision(plan, folder)
            log.info(decision_text(plan, look))
    write_whole(folder / DECISION_FILE, decision_text(plan, decision(plan, folder)) + "\n")
    done = {run.name for run in plan.runs if finished(folder / run.folder)}
    later = [step for step in steps if step.kind in ("score", "widths")]
    ready = [step for step in later if step.kind == "widths" or step.name[6:] in done]
    return failed + perform(ready)


def _runs(plan: Plan, experiment: str) -> list[PlannedRun]:
    return [run for run in plan.runs if run.experiment == experiment]


def _brackets(plan: Plan, folder: Path, experiment: str) -> list[Bracket]:
    brackets = []
    for planned in takewhile(lambda p: finished(folder / p.folder), _runs(plan, experiment)):
        run = load_run(folder / planned.folder)
        if not run.targets:
            raise UsageError(
                f"--until decided needs a target. {run.path} sets none: bind "
                "TrainingConfig.targets."
            )
        metric, value = hardest(run.targets)
        points = run.accuracy_curve(metric, plan.config.policy)
        window = run.target_window or PAPER.window
        measured = bracket(points, value, window=window, metric=metric)
        if plan.config.policy != UTTERANCES.name:
            part = undisturbed_part(read_host_file(run.path), run.timeline)
            measured = replace(measured, undisturbed=part)
        brackets.append(measured)
    return brackets


_LOOKS_EVERY_S = 0.5
_LINE_EVERY_S = 30.0
_SHOWN_LINES = 3
_AT_WORK_FILE = "at_work"


@dataclass(frozen=True)
class Lap:
    kind: str  # the step's; steps of different kinds take very different times
    alike: str = ""  # steps of a kind with the same value take about the same time
    seconds: float = 0.0  # how long it took, if it is done


def expected_s(step: Lap, done: Sequence[Lap]) -> float | None:
    """Returns the mean seconds of similar steps that are done, else of its kind, or None."""
    of_kind = [earlier for earlier in done if earlier.kind == step.kind]
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


def study(
    gin_file: str,
    *,
    run_dir: str | Path,
    shard_dir: str | Path | None = None,
    bindings: Sequence[str] = (),
    resume: bool = False,
    until: str = "",
) -> Path:
    """Trains every run of a study, scores them and writes the report.

    Each training and each evaluation is the command that a user would type, in a process of its
    own. A study that was killed at any moment goes on with ``resume``: finished steps are skipped,
    an interrupted training continues from its checkpoint, and failed steps are tried again.

    Args:
        gin_file: a path or a preset such as "study/paper_small.gin".
        run_dir: gets the runs, their logs and the report.
        shard_dir: prepared splits; None if the study makes its own speech.
        bindings: lines of gin that override the file's.
        resume: continues a study of the same gin file, finished or not; experiments may have more
            seeds than it began with, which the report states.
        until: "decided" gives a study of two experiments as many seeds as it takes to tell which
            reaches its hardest target sooner, 12 at most; the result is in ``decision.txt``.

    Returns:
        The path of ``report.html``.

    Raises:
        UsageError: if the gin file, an experiment or the folder is wrong.
        RunError: if a step failed; the report on the others is written.
    """
    folder = Path(run_dir)
    shards = None if shard_dir is None else Path(shard_dir)
    plan, steps = planned(gin_file, bindings, until, folder, shards)
    with claimed(folder, "--run_dir", "run a study"):
        declared = _declared(plan, folder)
        more = begin(folder, plan, shards, resume=resume)
        for sentence in [] if until else undecidable(plan):
            log.warning(sentence)
        sealed = partial(sealed_content, plan, until, declared, shards or folder / "shards")
        with _alone(folder) as held, contextlib.closing(Starts(folder, sealed)) as starts:
            if more:
                log.info("%d runs are added to the study.", len(more))
                grow(folder, plan, more)
            kept = starts if declared else None
            quiet = QuietMachine(plan.config, folder, kept)
            do = partial(perform, held=held, starts=kept, quiet=quiet)
            failed = perform_until_decided(plan, folder, steps, do) if until else do(steps)
        # Imported here: drawing is slow to load, and a wrong gin file must be reported at once.
        from tfasr.studies.report import write_report

        page = write_report(plan, folder)
    if failed:
        raise RunError(
            f"Every step of a study must succeed. {len(failed)} of {len(steps)} did not: "
            f"{'; '.join(failed)}. Their logs are in {folder / 'logs'}; --resume tries them again. "
            f"The report on the others: {page}"
        )
    return page


def _declared(plan: Plan, folder: Path) -> dict[str, Any]:
    # What the sealed plan declares about each experiment; {} if the study was begun without a plan.
    sealed = folder / SEALED_FILE
    if sealed.exists():
        return read_object(sealed, "Restore it from a copy.", ("trained",))["trained"]
    if any((folder / run.folder).exists() for run in plan.runs):
        log.warning("%s was begun without a sealed plan to check its runs against.", folder)
        return {}
    firsts = {run.experiment: run for run in reversed(plan.runs)}
    requests = [(n, list(run.gin_files), list(run.bindings)) for n, run in firsts.items()]
    log.info("Reading the presets of %d experiments.", len(requests))
    return call(check_runs, requests, backend="tensorflow", show_messages=False)


def perform(
    steps: Sequence[Step],
    held: Sequence[int] = (),
    starts: Starts | None = None,
    quiet: QuietMachine | None = None,
) -> list[str]:
    """Does the steps not done yet, and returns the names of those that failed.

    Each step's process inherits the file descriptors ``held``. Each training is added to the
    study's list ``starts``. With ``quiet``, trainings wait for a quiet machine, and disturbed runs
    are trained again.
    """
    progress = StudyProgress([Lap(step.kind, step.alike) for step in steps])
    failed = []
    with contextlib.closing(progress):
        for step in steps:
            if quiet is not None:
                quiet.set_aside(step)  # a killed study may have left a run that was disturbed
            if step.done():
                has_times = step.run_dir is not None and finished(step.run_dir)
                progress.skip(load_run(step.run_dir).wall_s if has_times else None)
                continue
            progress.begin(step.name)
            waits = step.needs is not None and not finished(step.needs)
            reason = f"{step.needs} is not finished" if waits else ""
            command = partial(_command, step, progress, held, starts)
            reason = reason or (command() if quiet is None else quiet.trained(step, command))
            progress.end(reason)
            if reason:
                failed.append(step.name)
    return failed


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[tuple[int, ...]]:
    # Locks a study's folder, once no process works in it, and yields the lock's descriptor. Steps
    # inherit it: if the study is killed, its training keeps the folder locked until it has saved.
    descriptor, waits = None, False
    while descriptor is None:
        try:
            descriptor = acquire_lock(folder / _AT_WORK_FILE, "held")
        except UsageError:
            if not waits:
                log.info("Waiting for a step of the killed study to save its work and end.")
            waits = True
            time.sleep(_LOOKS_EVERY_S)
    try:
        yield (descriptor,)
    finally:
        os.close(descriptor)


def _command(
    step: Step, progress: StudyProgress, held: Sequence[int], starts: Starts | None
) -> str:
    try:
        words = list(map(str, step.words()))
    except UsageError as error:
        return str(error)
    make_folder(step.log.parent)
    run = (step.alike, step.seed, step.run_dir)
    starts = starts if step.kind == "train" else None
    declared = {} if starts is None else starts.start(*run)
    with step.log.open("ab") as output:
        # In its own session, the step doesn't get a terminal's Ctrl-C. This process ends it with
        # one signal: a second one would end a training before it has saved a checkpoint.
        process = start_module(
            *("tfasr.cli", *words),
            environment={
                "TF_CPP_MIN_LOG_LEVEL": "2",
                **dict(line.split("=", 1) for line in step.environment),
                **declared,
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=held,
        )
        try:
            while process.poll() is None:
                progress.watch(step.run_dir)
                if starts is not None:
                    starts.watch(*run)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOKS_EVERY_S)
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
        finally:
            if process.poll() is None:
                process.kill()
            if starts is not None:
                starts.end(*run, process.returncode)
    if process.returncode == 0:
        return "" if step.done() else f"It succeeded but left no result. Its log: {step.log}"
    lines = step.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = " ".join(line.strip() for line in lines[-_SHOWN_LINES:])[-600:] or "its log is empty"
    return f"It ended with exit code {process.returncode}: {last}"
