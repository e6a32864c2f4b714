"""A server that runs, and clients of it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.recognising.conftest import exported_tones, recogniser

__all__ = ["exported_tones", "recogniser"]

LIMITS = {
    "max_streams": 8,
    "max_stream_s": 60,
    "max_upload_mb": 1,
    "max_upload_s": 30,
    "idle_s": 5,
}


@dataclass
class Server:
    """A process that serves."""

    process: subprocess.Popen
    url: str
    folder: Path

    @property
    def files(self) -> list[Path]:
        """What lies where it keeps files while it hears them."""
        return list(self.folder.glob("tfasr-*"))


@contextlib.contextmanager
def started(run_dir, folder, *flags, stderr=subprocess.PIPE, **limits):
    """Runs ``tfasr serve`` until the block ends, and then sees whether Ctrl-C ends it well."""
    words = [
        word for name, value in limits.items() for word in (f"--{name}", str(value))
    ]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tfasr.cli",
            "serve",
            "--run_dir",
            str(run_dir),
            "--port",
            "0",
        ]
        + [*words, *flags],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )
    written = process.stderr or stderr

    with process:
        try:
            line = process.stdout.readline()
            result = re.search(r"http://\S+", line)
            assert result, written.read()
            server = Server(process, result[0], folder)

            yield server

            if process.poll() is None:
                process.send_signal(signal.SIGINT)

            assert process.wait(timeout=60) == 0, written.read()
            assert "Traceback" not in written.read()
            assert server.files == []
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server(exported_tones, tmp_path_factory):
    """Serves the exported tones within narrow limits."""
    with started(exported_tones, tmp_path_factory.mktemp("kept"), **LIMITS) as found:
        yield found
