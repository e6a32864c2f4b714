"""Empty words, devices and pipes in a file's place, files without end: refused, and left alone."""

import os
import shlex
import subprocess
import sys

import pytest

from campaigns.hostile_words import EMPTY
from tfasr import Recorder, cli
from tfasr.errors import UsageError
from tfasr.kit.files import MOST_BYTES, publish, read_text, write_whole
from tfasr.kit.gin import fill, read_gin
from tfasr.ledger.events import read_events


@pytest.mark.parametrize("case", EMPTY, ids=lambda case: case.name)
def test_an_empty_word_is_no_folder(case, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.parse(["tfasr", *shlex.split(case.words)])
    assert ended.value.code == 2
    assert all(fact.lower() in capsys.readouterr().err.lower() for fact in case.facts)


def test_a_word_that_is_not_empty_is_taken():
    assert cli.parse(["tfasr", "report", "run", "--out=x"]).command == "report"


def test_no_writer_takes_the_place_of_a_device_a_pipe_or_a_folder(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "finished").write_text("x")
    for name in ("pipe", "folder"):
        with pytest.raises(UsageError, match=name):
            write_whole(tmp_path / name, "text")
        with pytest.raises(UsageError, match=name):
            publish(tmp_path / "finished", tmp_path / name)

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "finished",
        "folder",
        "pipe",
    ]
    assert not (tmp_path / "pipe").is_file()


def test_what_has_no_end_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=r"pipe.*Choose another"):
        read_text(tmp_path / "pipe", "Choose another.")
    with (tmp_path / "events.jsonl").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(UsageError, match=str(MOST_BYTES)):
        read_events(tmp_path)


@pytest.mark.parametrize(
    "lines",
    ["N = %N\nM = %N", "A = %B\nB = ({'x': [%C]},)\nC = %A\nD = %C", "epochs = 5"],
)
def test_macros_lead_to_a_value_and_something_uses_them(tmp_path, lines):
    (tmp_path / "a.gin").write_text(lines)
    text = read_gin([str(tmp_path / "a.gin")], [])
    with pytest.raises(UsageError, match=r"a\.gin:\d"):
        fill(text, lambda text: None)


@pytest.mark.parametrize(
    "targets", [5, [5], [None], [("cer",)], [("cer", 0.1, 2)], [(["cer"], 1)]]
)
def test_targets_that_are_no_pairs(tmp_path, targets):
    with pytest.raises(UsageError, match="target"):
        Recorder(tmp_path / "run", targets=targets)


def test_a_pipe_that_is_closed_ends_a_command_quietly(tmp_path):
    run = tmp_path / "run"
    with Recorder(run, targets=["cer=0.5"]) as recorder:
        recorder.epoch()
        with recorder.evaluation() as e:
            e.score(["a"], ["a"])

    reader, writer = os.pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    command = [sys.executable, "-m", "tfasr.cli", "watch", "--once", str(run)]
    for output, status, words in ((writer, cli.PIPE_CLOSED, ""), (full, 1, "full")):
        with os.fdopen(output, "wb") as stdout:
            ended = subprocess.run(
                command, stdout=stdout, stderr=subprocess.PIPE, text=True
            )
        assert ended.returncode == status
        assert words in ended.stderr
        assert "Traceback" not in ended.stderr
        assert "Exception ignored" not in ended.stderr
