"""Many runs analysed at once: in one process, or in several where there are many."""

import gc
import logging
import os
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tfasr.analysis.charges import Machines, charges_of
from tfasr.analysis.groups import configuration
from tfasr.analysis.question import Question
from tfasr.analysis.report import RunAnalysis, analyse_run
from tfasr.errors import UsageError
from tfasr.plugins import load_plugin, loaded_plugins
from tfasr.tta.metrics import declare, declared
from tfasr.tta.published import load_log
from tfasr.tta.run import Run

_FEWEST_FOR_PROCESSES = 64
_MOST_PROCESSES = 8
_RUNS_AT_ONCE = 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """A log to be analysed, with what a report asks of it."""

    path: Path  # the log
    name: str  # how the report calls the run
    folder: str  # the name of what was given to the report: the log, or a folder of logs
    machines: Machines | None  # what the runs are charged for; None to charge nothing
    question: Question  # what is asked of it, with the targets
    optional: bool  # whether a log that cannot be read is left out, rather than ending the report
    loaded: Run | None = None  # the run, where it is loaded already


@dataclass(frozen=True)
class Analysed:
    run: RunAnalysis | None  # the analysis; None where the log could not be read
    configuration: str | None = None  # of `tfasr.analysis.groups.configuration`
    error: str = ""  # why it could not be read


def analyse(task: Task) -> Analysed:
    """Reads a log and analyses it; the events are let go.

    Raises:
        UsageError: if the log cannot be read and is not optional.
    """
    try:
        return _analysed(task)
    except UsageError as error:
        if not task.optional:
            raise
        return Analysed(None, error=str(error))


def _analysed(task: Task) -> Analysed:
    run = task.loaded or load_log(task.path, task.name)
    found = analyse_run(run, task.question)
    charges = None
    if task.machines is not None:
        machine = task.machines.of(run, task.folder)
        charges = charges_of(run, machine, [result.until_s for result in found.results])
    return Analysed(replace(found, name=task.name, charges=charges), configuration(run))


def analyse_all(tasks: Sequence[Task], processes: int = 1) -> list[Analysed]:
    """Returns what became of each task, in their order.

    Args:
        tasks: what to do.
        processes: how many may work at once. More than one start Python anew, and the program's
            main module with it, which therefore has to be one that can be imported.

    Raises:
        UsageError: if a log cannot be read and is not optional.
    """
    if processes < 2:
        return [analyse(task) for task in tasks]
    try:
        context = get_context("spawn")  # a fork would take the parent's threads' locks with it
        with ProcessPoolExecutor(
            processes, context, _begin, (loaded_plugins(), declared())
        ) as pool:
            return list(pool.map(analyse, tasks, chunksize=_RUNS_AT_ONCE))
    except BrokenExecutor:
        _log.warning("The processes that read the runs were ended; reading on in this one.")
        return [analyse(task) for task in tasks]


def _begin(plugin_names: Sequence[str], metrics: dict[str, dict[str, Any]]) -> None:
    for name in plugin_names:  # which may register the policy of a task
        load_plugin(name)
    declare(metrics, "another run of the report")
    # A ledger is a hundred thousand objects without a cycle: to search them for one is in vain.
    gc.set_threshold(200_000, 20, 20)


def processes_for(runs: int) -> int:
    """Returns how many processes are worth their start for that many runs."""
    if runs < _FEWEST_FOR_PROCESSES:
        return 1
    usable = getattr(os, "sched_getaffinity", None)  # not every system has it
    return min(_MOST_PROCESSES, len(usable(0)) if usable else os.cpu_count() or 1)
