import hashlib
import json
import re
import xml.etree.ElementTree as ElementTree
from base64 import b64encode
from html.parser import HTMLParser

import pytest

from tests.reports.conftest import ledger_of
from tests.reports.test_report import seeds
from tfasr.commands.report import report
from tfasr.display.chart import shortened

VOID = {"meta", "link", "br", "input", "rect", "path", "line", "use"}
FIGURES = [
    "brackets", "cer", "intervals", "throughput", "throughput_wall", "train_loss", "wer", "why_1",
]  # fmt: skip
SVG = "{http://www.w3.org/2000/svg}"


def scripts(page):
    return re.findall(r"<script>(.*?)</script>", page, re.DOTALL)


def without_library(page):
    """The page without the plotting library, which is not ours to judge."""
    library = max(scripts(page), key=len)
    assert "vegaEmbed" in library[-200:]
    return page.replace(library, "")


def charts(page):
    """The descriptions of the interactive charts, by name."""
    text = re.search(r'id="charts">(.*?)</script>', page, re.DOTALL).group(1)
    return json.loads(text)["charts"]


def layers(page, name, view="time", mark="line"):
    """A chart's series and values by layer, of one kind of mark."""
    return [
        (own["series"], own["layer"]["data"]["values"])
        for panel in charts(page)[name]["views"][view]
        for own in panel["layers"]
        if own["layer"]["mark"]["type"] == mark
    ]


def legend(page, name):
    return [one["name"] for one in charts(page)[name]["legend"]]


