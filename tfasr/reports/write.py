"""Writes the report on runs: text, and with a folder its files and page."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tfasr.analysis.charges import Machines
from tfasr.analysis.groups import GroupResult, group_results
from tfasr.analysis.load import load_report
from tfasr.analysis.profiles import group_profiles
from tfasr.analysis.question import ask
from tfasr.analysis.report import Report
from tfasr.display.table import Table
from tfasr.display.text import to_markdown
from tfasr.display.writers import JSON, WRITERS, check_format
from tfasr.durable import write_whole
from tfasr.errors import RunError
from tfasr.reports.exports import write_tables
from tfasr.reports.json_text import groups_to_json, to_json
from tfasr.reports.tables.beside import beside_tables
from tfasr.reports.tables.costs import cost_tables
from tfasr.reports.tables.paper import paper_tables
from tfasr.reports.tables.profile import profile_tables
from tfasr.reports.tables.runs import factor_tables, group_tables, policy_tables, tables
from tfasr.reports.tables.workers import worker_tables
from tfasr.tta.policies import PAPER, POLICIES, Policy
from tfasr.tta.published.results import PublishedSource, published
from tfasr.tta.targets import Target


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
    profile: bool = False,
    hardware: Iterable[str] = (),
    price_usd_per_hour: float | None = None,
    errors: bool = False,
    worst: int = 10,
    many: bool = False,
    beside: str | None = None,
) -> str:
    """Returns the report on runs as text; with ``out`` also writes figures and ``report.html``.

    Args:
        run_dirs: run folders, published logs, or folders of either, each of which is a group of
            runs of one configuration; the first is the one that others are compared with.
        out: a folder for ``report.html``, ``report.md``, ``report.json``, a CSV and a LaTeX file
            of each table and a PNG and an SVG of each figure; it is made where missing.
        output_format: "table", "markdown", "latex", "csv", "json" or another of `WRITERS`. LaTeX
            and CSV hold all tables; CSV holds seconds and fractions, unrounded.
        targets: metrics and values, as ``("cer", 0.10)`` or "cer=0.10"; by default those that
            the runs set themselves.
        policy: the clock and the rule, or their name, see `tfasr.tta.policies`; "paper" by default.
            Where it is named, the tables show all policies beside it, and JSON is by groups.
        window: the evaluations whose median must meet a target; by default the policy's.
        power: also say how many runs would show a gap of 10 %.
        force: compare runs whose results are not comparable, and say what differs.
        profile: also compare groups over all targets that they reached, see
            `tfasr.tta.target_profile`.
        hardware: machines, "FILE" for all runs or "NAME=FILE" for the run or folder of that name;
            by default what a run's own ledger says.
        price_usd_per_hour: the machines' rent, instead of what their descriptions state.
        errors: return what the runs' hypotheses get wrong instead, see `tfasr.reports.errors`;
            ``run_dirs`` may then hold files of hypotheses too.
        worst: of how many utterances to show the alignment then.
        many: read many runs in several processes, see `tfasr.analysis.workers`.
        beside: whose published results also stand beside the runs, of
            `tfasr.tta.published.results.SOURCES`, such as "paper".

    Raises:
        UsageError: if there is no run, a folder holds none, or an argument is wrong.
        RunError: if ``out`` cannot be written.
    """
    check_format(output_format)
    source = None if beside is None else published(beside)
    full = policy is not None or output_format in ("latex", "csv")
    question = ask(
        targets,
        policy or PAPER,
        window,
        beside=POLICIES.values() if full or out is not None else (),
        over_time=out is not None,
        force=force,
        profile=profile,
    )
    logs = run_dirs
    if errors:
        # Imported here: a report on times alone does without jiwer and SciPy.
        from tfasr.reports.errors import errors_alone, errors_text, logs_among

        logs = logs_among(run_dirs)
        if not logs:
            return errors_alone(run_dirs, worst, output_format, out)
    analysed = load_report(
        logs, question, machines=Machines(hardware, price_usd_per_hour), many=many
    )
    results = group_results(analysed)
    wrong, appendix = "", ""
    if errors:
        wrong, appendix = errors_text(run_dirs, analysed.runs, worst, output_format, out)
    if out is not None:
        _write(analysed, results, Path(out), power=power, appendix=appendix, beside=source)
    if errors:
        return wrong
    if output_format == JSON:
        return to_json(analysed) if policy is None else groups_to_json(analysed, results)
    shown = _tables(analysed, results, full=full, power=power, beside=source)
    return WRITERS[output_format](shown)


def _tables(
    analysed: Report,
    results: list[list[GroupResult]],
    *,
    full: bool,
    power: bool,
    beside: PublishedSource | None,
) -> list[Table]:
    first, *others = tables(analysed)
    profiled = analysed.question.profile
    more = profile_tables(analysed, group_profiles(analysed)) if profiled else []
    more += group_tables(analysed, results, power=power)
    more += factor_tables(analysed, results)
    more += cost_tables(analysed)
    more += worker_tables(analysed)
    more += [*policy_tables(analysed), *paper_tables(analysed, results)] if full else []
    last = [] if beside is None else beside_tables(analysed, beside)
    return [first, *more, *others, *last]


def _write(
    analysed: Report,
    results: list[list[GroupResult]],
    out: Path,
    *,
    power: bool,
    appendix: str,
    beside: PublishedSource | None,
) -> None:
    # Imported here: drawing is the slowest thing to load, and text does without.
    from tfasr.reports.page.page import write_page

    shown = _tables(analysed, results, full=True, power=power, beside=beside)
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
