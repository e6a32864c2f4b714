"""What a terminal gets to see: names whose escapes would colour, clear or rename it do not pass."""

import os
import pty
import threading
from pathlib import Path

import pytest

from tests.reports.conftest import ledger_of
from tests.warm import start_tfasr
from tfasr.errors import printable

HOSTILE = "r\x1b]0;t\x07"  # sets a terminal's title
SHOWN = b"r\\x1b]0;t\\x07"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of runs with such names; one of them is damaged, another's target has
    one too.
    """
    path = tmp_path_factory.mktemp("runs")
    ledger_of([0.5, 0.1, 0.1]).write(path / HOSTILE)
    bad = ledger_of([0.5, 0.1, 0.1]).write(path / f"bad{HOSTILE}")
    (bad / "run.json").write_text("damaged")
    return path


def on_terminal(*words, cwd):
    """Exit status and what the command writes to its terminal."""
    leader, follower = pty.openpty()
    written = []

    def read():
        try:
            while data := os.read(leader, 4096):
                written.append(data)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"}
    process = start_tfasr(
        *words,
        folder=cwd,
        environment=environment,
        terminal=Path(os.ttyname(follower)),
    )
    process.communicate()
    os.close(follower)
    reader.join()
    os.close(leader)
    return process.returncode, b"".join(written)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["report", "."], 0),
        (["report", ".", "--explain"], 0),
        (["report", ".", "--format", "csv"], 0),
        (["watch", ".", "--once"], 0),
        (["watch", HOSTILE], 0),
        (["report", f"no{HOSTILE}"], 2),
        (["report", ".", "--target", f"{HOSTILE}=0.1"], 2),
        (["report", ".", f"--{HOSTILE}"], 2),
        (["transcribe", f"{HOSTILE}.wav", "--run_dir", HOSTILE], 2),
    ],
)
def test_no_name_reaches_a_terminal_as_an_escape(folder, words, status):
    found, written = on_terminal(*words, cwd=folder)
    assert found == status, written
    assert SHOWN in written.replace(b"\r\n", b"")
    assert b"\x1b]" not in written
    assert b"\x07" not in written


def test_the_live_table_keeps_its_own_colours(folder):
    _, written = on_terminal("watch", HOSTILE, cwd=folder)
    assert b"\x1b[" in written


def test_letters_of_every_script_are_printable():
    text = "naïve 日本 فارسی‌ها\thi\nthere"
    assert printable(text) == text
    assert printable(text, one_line=True).count("\n") == 0
    assert printable("a\x9b31m\u202e\r") == "a\\x9b31m\\u202e\\r"
