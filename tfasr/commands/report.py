"""``tfasr report``: time to accuracy of any number of runs, as tables, figures and a page."""

import argparse
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from tfasr.errors import UsageError
from tfasr.reports.numbers import ask, distinct_names, merged_targets
from tfasr.reports.write import CARD, CARD_JSON, JSON, WRITERS, report
from tfasr.tta.policies import POLICIES
from tfasr.tta.published import find_logs, load_log
from tfasr.tta.published.results import SOURCES

_log = logging.getLogger(__name__)


def add_target_arguments(
    add: Callable, policy: str | None, targets: str = "repeatable; default: the runs' targets"
) -> None:
    metric = f"such as cer=0.10, a fraction; {targets}"
    add("--target", action="append", default=[], metavar="METRIC=VALUE", help=metric)
    rule = "how time is counted and when a target is met; default: paper"
    rule += (
        "" if policy else "; if given, tables show all policies, and JSON has one object a group"
    )
    add("--policy", choices=sorted(POLICIES), default=policy, help=rule)
    median = "evaluations whose median must meet the target; default: the policy's, 3 for paper"
    add("--window", type=int, help=median)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    runs = "a run, a published log, or a folder of them"
    add("run_dirs", nargs="+", metavar="RUN_DIR", help=runs)
    add("--out", metavar="DIR", help="also write report.html, figures and tables to this folder")
    written_as = (*WRITERS, JSON, CARD, CARD_JSON)
    add("--format", choices=written_as, default="table", help="default: %(default)s")
    add_target_arguments(add, None)
    add("--power", action="store_true", help="also estimate how many runs prove a gap of 10 %%")
    add(
        "--force",
        action="store_true",
        help="compare runs even if they are not comparable; list what differs",
    )
    add("--profile", action="store_true", help="also show which group reaches which targets first")
    machine = (
        "the machine that all runs used, or with NAME= the run or folder of that name: a gin file, "
        "a preset such as paper_sys1, or a system.json; repeatable; default: what the runs recorded"
    )
    add("--hardware", action="append", default=[], metavar="[NAME=]FILE", help=machine)
    add(
        "--price_usd_per_hour",
        type=float,
        help="rent of the machines, instead of the price in their files",
    )
    published = "show published results in the same tables, without ranking them"
    add("--beside", choices=SOURCES, help=published)
    explain = "instead print how each time came about, with lines of events.jsonl"
    add("--explain", action="store_true", help=explain)
    errors = (
        "show what the runs get wrong, with intervals and tests, instead of times; files of "
        "hypotheses (tfasr's, or NeMo manifests with pred_text) may be given too"
    )
    add("--errors", action="store_true", help=errors)
    worst = "show N alignments with --errors; default: 10"
    add("--worst", type=int, default=10, metavar="N", help=worst)


def run(args: argparse.Namespace) -> int:
    if args.explain:
        sys.stdout.write(_explained(args))
        if args.out is None:
            return 0
    names = ("out", "policy", "window", "power", "force", "profile", "hardware", "errors", "worst")
    text = report(
        args.run_dirs,
        output_format=args.format,
        targets=args.target,
        price_usd_per_hour=args.price_usd_per_hour,
        many=True,
        beside=args.beside,
        **{name: getattr(args, name) for name in names},
    )
    if not args.explain:
        sys.stdout.write(text)
    if args.out is not None:
        _log.info("Wrote %s.", Path(args.out) / "report.html")
    return 0


def _explained(args: argparse.Namespace) -> str:
    if args.errors:
        raise UsageError("--explain shows times, and --errors texts. Leave one out.")
    question = ask(args.target, args.policy or "paper", args.window)
    paths = list(dict.fromkeys(log for path in args.run_dirs for log in find_logs(path)))
    names = distinct_names(paths)
    runs = [load_log(path, name) for path, name in zip(paths, names, strict=True)]
    targets = question.targets or merged_targets(run.targets for run in runs)
    if not targets:
        raise UsageError("These runs set no target. Name one, such as --target cer=0.10.")
    explanations = [
        run.explain(policy=question.policy, window=question.window, **{metric: value})
        for run in runs
        for metric, value in targets
    ]
    if args.format == JSON:
        return json.dumps([explanation.to_json() for explanation in explanations], indent=1) + "\n"
    return WRITERS.call(args.format, [explanation.table() for explanation in explanations])
