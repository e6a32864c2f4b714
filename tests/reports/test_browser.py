import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from tests.reports.browser import CHROMIUM, Browser
from tests.reports.test_report import seeds
from tests.reports.test_utilisation import long_run, sample
from tfasr.commands.report import report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine"),
]

OPEN = """document.querySelectorAll('details.section, details.axes')
  .forEach((section) => { section.open = true; })"""
DRAWN = "'drawn' in document.documentElement.dataset"
LINES = "document.querySelectorAll('#cer .plot .mark-line path').length"
# Labels are centred in boxes that are a little higher than their letters.
OVERLAPS = """(() => {
  const boxes = [...document.querySelectorAll('.plot svg text, .legend button')]
    .map((text) => [text.closest('figure').id, text.textContent, text.getBoundingClientRect()])
    .filter(([, text, box]) => box.width && text);
  const found = [];
  boxes.forEach(([figure, text, a], i) => boxes.slice(i + 1).forEach(([other, second, b]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (figure === other && wide > 1 && high > 5) found.push([figure, text, second]);
  }));
  return found;
})()"""
OUTSIDE = """[...document.querySelectorAll('.plot svg text')]
  .filter((text) => text.textContent && text.getBoundingClientRect().right > innerWidth)
  .map((text) => text.textContent)"""
