"""``tfasr watch``: where runs stand, and when they will meet their targets."""

import argparse
import sys
import time
from pathlib import Path

from tfasr.analysis.folders import run_folders
from tfasr.analysis.question import ask
from tfasr.analysis.watching import Watch, Watched
from tfasr.errors import UsageError
from tfasr.reports.watching import line, screen
from tfasr.run_files import LOCK_FILE
from tfasr.tta.policies import POLICIES
from tfasr.tta.published import find_logs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dirs",
        nargs="+",
        metavar="RUN_DIR",
        help="a run's folder, also of one yet to begin, a published log, or a folder of either",
    )
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="METRIC=VALUE",
        help="such as wer=0.20, a fraction; repeatable; default: the targets the run set",
    )
    parser.add_argument(
        "--policy", choices=sorted(POLICIES), default="paper", help="default: %(default)s"
    )
    parser.add_argument("--window", type=int, help="evaluations whose median must meet the target")
    parser.add_argument("--once", action="store_true", help="look once, and do not wait")
    parser.add_argument(
        "--every_s", type=float, default=2.0, help="seconds between looks; default: %(default)s"
    )


def run(args: argparse.Namespace) -> int:
    if not args.every_s > 0:
        raise UsageError(f"--every_s must be more than 0. Received: {args.every_s}.")
    asked = ask(args.target, args.policy, args.window)
    watch = Watch(_paths(args.run_dirs), asked.targets, asked.policy, asked.own_window)
    try:
        if args.once or not sys.stdout.isatty():
            _lines(watch, args.every_s, once=args.once)
        else:
            _live(watch, args.every_s)
    except KeyboardInterrupt:  # the usual end of watching
        pass
    return 0


def _paths(given: list[str]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, given):
        parent = path.parent
        if not path.exists() and not parent.is_dir():
            raise UsageError(
                f"A run to watch must be there or be about to begin in a folder that is. "
                f"Received: {path}; there is no folder {parent}."
            )
        empty = path.is_dir() and not any(path.iterdir())
        if not path.exists() or empty or _begins(path):
            found.append(path)
        else:
            # A study keeps its runs deeper than a group of logs does.
            found += (path.is_dir() and list(run_folders(path))) or find_logs(path)
    return list(dict.fromkeys(found))


def _begins(path: Path) -> bool:
    return path.is_dir() and (path / LOCK_FILE).exists()


def _lines(watch: Watch, every_s: float, *, once: bool) -> None:
    said: dict[Path, tuple[object, ...]] = {}
    while True:
        runs = watch.look()
        for one in runs:
            news = (one.status, one.epoch, one.note)
            if said.get(one.path) != news:
                said[one.path] = news
                print(line(one), flush=True)
        if once or not _any_goes_on(runs):
            return
        time.sleep(every_s)


def _live(watch: Watch, every_s: float) -> None:
    from rich.live import Live

    runs = watch.look()
    with Live(screen(runs), auto_refresh=False) as live:
        while _any_goes_on(runs):
            time.sleep(every_s)
            runs = watch.look()
            live.update(screen(runs), refresh=True)


def _any_goes_on(runs: list[Watched]) -> bool:
    return any(one.goes_on for one in runs)
