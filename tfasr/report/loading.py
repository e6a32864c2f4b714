"""From paths to a report: which runs lie there, which of them form a group, what they say."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError
from tfasr.report.analysis import Report, analyse_run, compare
from tfasr.report.grouping import configuration, named_groups
from tfasr.report.naming import Target, distinct_names, merged_targets
from tfasr.tta.foreign import find_logs, load_log
from tfasr.tta.run import Run, read_targets

_log = logging.getLogger(__name__)


def load_report(
    sources: Sequence[str | Path | Run], asked: Sequence[Target], *, force: bool, **options: Any
) -> Report:
    """Returns the report on runs; those that come as paths are let go one by one.

    Args:
        sources: run folders, published logs, folders of either, each of which is a group, and
            runs that are loaded already.
        asked: metrics and values; by default those that the runs set themselves.
        force: see `tfasr.report.analysis.compare`.
        **options: see `tfasr.report.analysis.analyse_run`; ``policy`` and ``window`` among them.

    Raises:
        UsageError: if there is no run, or a path holds none.
    """
    loaded = {source.path.resolve(): source for source in sources if isinstance(source, Run)}
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
    # Targets have to be known before any run is analysed, and runs are let go one by one.
    wanted = list(asked) or merged_targets(
        loaded[log.resolve()].targets if log.resolve() in loaded else read_targets(log)
        for log, _ in found
    )
    wanted = list(dict.fromkeys(wanted))
    analysed, configurations = [], []
    for (log, given), name in zip(found, _names(found, loaded), strict=True):
        one = loaded.get(log.resolve()) or load_log(log, name)
        # A folder of runs is a group by being one, single runs by their configuration.
        configurations.append(str(given.resolve()) if log != given else configuration(one))
        analysed.append(replace(analyse_run(one, wanted, **options), name=name))
    grouped = named_groups(analysed, configurations)
    policy, window = options["policy"], options["window"]
    return compare(grouped, wanted, policy=policy, window=window, force=force, notes=notes)


def _names(found: Sequence[tuple[Path, Path]], loaded: dict[Path, Run]) -> list[str]:
    """Returns the runs' names: those of a folder of runs carry the folder's."""
    paths = [log.with_suffix("") if log.is_file() else log for log, _ in found]
    own = []
    for path, (log, given) in zip(paths, found, strict=True):
        if log.resolve() in loaded:
            own.append(loaded[log.resolve()].name)
        else:
            name = path.resolve().name
            own.append(name if log == given else f"{given.resolve().name}/{path.name}")
    return own if len(set(own)) == len(own) else distinct_names(paths)
