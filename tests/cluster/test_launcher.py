"""Local workers: what they are told, how their output is shown, and that all end when one does."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tfasr.cluster import launcher
from tfasr.cluster.launcher import thread_variables

# Stands for a training: a plug-in runs while the command line is parsed, before TensorFlow loads.
WORKER = """
import json, os, signal, sys, time
from pathlib import Path
config = json.loads(os.environ["TF_CONFIG"])
rank = config["task"]["index"]
print("of", len(config["cluster"]["worker"]))
print("error of", rank, file=sys.stderr)
sys.stdout.flush()
{what}
os._exit(0)
"""
LAUNCH = """
import sys
from tfasr.cluster import launcher
launcher.NOTICE_S, launcher.END_S = {notice_s}, {end_s}
sys.exit(launcher.launch(3, sys.argv[1:]))
"""


@pytest.fixture
def start(tmp_path):
    """Returns a function that launches three workers that do something."""
    begun = []

    def launching(what: str, notice_s: float = 1.0, end_s: float = 1.0) -> subprocess.Popen:
        plugin = tmp_path / "worker.py"
        plugin.write_text(WORKER.format(what=what))
        script = LAUNCH.format(notice_s=notice_s, end_s=end_s)
        command = [sys.executable, "-c", script, "watch", "--import", str(plugin), str(tmp_path)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        begun.append(process)
        return process

    yield launching
    for process in begun:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_workers_share_the_processors_unless_the_user_says_how(monkeypatch):
    monkeypatch.setattr(launcher, "usable_cores", lambda: 8)
    both = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
    assert thread_variables(3, {}) == dict.fromkeys(both, "2")
    assert thread_variables(9, {"OMP_NUM_THREADS": "4"}) == {"TF_NUM_INTRAOP_THREADS": "1"}


def test_output_comes_with_the_workers_number(start):
    process = start("")
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0
    assert sorted(out.splitlines()) == ["[0] of 3", "[1] of 3", "[2] of 3"]
    assert sorted(errors.splitlines()) == [f"[{k}] error of {k}" for k in range(3)]


def test_one_failure_ends_all_with_its_exit_code_and_politely_first(start, tmp_path):
    file = tmp_path / "told"
    what = f"""
folder = Path({str(tmp_path)!r})
if rank == 0:
    def told(*_):
        (folder / "told").write_text("SIGTERM")
        os._exit(3)
    signal.signal(signal.SIGTERM, told)
if rank == 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
(folder / f"ready-{{rank}}").touch()
if rank == 1:
    while len(list(folder.glob("ready-*"))) < 3:
        time.sleep(0.02)
    os._exit(7)
time.sleep(100)
"""
    process = start(what)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 7
    assert "worker 1 ended with exit code 7: ending the others" in errors
    assert file.read_text() == "SIGTERM"


def test_who_ends_by_itself_in_time_is_not_signalled(start, tmp_path):
    file = tmp_path / "told"
    what = f"""
signal.signal(signal.SIGTERM, lambda *_: Path({str(file)!r}).write_text("SIGTERM"))
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1)
"""
    process = start(what, notice_s=60.0)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 128 + signal.SIGKILL
    assert "worker 2 ended with signal 9" in errors
    assert not file.exists()


def test_signals_are_passed_on_once(start):
    what = """
times = []
def told(*_):
    times.append(1)
    time.sleep(0.5)
    print("told", len(times))
    sys.stdout.flush()
    os._exit(143)
signal.signal(signal.SIGTERM, told)
print("ready")
sys.stdout.flush()
time.sleep(100)
"""
    process = start(what, notice_s=0.0)
    seen = ""
    deadline = time.monotonic() + 60
    while seen.count("ready") < 3 and time.monotonic() < deadline:
        seen += process.stdout.readline()
    os.kill(process.pid, signal.SIGTERM)
    out = process.communicate(timeout=120)[0]
    assert process.returncode == 143
    assert sorted(out.splitlines()) == ["[0] told 1", "[1] told 1", "[2] told 1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-n", "2"], "the command train behind --"),
        (["-n", "2", "--", "report"], "the command train behind --"),
        (["-n", "0", "--", "train"], "at least 1 worker"),
        (["-n", "2", "--", "train", "--rank=1"], "Received: --rank=1. Leave it out"),
    ],
)
def test_what_cannot_be_launched_is_refused(words, said, capsys):
    from tfasr import cli

    arguments = cli.parse(["tfasr", "launch", *words])
    assert cli.run(arguments) == 2
    assert said in capsys.readouterr().err
