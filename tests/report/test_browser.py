import re

import pytest

from tests.report.browser import CHROMIUM, Browser
from tests.report.test_groups import seeds
from tests.report.test_utilisation import long_run, sample
from tfasr.commands.report import report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine"),
]

DRAWN = "'drawn' in document.documentElement.dataset"
OVERLAPS = """(() => {
  const boxes = [...document.querySelectorAll('.legendtext, .xtick text, .ytick text')]
    .map((text) => [text.closest('figure').id, text.textContent, text.getBoundingClientRect()])
    .filter(([, , box]) => box.width);
  const found = [];
  boxes.forEach(([figure, text, a], i) => boxes.slice(i + 1).forEach(([other, second, b]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (figure === other && wide > 1 && high > 3) found.push([figure, text, second]);
  }));
  return found;
})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    run_dirs = [*seeds(folder, "small", 1.0), *seeds(folder, "large", 2.0)]
    sampled = long_run().write(folder / "sampled")
    sample(sampled, lambda now: 50)
    report([*run_dirs, sampled], out=folder / "out", force=True)
    return folder / "out" / "report.html"


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def browser(started):
    started.look_like()
    started.console.clear()
    started.requests.clear()
    return started


def test_it_draws_everything_fetches_nothing_and_has_nothing_to_say(page, browser):
    browser.open(page)
    browser.wait_for(DRAWN)
    figures = browser.run("document.querySelectorAll('figure').length")
    assert figures == 8
    assert browser.run("document.querySelectorAll('figure.live .main-svg').length") >= figures
    # Still figures have made room.
    assert browser.run("[...document.querySelectorAll('.still')].every((s) => !s.clientHeight)")
    assert browser.run("document.querySelectorAll('#cer .js-fill').length") == 2
    asked = {url for url in browser.requests if not url.startswith("data:")}
    assert asked == {page.as_uri()}
    assert browser.console == []


def test_the_browser_would_have_noticed(tmp_path, browser):
    page = tmp_path / "page.html"
    page.write_text('<img src="http://example.invalid/x.png"><script>console.log("x")</script>')
    browser.open(page)
    assert "http://example.invalid/x.png" in browser.requests
    assert "['x']" in browser.console


def test_the_policy_stops_what_would_fetch(page, tmp_path, browser):
    injected = '<img src="http://example.invalid/x.png"><script>window.ran = 1</script></body>'
    altered = tmp_path / "altered.html"
    altered.write_text(page.read_text().replace("</body>", injected))
    browser.open(altered)
    browser.wait_for(DRAWN)
    assert browser.run("window.ran") is None
    refused = [said for said in browser.console if "Content Security Policy" in said]
    assert len(refused) == 2


def test_axes_can_be_chosen(page, browser):
    browser.open(page)
    browser.wait_for(DRAWN)
    title = "document.querySelector('#cer .xtitle').textContent"
    scales = (
        "['x', 'y'].map((n) => document.querySelector('#cer .plot')._fullLayout[n + 'axis'].type)"
    )
    assert browser.run(title) == "minutes since the creation of the model"
    assert browser.run(scales) == ["linear", "log"]
    for value in ("epochs", "utterances"):
        browser.run(f"document.querySelector('[name=x][value={value}]').click()")
        browser.wait_for(f"document.documentElement.dataset.drawn == '{value}'")
    assert browser.run(title) == "utterances trained on"
    browser.run("document.querySelector('[name=y-scale][value=linear]').click()")
    browser.wait_for(f"{scales}[1] == 'linear'")
    assert browser.console == []


def test_a_legend_entry_hides_the_whole_group(page, browser):
    browser.open(page)
    browser.wait_for(DRAWN)
    fills = "document.querySelectorAll('#cer .js-fill').length"
    assert browser.run(fills) == 2
    browser.click("#cer .legendtoggle")
    browser.wait_for(f"{fills} == 1")


def test_who_points_at_an_evaluation_is_told_whose_it_is(page, browser):
    browser.open(page)
    browser.wait_for(DRAWN)
    browser.run("Plotly.Fx.hover(document.querySelector('#cer .plot'), "
                "[{curveNumber: document.querySelector('#cer .plot').data"
                ".findIndex((t) => t.text), pointNumber: 4}]); 1")  # fmt: skip
    browser.wait_for("document.querySelector('#cer .hovertext')")
    said = browser.run("document.querySelector('#cer .hovertext').textContent")
    assert said == "small-seed0epoch 5, 0.2 min10 %"


def test_the_policy_lets_a_reader_save_a_figure(page, browser):
    browser.open(page)
    browser.wait_for(DRAWN)
    picture = browser.run("Plotly.toImage(document.querySelector('#cer .plot'))")
    assert picture.startswith("data:image/png;base64,")
    assert browser.console == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_is_legible(page, width, dark, browser):
    browser.look_like(width=width, dark=dark, touch=width < 500)
    browser.open(page)
    browser.wait_for(DRAWN)
    # What is too wide scrolls in its own box.
    assert browser.run("document.documentElement.scrollWidth") == width
    text = browser.run("getComputedStyle(document.querySelector('#cer .xtick text')).fill")
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert contrast(text, paper) > 7
    assert browser.run(OVERLAPS) == []


def test_it_follows_when_the_light_goes_out(page, browser):
    fill = "getComputedStyle(document.querySelector('#cer .xtick text')).fill"
    browser.look_like(dark=False)
    browser.open(page)
    browser.wait_for(DRAWN)
    before = browser.run(fill)
    browser.look_like(dark=True)
    browser.wait_for(f"{fill} != {before!r}")
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert contrast(browser.run(fill), paper) > 7


def test_without_scripts_still_figures_stand_in(page, tmp_path):
    with Browser(tmp_path, scripts=False) as browser:
        browser.open(page)
        shown = "[...document.querySelectorAll('.still svg')].filter((s) => s.clientHeight > 99)"
        assert browser.run(f"{shown}.length") == 8
        assert browser.run("document.getElementById('controls').clientHeight") == 0
        assert browser.console == []


def contrast(first, second):
    """WCAG's ratio of two colours such as "rgb(1, 2, 3)"."""
    light = sorted((luminance(colour) for colour in (first, second)), reverse=True)
    return (light[0] + 0.05) / (light[1] + 0.05)


def luminance(colour):
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
