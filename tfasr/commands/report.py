"""``tfasr report``: time to accuracy of any number of runs, as tables, figures and a page."""

import argparse
import logging
import sys
from pathlib import Path

from tfasr.reports.write import JSON, WRITERS, report
from tfasr.tta.policies import POLICIES
from tfasr.tta.published.results import SOURCES

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to a parser."""
    parser.add_argument(
        "run_dirs",
        nargs="+",
        metavar="RUN_DIR",
        help="a run's folder, a published log, or a folder of either",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="also write report.html, figures and tables to this folder"
    )
    parser.add_argument(
        "--format", choices=(*WRITERS, JSON), default="table", help="default: %(default)s"
    )
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="METRIC=VALUE",
        help="such as cer=0.10, a fraction; repeatable; default: the targets the runs set",
    )
    parser.add_argument(
        "--policy",
        choices=sorted(POLICIES),
        help="the clock and the rule; naming one also shows the others, and makes JSON by groups",
    )
    parser.add_argument(
        "--window", type=int, help="evaluations whose median must meet the target; paper: 3"
    )
    parser.add_argument(
        "--power", action="store_true", help="also say how many runs would show a gap of 10 %%"
    )
    parser.add_argument(
        "--force", action="store_true", help="compare runs that are not comparable, and say why"
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="also say which group is faster at which target, over all that they reached",
    )
    parser.add_argument(
        "--hardware",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="the machine of all runs or of the run or folder NAME: a gin file, a preset such as "
        "paper_sys1, or a system.json; repeatable; default: what the runs recorded",
    )
    parser.add_argument(
        "--price_usd_per_hour", type=float, help="the machines' rent, instead of their files'"
    )
    parser.add_argument(
        "--beside",
        choices=SOURCES,
        help="whose published results to show in the same tables, never ranked against the runs",
    )
    _add_error_arguments(parser)


def _add_error_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments on errors to the parser of ``tfasr report``."""
    parser.add_argument(
        "--errors",
        action="store_true",
        help="what the runs' hypotheses get wrong, with intervals and tests, instead of times; "
        "files of hypotheses (ours, or NeMo manifests with pred_text) may stand beside runs",
    )
    parser.add_argument(
        "--worst",
        type=int,
        default=10,
        metavar="N",
        help="utterances of which --errors shows the alignment; default: %(default)s",
    )


def run(args: argparse.Namespace) -> int:
    """Writes the report that parsed arguments ask for to stdout; returns the exit status 0."""
    text = report(
        args.run_dirs,
        out=args.out,
        output_format=args.format,
        targets=args.target,
        policy=args.policy,
        window=args.window,
        power=args.power,
        force=args.force,
        profile=args.profile,
        hardware=args.hardware,
        price_usd_per_hour=args.price_usd_per_hour,
        errors=args.errors,
        worst=args.worst,
        many=True,
        beside=args.beside,
    )
    sys.stdout.write(text)
    if args.out is not None:
        _log.info("Wrote %s.", Path(args.out) / "report.html")
    return 0
