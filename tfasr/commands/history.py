"""``tfasr history``: times to accuracy over commits, and which part of them became slower.

Exit codes: 0 no slowdown stands, 3 one does; 1 and 2 as everywhere.
"""

import argparse
import logging
import sys
from pathlib import Path

from tfasr.analysis.history import load_history
from tfasr.analysis.question import ask
from tfasr.display.text import to_markdown, to_text
from tfasr.durable import write_whole
from tfasr.errors import UsageError
from tfasr.reports.history import history_chart, history_json, history_table
from tfasr.tta.policies import POLICIES

SLOWER = 3
"""The exit code where a slowdown stands."""

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="holds run folders, also within folders of commits")
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="METRIC=VALUE",
        help="such as cer=0.10, a fraction; default: the hardest that all runs set",
    )
    parser.add_argument(
        "--policy", choices=sorted(POLICIES), default="paper", help="default: %(default)s"
    )
    parser.add_argument("--window", type=int, help="evaluations whose median must meet the target")
    parser.add_argument(
        "--since",
        default="",
        metavar="COMMIT|DATE",
        help="leave out what was before, so that a slowdown that is accepted is told no more",
    )
    parser.add_argument(
        "--force", action="store_true", help="keep runs of other configurations in the history"
    )
    parser.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    parser.add_argument("--out", metavar="DIR", help="also write history.png, .svg, .json and .md")


def run(args: argparse.Namespace) -> int:
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
        from tfasr.display.pictures import write_chart

        out = Path(args.out)
        out.mkdir(parents=True, exist_ok=True)
        write_chart(history_chart(history), out)
        write_whole(out / "history.json", as_json)
        write_whole(out / "history.md", to_markdown([table]))
        _log.info("Wrote %s.", out / "history.png")
    return SLOWER if history.standing() else 0
