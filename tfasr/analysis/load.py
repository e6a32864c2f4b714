"""From paths to a report: which runs lie there, which of them form a group, what they say."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tfasr.analysis.charges import Machines
from tfasr.analysis.groups import named_groups
from tfasr.analysis.names import distinct_names, merged_targets
from tfasr.analysis.question import Question
from tfasr.analysis.report import Report, make_report
from tfasr.analysis.workers import Task, analyse_all, processes_for
from tfasr.errors import UsageError
from tfasr.tta.load import read_metrics, read_targets
from tfasr.tta.metrics import declare
from tfasr.tta.published import find_logs
from tfasr.tta.run import Run
from tfasr.tta.targets import check_target

_log = logging.getLogger(__name__)


def load_report(
    sources: Sequence[str | Path | Run],
    question: Question,
    *,
    machines: Machines | None = None,
    many: bool = False,
) -> Report:
    """Returns the report on runs; those that come as paths are let go one by one.

    Raises:
        UsageError: if there is no run, a path holds none, or a machine is named for none of them.
    """
    loaded = {source.path.resolve(): source for source in sources if isinstance(source, Run)}
    found, notes = _logs(sources)
    # Targets have to be known before any run is analysed, and what they are of before that.
    for log, _ in found:
        declare(read_metrics(log), log)
    wanted = [check_target(*target) for target in question.targets] or merged_targets(
        loaded[log.resolve()].targets if log.resolve() in loaded else read_targets(log)
        for log, _ in found
    )
    question = replace(question, targets=tuple(dict.fromkeys(wanted)))
    tasks = [
        Task(
            path=log,
            name=name,
            folder=given.resolve().name,
            machines=machines,
            question=question,
            optional=log != given,
            loaded=loaded.get(log.resolve()),
        )
        for (log, given), name in zip(found, _names(found, loaded), strict=True)
    ]
    if machines is not None:
        machines.check_all_used([name for task in tasks for name in (task.name, task.folder)])
    analysed, configurations = [], []
    processes = processes_for(len(tasks)) if many else 1
    for (log, given), one in zip(found, analyse_all(tasks, processes), strict=True):
        if one.run is None:
            notes.append(f"{log} is left out. {one.error}")
            continue
        analysed.append(one.run)
        # A folder of runs is a group by being one, single runs by their configuration.
        configurations.append(str(given.resolve()) if log != given else one.configuration)
    if not analysed:
        raise UsageError(" ".join(notes))
    grouped = named_groups(analysed, configurations)
    return make_report(grouped, question, notes=notes)


def _logs(sources: Sequence[str | Path | Run]) -> tuple[list[tuple[Path, Path]], list[str]]:
    logs = [
        (log, given)
        for source in sources
        for given in [source.path if isinstance(source, Run) else Path(source)]
        for log in ([given] if isinstance(source, Run) else find_logs(given))
    ]
    found = list({log.resolve(): (log, given) for log, given in reversed(logs)}.values())[::-1]
    if not found:
        raise UsageError("A report must be given at least one run folder. Received: none.")
    notes = []
    if len(found) < len(logs):
        notes.append(f"{len(logs) - len(found)} run folders were named twice and stand here once.")
        _log.warning(notes[0])
    return found, notes


def _names(found: Sequence[tuple[Path, Path]], loaded: dict[Path, Run]) -> list[str]:
    paths = [log.with_suffix("") if log.is_file() else log for log, _ in found]
    own = []
    for path, (log, given) in zip(paths, found, strict=True):
        if log.resolve() in loaded:
            own.append(loaded[log.resolve()].name)
        else:
            name = path.resolve().name
            own.append(name if log == given else f"{given.resolve().name}/{path.name}")
    return own if len(set(own)) == len(own) else distinct_names(paths)
