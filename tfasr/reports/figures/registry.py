"""The registry of a report's figures, and the function that makes all of them.

A figure is a function of the report and, for each target, the results by group. It
returns a `tfasr.display.chart.Chart` or several, or raises `NotDrawnError`.
``examples/own_figure.py`` registers one.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from tfasr.display.chart import Chart
from tfasr.display.table import file_names
from tfasr.errors import RunError
from tfasr.kit.registry import Registry
from tfasr.reports.groups import Results
from tfasr.reports.numbers import Report

Figure = Callable[[Report, Results], Chart | Sequence[Chart]]
_log = logging.getLogger(__name__)
# The package of tfasr's own figures.
_HOME = "tfasr.reports.figures"


class NotDrawnError(Exception):
    """Raised by a figure if the runs' logs have nothing to draw.

    The page shows its message, which names the figure and the reason.
    """


# The figures of ``tfasr report --out`` by name, in the order of the page.
FIGURES: Registry[Figure] = Registry(
    "figure",
    {
        "error_rates": f"{_HOME}.curves:error_rate_charts",
        "host": f"{_HOME}.host:host_chart",
        "train_loss": f"{_HOME}.curves:loss_chart",
        "throughput": f"{_HOME}.curves:throughput_charts",
        "brackets": f"{_HOME}.time:bracket_chart",
        "why": f"{_HOME}.time:waterfall_charts",
        "intervals": f"{_HOME}.time:interval_chart",
        "utilisation": f"{_HOME}.time:utilisation_chart",
    },
)


def report_charts(report: Report, results: Results) -> tuple[list[Chart], list[str]]:
    """Returns all figures' charts, and a sentence for each figure that is missing.

    If a user's figure fails, only that figure is missing, and the log names it.
    """
    charts: dict[str, Chart] = {}
    left_out = []

    for name in FIGURES:
        try:
            made = FIGURES.call(name, report, results, passes=(NotDrawnError,))
            if not isinstance(made, list | tuple):
                made = [made]

            # An entry without an attribute is a user's function.
            entry = FIGURES.entry(name)
            if not entry.attribute:
                for chart in made:
                    _check(chart, charts, f"{entry.place}: the figure {name!r}")

            charts |= {chart.name: chart for chart in made}
        except NotDrawnError as reason:
            left_out.append(str(reason))
        except RunError as error:
            _log.warning("%s The report is written without it.", error)
            left_out.append(str(error))

    return list(charts.values()), left_out


def _check(chart: object, others: Mapping[str, Chart], whose: str) -> None:
    """Raises `RunError` if a user's figure returned something that can't be drawn.

    Args:
        chart: what it returned.
        others: the charts of other figures, by name.
        whose: the figure and its file, for the message.
    """
    if not isinstance(chart, Chart):
        raise RunError(
            f"{whose} must return charts. Received: {type(chart).__name__}. Return a "
            "tfasr.display.chart.Chart or a list of them."
        )

    if chart.name in others or file_names([str(chart.name)]) != [chart.name]:
        taken = " twice" if chart.name in others else ""
        raise RunError(
            f"{whose} must give each chart a different name, of lower-case letters and "
            f"digits, as its files are named after it. Received: {chart.name!r}{taken}. "
            "Choose another name."
        )

    # Imported here: drawing is slow to load, and most reports only have tfasr's own
    # figures.
    from tfasr.display.vega import page_panels, svg_text

    views = chart.views or {"": chart.panels}
    try:
        for panels in views.values():
            page_panels(panels)

        svg_text(chart)
    except Exception as error:
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        raise RunError(f"{whose}: its chart can't be drawn. {cause}.") from error
