"""The figures: what they describe, and how one of a user's own comes in."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reports.conftest import ledger_of
from tests.reports.test_report import seeds
from tests.tta.ledger_builder import LedgerBuilder
from tests.tta.test_host import Machine
from tfasr.display.chart import (
    Chart,
    Labels,
    Line,
    Panel,
    Points,
    Rects,
    Rule,
    Segments,
)
from tfasr.reports.figures.curves import (
    EVERYTHING,
    MOST_GROUPS,
    band,
    group_bands,
    spread_text,
)
from tfasr.reports.figures.registry import FIGURES, NotDrawnError, report_charts
from tfasr.reports.groups import configuration, finding, group_results, named_groups
from tfasr.reports.numbers import analyse_run, ask, make_report, merged_targets
from tfasr.reports.series import thin
from tfasr.tta.run import load_run


def analysed(*run_dirs):
    """The report of the runs on all of their targets, with its series over time."""
    logs = [load_run(run_dir) for run_dir in run_dirs]
    targets = merged_targets(log.targets for log in logs)
    question = ask(targets, over_time=True)
    runs = [analyse_run(log, question) for log in logs]

    return make_report(
        named_groups(runs, [configuration(log) for log in logs]), question
    )


def charts(report):
    """The report's charts by name."""
    return {one.name: one for one in report_charts(report, group_results(report))[0]}


def chart(report, name):
    return charts(report)[name]


def marks(panels, kind):
    return [one for panel in panels for one in panel.marks if isinstance(one, kind)]


def medians(panels):
    """The lines of groups, or of their only runs."""
    return [line for line in marks(panels, Line) if line.opacity == 1]


def runs_of(panels):
    """The thin lines of groups' runs."""
    return [line for line in marks(panels, Line) if line.opacity < 1]


def dots(panels):
    """The marks where targets count as met."""
    return [one for one in marks(panels, Points) if one.size == 9]


def rings(panels):
    """The marks where curves cross a target."""
    return [one for one in marks(panels, Points) if one.symbol == "ring"]


def test_a_band_is_the_median_and_the_range_where_half_of_the_runs_go_on():
    curves = [
        (np.array([0.0, 4.0]), np.array([4.0, 0.0])),
        (np.array([0.0, 2.0]), np.array([6.0, 6.0])),
        (np.array([0.0, 1.0]), np.array([8.0, 8.0])),
    ]
    result = band("seeds", 0, curves)

    # At 4 only one of the three is left.
    assert result.x.tolist() == [0, 1, 2]
    assert result.middle.tolist() == [6, 6, 4]
    assert result.low.tolist() == [4, 3, 2]
    assert result.high.tolist() == [8, 8, 6]
    assert result.label == "seeds (n = 3)"


def test_a_single_run_is_a_line_without_a_band():
    result = band("alone", 0, [(np.array([1.0, 2.0]), np.array([3.0, np.nan]))])

    assert (result.low, result.label, spread_text([result])) == (None, "alone", "")


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.integers(0, 30), st.one_of(st.floats(0.1, 9), st.just(np.nan))
            ),
            min_size=1,
            max_size=12,
            unique_by=lambda point: point[0],
        ),
        min_size=2,
        max_size=25,
    )
)
def test_a_band_is_numpys_quantiles(points):
    curves = [np.array(sorted(own), dtype=float).T for own in points]
    result = band("x", 0, [(x, y) for x, y in curves])
    ends = (5, 95) if len(curves) >= 20 else (0, 100)

    for index, at in enumerate(result.x):
        values = [np.interp(at, x, y, left=np.nan, right=np.nan) for x, y in curves]
        values = [value for value in values if np.isfinite(value)]

        assert len(values) >= len(curves) / 2
        assert at >= max(x[0] for x, _ in curves)

        expected = np.percentile(values, (ends[0], 50, ends[1]))
        got = (result.low[index], result.middle[index], result.high[index])

        assert got == pytest.approx(tuple(expected))


@pytest.fixture
def two_groups(tmp_path):
    """A report of three seeds each, of which the large ones take twice as long."""
    small = seeds(tmp_path, "small", 1.0)
    large = seeds(tmp_path, "large", 2.0)
    return analysed(*small, *large)