class Checked(HTMLParser):
    """Collects what a page refers to, its ids and its text; fails on tags that do not
    match.
    """

    def __init__(self, page):
        super().__init__()
        self.policy = None
        self.open = []
        self.references = []
        self.ids = []
        self.texts = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.references += [
            attributes[key] for key in ("src", "href") if key in attributes
        ]
        if "id" in attributes:
            self.ids.append(attributes["id"])

        if "http-equiv" in attributes:
            self.policy = attributes.get("content")

        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The report on a run of 8 s and one of 12 s."""
    folder = tmp_path_factory.mktemp("report")
    small = ledger_of([0.5, 0.1, 0.1]).write(folder / "small")
    large = ledger_of([0.5, 0.4, 0.3, 0.1, 0.1]).write(folder / "large")
    report([small, large], out=folder / "out")

    return folder / "out"


@pytest.fixture(scope="module")
def page(out):
    return (out / "report.html").read_text()


def test_the_page_names_no_address(page):
    own = without_library(page)
    # The script names SVG's namespace where it makes an element.
    own = own.replace("http://www.w3.org/2000/svg", "")

    assert "http" not in own.replace('http-equiv="Content-Security-Policy"', "")
    assert "xlink" not in own


def test_every_reference_of_the_page_stays_within_it(page):
    checked = Checked(page)

    assert checked.references
    for reference in checked.references:
        assert reference == "data:," or reference.removeprefix("#") in checked.ids


def test_the_policy_allows_nothing_by_default(page):
    policy = dict(one.strip().split(" ", 1) for one in Checked(page).policy.split(";"))
    assert policy["default-src"] == "'none'"


def test_the_policy_allows_the_pages_own_scripts_alone(page):
    policy = dict(one.strip().split(" ", 1) for one in Checked(page).policy.split(";"))

    hashes = [
        b64encode(hashlib.sha256(one.encode()).digest()).decode()
        for one in scripts(page)
    ]
    assert policy["script-src"].split() == [f"'sha256-{one}'" for one in hashes]


def test_the_policy_allows_nothing_from_elsewhere(page):
    policy = dict(one.strip().split(" ", 1) for one in Checked(page).policy.split(";"))

    sources = " ".join(policy.values())

    assert "http" not in sources
    assert "*" not in sources


def test_the_library_is_there_once(page):
    assert len(scripts(page)) == 2
    assert page.count("window.vegaEmbed=") == 1
    assert len(page) < 1_500_000


def test_ids_are_distinct(page):
    ids = Checked(page).ids

    assert len(ids) == len(set(ids))


def test_the_page_answers_first(page):
    text = "".join(Checked(page).texts)
    text = text.replace("\u00a0", " ")

    assert (
        "To CER 10 %, small needs 8 s, large 12 s: undecided with one run each." in text
    )
    assert "seeds alone make such a time vary by 3 to 20 %" in text


def test_the_details_are_folded_below_the_answer(page):
    # The verdict, its reason and the table are above everything that is folded.
    first, _, folded = page.partition("<nav")
    assert "p = " not in first

    links = folded.count('<a href="#section-')
    assert folded.count('<details class="section"') == links == 6


def test_the_page_is_readable_in_the_dark_and_on_a_phone(page):
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page


def test_drawings_have_no_ink_of_their_own_but_the_runs_colours(page):
    # The drawings have no ink of their own but the runs' colours.
    assert "currentColor" in page
    assert "#000000" not in without_library(page)


def test_every_drawing_is_announced_as_an_image(page):
    still = without_library(page)
    assert still.count("<svg") == still.count('role="img"') == len(FIGURES)


def test_every_figure_is_a_png_and_an_svg_too(page, out):
    assert sorted(path.stem for path in out.glob("*.png")) == FIGURES
    assert sorted(path.stem for path in out.glob("*.svg")) == FIGURES
    assert sorted(re.findall(r'<figure id="(\w+)"', page)) == FIGURES

    for name in FIGURES:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")

        root = ElementTree.parse(out / f"{name}.svg").getroot()

        assert root.tag == f"{SVG}svg"
        # White paper beneath: a viewer in the dark would show dark ink on dark.
        assert next(iter(root)).attrib["fill"] == "#ffffff"


def test_an_svg_has_a_line_for_each_run_and_says_what_it_shows(out):
    root = ElementTree.parse(out / "cer.svg").getroot()
    texts = ["".join(one.itertext()) for one in root.iter(f"{SVG}text")]

    assert {
        "small",
        "large",
        "CER, %",
        "seconds since the creation of the model",
    } <= set(texts)
    assert "10" in texts

    for colour in ("#2f7fd0", "#d9660d"):
        lines = [
            one.attrib for one in root.iter() if one.attrib.get("stroke") == colour
        ]

        # The run's line, and its sample in the legend.
        assert len([one for one in lines if one.get("fill") != colour]) >= 2


def test_an_svg_has_one_dashed_line_for_the_target(out):
    root = ElementTree.parse(out / "cer.svg").getroot()

    dashed = [one for one in root.iter() if one.attrib.get("stroke-dasharray") == "6,4"]
    assert len(dashed) == 1


def test_the_interactive_curves_have_the_runs_own_figures(page):
    cer = charts(page)["cer"]

    assert set(cer["views"]) == {"time", "epochs", "utterances"}
    assert [own["at"] for own in cer["views"]["time"][0]["layers"] if "at" in own] == [
        ["y", 10]
    ] * 2

    result = [
        (name, [one["x"] for one in values], [one["y"] for one in values])
        for name, values in layers(page, "cer")
    ]
    assert result == [
        ("small", [4, 6, 8], [50, 10, 10]),
        ("large", [4, 6, 8, 10, 12], [50, 40, 30, 10, 10]),
    ]


def test_the_interactive_curves_can_be_drawn_by_epoch(page):
    by_epoch = [
        [one["x"] for one in own] for _, own in layers(page, "cer", view="epochs")
    ]
    assert by_epoch == [[1, 2, 3], [1, 2, 3, 4, 5]]


def test_a_point_of_a_curve_says_its_run_epoch_and_rate(page):
    said = [
        one["t"]
        for _, own in layers(page, "cer", mark="point")
        for one in own
        if "t" in one
    ]
    assert said[1] == "small\nepoch 2, 6 s\n10 %"


def test_the_interactive_waterfall_names_the_whole_ratio(page):
    ((_, words),) = layers(page, "why_1", view="", mark="text")
    assert words[-1]["words"] == "×1.50"


def test_pictures_and_page_are_of_one_description(page, out):
    svg = (out / "cer.svg").read_text()
    (panel,) = charts(page)["cer"]["views"]["time"]
    axis = panel["spec"]["encoding"]["y"]

    assert axis["title"] if "title" in axis else axis["axis"]["title"] == "CER, %"
    for tick in axis["axis"]["values"]:
        assert f">{tick:g}</text>" in svg


def test_seeds_are_a_band(tmp_path):
    run_dirs = [*seeds(tmp_path, "small", 1.0), *seeds(tmp_path, "large", 2.0)]
    report(run_dirs, out=tmp_path / "out")

    page = (tmp_path / "out" / "report.html").read_text()

    assert legend(page, "cer") == ["small (n = 3)", "large (n = 3)"]
    # A thin line for each run behind each group's line.
    assert len(layers(page, "cer")) == 8

    # Whoever points at an evaluation is told whose it is.
    said = [
        one["t"]
        for _, own in layers(page, "cer", mark="point")
        for one in own
        if "t" in one
    ]
    assert {p.name for p in run_dirs} <= {text.split("\n")[0] for text in said}

    svg = (tmp_path / "out" / "cer.svg").read_text()

    assert "small (n = 3)" in svg
    assert "thin lines its runs" in page


NAMES = [
    "<script>alert(1)<∕script>",
    "$x$ & $",
    "_private",
    "[red]x",
    "日本",
    "a|b`c",
    "x" * 90,
]


def test_any_folder_name_is_shown_as_it_is(tmp_path):
    run_dirs = [ledger_of([0.1] * 3).write(tmp_path / name) for name in NAMES]
    for run_dir in run_dirs:
        (run_dir / "config.gin").write_text(f"x = '<b>&{run_dir.name}'\n")

    text = report(run_dirs, out=tmp_path / "out")

    page = (tmp_path / "out" / "report.html").read_text()

    assert "<script>alert" not in page
    assert len(scripts(page)) == 2

    checked = Checked(page)
    assert legend(page, "cer") == NAMES

    for name in NAMES:
        assert name in text
        assert name in checked.texts
        assert f"x = '<b>&{name}'\n" in checked.texts

        # In legends and at bars, where it may be shortened.
        shown = [text for text in checked.texts if text.startswith(name[:8])]

        assert len(shown) >= 7
        assert shortened(name, 42) in checked.texts


def test_many_runs_still_make_figures(tmp_path):
    run_dirs = [
        ledger_of([0.5, 0.1, 0.1]).write(tmp_path / f"run{i:02}") for i in range(45)
    ]
    report(run_dirs, out=tmp_path / "out")

    page = (tmp_path / "out" / "report.html").read_text()

    assert legend(page, "cer") == [*(f"run{i:02}" for i in range(16)), "all 45 runs"]
    assert "all 45 runs" in Checked(page).texts
