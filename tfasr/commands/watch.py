"""``tfasr watch``: where runs stand, and when they will meet their targets."""

import argparse
import sys
import time
from pathlib import Path

from tfasr.commands.targets import add_target_arguments
from tfasr.errors import UsageError
from tfasr.kit.files import LOCK_FILE
from tfasr.reports.groups import run_folders
from tfasr.reports.numbers import ask
from tfasr.reports.watching import Watch, line, screen
from tfasr.tta.published import find_logs

EXAMPLE = "watch runs"

# The longest time between updates, in seconds: `time.sleep` can't wait much longer.
_MOST_S = 1e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the runs, their targets, and how often to look at them."""
    add = parser.add_argument
    add(
        "run_dirs",
        nargs="+",
        metavar="RUN_DIR",
        help="a run, even before it starts, a published log, or a folder of these",
    )
    add_target_arguments(add, policy="paper")
    add("--once", action="store_true", help="print the state once and exit")
    add(
        "--every_s",
        type=float,
        default=2.0,
        help="seconds between updates; default: %(default)s",
    )


def run(args: argparse.Namespace) -> int:
    """Shows the runs until all have ended, or once with ``--once``; returns 0.

    A terminal shows a table that changes in place; elsewhere there is a line for each
    change.
    """
    if not 0 < args.every_s <= _MOST_S:
        limits = f"more than 0, at most {_MOST_S:g}"
        raise UsageError(f"--every_s must be {limits}. Received: {args.every_s}.")

    asked = ask(args.target, args.policy, args.window)
    watch = Watch(_paths(args.run_dirs), asked.targets, asked.policy, asked.own_window)

    try:
        if args.once or not sys.stdout.isatty():
            _lines(watch, args.every_s, once=args.once)
        else:
            _live(watch, args.every_s)
    # Ctrl-C is the usual end of watching.
    except KeyboardInterrupt:
        pass

    return 0


def _paths(names: list[str]) -> list[Path]:
    """Returns the runs to watch: those in folders, and those that don't exist yet.

    A run is returned once, even if several names lead to it.

    Raises:
        UsageError: if a run could not start in its folder.
    """
    paths: list[Path] = []
    for path in map(Path, names):
        if not path.exists() and not path.parent.is_dir():
            raise UsageError(
                "A run to watch must exist, or start soon in an existing folder. "
                f"Received: {path}; there is no folder {path.parent}."
            )

        if not path.exists():
            paths.append(path)
            continue

        # A run that is about to start has an empty folder, or one with a lock.
        inside = []
        if path.is_dir():
            if not any(path.iterdir()) or (path / LOCK_FILE).exists():
                paths.append(path)
                continue

            # The runs of a study lie deeper than `find_logs` looks.
            inside = list(run_folders(path))

        paths += inside or find_logs(path)

    return list(dict.fromkeys(paths))


def _lines(watch: Watch, every_s: float, *, once: bool) -> None:
    """Prints a line whenever a run's state changes, until all have ended.

    Args:
        watch: looks at the runs.
        every_s: seconds between two looks.
        once: whether to look once only.
    """
    # What the last line on each run said.
    printed: dict[Path, tuple[object, ...]] = {}

    while True:
        runs = watch.look()
        for run in runs:
            news = (run.status, run.epoch, run.note)
            if printed.get(run.path) != news:
                printed[run.path] = news
                print(line(run), flush=True)

        if once or not any(run.goes_on for run in runs):
            return

        time.sleep(every_s)


def _live(watch: Watch, every_s: float) -> None:
    """Shows the runs' states in place, until all have ended.

    Args:
        watch: looks at the runs.
        every_s: seconds between two looks.
    """
    from rich.live import Live

    runs = watch.look()
    with Live(screen(runs), auto_refresh=False) as live:
        while any(run.goes_on for run in runs):
            time.sleep(every_s)
            runs = watch.look()
            live.update(screen(runs), refresh=True)
