"""``tfasr watch``: where runs stand, and when they will meet their targets."""

import argparse
import logging
import sys
import time
from pathlib import Path

from tfasr.display.table import to_markdown, to_text
from tfasr.errors import UsageError
from tfasr.kit.files import LOCK_FILE, write_whole
from tfasr.reports.history import history_chart, history_json, history_table, load_history
from tfasr.reports.load import run_folders
from tfasr.reports.numbers import ask
from tfasr.reports.watching import Watch, Watched, line, screen
from tfasr.tta.policies import POLICIES
from tfasr.tta.published import find_logs

SLOWER = 3  # the exit code if a slowdown stands
_log = logging.getLogger(__name__)


def add_history_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", help="holds run folders, also within folders of commits")
    add(
        "--target",
        action="append",
        default=[],
        metavar="METRIC=VALUE",
        help="such as cer=0.10, a fraction; default: the hardest that all runs set",
    )
    add("--policy", choices=sorted(POLICIES), default="paper", help="default: %(default)s")
    add("--window", type=int, help="evaluations whose median must meet the target")
    add(
        "--since",
        default="",
        metavar="COMMIT|DATE",
        help="leave out what was before, so that a slowdown that is accepted is told no more",
    )
    add("--force", action="store_true", help="keep runs of other configurations in the history")
    add("--format", choices=("table", "markdown", "json"), default="table")
    add("--out", metavar="DIR", help="also write history.png, .svg, .json and .md")


def run_history(args: argparse.Namespace) -> int:
    """``tfasr history``: times to accuracy over commits, and which part of them became slower.

    Exit codes: 0 no slowdown stands, 3 one does; 1 and 2 as everywhere.
    """
    if len(args.target) > 1:
        raise UsageError(f"A history must be of one target. Received: {args.target}.")
    asked = ask(args.target, args.policy, args.window)
    history = load_history(
        args.folder,
        target=asked.targets[0] if asked.targets else None,
        policy=asked.policy,
        window=args.window,
        since=args.since,
        force=args.force,
    )
    table = history_table(history)
    writers = {"table": to_text, "markdown": to_markdown}
    as_json = history_json(history)
    text = as_json if args.format == "json" else writers[args.format]([table])
    sys.stdout.write(text)
    if args.out is not None:
        # Imported here: drawing is slow to load.
        from tfasr.display.vega import write_chart

        out = Path(args.out)
        out.mkdir(parents=True, exist_ok=True)
        write_chart(history_chart(history), out)
        write_whole(out / "history.json", as_json)
        write_whole(out / "history.md", to_markdown([table]))
        _log.info("Wrote %s.", out / "history.png")
    return SLOWER if history.standing() else 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "run_dirs",
        nargs="+",
        metavar="RUN_DIR",
        help="a run's folder, also of one yet to begin, a published log, or a folder of either",
    )
    add(
        "--target",
        action="append",
        default=[],
        metavar="METRIC=VALUE",
        help="such as wer=0.20, a fraction; repeatable; default: the targets the run set",
    )
    add("--policy", choices=sorted(POLICIES), default="paper", help="default: %(default)s")
    add("--window", type=int, help="evaluations whose median must meet the target")
    add("--once", action="store_true", help="look once, and do not wait")
    add("--every_s", type=float, default=2.0, help="seconds between looks; default: %(default)s")


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
