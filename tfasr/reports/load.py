"""From paths to a report: finds the runs, groups and analyses them."""

import gc
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError
from tfasr.kit.files import EVENTS_FILE
from tfasr.kit.process import end_with
from tfasr.kit.registry import load_plugin, loaded_plugins
from tfasr.ledger.declared import experiment_folders, sealed_folder, study_sentence
from tfasr.reports.charges import Machines, charges_of
from tfasr.reports.groups import configuration, named_groups
from tfasr.reports.numbers import (
    Question,
    Report,
    RunAnalysis,
    analyse_run,
    distinct_names,
    make_report,
    merged_targets,
)
from tfasr.tta.metrics import check_target, declare, declared
from tfasr.tta.published import find_logs, load_log
from tfasr.tta.run import Run, read_metrics, read_targets

DEEPEST = 3  # how many folders deep runs are looked for


def run_folders(folder: Path, deepest: int = DEEPEST) -> Iterator[Path]:
    """Yields the run folders in a folder, sorted by name; links to folders are not followed."""
    if (folder / EVENTS_FILE).is_file():
        yield folder
    elif deepest:
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():
                yield from run_folders(path, deepest - 1)


_FEWEST_FOR_PROCESSES = 64
_MOST_PROCESSES = 8
_RUNS_AT_ONCE = 8
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    path: Path  # the log
    name: str  # how the report calls the run
    folder: str  # the name of the path given to the report: the log, or a folder of logs
    machines: Machines | None  # how to compute cost and energy; None to leave both out
    question: Question  # what is asked of it, with the targets
    optional: bool  # whether a log that cannot be read is left out, rather than ending the report
    loaded: Run | None = None  # the run, if it is already loaded


@dataclass(frozen=True)
class Analysed:
    run: RunAnalysis | None  # the analysis; None if the log could not be read
    configuration: str | None = None  # of `tfasr.reports.groups.configuration`
    error: str = ""  # why it could not be read


def analyse(task: Task) -> Analysed:
    """Reads a log and analyses it; raises `UsageError` if it can't be read and is not optional."""
    try:
        run = task.loaded or load_log(task.path, task.name)
        analysis = analyse_run(run, task.question)
        charges = None
        if task.machines is not None:
            machine = task.machines.of(run, task.folder)
            charges = charges_of(run, machine, [result.until_s for result in analysis.results])
        return Analysed(replace(analysis, name=task.name, charges=charges), configuration(run))
    except UsageError as error:
        if not task.optional:
            raise
        return Analysed(None, error=str(error))


def analyse_all(tasks: Sequence[Task], processes: int = 1) -> list[Analysed]:
    """Returns each task's result; several processes import the program's main module anew."""
    if processes > 1:
        try:
            context = get_context("spawn")  # a fork would inherit the locks of the parent's threads
            arguments = os.getpid(), loaded_plugins(), declared()
            with ProcessPoolExecutor(processes, context, _begin, arguments) as pool:
                return list(pool.map(analyse, tasks, chunksize=_RUNS_AT_ONCE))
        except BrokenExecutor:
            _log.warning("The processes that read the runs died; this process reads the rest.")
    return [analyse(task) for task in tasks]


def _begin(parent: int, plugin_names: Sequence[str], metrics: dict[str, dict[str, Any]]) -> None:
    end_with(parent)  # its queue would stay open, since the processes hold both ends
    for name in plugin_names:  # which may register the policy of a task
        load_plugin(name)
    declare(metrics, "another run of the report")
    # A ledger is a hundred thousand objects without a cycle: searching for cycles is in vain.
    gc.set_threshold(200_000, 20, 20)


def processes_for(runs: int) -> int:
    if runs < _FEWEST_FOR_PROCESSES:
        return 1
    usable = getattr(os, "sched_getaffinity", None)  # not every system has it
    return min(_MOST_PROCESSES, len(usable(0)) if usable else os.cpu_count() or 1)


def load_report(
    sources: Sequence[str | Path | Run],
    question: Question,
    *,
    machines: Machines | None = None,
    many: bool = False,
) -> Report:
    """Returns the report on runs; those given as paths are released one by one."""
    loaded = {source.path.resolve(): source for source in sources if isinstance(source, Run)}
    logs, notes = _logs(sources)
    # Targets must be known before any run is analysed, and their metrics before that.
    for log, _ in logs:
        declare(read_metrics(log), log)
    wanted = [check_target(*target) for target in question.targets] or merged_targets(
        loaded[log.resolve()].targets if log.resolve() in loaded else read_targets(log)
        for log, _ in logs
    )
    question = replace(question, targets=tuple(dict.fromkeys(wanted)))
    tasks = [
        Task(
            *(log, name, source.resolve().name, machines, question),
            optional=log != source,
            loaded=loaded.get(log.resolve()),
        )
        for (log, source), name in zip(logs, _names(logs, loaded), strict=True)
    ]
    if machines is not None:
        machines.check_all_used([name for task in tasks for name in (task.name, task.folder)])
    runs, configurations = [], []
    results = analyse_all(tasks, processes_for(len(tasks)) if many else 1)
    for (log, source), result in zip(logs, results, strict=True):
        if result.run is None:
            notes.append(f"{log} is left out. {result.error}")
            continue
        runs.append(result.run)
        # A folder of runs is a group; single runs are grouped by their configuration.
        configurations.append(str(source.resolve()) if log != source else result.configuration)
    if not runs:
        raise UsageError(" ".join(notes))
    return make_report(named_groups(runs, configurations), question, notes=notes)


def _logs(sources: Sequence[str | Path | Run]) -> tuple[list[tuple[Path, Path]], list[str]]:
    named = []
    for source in sources:
        if isinstance(source, Run):
            named.append((source.path, source.path))
            continue
        folders = experiment_folders(Path(source)) or [Path(source)]  # of a study: all of them
        named += [(log, path) for path in folders for log in find_logs(path)]
    logs = list({log.resolve(): (log, path) for log, path in reversed(named)}.values())[::-1]
    if not logs:
        raise UsageError("A report must be given at least one run folder. Received: none.")
    studies = dict.fromkeys(filter(None, (sealed_folder(path) for _, path in logs)))
    notes = [study_sentence(folder) for folder in studies]
    if len(logs) < len(named):
        notes.append(f"{len(named) - len(logs)} run folders were named twice and are shown once.")
        _log.warning(notes[-1])
    return logs, notes


def _names(logs: Sequence[tuple[Path, Path]], loaded: dict[Path, Run]) -> list[str]:
    paths = [log.with_suffix("") if log.is_file() else log for log, _ in logs]
    names = []
    for path, (log, source) in zip(paths, logs, strict=True):
        if log.resolve() in loaded:
            names.append(loaded[log.resolve()].name)
        else:
            group = "" if log == source else f"{source.resolve().name}/"
            names.append(group + (path.name if group else path.resolve().name))
    return names if len(set(names)) == len(names) else distinct_names(paths)
