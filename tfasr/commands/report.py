"""``tfasr report``: time to accuracy of any number of runs, as tables, figures and a page."""

import argparse
import logging
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tfasr.errors import RunError, UsageError
from tfasr.report.analysis import Report, analyse_run, compare
from tfasr.report.formats import to_json, to_markdown, to_text
from tfasr.report.naming import Target, check_target, distinct_names, merged_targets, parse_target
from tfasr.report.tables import tables
from tfasr.tta.run import Run, load_run
from tfasr.tta.time_to_accuracy import WINDOW

FORMATS = ("table", "markdown", "json")

_log = logging.getLogger(__name__)


def report(
    run_dirs: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    output_format: str = "table",
    targets: Iterable[str | Target] = (),
    window: int = WINDOW,
    force: bool = False,
) -> str:
    """Returns the report on runs as text; with ``out`` also writes figures and ``report.html``.

    Args:
        run_dirs: run folders; the first is the one that others are compared with.
        out: a folder for ``report.html``, ``report.md``, ``report.json`` and a PNG of each
            figure; it is made where missing.
        output_format: "table", "markdown" or "json".
        targets: metrics and values, as ``("cer", 0.10)`` or "cer=0.10"; by default those that
            the runs set themselves.
        window: the evaluations whose median must meet a target.
        force: compare runs whose results are not comparable, and say what differs.

    Raises:
        UsageError: if there is no run, a folder holds none, or an argument is wrong.
        RunError: if ``out`` cannot be written.
    """
    if output_format not in FORMATS:
        raise UsageError(f"The format must be one of {FORMATS}. Received: {output_format!r}.")
    if window < 1:
        raise UsageError(f"--window must be at least 1 evaluation. Received: {window}.")
    asked = [parse_target(t) if isinstance(t, str) else check_target(*t) for t in targets]
    analysed = _analyse(run_dirs, asked, window=window, force=force, with_loss=out is not None)
    if out is not None:
        _write(analysed, Path(out))
    return _text(analysed, output_format)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to a parser."""
    parser.add_argument("run_dirs", nargs="+", metavar="RUN_DIR", help="a run's folder")
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
        "--window",
        type=int,
        default=WINDOW,
        help="evaluations whose median must meet the target; default: %(default)s",
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
        window=args.window,
        force=args.force,
    )
    sys.stdout.write(text)
    if args.out is not None:
        _log.info("Wrote %s.", Path(args.out) / "report.html")
    return 0


def _analyse(
    run_dirs: Sequence[str | Path],
    asked: list[Target],
    *,
    window: int,
    force: bool,
    with_loss: bool,
) -> Report:
    paths = [Path(path) for path in run_dirs]
    notes = []
    once = list({path.resolve(): path for path in reversed(paths)}.values())[::-1]
    if not once:
        raise UsageError("A report must be given at least one run folder. Received: none.")
    if len(once) < len(paths):
        notes.append(f"{len(paths) - len(once)} run folders were named twice and stand here once.")
    names = distinct_names(once)
    # The defaults have to be known before any run is analysed, and runs are let go one by one.
    wanted = asked
    loaded: list[Run] = []
    if not asked:
        loaded = [load_run(path, name) for path, name in zip(once, names, strict=True)]
        wanted = merged_targets(run.targets for run in loaded)
    wanted = list(dict.fromkeys(wanted))
    analysed = []
    for index, (path, name) in enumerate(zip(once, names, strict=True)):
        one = loaded[index] if loaded else load_run(path, name)
        analysed.append(analyse_run(one, wanted, window=window, with_loss=with_loss))
    for note in notes:
        _log.warning(note)
    return compare(analysed, wanted, window=window, force=force, notes=notes)


def _text(analysed: Report, output_format: str) -> str:
    if output_format == "json":
        return to_json(analysed)
    return (to_markdown if output_format == "markdown" else to_text)(tables(analysed))


def _write(analysed: Report, out: Path) -> None:
    # Imported here: drawing is the slowest thing to load, and text does without.
    from tfasr.report.page import write_page

    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "report.json").write_text(to_json(analysed), encoding="utf-8")
        (out / "report.md").write_text(to_markdown(tables(analysed)), encoding="utf-8")
        write_page(analysed, out)
    except OSError as error:
        raise RunError(
            f"The report must be written to {out}, and could not be: {error}. "
            "Choose another --out, or make room."
        ) from error