TEXTS = (
    "[...document.querySelectorAll('%s .plot svg text')].map((one) => one.textContent)"
)
TICK = "document.querySelector('#cer .plot .role-axis-label text')"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A report of two groups and of a run with samples of its processors."""
    folder = tmp_path_factory.mktemp("page")
    run_dirs = [*seeds(folder, "small", 1.0), *seeds(folder, "large", 2.0)]
    sampled = long_run().write(folder / "sampled")
    sample(sampled, lambda now: 50)
    report([*run_dirs, sampled], out=folder / "out", force=True)

    return folder / "out" / "report.html"


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """One browser for all tests of this file."""
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def browser(started):
    """The browser with its usual look, before anything was said or fetched."""
    started.look_like()
    started.console.clear()
    started.requests.clear()

    return started


def test_it_draws_everything_fetches_nothing_and_has_nothing_to_say(page, browser):
    browser.open(page)
    browser.wait_for(DRAWN)

    figures = browser.run("document.querySelectorAll('figure').length")

    assert figures == 9
    # A folded figure is drawn when its section is opened.
    assert browser.run("document.querySelectorAll('figure.live').length") == 1

    browser.run(OPEN)
    browser.wait_for("document.querySelectorAll('figure.live').length == 9")

    browser.wait_for(DRAWN)

    assert browser.run("document.querySelectorAll('figure.live').length") == figures
    assert (
        browser.run("document.querySelectorAll('figure.live .plot svg').length")
        >= figures
    )
    # Still figures have made room.
    assert browser.run(
        "[...document.querySelectorAll('.still')].every((s) => !s.clientHeight)"
    )

    asked = {url for url in browser.requests if not url.startswith("data:")}

    assert asked == {page.as_uri()}
    assert browser.console == []


def test_the_browser_would_have_noticed(tmp_path, browser):
    page = tmp_path / "page.html"
    page.write_text(
        '<img src="http://example.invalid/x.png"><script>console.log("x")</script>'
    )

    browser.open(page)

    assert "http://example.invalid/x.png" in browser.requests
    assert "['x']" in browser.console


def test_the_policy_stops_what_would_fetch(page, tmp_path, browser):
    injected = (
        '<img src="http://example.invalid/x.png"><script>window.ran = 1</script></body>'
    )
    altered = tmp_path / "altered.html"
    # The library knows the tag's name, too.
    whole, end = page.read_text().rsplit("</body>", 1)
    altered.write_text(whole + injected + end)
    browser.open(altered)

    browser.wait_for(DRAWN)

    assert browser.run("window.ran") is None

    refused = [said for said in browser.console if "Content Security Policy" in said]
    assert len(refused) == 2


def test_axes_can_be_chosen(page, browser):
    browser.open(page)
    browser.wait_for(DRAWN)

    browser.run(OPEN)

    assert "seconds since the creation of the model" in browser.run(TEXTS % "#cer")

    before = browser.run(TEXTS % "#cer")

    for value in ("epochs", "utterances"):
        browser.run(f"document.querySelector('[name=x][value={value}]').click()")
        browser.wait_for(f"document.documentElement.dataset.drawn == '{value}'")

    assert "utterances trained on" in browser.run(TEXTS % "#cer")
    assert before.count("0") == 1

    browser.run("document.querySelector('[name=y-scale][value=linear]').click()")
    browser.wait_for(DRAWN)

    # A linear axis of error rates begins at zero.
    assert browser.run(TEXTS % "#cer").count("0") == 2
    assert browser.console == []


def test_a_legend_entry_hides_the_whole_group(page, browser):
    browser.open(page)
    browser.wait_for(DRAWN)
    before = browser.run(LINES)
    browser.click("#cer .legend button")
    browser.wait_for(f"{LINES} < {before}")
    pressed = (
        "document.querySelector('#cer .legend button').getAttribute('aria-pressed')"
    )

    assert browser.run(pressed) == "false"

    browser.click("#cer .legend button")
    browser.wait_for(f"{LINES} == {before}")

    assert browser.console == []


def test_who_points_at_an_evaluation_is_told_whose_it_is(page, browser):
    browser.open(page)
    browser.wait_for(DRAWN)
    x, y = browser.run(
        "(() => { const found = [...document.querySelectorAll('#cer .plot svg path')]"
        ".filter((one) => one.__data__ && (one.__data__.datum || {}).t);"
        "found[4].scrollIntoView({block: 'center'}); const box = found[4].getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    browser.wait_for("!document.getElementById('tip').hidden")

    said = browser.run("document.getElementById('tip').textContent")

    assert said == "small-seed0\nepoch 5, 12 s\n10 %"
    assert browser.console == []


def test_a_mouse_chooses_the_part_to_show_and_two_clicks_show_all(page, browser):
    browser.open(page)
    browser.wait_for(DRAWN)
    before = browser.run(TEXTS % "#cer")
    left, top, width, height = browser.run(
        "(() => { const found = document.querySelector('#cer .plot .background');"
        "found.scrollIntoView({block: 'center'}); const box = found.getBoundingClientRect();"
        "return [box.x, box.y, box.width, box.height]; })()"
    )

    def mouse(kind, x, y, **more):
        place = {"x": left + x * width, "y": top + y * height, "button": "left"}
        browser.call("Input.dispatchMouseEvent", type=kind, **place, **more)

    mouse("mousePressed", 0.5, 0.2, clickCount=1, buttons=1)
    mouse("mouseMoved", 0.6, 0.4, buttons=1)

    mouse("mouseMoved", 0.9, 0.6, buttons=1)

    assert browser.run("document.querySelectorAll('#cer .brush').length") == 1

    mouse("mouseReleased", 0.9, 0.6, clickCount=1)
    browser.wait_for(f"{TEXTS % '#cer'}.join() != {json.dumps(','.join(before))}")

    assert "0" not in browser.run(TEXTS % "#cer")
    # The target at 10 % is out of sight, and so is its label.
    assert "10" not in browser.run(TEXTS % "#cer")

    for clicks in (1, 2):
        mouse("mousePressed", 0.5, 0.5, clickCount=clicks, buttons=1)
        mouse("mouseReleased", 0.5, 0.5, clickCount=clicks)

    browser.wait_for(f"{TEXTS % '#cer'}.join() == {json.dumps(','.join(before))}")
    assert browser.console == []


def test_the_policy_lets_a_reader_save_a_figure(page, browser):
    browser.open(page)
    browser.wait_for(DRAWN)
    browser.run(
        "URL.createObjectURL = (made) => { window.made = made; return 'data:,'; };"
        "HTMLAnchorElement.prototype.click = function () { window.named = this.download; }; 1"
    )
    browser.click("#cer .save")

    browser.wait_for("window.named")

    assert browser.run("window.named") == "cer.svg"

    saved = browser.run("window.made.text()")

    assert "small (n = 3)" in saved
    assert ElementTree.fromstring(saved).tag.endswith("svg")
    assert browser.console == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_is_legible(page, width, dark, browser):
    browser.look_like(width=width, dark=dark, touch=width < 500)
    browser.open(page)
    browser.wait_for(DRAWN)
    browser.run(OPEN)
    browser.wait_for("document.querySelectorAll('figure.live').length == 9")

    browser.wait_for(DRAWN)

    # What is too wide scrolls in its own box.
    assert browser.run("document.documentElement.scrollWidth") == width

    text = browser.run(f"getComputedStyle({TICK}).fill")
    paper = browser.run("getComputedStyle(document.body).backgroundColor")

    assert contrast(text, paper) > 7
    assert browser.run(OVERLAPS) == []
    assert browser.run(OUTSIDE) == []


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_first_screen_has_verdict_table_and_curve(page, width, height, browser):
    browser.look_like(width=width, height=height, touch=width < 500)
    browser.open(page)
    browser.wait_for(DRAWN)

    for shown in (".verdict", ".first table", ".first .plot"):
        place = f"document.querySelector('{shown}').getBoundingClientRect()"

        assert browser.run(f"{place}.bottom") <= height
        assert browser.run(f"{place}.right") <= width

    # All else is folded.
    assert browser.run("document.documentElement.scrollHeight") < 2.5 * height


def test_a_link_of_the_contents_opens_its_section(page, browser):
    browser.open(page)
    browser.wait_for(DRAWN)

    assert not browser.run("document.querySelector('#section-0').open")

    browser.click("nav a")
    browser.wait_for("document.querySelector('#section-0').open")

    assert browser.console == []


def test_it_follows_when_the_light_goes_out(page, browser):
    fill = f"getComputedStyle({TICK}).fill"
    browser.look_like(dark=False)
    browser.open(page)
    browser.wait_for(DRAWN)
    before = browser.run(fill)
    browser.look_like(dark=True)
    browser.wait_for(f"{TICK} && {fill} != {before!r}")

    paper = browser.run("getComputedStyle(document.body).backgroundColor")

    assert contrast(browser.run(fill), paper) > 7


def test_without_scripts_still_figures_stand_in(page, tmp_path):
    with Browser(tmp_path, scripts=False) as browser:
        browser.open(page)
        shown = "[...document.querySelectorAll('.still svg')].filter((s) => s.clientHeight > 99)"

        assert browser.run(f"{shown}.length") == 9
        assert browser.run("document.getElementById('controls').clientHeight") == 0
        assert browser.console == []


def contrast(first, second):
    """WCAG's ratio of two colours such as "rgb(1, 2, 3)"."""
    light = sorted((luminance(colour) for colour in (first, second)), reverse=True)
    return (light[0] + 0.05) / (light[1] + 0.05)


def luminance(colour):
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [
        p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