def test_seeds_are_one_line_on_every_axis(two_groups):
    cer = chart(two_groups, "cer")

    assert list(cer.views) == ["time", "epochs", "utterances"]
    assert cer.panels is cer.views["time"]

    for panels in cer.views.values():
        names = ["small (n = 3)", "large (n = 3)"]

        assert [line.series for line in medians(panels)] == names
        assert [line.series for line in runs_of(panels)] == [
            name for name in names for _ in range(3)
        ]


def test_curves_count_epochs_and_utterances(two_groups):
    cer = chart(two_groups, "cer")

    small = medians(cer.views["epochs"])[0]

    assert list(small.x) == [1, 2, 3, 4, 5]
    assert list(small.y) == [50, 10, 10, 10, 10]
    # Two steps of four utterances an epoch.
    assert list(medians(cer.views["utterances"])[0].x) == [8, 16, 24, 32, 40]


def test_a_dot_marks_where_the_median_meets_the_target(two_groups):
    cer = chart(two_groups, "cer")

    by_epoch, by_time = (dots(cer.views[axis])[0] for axis in ("epochs", "time"))

    assert (by_epoch.series, by_epoch.x, by_epoch.y) == ("small (n = 3)", [3], [10])
    assert by_time.x == [pytest.approx(8.06)]


def test_a_target_is_a_rule_with_its_percent(two_groups):
    cer = chart(two_groups, "cer")

    (rule,) = marks(cer.panels, Rule)
    assert (rule.value, rule.label) == (10, "10")


def test_rings_and_dots_are_on_the_line_of_the_median(tmp_path):
    for seed, train_s in enumerate((1.0, 3.0)):
        run_dir = ledger_of([0.5, 0.05, 0.05], train_s=train_s).write(
            tmp_path / f"run-{seed}"
        )
        (run_dir / "config.gin").write_text(f"train.seed = {seed}\n")

    panels = chart(analysed(tmp_path / "run-0", tmp_path / "run-1"), "cer").panels
    (line,) = medians(panels)

    (ring,) = rings(panels)
    (dot,) = dots(panels)

    # The rule is met after 8 s and 20 s.
    assert dot.x == [pytest.approx(14)]
    assert ring.y == [pytest.approx(10)]

    for mark in (ring, dot):
        place = list(line.x).index(mark.x[0])

        assert line.y[place] == mark.y[0]


def test_the_median_does_not_rise_when_a_finished_run_leaves(tmp_path):
    # The good runs stop after three epochs, the slow one goes on with higher rates.
    for seed, cers in enumerate(([0.5, 0.05, 0.05], [0.5, 0.3, 0.2, 0.2, 0.2, 0.1])):
        run_dir = ledger_of(cers).write(tmp_path / f"run-{seed}")
        (run_dir / "config.gin").write_text(f"train.seed = {seed}\n")

    panels = chart(analysed(tmp_path / "run-0", tmp_path / "run-1"), "cer").panels
    (line,) = medians(panels)

    assert line.x[-1] == pytest.approx(14)  # where the slower run ends
    assert (np.diff(line.y) <= 0).all()
    # Median of 5 % of the finished run and 10 %.
    assert line.y[-1] == pytest.approx(7.5)


def test_a_run_that_was_killed_does_not_go_on(tmp_path):
    short = ledger_of([0.5, 0.1, 0.1])
    short.events.pop()  # without run_stop it is unfinished
    names = [
        short.write(tmp_path / "run-0"),
        ledger_of([0.5] * 5).write(tmp_path / "run-1"),
    ]

    for seed, run_dir in enumerate(names):
        (run_dir / "config.gin").write_text(f"train.seed = {seed}\n")

    (line,) = medians(chart(analysed(*names), "cer").panels)
    assert line.y[-1] == pytest.approx(50)


