"""Charts: every mark through every renderer, and what the specifications say."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfasr.display.chart import (
    Area,
    Axis,
    Chart,
    Labels,
    Line,
    Panel,
    Points,
    Rects,
    Rule,
    Segments,
    log_ticks,
    rows_axis,
)
from tfasr.display.vega import (
    embedded_svg,
    numbers,
    page_legend,
    page_panels,
    picture_spec,
    svg_text,
    write_chart,
)

BOX = {"x0": [0, 1], "x1": [1, 2], "y0": [0, 0], "y1": [1, 2]}
MARKS = [
    Line(
        x=[0, 1, 2], y=[1.0, np.nan, 2.0], series="a", colour="#2f7fd0", dash="dashed"
    ),
    Area(x=[0, 1], low=[0, 1], high=[1, 2], series="a", colour="#2f7fd0"),
    Points(x=[1], y=[1], series="b", colour="#d9660d", symbol="star", texts=["said"]),
    Rects(**BOX, series="c", colour="#1f9e6e", outline=1),
    Segments(**BOX, colour="#c2569b", dash="dotted"),
    Rule(value=1.5, label="target"),
    Labels(x=[1], y=[2], words=["<word> & $x$"]),
]


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: type(mark).__name__)
def test_every_mark_is_drawn_as_a_file(mark, tmp_path):
    svg = write_chart(Chart("one", "", [Panel([mark])]), tmp_path)

    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "one.svg").read_text(encoding="utf-8") == svg

    root = ElementTree.fromstring(svg)
    colours = {
        one.attrib.get(kind) for one in root.iter() for kind in ("fill", "stroke")
    }

    assert mark.colour in colours


def test_a_picture_has_its_panels_titles_axes_and_legend():
    below = Panel(
        [MARKS[3]], Axis("seconds", log=False), rows_axis(["up", "up"]), title="below"
    )
    chart = Chart(
        "two", "", [Panel(MARKS, y=Axis("y", limits=(0, 3))), below], columns=2
    )

    texts = {
        "".join(one.itertext())
        for one in ElementTree.fromstring(svg_text(chart)).iter()
    }

    assert {"a", "b", "c", "target", "seconds", "up", "below", "<word> & $x$"} <= texts


def test_a_legend_has_each_series_once_and_its_line_before_its_area():
    chart = Chart("one", "", [Panel([MARKS[1], MARKS[0], *MARKS[2:]])])

    assert [(one["name"], one["dash"]) for one in page_legend(chart)] == [
        ("a", [6, 4]),
        ("b", None),
        ("c", None),
    ]


def test_an_empty_panel_is_drawn_as_its_axes():
    assert ">nothing</text>" in svg_text(Chart("one", "", [Panel([], Axis("nothing"))]))


def test_long_legends_are_cut_and_say_so():
    lines = [Line(x=[0], y=[0], series=f"run {number}") for number in range(30)]
    chart = Chart("one", "", [Panel(lines)])

    assert "run 16 and 13 more" in svg_text(chart)
    assert len(page_legend(chart)) == 30


def test_the_page_has_layers_by_series():
    (panel,) = page_panels([Panel(MARKS, y=Axis("y", log=True, choose=True))])

    assert [own["series"] for own in panel["layers"]][:3] == ["a", "a", "a"]
    assert panel["choose"] == {"x": False, "y": True}
    assert panel["lowest"]["x"] == 1


def test_the_page_hears_who_points_at_a_line():
    (panel,) = page_panels([Panel(MARKS, y=Axis("y", log=True, choose=True))])

    said = [own["layer"]["encoding"].get("tooltip") for own in panel["layers"]]
    assert [one["field"] for one in said if isinstance(one, dict)] == ["t"]

    (heard,) = [one for one in said if isinstance(one, list)]
    assert [one["title"] for one in heard] == ["_", "x", "y"]


def test_pictures_and_page_have_the_same_layers():
    # Of marks that reach beyond their axes; the others are not masked in pictures.
    narrow = {"x": Axis(limits=(0.4, 0.6)), "y": Axis(limits=(0.4, 0.6))}
    chart = Chart("one", "", [Panel(MARKS, **narrow)])
    (drawn,) = picture_spec(chart)["concat"]
    (panel,) = page_panels(chart.panels)

    of_page = [
        own["layer"]
        for own in panel["layers"]
        if own["layer"]["mark"].get("opacity") != 0
    ]

    assert [one for one in drawn["layer"] if one in of_page] == of_page


def test_a_picture_masks_only_what_reaches_beyond_its_axes():
    def masked(mark, x=(0.0, 2.0), y=(2.0, 0.0)):
        panel = Panel([mark], Axis("x", limits=x), Axis("y", limits=y))
        (layer, *_) = picture_spec(Chart("one", "", [panel]))["concat"][0]["layer"]
        return "clip" in layer["mark"]

    for mark in MARKS[:-1]:
        assert not masked(mark), mark
    for mark in MARKS[:-2]:
        assert masked(mark, x=(0.0, 0.5)), mark
    for mark in MARKS[:-1]:
        assert masked(mark, y=(0.1, 0.9)), mark


def test_the_page_masks_every_mark_as_its_axes_may_change():
    # The page's axes change with the reader's choice.
    panel = Panel(MARKS[:1], Axis("x", limits=(0.0, 2.0)), Axis("y", limits=(0.0, 2.0)))
    assert page_panels([panel])[0]["layers"][0]["layer"]["mark"]["clip"]


def test_an_embedded_drawing_has_the_pages_ink_and_no_address():
    svg = embedded_svg(svg_text(Chart("one", "", [Panel(MARKS)])))

    assert "currentColor" in svg
    assert "#22262b" not in svg
    assert "http" not in svg
    assert svg.count("<svg") == 1


@given(st.floats(1e-6, 1e6), st.floats(1.01, 1e9))
def test_ticks_of_logarithmic_axes_lie_within_and_are_few(low, ratio):
    ticks = log_ticks(low, low * ratio)

    assert all(low <= tick <= low * ratio for tick in ticks)
    assert ticks == sorted(set(ticks))
    assert len(ticks) <= 16


def test_what_is_no_number_is_none():
    assert numbers([1.234567, np.nan, np.inf, 0]) == [1.2346, None, None, 0.0]
