"""Runs side by side from Python: ``tfasr.compare(["runs/small", "runs/large"])``."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tfasr.analysis.findings import finding
from tfasr.analysis.groups import GroupResult, group_members, group_results
from tfasr.analysis.load import load_report
from tfasr.analysis.question import ask
from tfasr.analysis.report import Report
from tfasr.display.notebook import dataframe, html_table
from tfasr.display.table import Table, values_of
from tfasr.display.text import to_markdown, to_text
from tfasr.reports.tables.runs import (
    RunAtTarget,
    accuracy_columns,
    factor_tables,
    group_columns,
    group_tables,
    tables,
    throughput_columns,
    time_columns,
)
from tfasr.tta.policies import PAPER, Policy
from tfasr.tta.run import Run
from tfasr.tta.targets import Target

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs and their times to accuracy, each group of runs beside the first one.

    In a notebook it shows itself as tables.

    Attributes:
        report: everything that is known of the runs.
        results: for each target a list of what each group says of it: statistics over its runs,
            brackets, the ratio to the first group with its interval, and the decomposition.
    """

    report: Report
    results: list[list[GroupResult]]

    @property
    def targets(self) -> list[Target]:
        """Metrics and values, in the order of ``results``."""
        return self.report.targets

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """The names of the runs of each group, the first group first."""
        members = group_members(self.report.runs)
        return {
            group: [self.report.runs[run].name for run in own] for group, own in members.items()
        }

    def result(self, group: str, **target: float) -> GroupResult:
        """Returns what a group says of a target, as in ``result("batch_64", cer=0.10)``.

        Raises:
            ValueError: if there is no such group, or the runs were not compared at that target.
        """
        wanted = [*target.items()]
        for of_target in self.results:
            for result in of_target:
                if result.group == group and wanted == [result.target]:
                    return result
        raise ValueError(
            f"A result must be of one of the groups {list(self.groups)} and one of the targets "
            f"{self.targets}. Received: {group!r}, {target}."
        )

    @property
    def findings(self) -> list[str]:
        """A sentence for each target and each group but the first: which is faster, and why."""
        return [
            finding(of_target[0], other) for of_target in self.results for other in of_target[1:]
        ]

    @property
    def tables(self) -> list[Table]:
        first, *others = tables(self.report)
        more = group_tables(self.report, self.results) + factor_tables(self.report, self.results)
        return [first, *more, *others]

    def to_dataframe(self) -> "pd.DataFrame":
        """Returns a row for each run and target: times in seconds, rates as fractions.

        The columns are those of the table's CSV: ``time_to_accuracy_s`` with its bracket, the
        seconds of each interval of the whole run, and its throughput. What is not known, and the
        time of a target never reached, is missing.

        Raises:
            UsageError: if pandas is not installed.
        """
        report, rows = self.report, []
        of_target = accuracy_columns(report)
        of_run = [*time_columns(report), *throughput_columns(report)]
        for index, run in enumerate(report.runs):
            at = [RunAtTarget(report, index, target) for target in range(len(self.targets))]
            about = values_of(of_run, run)
            rows += [row | about for row in [values_of(of_target, one) for one in at] or [{}]]
        return dataframe(rows, ["run", "group"])

    def groups_to_dataframe(self) -> "pd.DataFrame":
        """Returns a row for each group of runs and target: its statistics, and against the first.

        Raises:
            UsageError: if pandas is not installed.
        """
        columns = group_columns(self.report)
        rows = [values_of(columns, result) for of_target in self.results for result in of_target]
        return dataframe(rows, ["group"])

    def __repr__(self) -> str:
        findings = [*self.findings, ""] if self.findings else []
        return "\n".join([*findings, to_text(self.tables)]).rstrip("\n")

    def _repr_markdown_(self) -> str:
        findings = "".join(f"- {sentence}\n" for sentence in self.findings)
        return f"{findings}\n{to_markdown(self.tables)}"

    def _repr_html_(self) -> str:
        findings = [[sentence] for sentence in self.findings]
        shown = [html_table([""], findings, "Findings")] if findings else []
        for table in self.tables:
            headings = [" ".join(heading.split()) for heading in table.columns]
            shown.append(html_table(headings, table.rows, table.title))
        return "".join(shown)


def compare(
    runs: Sequence[str | Path | Run] | str | Path,
    *,
    targets: Iterable[str | Target] = (),
    policy: str | Policy = PAPER,
    window: int | None = None,
    force: bool = False,
) -> Comparison:
    """Returns how the times to accuracy of runs stand to each other.

    Args:
        runs: run folders, published logs, folders of either, each of which is a group of runs of
            one configuration, and runs of `tfasr.load_run`; the first is what the others are
            compared with.
        targets: metrics and values, as ``("cer", 0.10)`` or "cer=0.10"; by default those that
            the runs set themselves.
        policy: the clock and the rule, or their name, see `tfasr.tta.policies`.
        window: the evaluations whose median must meet a target; by default the policy's.
        force: compare runs whose results are not comparable.

    Raises:
        UsageError: if there is no run, a path holds none, a target is wrong, there is no such
            policy, or the window is less than 1.
    """
    sources = [runs] if isinstance(runs, str | Path) else list(runs)
    report = load_report(sources, ask(targets, policy, window, force=force))
    return Comparison(report, group_results(report))
