import shutil
import subprocess

import pytest

from tfasr.commands.report import report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="there is no chromium on this machine"),
]


def browse(page, folder):
    """Opens a page; returns its document, what its console said, and whether it fetched."""
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         "--disable-background-networking", f"--user-data-dir={folder / 'profile'}",
         f"--log-net-log={folder / 'net.json'}", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    # A local page is the origin "null"; what the browser fetches for itself has none at all.
    fetched = '"initiator":"null' in (folder / "net.json").read_text()
    return done.stdout, console, fetched


def test_a_real_browser_fetches_nothing_and_has_nothing_to_say(small, large, tmp_path):
    report([small, large], out=tmp_path / "out")
    document, console, fetched = browse(tmp_path / "out" / "report.html", tmp_path)
    assert document.count("<svg") == 5
    assert console == []
    assert not fetched


def test_the_browser_would_have_noticed(tmp_path):
    page = tmp_path / "page.html"
    page.write_text('<img src="http://example.invalid/x.png"><script>console.log("x")</script>')
    _, console, fetched = browse(page, tmp_path)
    assert len(console) == 1
    assert fetched
