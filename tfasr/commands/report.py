"""``tfasr report``: time to accuracy of any number of runs, as tables, figures and a page."""

import argparse
import logging
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tfasr.analysis.charges import Machines
from tfasr.analysis.groups import GroupResult, group_results
from tfasr.analysis.load import load_report
from tfasr.analysis.question import ask
from tfasr.analysis.report import Report
from tfasr.commands.report_errors import add_error_arguments, errors_alone, errors_text, logs_among
from tfasr.display.csv_text import to_csv
from tfasr.display.latex import to_latex
from tfasr.display.table import Table
from tfasr.display.text import to_markdown, to_text
from tfasr.durable import write_whole
from tfasr.errors import RunError, UsageError
from tfasr.report.exports import write_tables
from tfasr.report.json_text import groups_to_json, to_json
from tfasr.report.tables.costs import cost_tables
from tfasr.report.tables.groups import factor_tables, group_tables, policy_tables
from tfasr.report.tables.paper import paper_tables
from tfasr.report.tables.runs import tables
from tfasr.tta.policies import PAPER, POLICIES, Policy
from tfasr.tta.targets import Target

WRITERS = {"table": to_text, "markdown": to_markdown, "latex": to_latex, "csv": to_csv}
FORMATS = (*WRITERS, "json")

_log = logging.getLogger(__name__)


def report(
    run_dirs: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    output_format: str = "table",
    targets: Iterable[str | Target] = (),
    policy: str | Policy | None = None,
    window: int | None = None,
    power: bool = False,
    force: bool = False,
    hardware: Iterable[str] = (),
    price_usd_per_hour: float | None = None,
    errors: bool = False,
    worst: int = 10,
    many: bool = False,
) -> str:
    """Returns the report on runs as text; with ``out`` also writes figures and ``report.html``.

    Args:
        run_dirs: run folders, published logs, or folders of either, each of which is a group of
            runs of one configuration; the first is the one that others are compared with.
        out: a folder for ``report.html``, ``report.md``, ``report.json``, a CSV and a LaTeX file
            of each table and a PNG and an SVG of each figure; it is made where missing.
        output_format: "table", "markdown", "latex", "csv" or "json". LaTeX and CSV hold all
            tables; CSV holds seconds and fractions, unrounded.
        targets: metrics and values, as ``("cer", 0.10)`` or "cer=0.10"; by default those that
            the runs set themselves.
        policy: the clock and the rule, or their name, see `tfasr.tta.policies`; "paper" by default.
            Where it is named, the tables show all policies beside it, and JSON is by groups.
        window: the evaluations whose median must meet a target; by default the policy's.
        power: also say how many runs would show a gap of 10 %.
        force: compare runs whose results are not comparable, and say what differs.
        hardware: machines, "FILE" for all runs or "NAME=FILE" for the run or folder of that name;
            by default what a run's own ledger says.
        price_usd_per_hour: the machines' rent, instead of what their descriptions state.
        errors: return what the runs' hypotheses get wrong instead, see `tfasr.analysis.errors`;
            ``run_dirs`` may then hold files of hypotheses too.
        worst: of how many utterances to show the alignment then.
        many: read many runs in several processes, see `tfasr.analysis.workers`.

    Raises:
        UsageError: if there is no run, a folder holds none, or an argument is wrong.
        RunError: if ``out`` cannot be written.
    """
    if output_format not in FORMATS:
        raise UsageError(f"The format must be one of {FORMATS}. Received: {output_format!r}.")
    full = policy is not None or output_format in ("latex", "csv")
    question = ask(
        targets,
        policy or PAPER,
        window,
        beside=POLICIES.values() if full or out is not None else (),
        over_time=out is not None,
        force=force,
    )
    logs = logs_among(run_dirs) if errors else run_dirs
    if errors and not logs:
        return errors_alone(run_dirs, worst, output_format, out)
    analysed = load_report(
        logs, question, machines=Machines(hardware, price_usd_per_hour), many=many
    )
    results = group_results(analysed)
    wrong, appendix = "", ""
    if errors:
        wrong, appendix = errors_text(run_dirs, analysed.runs, worst, output_format, out)
    if out is not None:
        _write(analysed, results, Path(out), power=power, appendix=appendix)
    if errors:
        return wrong
    if output_format == "json":
        return to_json(analysed) if policy is None else groups_to_json(analysed, results)
    return WRITERS[output_format](_tables(analysed, results, full=full, power=power))


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
    parser.add_argument("--format", choices=FORMATS, default="table", help="default: %(default)s")
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
    add_error_arguments(parser)


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
        hardware=args.hardware,
        price_usd_per_hour=args.price_usd_per_hour,
        errors=args.errors,
        worst=args.worst,
        many=True,
    )
    sys.stdout.write(text)
    if args.out is not None:
        _log.info("Wrote %s.", Path(args.out) / "report.html")
    return 0


def _tables(
    analysed: Report, results: list[list[GroupResult]], *, full: bool, power: bool
) -> list[Table]:
    first, *others = tables(analysed)
    more = group_tables(analysed, results, power=power)
    more += factor_tables(analysed, results)
    more += cost_tables(analysed)
    more += [*policy_tables(analysed), *paper_tables(analysed, results)] if full else []
    return [first, *more, *others]


def _write(
    analysed: Report, results: list[list[GroupResult]], out: Path, *, power: bool, appendix: str
) -> None:
    # Imported here: drawing is the slowest thing to load, and text does without.
    from tfasr.report.page.page import write_page

    shown = _tables(analysed, results, full=True, power=power)
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / "report.json", to_json(analysed))
        write_whole(out / "groups.json", groups_to_json(analysed, results))
        write_whole(out / "report.md", to_markdown(shown))
        write_tables(shown, out)
        write_page(analysed, out, shown, appendix, results=results)
    except OSError as error:
        raise RunError(
            f"The report must be written to {out}, and could not be: {error}. "
            "Choose another --out, or make room."
        ) from error
