"""The report's figures by name: where one is added, and how all of them are made."""

from collections.abc import Callable, Sequence

from tfasr.display.chart import Chart
from tfasr.errors import RunError
from tfasr.kit.registry import Registry
from tfasr.reports.groups import Results
from tfasr.reports.numbers import Report

Figure = Callable[[Report, Results], Chart | Sequence[Chart]]
_HOME = "tfasr.reports.figures"


class NotDrawnError(Exception):
    """Raised by a figure if the runs' logs have nothing to draw; the page shows its message."""


# The figures of ``tfasr report --out`` by name, in the order of the page. A figure is a function of
# the report and, for each target, the results by group; it returns a `Chart` or several, or raises
# `NotDrawnError`. See ``examples/own_figure.py``
FIGURES: Registry[Figure] = Registry(
    "figure",
    {
        "error_rates": f"{_HOME}.curves:error_rate_charts",
        "train_loss": f"{_HOME}.curves:loss_chart",
        "throughput": f"{_HOME}.time:throughput_charts",
        "brackets": f"{_HOME}.why:bracket_chart",
        "profile": "tfasr.reports.winners:profile_charts",
        "why": f"{_HOME}.why:waterfall_charts",
        "intervals": f"{_HOME}.time:interval_chart",
        "utilisation": f"{_HOME}.time:utilisation_chart",
    },
)


def report_charts(report: Report, results: Results) -> tuple[list[Chart], list[str]]:
    """Returns the charts of all figures, and a sentence for each that the logs do not allow."""
    charts: dict[str, Chart] = {}
    left_out = []
    for name in FIGURES:
        place = FIGURES.entry(name).place
        try:
            made = FIGURES.call(name, report, results, passes=(NotDrawnError,))
        except (NotDrawnError, RunError) as reason:
            left_out.append(str(reason))
            continue
        for chart in [made] if isinstance(made, Chart) else made:
            if not isinstance(chart, Chart):
                raise RunError(
                    f"{place}: the figure {name!r} must return charts. Received: "
                    f"{type(chart).__name__}. Return a tfasr.display.chart.Chart or a list of them."
                )
            if chart.name in charts:
                raise RunError(
                    f"{place}: each chart must have its own name, which its files get too. "
                    f"Received: {chart.name!r} twice. Choose another name."
                )
            charts[chart.name] = chart
    return list(charts.values()), left_out