def test_an_axis_that_one_log_lacks_is_not_offered(small, tmp_path):
    silent = LedgerBuilder().begin(init_s=2)
    for epoch in (1, 2, 3):
        silent.epoch(epoch, 0.1)

    for event in silent.events:
        if event["key"] == "train_step":
            del event["value"]["utterances"], event["value"]["audio_s"]

    report = analysed(small, silent.write(tmp_path / "silent"))
    result, left_out = report_charts(report, group_results(report))
    by_name = {one.name: one for one in result}

    assert set(by_name["cer"].views) == {"time", "epochs"}
    assert not {"throughput", "throughput_wall"} & by_name.keys()
    assert (
        "Throughput over time: not every log states the utterances or the audio of its steps."
        in left_out
    )


def test_more_groups_than_lines_share_a_band(tmp_path):
    dirs = [
        ledger_of([0.5, 0.1, 0.1]).write(tmp_path / f"run{i:02}") for i in range(30)
    ]
    report = analysed(*dirs)

    bands = group_bands(report, lambda run: (np.arange(3.0), np.arange(3.0)))

    assert len(bands) == MOST_GROUPS + 1
    assert bands[-1].number == EVERYTHING
    assert bands[-1].runs == 30
    assert bands[-1].label == "all 30 runs"
    assert "the grey band" in chart(report, "cer").caption


def test_throughput_is_audio_over_steps_and_waiting(tmp_path):
    ledger = LedgerBuilder().begin(init_s=1)
    for _ in range(5):
        ledger.step(1.5, wait_s=0.5)

    ledger.evaluate(1, 0.5, forward_s=60).event("epoch_stop", epoch_num=1)

    for _ in range(5):
        ledger.step(3.5, wait_s=0.5, epoch=2)

    report = analysed(ledger.end().write(tmp_path / "run"))
    steady, evaluations = chart(report, "throughput").panels

    (line,) = marks([steady], Line)

    assert steady.y.label == "throughput, utterances/s"
    # Four utterances in 2 s, then in 4 s; between them nothing is drawn.
    assert line.y.tolist() == pytest.approx([2] * 5 + [np.nan] + [1] * 5, nan_ok=True)

    (rug,) = marks([evaluations], Rects)

    assert rug.x1[0] - rug.x0[0] == pytest.approx(60)
    assert rug.texts == ["run\nevaluation of epoch 1: 60 s"]


def test_over_the_wall_clock_an_evaluation_is_a_dip(tmp_path):
    ledger = LedgerBuilder().begin()
    for epoch in range(1, 5):
        for _ in range(30):
            ledger.step(1.0, epoch=epoch)

        ledger.evaluate(epoch, 0.5, forward_s=6, decode_s=4).event(
            "epoch_stop", epoch_num=epoch
        )

    report = analysed(ledger.end().write(tmp_path / "run"))
    drawn = chart(report, "throughput_wall")

    (line,) = marks(drawn.panels, Line)

    # 40 bins of 4 s; of each 40 s, the last 10 s evaluate.
    assert line.y.size == 40
    assert line.y.max() == pytest.approx(4, rel=0.01)
    assert line.y.min() == 0

    seconds = np.diff(line.x)[0]

    assert seconds * line.y.sum() == pytest.approx(4 * 120, rel=0.01)
    assert line.x[np.flatnonzero(line.y == 0)[0]] == pytest.approx(34, abs=0.5)
    assert "throughput falls by: run 100 % (mean of 4 s)" in drawn.caption

    # The steady one does not see it.
    (steady,) = marks(chart(report, "throughput").panels, Line)
    assert np.nanmin(steady.y) == pytest.approx(4)


@pytest.mark.parametrize(("evaluation_s", "fall"), [(1.0, 33), (1.5, 50)])
def test_the_fall_at_an_evaluation_is_that_of_the_point_that_holds_it(
    tmp_path, evaluation_s, fall
):
    """The paper's Figure 9 falls by 30 to 50 %, as its points average longer than a
    swap takes.
    """
    ledger = LedgerBuilder().begin()
    for epoch in range(1, 6):
        # A cycle of 6 s: points of 3 s, of which every second one holds an evaluation.
        steps_s = 6 - evaluation_s
        for _ in range(6):
            ledger.step(steps_s / 6, epoch=epoch)

        ledger.evaluate(epoch, 0.5, forward_s=evaluation_s)
        ledger.event("epoch_stop", epoch_num=epoch)

    drawn = chart(analysed(ledger.end().write(tmp_path / "run")), "throughput_wall")
    assert f"throughput falls by: run {fall} % (mean of 3 s)" in drawn.caption


