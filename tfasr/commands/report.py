"""``tfasr report``: time to accuracy of any number of runs, as tables, figures and a page."""

import argparse
import itertools
import json
import logging
import sys
from pathlib import Path

from tfasr.commands.targets import (
    add_hardware_arguments,
    add_target_arguments,
    add_text_rule_arguments,
)
from tfasr.display.table import to_markdown
from tfasr.errors import UsageError, imported
from tfasr.kit.files import check_owned, object_or_empty, write_whole
from tfasr.reports.groups import run_folders
from tfasr.reports.numbers import ask, distinct_names, merged_targets
from tfasr.reports.write import CARD, CARD_JSON, JSON, WRITERS, report
from tfasr.tta.metrics import Metrics
from tfasr.tta.published import find_logs, load_log
from tfasr.tta.published.results import SOURCES
from tfasr.tta.run import load_run

EXAMPLE = "report runs --out report"

# The formats of ``--history``, which has one table and no page.
HISTORY_FORMATS = ("table", "markdown", "json")

# The exit code if some commit slowed training down, so that a script can tell it from a
# failure.
SLOWER = 3

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags: the runs, what to show of them, how, and where to write it."""
    add = parser.add_argument
    add(
        "run_dirs",
        nargs="+",
        metavar="RUN_DIR",
        help="a run, a published log, or a folder of them",
    )
    add(
        "--out",
        metavar="DIR",
        help="also write report.html, figures and tables to this folder",
    )

    written_as = (*WRITERS, JSON, CARD, CARD_JSON)
    add("--format", choices=written_as, default="table", help="default: %(default)s")

    add_target_arguments(add, None)
    add(
        "--power",
        action="store_true",
        help="also estimate how many runs prove a gap of 10 %%",
    )

    add(
        "--force",
        action="store_true",
        help="compare runs even if they are not comparable; list what differs",
    )

    machine = (
        "the machine that all runs used, or with NAME= the run or folder of that name: "
        "a gin file, a preset such as paper_sys1, or a system.json; repeatable; "
        "default: what the runs recorded"
    )
    add_hardware_arguments(
        add, machine, action="append", default=[], metavar="[NAME=]FILE"
    )

    add(
        "--beside",
        choices=SOURCES,
        help="show published results in the same tables, without ranking them",
    )

    add(
        "--explain",
        action="store_true",
        help="instead print how each time came about, with lines of events.jsonl",
    )

    add(
        "--errors",
        action="store_true",
        help=(
            "show what the runs get wrong, with intervals and tests, instead of times; "
            "files of hypotheses (tfasr's, or NeMo manifests with pred_text) may be "
            "given too"
        ),
    )

    add(
        "--worst",
        type=int,
        default=10,
        metavar="N",
        help="show N alignments with --errors; default: 10",
    )

    add_text_rule_arguments(add, "with --errors: ")

    add(
        "--history",
        action="store_true",
        help=(
            "show times over commits instead, from one folder, and which part of "
            "training became slower; exits with 3 if one did"
        ),
    )

    add(
        "--since",
        default="",
        metavar="COMMIT|DATE",
        help=(
            "with --history: leave out earlier runs, for instance once you accept a "
            "slowdown"
        ),
    )

    add(
        "--catalogue",
        metavar="DIR",
        help="write what the finished runs needed into a folder for tfasr estimate",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the report, or what another flag asks for; returns the exit code."""
    if args.since and not args.history:
        raise UsageError("--since needs --history. Received: no --history.")

    if args.history:
        return _history(args)

    if args.catalogue is not None:
        return _catalogue(args)

    # With --out, the page is written too, but not printed.
    if args.explain:
        sys.stdout.write(_explained(args))
        if args.out is None:
            return 0

    if not args.errors and (args.normalise or args.language):
        raise UsageError(
            "--normalise and --language need --errors. Received: no --errors."
        )

    text = report(
        args.run_dirs,
        output_format=args.format,
        many=True,
        targets=args.target,
        policy=args.policy,
        window=args.window,
        power=args.power,
        force=args.force,
        hardware=args.hardware,
        price_usd_per_hour=args.price_usd_per_hour,
        beside=args.beside,
        errors=args.errors,
        worst=args.worst,
        normalise=args.normalise or "",
        language=args.language or "",
        out=args.out,
    )
    if not args.explain:
        sys.stdout.write(text)
    if args.out is not None:
        _log.info("Wrote %s.", Path(args.out) / "report.html")

    return 0


