"""The page in a browser: a microphone that plays a file, files that are dropped, a phone."""

import asyncio
import base64
import dataclasses
import json
import threading

import numpy as np
import pytest
from aiohttp.test_utils import TestServer

from tests.recognising.spoken_tones import pause, spoken, write_wav
from tests.reports.browser import CHROMIUM, Browser
from tfasr.recognising.recogniser import Recogniser, load_recogniser
from tfasr.serving.server import make_application
from tfasr.serving.service import Limits, Service

pytest.importorskip(
    "aiohttp", reason="needs the serve extra: pip install 'tfasr[serve]'"
)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine"),
]

SAID = "[...document.querySelector('article').querySelectorAll('.said p:not(.partial) > span')]"
TEXTS = SAID + ".map((line) => line.textContent.trim())"
# What is heard of an utterance that goes on is shown for parts of a second.
NOTE_PARTIALS = """(() => {
  window.partials = [];
  const hearing = Result.prototype.hearing;
  Result.prototype.hearing = function (text) {
    hearing.call(this, text);
    partials.push(this.partial.innerText.trim());
  };
})()"""
DROP = """(() => {
  const bytes = Uint8Array.from(atob('%s'), (one) => one.charCodeAt(0));
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([bytes], 'talk.wav'));
  const options = { dataTransfer, bubbles: true, cancelable: true };
  for (const type of ['dragover', 'drop']) {
    const prevented = !document.body.dispatchEvent(new DragEvent(type, options));
    if (!prevented) throw new Error(`the browser would open the file: ${type}`);
  }
})()"""
IDLE = "![...document.querySelectorAll('.cancel')].some((one) => !one.hidden)"
WIDER = "document.documentElement.scrollWidth - innerWidth"


@pytest.fixture(scope="module")
def addresses(exported_tones):
    """The pages of a model that streams, and of one that does not, served from a thread."""
    streams = load_recogniser(exported_tones)
    features = dataclasses.replace(streams.spec.features, normalisation="utterance")
    whole = Recogniser(
        dataclasses.replace(streams.spec, features=features), streams.acoustics
    )
    services = [Service(one, Limits(max_upload_mb=1)) for one in (streams, whole)]
    loop = asyncio.new_event_loop()
    servers = [TestServer(make_application("tones", one)) for one in services]

    for server in servers:
        loop.run_until_complete(server.start_server())

    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    yield [str(server.make_url("/")) for server in servers]

    loop.call_soon_threadsafe(loop.stop)
    thread.join()

    for server, service in zip(servers, services, strict=True):
        loop.run_until_complete(server.close())
        service.close()

    loop.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A browser whose microphone hears two utterances and pauses."""
    folder = tmp_path_factory.mktemp("browser")
    # The fake device begins with zeros, in which these models hear a letter: a pause
    # ends it.
    speech = [
        pause(2, 1),
        spoken("abc da bcd", 1),
        pause(2.5, 2),
        spoken("dad cab", 2),
        pause(60, 3),
    ]
    path = write_wav(folder / "said.wav", np.concatenate(speech))
    flags = [
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        f"--use-file-for-fake-audio-capture={path}%noloop",
    ]

    with Browser(folder, flags=flags) as found:
        yield found


@pytest.fixture
def page(browser):
    """The browser with its usual look, before anything was said or fetched."""
    browser.look_like()
    browser.console.clear()
    browser.requests.clear()

    return browser


def choose(page, *paths):
    """Gives the page files, as its button does."""
    root = page.call("DOM.getDocument")["root"]["nodeId"]
    node = page.call("DOM.querySelector", nodeId=root, selector="#files")["nodeId"]
    page.call("DOM.setFileInputFiles", files=[str(path) for path in paths], nodeId=node)
    page.wait_for(IDLE)


def test_what_is_said_is_read_along_and_ends_in_words(page, addresses):
    page.open(addresses[0])
    page.run(NOTE_PARTIALS)
    page.click("#speak")
    page.wait_for(f"{TEXTS}.at(-1) === 'abc da bcd'")
    page.wait_for("partials.includes('dad cab')")
    page.click("#speak")  # before a pause has ended the utterance

    page.wait_for("document.querySelector('article .tools:not([hidden])')")

    assert page.run(TEXTS)[-2:] == ["abc da bcd", "dad cab"]

    title = page.run(f"{SAID}.at(-1).firstElementChild.title")

    assert " s, confidence " in title
    assert page.run("partials.filter((text) => text.startsWith('abc d')).length") > 1

    page.click("article summary")
    page.wait_for("document.querySelector('tbody tr')")

    rows = page.run(
        "[...document.querySelectorAll('tbody tr')].map((row) => row.innerText)"
    )

    assert [row.split("\t")[0] for row in rows][-2:] == ["dad", "cab"]
    assert (
        page.run("speech === null && document.querySelector('#speak').textContent")
        == "Speak"
    )
    assert page.run("document.querySelector('#trouble').hidden")
    assert page.console == []


def test_files_are_taken_one_by_one_and_a_bad_one_says_why(page, addresses, tmp_path):
    talk = write_wav(tmp_path / "talk.wav", spoken("dad cab", 1))
    (tmp_path / "<b>.wav").write_text("no audio")
    (tmp_path / "large.wav").write_bytes(bytes(1_000_001))
    page.open(addresses[0])
    page.run(DROP % base64.b64encode(talk.read_bytes()).decode())
    choose(page, tmp_path / "<b>.wav", tmp_path / "large.wav")
    articles = page.run(
        "[...document.querySelectorAll('article')].map((one) => one.innerText)"
    )
    large, bad, good = articles

    assert "at most 1 MB" in large
    assert bad.startswith("<b>.wav")
    assert "Format not recognised" in bad
    assert "dad cab" in good

    # What a download would be given.
    page.run(
        "URL.createObjectURL = (blob) => { window.saved = blob; return 'blob:x'; }"
    )
    page.click("article:last-child [data-tool=saveWords]")

    saved = json.loads(page.run("saved.text()"))

    assert (
        [word["word"] for word in saved["result"]]
        == saved["text"].split()
        == ["dad", "cab"]
    )

    own = [url for url in page.requests if not url.startswith((addresses[0], "blob:"))]
    assert own == []


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_all_of_it(page, addresses, tmp_path, dark):
    page.look_like(width=360, height=740, dark=dark, touch=True)
    page.open(addresses[0])

    choose(
        page,
        write_wav(tmp_path / f"{'long-name-' * 12}.wav", spoken("dad cab " * 6, 1)),
    )

    assert page.run(WIDER) <= 0

    background = page.run("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") != dark


def test_a_model_that_cannot_stream_takes_files_and_says_which_can(
    page, addresses, tmp_path
):
    page.open(addresses[1])
    text = page.run("document.body.innerText")

    assert "preset an4_streaming.gin" in text
    assert page.run("document.querySelector('#can-speak').hidden")
    assert "'utterance'" in page.run("document.querySelector('#exactly').textContent")

    choose(page, write_wav(tmp_path / "talk.wav", spoken("dad cab", 1)))
    assert page.run("document.querySelectorAll('.said p').length") > 0
