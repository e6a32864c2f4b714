"""A headless Chromium, driven through its DevTools protocol over a pipe: no driver, no port."""

import base64
import json
import os
import selectors
import shutil
import subprocess
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_PATIENCE_S = 90


class Browser:
    """One page of a browser; ``console`` and ``requests`` have all that was said and
    asked for.

    Args:
        folder: an empty place for the browser's profile.
        scripts: whether pages may run any.
        flags: more of the browser's own.
    """

    def __init__(self, folder, *, scripts=True, flags=()):
        self._number = 0
        self._answers = {}
        self._buffer = b""
        self.console = []
        self.requests = []
        self._errors = (folder / "chromium.log").open("wb")
        self._session = None

        command = [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            f"--user-data-dir={folder / 'profile'}",
        ]
        command += flags
        command.append("about:blank")

        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # The browser reads from descriptor 3 and writes to 4.
        script = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, *command],
            pass_fds=(to_browser, from_browser),
            stderr=self._errors,
            stdout=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)

        self._selector = selectors.DefaultSelector()
        self._selector.register(self._read, selectors.EVENT_READ)

        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

        if not scripts:
            self.call("Emulation.setScriptExecutionDisabled", value=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._selector.close()
        os.close(self._write)
        os.close(self._read)
        self._errors.close()

    def call(self, method, **params):
        """Calls a method of the protocol and returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session

        os.write(self._write, json.dumps(message).encode() + b"\0")
        self._until(lambda: self._number in self._answers)
        answer = self._answers.pop(self._number)
        assert "error" not in answer, answer

        return answer["result"]

    def look_like(self, *, width=1280, height=900, dark=False, touch=False):
        """Sets the size of the screen in pixels, its colour scheme, and whether it is
        touched.
        """
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=touch,
        )

    def open(self, page):
        """Opens a file, or an address, and waits until it has drawn all it draws."""
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        self.wait_for("document.readyState == 'complete'")

    def run(self, expression):
        """Returns what a JavaScript expression is; a promise is awaited."""
        found = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression):
        """Waits until a JavaScript expression is true."""
        began = time.monotonic()
        while not self.run(f"!!({expression})"):
            assert time.monotonic() - began < _PATIENCE_S, f"never true: {expression}"
            time.sleep(0.05)

    def click(self, selector):
        """Presses and releases the mouse on the first element that a selector finds."""
        x, y = self.run(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)});"
            "found.scrollIntoView({block: 'center'}); const box = found.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=x,
                y=y,
                button="left",
                clickCount=1,
            )

    def picture(self, path, *, whole=True):
        """Writes a PNG of the page, or of its part on the screen."""
        shot = self.call(
            "Page.captureScreenshot", captureBeyondViewport=whole, format="png"
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def _until(self, done):
        began = time.monotonic()
        while not done():
            assert time.monotonic() - began < _PATIENCE_S, "the browser does not answer"
            if not self._selector.select(timeout=1):
                assert self._process.poll() is None, "the browser is gone"
                continue

            received = os.read(self._read, 1 << 20)
            assert received, "the browser is gone"
            *messages, self._buffer = (self._buffer + received).split(b"\0")

            for message in messages:
                self._take(json.loads(message))

    def _take(self, message):
        method = message.get("method")
        params = message.get("params", {})
        if "id" in message:
            self._answers[message["id"]] = message
        elif method == "Runtime.consoleAPICalled":
            self.console.append(str([one.get("value") for one in params["args"]]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.console.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
