import re
from html.parser import HTMLParser

import pytest

from tests.report.conftest import ledger_of
from tfasr.commands.report import report

VOID = {"meta", "link", "br"}


class Checked(HTMLParser):
    """Collects what a page refers to, its ids and its text; fails on tags that do not match."""

    def __init__(self, page):
        super().__init__()
        self.open, self.references, self.ids, self.texts = [], [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.references += [attributes[key] for key in ("src", "href") if key in attributes]
        self.ids += [attributes["id"]] if "id" in attributes else []
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


@pytest.fixture
def page(small, large, tmp_path):
    report([small, large], out=tmp_path / "out")
    return (tmp_path / "out" / "report.html").read_text()


def test_the_page_needs_nothing_but_itself(page):
    assert "//" not in page
    assert "xlink" not in page
    checked = Checked(page)
    assert checked.references
    for reference in checked.references:
        assert reference == "data:," or reference.removeprefix("#") in checked.ids


def test_ids_are_distinct(page):
    ids = Checked(page).ids
    assert len(ids) == len(set(ids))


def test_the_page_answers_first(page):
    text = "".join(Checked(page).texts)
    assert "CER 10 %: small in 0.133 min (epoch 3); large in 0.2 min, 1.50 times as long." in text


def test_the_page_is_readable_in_the_dark_and_on_a_phone(page):
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
    # The drawings have no ink of their own but the runs' colours.
    assert "currentColor" in page
    assert "#000000" not in page
    assert page.count("<svg") == page.count('role="img"') == 5


def test_every_figure_is_a_png_too(page, tmp_path):
    figures = sorted(path.name for path in (tmp_path / "out").glob("*.png"))
    assert figures == ["cer.png", "intervals.png", "train_loss.png", "wer.png", "why_1.png"]
    for name in figures:
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
    assert set(re.findall(r'<figure id="(\w+)"', page)) == {n[:-4] for n in figures}


@pytest.mark.parametrize(
    "name",
    ["<script>alert(1)</script>", "$x$ & $", "_private", "[red]x", "日本", "a|b`c", "x" * 90],
)
def test_any_folder_name_is_shown_as_it_is(name, tmp_path, large):
    folder = tmp_path / name.replace("/", "∕")
    run_dir = ledger_of([0.1] * 3).write(folder)
    (run_dir / "config.gin").write_text("x = '<b>&'\n")
    text = report([run_dir, large], out=tmp_path / "out")
    assert folder.name in text
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script" not in page
    checked = Checked(page)
    assert folder.name in checked.texts
    assert "x = '<b>&'\n" in checked.texts
    # In the legend and at the bar, where it may be shortened.
    shown = [t for t in checked.texts if t.startswith(folder.name[:8])]
    assert len(shown) >= 5


def test_many_runs_still_make_figures(tmp_path):
    run_dirs = [ledger_of([0.5, 0.1, 0.1]).write(tmp_path / f"run{i:02}") for i in range(45)]
    report(run_dirs, out=tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "run11 and 33 more" in page
    Checked(page)