def test_a_run_that_never_evaluates_has_no_fall(tmp_path):
    ledger = LedgerBuilder().begin()
    for _ in range(9):
        ledger.step(1.0)

    report = analysed(ledger.end().write(tmp_path / "run"))

    assert report.runs[0].series.fall_at_evaluations is None


def test_a_loss_of_lost_steps_is_not_drawn(tmp_path):
    ledger = LedgerBuilder().begin().step(loss=1.0).checkpoint().step(loss=9.0)
    ledger.resume(down_s=100, from_step=1).step(loss=1.0)

    (line,) = marks(
        chart(analysed(ledger.write(tmp_path / "run")), "train_loss").panels, Line
    )

    assert line.y.tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize(
    ("values", "log"), [([0.5, 0.1, 0.1], True), ([0.5, 0.0, 0.0], False)]
)
def test_zero_errors_are_not_hidden_by_a_logarithm(values, log, tmp_path):
    report = analysed(ledger_of(values).write(tmp_path / "run"))
    (panel,) = chart(report, "cer").panels

    assert (panel.y.log, panel.y.choose) == (log, log)
    assert panel.y.limits[0] > 0 or not log


def test_targets_too_close_for_two_labels_share_one(tmp_path):
    targets = [["cer", 0.1], ["cer", 0.099], ["cer", 0.4]]
    report = analysed(
        ledger_of([0.5, 0.05, 0.05], targets=targets).write(tmp_path / "run")
    )

    rules = marks(chart(report, "cer").panels, Rule)

    assert [rule.label for rule in rules] == ["40", "", "10, 9.9"]


@pytest.fixture
def report(small, large):
    return analysed(small, large)


def test_the_bars_of_a_waterfall_end_where_the_next_begin(report):
    (panel,) = charts(report)["why_1"].panels
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


def test_a_waterfall_ends_with_the_whole_ratio_in_words(report):
    (panel,) = charts(report)["why_1"].panels

    (words,) = [mark for mark in panel.marks if isinstance(mark, Labels)]

    assert words.words[-1] == "×1.50"


def test_a_waterfall_has_ticks_within_its_limits(report):
    (panel,) = charts(report)["why_1"].panels

    assert panel.x.log

    low, high = panel.x.limits

    assert all(low < tick < high for tick in panel.x.ticks)
    assert len(panel.x.ticks) >= 2


def test_brackets_reach_from_the_last_miss_to_the_first_hit(report):
    (panel,) = charts(report)["brackets"].panels
    reached = [one for one in panel.marks if isinstance(one, Segments) and one.texts]

    assert [(one.x0[0], one.x1[0]) for one in reached] == [
        pytest.approx((4, 6)),
        pytest.approx((8, 10)),
    ]
    assert list(panel.y.tick_labels) == ["CER 10 %  small", "CER 10 %  large"]


def test_a_run_that_never_met_its_target_is_an_arrow(tmp_path):
    report = analysed(ledger_of([0.5, 0.5, 0.5]).write(tmp_path / "run"))
    (panel,) = charts(report)["brackets"].panels

    (line,) = [one for one in panel.marks if isinstance(one, Segments)]
    (arrow,) = [one for one in panel.marks if isinstance(one, Points)]

    assert (line.dash, arrow.symbol) == ("dotted", "arrow")
    assert "never" in line.texts[0]


def test_intervals_of_a_run_stand_one_after_the_other(report):
    (panel,) = charts(report)["intervals"].panels
    for row, run in enumerate(report.runs):
        spans = [(mark.x0[row], mark.x1[row]) for mark in panel.marks]

        assert spans[0][0] == 0
        assert all(
            one[1] == other[0] for one, other in zip(spans, spans[1:], strict=False)
        )
        assert spans[-1][1] == pytest.approx(run.wall_s)


