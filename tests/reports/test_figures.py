"""The figures: what they describe, and how one of a user's own comes in."""

import pytest

from tests.reports.conftest import ledger_of
from tests.reports.test_bands import analysed
from tests.reports.test_groups import seeds
from tfasr.display.chart import Chart, Labels, Line, Panel, Points, Rects, Segments
from tfasr.errors import RunError
from tfasr.reports.figures.registry import FIGURES, NotDrawnError, report_charts
from tfasr.reports.groups import group_results


@pytest.fixture
def report(small, large):
    return analysed(small, large)


def by_name(report):
    return {one.name: one for one in report_charts(report, group_results(report))[0]}


def test_the_bars_of_a_waterfall_end_where_the_next_begin(report):
    (panel,) = by_name(report)["why_1"].panels
    bars = sorted(
        (y0, x0, x1)
        for mark in panel.marks
        if isinstance(mark, Rects)
        for x0, x1, y0 in zip(mark.x0, mark.x1, mark.y0, strict=True)
    )
    *factors, (_, start, whole) = bars
    assert (start, whole) == (1, pytest.approx(1.5))
    assert factors[0][1] == 1
    for (_, _, end), (_, begin, _) in zip(factors, factors[1:], strict=False):
        assert begin == end
    assert factors[-1][2] == pytest.approx(1.5)
    (words,) = [mark for mark in panel.marks if isinstance(mark, Labels)]
    assert words.words[-1] == "×1.50"
    assert panel.x.log
    low, high = panel.x.limits
    assert all(low < tick < high for tick in panel.x.ticks)
    assert len(panel.x.ticks) >= 2


def test_brackets_reach_from_the_last_miss_to_the_first_hit(report):
    (panel,) = by_name(report)["brackets"].panels
    reached = [one for one in panel.marks if isinstance(one, Segments) and one.texts]
    assert [(one.x0[0] * 60, one.x1[0] * 60) for one in reached] == [
        pytest.approx((6, 8)),
        pytest.approx((10, 12)),
    ]
    assert list(panel.y.tick_labels) == ["CER 10 %  small", "CER 10 %  large"]


def test_a_run_that_never_met_its_target_is_an_arrow(tmp_path):
    report = analysed(ledger_of([0.5, 0.5, 0.5]).write(tmp_path / "run"))
    (panel,) = by_name(report)["brackets"].panels
    (line,) = [one for one in panel.marks if isinstance(one, Segments)]
    (arrow,) = [one for one in panel.marks if isinstance(one, Points)]
    assert (line.dash, arrow.symbol) == ("dotted", "arrow")
    assert "never" in line.texts[0]


def test_intervals_of_a_run_stand_one_after_the_other(report):
    (panel,) = by_name(report)["intervals"].panels
    for row, run in enumerate(report.runs):
        spans = [(mark.x0[row], mark.x1[row]) for mark in panel.marks]
        assert spans[0][0] == 0
        assert all(one[1] == other[0] for one, other in zip(spans, spans[1:], strict=False))
        assert spans[-1][1] * 60 == pytest.approx(run.wall_s)


def test_a_run_has_one_colour_in_every_figure(tmp_path):
    report = analysed(*seeds(tmp_path, "small", 1.0), *seeds(tmp_path, "large", 2.0))
    charts = by_name(report)
    for name in ("cer", "wer", "train_loss", "throughput", "throughput_wall"):
        of_series = {
            (mark.series, mark.colour)
            for panel in charts[name].panels
            for mark in panel.marks
            if mark.series
        }
        assert of_series == {("small (n = 3)", "#2f7fd0"), ("large (n = 3)", "#d9660d")}


@pytest.fixture
def registered():
    """Registers a figure until the test ends."""
    before = set(FIGURES)
    yield FIGURES.register
    for name in set(FIGURES) - before:
        del FIGURES._entries[name], FIGURES._things[name]


def test_a_figure_of_ones_own_comes_last(report, registered):
    @registered("own")
    def own(report, results):
        line = Line(x=[0, 1], y=[len(report.runs), len(results)], series="own")
        return Chart("own", "Own", [Panel([line])])

    charts, _ = report_charts(report, group_results(report))
    assert charts[-1].name == "own"
    assert charts[-1].panels[0].marks[0].y == [2, 1]


def test_a_figure_that_cannot_be_drawn_says_why(report, registered):
    @registered("own")
    def own(report, results):
        raise NotDrawnError("Own: no run has what it needs.")

    assert report_charts(report, [])[1][-1] == "Own: no run has what it needs."


@pytest.mark.parametrize(
    ("made", "said"),
    [("a text", "must return charts. Received: str"), (Chart("cer", "", []), "'cer' twice")],
)
def test_a_figure_that_returns_something_else_is_named_with_its_place(
    made, said, report, registered
):
    registered("own", lambda report, results: [made])
    with pytest.raises(RunError, match=rf"test_figures.py:\d+: .*{said}"):
        report_charts(report, group_results(report))