def _catalogue(args: argparse.Namespace) -> int:
    """Writes what finished runs needed, for ``tfasr estimate``."""
    entries = imported("tfasr.estimates.entries", "--catalogue")
    runs = [
        load_run(path) for name in args.run_dirs for path in run_folders(Path(name))
    ]

    for path in entries.write_entries(runs, args.catalogue):
        print(f"Wrote {path}.")

    return 0


def _explained(args: argparse.Namespace) -> str:
    """Returns how each run's time came about, with the ledger's lines, as text.

    Raises:
        UsageError: if there is no target, or texts are asked for.
    """
    if args.errors:
        raise UsageError("--explain shows times, and --errors texts. Leave one out.")

    question = ask(args.target, args.policy or "paper", args.window)

    # A run that is named twice is explained once.
    logs = itertools.chain.from_iterable(map(find_logs, args.run_dirs))
    paths = list(dict.fromkeys(logs))
    names = distinct_names(paths)
    runs = [load_log(path, name) for path, name in zip(paths, names, strict=True)]

    metrics = Metrics()
    for run in runs:
        metrics.declare(run.declared_metrics, run.path)

    targets = question.targets
    if not targets:
        targets = merged_targets([run.targets for run in runs], metrics)
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
        values = [explanation.to_json() for explanation in explanations]
        return f"{json.dumps(values, indent=1)}\n"

    tables = [explanation.table() for explanation in explanations]
    return WRITERS.call(args.format, tables)


def _history(args: argparse.Namespace) -> int:
    """Shows times to accuracy over commits, and which part of training slowed down.

    Returns:
        The exit code: 0 without a slowdown, `SLOWER` with one.

    Raises:
        UsageError: for several folders or targets, or a format without a history.
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
        format_names = ", ".join(HISTORY_FORMATS)
        raise UsageError(
            f"--history has the formats {format_names}. Received: {args.format}."
        )

    if len(args.target) > 1:
        raise UsageError(
            f"A history needs exactly one target. Received: {args.target}."
        )

    # Without a target, the history is of the runs' own hardest one.
    asked = ask(args.target, args.policy or "paper", args.window)
    target = next(iter(asked.targets), None)

    # Files of others in --out are found before the work.
    if args.out is not None:
        files = [f"history.{suffix}" for suffix in ("json", "md", "png", "svg")]
        written = object_or_empty(Path(args.out, files[0]))
        owned = {"metric", "changes"} <= written.keys()
        check_owned(Path(args.out), "--out", "history of tfasr", files, owned=owned)

    history = load_history(
        args.run_dirs[0],
        target=target,
        policy=asked.policy,
        window=args.window,
        since=args.since,
        force=args.force,
    )
    tables = [history_table(history)]
    as_json = history_json(history)

    if args.format == "json":
        sys.stdout.write(as_json)
    else:
        sys.stdout.write(WRITERS.call(args.format, tables))

    if args.out is not None:
        # Imported here: drawing is slow to load.
        from tfasr.display.vega import write_chart

        out = Path(args.out)
        out.mkdir(parents=True, exist_ok=True)
        write_chart(history_chart(history), out)
        write_whole(out / "history.json", as_json)
        write_whole(out / "history.md", to_markdown(tables))
        _log.info("Wrote %s.", out / "history.png")

    if history.slower:
        return SLOWER

    return 0