def test_a_run_has_one_colour_in_every_figure(two_groups):
    drawn = charts(two_groups)
    for name in ("cer", "wer", "train_loss", "throughput", "throughput_wall"):
        of_series = {
            (mark.series, mark.colour)
            for panel in drawn[name].panels
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


def broken(report, results):
    """A figure of a plug-in that raises an error."""
    return [1 / 0]


def undrawable(report, results):
    """A figure of a plug-in that no picture can be made of."""
    return Chart("mine", "", [Panel([Line(x=["here"], y=[object()])])])


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        (lambda *_: ["a text"], "must return charts. Received: str"),
        (lambda *_: [Chart("cer", "", [])], "'cer' twice"),
        (lambda *_: [Chart("../cer", "", [])], "'../cer'"),
        (lambda *_: None, "Received: NoneType"),
        (broken, "division by zero"),
        (undrawable, "can't be drawn"),
    ],
)
def test_a_figure_that_fails_is_named_with_its_place_and_costs_itself_alone(
    figure, said, report, registered, caplog
):
    others = [chart.name for chart in report_charts(report, group_results(report))[0]]
    registered("own", figure)

    charts, left_out = report_charts(report, group_results(report))

    assert [chart.name for chart in charts] == others
    assert re.search(rf"test_figures.py:\d+: .*{said}", left_out[-1])
    assert left_out[-1] in caplog.text


def test_it_is_scipys_filter(tmp_path):
    losses = np.random.default_rng(1).uniform(1, 9, 60)
    ledger = LedgerBuilder().begin()
    for loss in losses:
        ledger.step(loss=float(loss))

    (line,) = marks(
        chart(analysed(ledger.write(tmp_path / "run")), "train_loss").panels, Line
    )
    # A standard deviation of 10 steps, cut off at four of them, with mirrored ends.
    kernel = np.exp(-0.5 * (np.arange(-40, 41) / 10) ** 2)
    padded = np.pad(losses, 40, mode="symmetric")

    expected = np.convolve(padded, kernel / kernel.sum(), mode="valid")

    np.testing.assert_allclose(line.y, expected, rtol=1e-6)


def test_few_points_are_not_thinned():
    assert thin(5, 10).tolist() == [0, 1, 2, 3, 4]
    assert thin(0, 10).size == 0


def test_thinning_keeps_both_ends():
    kept = thin(1000, 10)

    assert kept.size == 10
    assert kept[0] == 0
    assert kept[-1] == 999


def host_file(run_dir, seconds, **increases):
    """Writes a run's samples of what the machine gave it in each second."""
    machine = Machine()
    for _ in range(2):
        machine.second(ran_s=2.0, busy_s=2.0)

    for _ in range(seconds):
        machine.second(**increases)

    machine.write(run_dir)


def test_what_machines_took_is_drawn_over_time_for_disturbed_runs(small, large):
    host_file(small, 6, ran_s=2.0, busy_s=2.0)
    host_file(large, 10, ran_s=1.0, busy_s=1.5, waited_s=0.5, stolen_s=0.6)
    analysis = chart(analysed(small, large), "host")
    (panel,) = analysis.panels

    assert panel.title == "large"

    steal, others = panel.marks

    assert "steal" in steal.series
    assert others.series == "other programs"
    # Of 1 + 0.5 + 0.4 s wanted, steal took the run's part of 0.6 s, 1 s of 1.5 s.
    assert np.max(steal.high) == pytest.approx(100 * 0.4 / 1.9, abs=0.1)
    assert np.max(others.high) == pytest.approx(100 * 0.9 / 1.9, abs=0.1)


def test_undisturbed_runs_have_no_figure_of_their_machine(small, large):
    host_file(small, 6, ran_s=2.0, busy_s=2.0)
    report = analysed(small, large)

    drawn, left_out = report_charts(report, group_results(report))

    assert "host" not in {one.name for one in drawn}
    assert any("What machines took" in sentence for sentence in left_out)


def test_verdicts_name_the_runs_that_their_machine_disturbed(small, large):
    host_file(large, 10, ran_s=1.0, busy_s=2.0, waited_s=1.0)
    report = analysed(small, large)
    ((first, other),) = group_results(report)

    text = finding(first, other)

    assert "the machine took processors from large (50 %)" in text
    assert "tfasr doctor" in text
    assert other.decomposition.factors["host"] > 1.5
