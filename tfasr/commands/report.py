"""``tfasr report``: time to accuracy of any number of runs, as tables, figures and a page."""

import argparse
import logging
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tfasr.errors import RunError, UsageError
from tfasr.report.analysis import Report, analyse_run, compare
from tfasr.report.formats import groups_to_json, to_json, to_markdown, to_text
from tfasr.report.grouping import GroupResult, configuration, group_results, named_groups
from tfasr.report.naming import Target, check_target, distinct_names, merged_targets, parse_target
from tfasr.report.science_tables import factor_tables, group_tables, policy_tables
from tfasr.report.tables import Table, tables
from tfasr.tta.foreign import find_logs, load_log
from tfasr.tta.policies import POLICIES
from tfasr.tta.run import read_targets

FORMATS = ("table", "markdown", "json")

_log = logging.getLogger(__name__)


def report(
    run_dirs: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    output_format: str = "table",
    targets: Iterable[str | Target] = (),
    policy: str | None = None,
    window: int | None = None,
    power: bool = False,
    force: bool = False,
) -> str:
    """Returns the report on runs as text; with ``out`` also writes figures and ``report.html``.

    Args:
        run_dirs: run folders, published logs, or folders of either, each of which is a group of
            runs of one configuration; the first is the one that others are compared with.
        out: a folder for ``report.html``, ``report.md``, ``report.json``, a PNG and an
            SVG of each figure; it is made where missing.
        output_format: "table", "markdown" or "json".
        targets: metrics and values, as ``("cer", 0.10)`` or "cer=0.10"; by default those that
            the runs set themselves.
        policy: the clock and the rule, see `tfasr.tta.policies`; "paper" by default. Where it is
            named, the tables show all policies beside it, and JSON is by groups of runs.
        window: the evaluations whose median must meet a target; by default the policy's.
        power: also say how many runs would show a gap of 10 %.
        force: compare runs whose results are not comparable, and say what differs.

    Raises:
        UsageError: if there is no run, a folder holds none, or an argument is wrong.
        RunError: if ``out`` cannot be written.
    """
    _check(output_format, policy, window)
    asked = [parse_target(t) if isinstance(t, str) else check_target(*t) for t in targets]
    analysed = _analyse(
        run_dirs,
        asked,
        force=force,
        policy=POLICIES[policy or "paper"],
        window=window,
        all_policies=policy is not None or out is not None,
        with_loss=out is not None,
    )
    results = group_results(analysed)
    if out is not None:
        _write(analysed, results, Path(out), power=power)
    if output_format == "json":
        return to_json(analysed) if policy is None else groups_to_json(analysed, results)
    shown = _tables(analysed, results, full=policy is not None, power=power)
    return (to_markdown if output_format == "markdown" else to_text)(shown)


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
    )
    sys.stdout.write(text)
    if args.out is not None:
        _log.info("Wrote %s.", Path(args.out) / "report.html")
    return 0


def _check(output_format: str, policy: str | None, window: int | None) -> None:
    if output_format not in FORMATS:
        raise UsageError(f"The format must be one of {FORMATS}. Received: {output_format!r}.")
    if policy is not None and policy not in POLICIES:
        raise UsageError(f"The policy must be one of {sorted(POLICIES)}. Received: {policy!r}.")
    if window is not None and window < 1:
        raise UsageError(f"--window must be at least 1 evaluation. Received: {window}.")


def _analyse(
    run_dirs: Sequence[str | Path], asked: list[Target], *, force: bool, **options: Any
) -> Report:
    logs = [(log, Path(path)) for path in run_dirs for log in find_logs(path)]
    found = list({log.resolve(): (log, given) for log, given in reversed(logs)}.values())[::-1]
    if not found:
        raise UsageError("A report must be given at least one run folder. Received: none.")
    notes = []
    if len(found) < len(logs):
        notes.append(f"{len(logs) - len(found)} run folders were named twice and stand here once.")
        _log.warning(notes[0])
    # Targets have to be known before any run is analysed, and runs are let go one by one.
    wanted = asked or merged_targets(read_targets(log) for log, _ in found)
    wanted = list(dict.fromkeys(wanted))
    analysed, configurations = [], []
    for (log, given), name in zip(found, _names(found), strict=True):
        one = load_log(log, name)
        # A folder of runs is a group by being one, single runs by their configuration.
        configurations.append(str(given.resolve()) if log != given else configuration(one))
        analysed.append(analyse_run(one, wanted, **options))
    grouped = named_groups(analysed, configurations)
    policy, window = options["policy"], options["window"]
    return compare(grouped, wanted, policy=policy, window=window, force=force, notes=notes)


def _names(found: list[tuple[Path, Path]]) -> list[str]:
    """Returns the runs' names: those of a folder of runs carry the folder's."""
    paths = [log.with_suffix("") if log.is_file() else log for log, _ in found]
    own = [
        path.resolve().name if log == given else f"{given.resolve().name}/{path.name}"
        for path, (log, given) in zip(paths, found, strict=True)
    ]
    return own if len(set(own)) == len(own) else distinct_names(paths)


def _tables(
    analysed: Report, results: list[list[GroupResult]], *, full: bool, power: bool
) -> list[Table]:
    first, *others = tables(analysed)
    more = group_tables(analysed, results, power=power)
    more += factor_tables(analysed, results)
    more += policy_tables(analysed) if full else []
    return [first, *more, *others]


def _write(analysed: Report, results: list[list[GroupResult]], out: Path, *, power: bool) -> None:
    # Imported here: drawing is the slowest thing to load, and text does without.
    from tfasr.report.page import write_page

    shown = _tables(analysed, results, full=True, power=power)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "report.json").write_text(to_json(analysed), encoding="utf-8")
        (out / "groups.json").write_text(groups_to_json(analysed, results), encoding="utf-8")
        (out / "report.md").write_text(to_markdown(shown), encoding="utf-8")
        write_page(analysed, out, shown, results=results)
    except OSError as error:
        raise RunError(
            f"The report must be written to {out}, and could not be: {error}. "
            "Choose another --out, or make room."
        ) from error
