"""``tfasr report``: time to accuracy of any number of runs, as tables, figures and a page."""

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfasr.display.table import to_markdown
from tfasr.errors import UsageError, imported
from tfasr.kit.files import LOCK_FILE, check_owned, object_or_empty, write_whole
from tfasr.normalisers import NORMALISERS
from tfasr.reports.groups import run_folders
from tfasr.reports.numbers import ask, distinct_names, merged_targets
from tfasr.reports.watching import Watch, line, screen
from tfasr.reports.write import CARD, CARD_JSON, JSON, WRITERS, report
from tfasr.tta.policies import POLICIES
from tfasr.tta.published import find_logs, load_log
from tfasr.tta.published.results import SOURCES
from tfasr.tta.run import load_run

HISTORY_FORMATS = ("table", "markdown", "json")
SLOWER = 3  # the exit code if some commit slowed training down
_MOST_S = 1e9
_log = logging.getLogger(__name__)


def add_target_arguments(
    add: Callable,
    policy: str | None,
    targets: str = "repeatable; default: the runs' targets",
) -> None:
    """Adds --target, --policy and --window.

    Args:
        add: the parser's ``add_argument``.
        policy: the default of --policy, or None if its absence has a meaning.
        targets: what the help of --target adds.
    """
    metric = f"such as cer=0.10, a fraction; {targets}"
    add("--target", action="append", default=[], metavar="METRIC=VALUE", help=metric)
    rule = "how time is counted and when a target is met; default: paper"
    if policy is None:
        rule += "; if given, tables show all policies, and JSON has one object a group"
    add("--policy", choices=sorted(POLICIES), default=policy, help=rule)
    median = "evaluations whose median must meet the target; default: the policy's, 3 for paper"
    add("--window", type=int, help=median)


def add_hardware_arguments(add: Callable, machine: str, **options: Any) -> None:
    """Adds --hardware, explained by ``machine``, and --price_usd_per_hour.

    ``options`` are further arguments of ``add_argument`` for --hardware.
    """
    add("--hardware", help=machine, **{"metavar": "FILE", **options})
    rent = "rent, instead of the price in the file"
    add("--price_usd_per_hour", type=_usd, metavar="USD", help=rent)


def _usd(text: str) -> float:
    """Converts a flag's value to US dollars; argparse reports what it can't convert."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a number of US dollars; tfasr converts no currency. Received: {text}"
        ) from None


def add_text_rule_arguments(add: Callable, when: str = "") -> None:
    """Adds --normalise and --language, whose help begins with ``when``."""
    rule = "normalise references and hypotheses before they are compared; docs/languages.md"
    add("--normalise", choices=tuple(NORMALISERS), help=f"{when}{rule}")
    language = (
        "BCP 47 tag of the texts, such as tr, whose rules for upper and lower case hold"
    )
    add("--language", metavar="TAG", help=f"{when}{language}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    runs = "a run, a published log, or a folder of them"
    add("run_dirs", nargs="+", metavar="RUN_DIR", help=runs)
    add(
        "--out",
        metavar="DIR",
        help="also write report.html, figures and tables to this folder",
    )

    written_as = (*WRITERS, JSON, CARD, CARD_JSON)
    add("--format", choices=written_as, default="table", help="default: %(default)s")

    # How times are computed, and which runs may be compared.
    add_target_arguments(add, None)
    add(
        "--power",
        action="store_true",
        help="also estimate how many runs prove a gap of 10 %%",
    )

    force = "compare runs even if they are not comparable; list what differs"
    add("--force", action="store_true", help=force)

    # What the times cost, and others' results.
    machine = (
        "the machine that all runs used, or with NAME= the run or folder of that name: a gin file, "
        "a preset such as paper_sys1, or a system.json; repeatable; default: what the runs recorded"
    )
    repeated = {"action": "append", "default": [], "metavar": "[NAME=]FILE"}
    add_hardware_arguments(add, machine, **repeated)

    published = "show published results in the same tables, without ranking them"
    add("--beside", choices=SOURCES, help=published)

    # What to show instead of times.
    explain = "instead print how each time came about, with lines of events.jsonl"
    add("--explain", action="store_true", help=explain)

    errors = (
        "show what the runs get wrong, with intervals and tests, instead of times; files of "
        "hypotheses (tfasr's, or NeMo manifests with pred_text) may be given too"
    )
    add("--errors", action="store_true", help=errors)

    worst = "show N alignments with --errors; default: 10"
    add("--worst", type=int, default=10, metavar="N", help=worst)
    add_text_rule_arguments(add, "with --errors: ")

    history = (
        "show times over commits instead, from one folder, and which part of training became "
        "slower; exits with 3 if one did"
    )
    add("--history", action="store_true", help=history)

    since = "with --history: leave out earlier runs, for instance once you accept a slowdown"
    add("--since", default="", metavar="COMMIT|DATE", help=since)

    catalogue = "write what the finished runs needed into a folder for tfasr estimate"
    add("--catalogue", metavar="DIR", help=catalogue)


def run(args: argparse.Namespace) -> int:
    """Prints the report that the flags ask for; returns the exit code.

    The flags --history, --catalogue and --explain replace it by something else.
    """
    if args.since and not args.history:
        raise UsageError("--since needs --history. Received: no --history.")
    if args.history:
        return _history(args)
    if args.catalogue is not None:
        return _catalogue(args)
    if args.explain:
        sys.stdout.write(_explained(args))
        if args.out is None:
            return 0

    names = ("out", "policy", "window", "power", "force", "hardware", "errors", "worst")
    names += ("price_usd_per_hour", "beside")
    options = {name: getattr(args, name) for name in names} | {"targets": args.target}
    options |= {"normalise": args.normalise or "", "language": args.language or ""}

    if not args.errors and (args.normalise or args.language):
        raise UsageError(
            "--normalise and --language need --errors. Received: no --errors."
        )
    text = report(args.run_dirs, output_format=args.format, many=True, **options)
    if not args.explain:
        sys.stdout.write(text)
    if args.out is not None:
        _log.info("Wrote %s.", Path(args.out) / "report.html")
    return 0


def _catalogue(args: argparse.Namespace) -> int:
    """Writes what the finished runs needed into the folder of --catalogue."""
    entries = imported("tfasr.estimates.entries", "--catalogue")
    paths = [path for name in args.run_dirs for path in run_folders(Path(name))]
    for path in entries.write_entries(
        [load_run(path) for path in paths], args.catalogue
    ):
        print(f"Wrote {path}.")
    return 0


def _explained(args: argparse.Namespace) -> str:
    """Returns how each time to accuracy came about, in the format of --format."""
    if args.errors:
        raise UsageError("--explain shows times, and --errors texts. Leave one out.")
    question = ask(args.target, args.policy or "paper", args.window)
    paths = list(
        dict.fromkeys(log for path in args.run_dirs for log in find_logs(path))
    )
    names = distinct_names(paths)
    runs = [load_log(path, name) for path, name in zip(paths, names, strict=True)]
    targets = question.targets or merged_targets(run.targets for run in runs)
    if not targets:
        raise UsageError(
            "These runs set no target. Name one, such as --target cer=0.10."
        )
    explanations = [
        run.explain(policy=question.policy, window=question.window, **{metric: value})
        for run in runs
        for metric, value in targets
    ]
    if args.format == JSON:
        return (
            json.dumps(
                [explanation.to_json() for explanation in explanations], indent=1
            )
            + "\n"
        )
    return WRITERS.call(
        args.format, [explanation.table() for explanation in explanations]
    )


def _history(args: argparse.Namespace) -> int:
    """Shows times to accuracy over commits, and which part of training slowed down.

    Returns the exit code: 0 without a slowdown, 3 with one.
    """
    # Imported here, because a report must not wait for SciPy.
    from tfasr.reports.history import (
        history_chart,
        history_json,
        history_table,
        load_history,
    )

    if len(args.run_dirs) > 1:
        raise UsageError(
            f"--history reads one folder of runs. Received: {args.run_dirs}."
        )
    if args.format not in HISTORY_FORMATS:
        known = ", ".join(HISTORY_FORMATS)
        raise UsageError(f"--history has the formats {known}. Received: {args.format}.")

    if len(args.target) > 1:
        raise UsageError(
            f"A history needs exactly one target. Received: {args.target}."
        )
    asked = ask(args.target, args.policy or "paper", args.window)
    target = asked.targets[0] if asked.targets else None
    options = {"policy": asked.policy, "window": args.window, "since": args.since}

    if args.out is not None:
        files = [f"history.{suffix}" for suffix in ("json", "md", "png", "svg")]
        owned = {"metric", "changes"} <= object_or_empty(
            Path(args.out, files[0])
        ).keys()
        check_owned(Path(args.out), "--out", "history of tfasr", files, owned=owned)

    history = load_history(args.run_dirs[0], target=target, force=args.force, **options)
    tables = [history_table(history)]
    as_json = history_json(history)
    sys.stdout.write(
        as_json if args.format == "json" else WRITERS.call(args.format, tables)
    )

    if args.out is not None:
        # Imported here: drawing is slow to load.
        from tfasr.display.vega import write_chart

        out = Path(args.out)
        out.mkdir(parents=True, exist_ok=True)
        write_chart(history_chart(history), out)
        write_whole(out / "history.json", as_json)
        write_whole(out / "history.md", to_markdown(tables))
        _log.info("Wrote %s.", out / "history.png")

    return SLOWER if history.slower else 0


def add_watch_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    runs = "a run, even before it starts, a published log, or a folder of these"
    add("run_dirs", nargs="+", metavar="RUN_DIR", help=runs)
    add_target_arguments(add, policy="paper")
    add("--once", action="store_true", help="print the state once and exit")
    add(
        "--every_s",
        type=float,
        default=2.0,
        help="seconds between updates; default: %(default)s",
    )


def run_watch(args: argparse.Namespace) -> int:
    """``tfasr watch``: where runs stand, and when they will meet their targets."""
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
    except KeyboardInterrupt:  # the usual end of watching
        pass

    return 0


def _paths(names: list[str]) -> list[Path]:
    """Returns the runs and logs to watch, each once.

    A folder that a run may still be started in counts as a run. Raises UsageError for a path
    that can't become one.
    """
    paths: list[Path] = []
    for path in map(Path, names):
        if not path.exists() and not path.parent.is_dir():
            raise UsageError(
                f"A run to watch must exist, or start soon in an existing folder. "
                f"Received: {path}; there is no folder {path.parent}."
            )

        folder = path.is_dir()
        if (
            not path.exists()
            or folder
            and (not any(path.iterdir()) or (path / LOCK_FILE).exists())
        ):
            paths.append(path)
        else:
            # The runs of a study lie deeper than find_logs looks.
            paths += (folder and list(run_folders(path))) or find_logs(path)

    return list(dict.fromkeys(paths))


def _lines(watch: Watch, every_s: float, *, once: bool) -> None:
    """Prints a line for each run whose state has changed, until all runs have ended."""
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
    """Shows a table of all runs that is updated in place, until all runs have ended."""
    from rich.live import Live

    runs = watch.look()
    with Live(screen(runs), auto_refresh=False) as live:
        while any(run.goes_on for run in runs):
            time.sleep(every_s)
            runs = watch.look()
            live.update(screen(runs), refresh=True)
