"""``tfasr watch``: runs that go on, runs that ended, and what is no run yet."""

import io
import json
import os
import re
import subprocess
import sys
import time

import pytest

from tests.tta.ledger_builder import LedgerBuilder
from tfasr import cli
from tfasr.reports.watching import Watch, duration, line, screen

FALLING = [0.9 * n**-0.6 for n in range(1, 61)]


def growing(cers, *, train_s=30.0, targets=(("cer", 0.15),)):
    """A run that has not ended; an epoch takes a minute."""
    ledger = LedgerBuilder().begin(targets=targets)
    for number, cer in enumerate(cers, start=1):
        ledger.epoch(number, cer, train_s=train_s)
    return ledger


def watch(*argv):
    return cli.run(cli.parse(["tfasr", "watch", *map(str, argv)]))


@pytest.fixture
def running(tmp_path):
    run_dir = growing(FALLING[:14]).write(tmp_path / "running")
    (run_dir / "progress.json").write_text(json.dumps({"epochs": 18}))
    return run_dir


def test_running_ended_and_coming_runs_side_by_side(tmp_path, running, capsys):
    ended = growing(FALLING[:40]).end().write(tmp_path / "ended")
    never = growing(FALLING[:8]).end().write(tmp_path / "never")
    assert watch(running, ended, never, tmp_path / "coming", "--once", "--window", 1) == 0
    first, second, third, fourth = capsys.readouterr().out.splitlines()
    assert first.startswith("running: training; epoch 14 of 18, 14 min; CER 18.5 %; WER 36.9 %")
    assert re.search(r"CER 15 % in \d+-\d+ min \(80 %\)", first)
    assert "its last epoch" in first
    assert second.startswith("ended: finished; epoch 40, 40 min")
    assert second.endswith("CER 15 % met after 20 min")
    assert third.endswith("CER 15 % never met (in 8.0 min)")
    assert fourth == "coming: starting; no ledger yet"


def test_runs_of_a_study_lie_deeper(tmp_path, capsys):
    for name in ("slow/seed_1", "fast/seed_1", "fast/seed_2"):
        growing(FALLING[:40]).end().write(tmp_path / "study" / "runs" / name)
    watch(tmp_path / "study", "--once")
    names = [one.split(":")[0] for one in capsys.readouterr().out.splitlines()]
    assert names == ["fast/seed_1", "seed_2", "slow/seed_1"]


def test_a_ledger_that_is_being_written_is_read_as_far_as_it_is_whole(running):
    ledger = running / "events.jsonl"
    whole = ledger.read_text()
    looking = Watch([running], window=1)
    (before,) = looking.look()
    ledger.write_text(whole + '{"namespace": "", "time_ms": 17000')
    (after,) = looking.look()
    assert (after.status, after.epoch) == ("training", before.epoch)
    ledger.write_text("")
    assert looking.look()[0].status == "starting"
    ledger.write_text("{}\n" + whole)
    (broken,) = looking.look()
    assert broken.status == "unreadable"
    assert "events.jsonl" in broken.note
    assert not broken.goes_on


def test_a_run_that_is_silent_and_clocks_that_were_put_forward_or_back(running):
    ledger = running / "events.jsonl"
    (alive,) = Watch([running], window=1).look()
    assert alive.status == "training"
    hour = time.time() + 3600
    os.utime(ledger, (hour, hour))
    (ahead,) = Watch([running], window=1).look()
    assert ahead.now_s == pytest.approx(alive.now_s, abs=5)
    past = time.time() - 600
    os.utime(ledger, (past, past))
    (silent,) = Watch([running], window=1).look()
    assert silent.status == "silent"
    assert "it says nothing for 10 min: it may be dead" in line(silent)
    # A long step: the process lives, and the clock goes on.
    (running / "heartbeat").touch()
    (busy,) = Watch([running], window=1).look()
    assert busy.status == "training"
    assert busy.now_s == pytest.approx(alive.now_s + 600, abs=5)
    assert "due: it was expected by now" in line(busy) or " in 0 s" in line(busy)


def test_five_hundred_runs_are_looked_at_and_read_once(tmp_path, monkeypatch):
    text = (growing(FALLING[:6]).end().write(tmp_path / "one") / "events.jsonl").read_bytes()
    paths = []
    for number in range(500):
        paths.append(tmp_path / "many" / f"run{number}")
        paths[-1].mkdir(parents=True)
        (paths[-1] / "events.jsonl").write_bytes(text)
    looking = Watch(paths, window=1)
    assert len(looking.look()) == 500
    monkeypatch.setattr("tfasr.reports.watching.load_log", lambda path: pytest.fail("read again"))
    runs = looking.look()
    from rich.console import Console

    console = Console(width=120, record=True, file=io.StringIO())
    console.print(screen(runs))
    shown = console.export_text()
    assert "500 finished" in shown
    assert "and 476 more" in shown


def test_the_command_ends_with_the_run(tmp_path):
    ledger = growing(FALLING[:5])
    run_dir = ledger.write(tmp_path / "run")
    command = [sys.executable, "-m", "tfasr.cli", "watch", str(run_dir), "--every_s", "0.1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert "not known yet (5 of the 6 evaluations" in process.stdout.readline()
    ledger.epoch(6, 0.3, train_s=30.0).end().write(run_dir)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert rest.splitlines()[-1].startswith("run: finished; epoch 6")


def test_no_target_is_said_and_one_may_be_named(tmp_path, capsys):
    run_dir = growing(FALLING[:14], targets=None).write(tmp_path / "run")
    watch(run_dir, "--once")
    assert "it has no target: name one, such as --target wer=0.2" in capsys.readouterr().out
    watch(run_dir, "--once", "--target", "wer=0.3", "--window", 1, "--policy", "mlperf")
    assert "WER 30 % in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["/nowhere/at/all"], "there is no folder /nowhere/at"),
        (["{here}", "--every_s", "0"], "--every_s must be more than 0"),
        (["{here}", "--target", "wer<1"], "like cer=0.10"),
    ],
)
def test_wrong_use(argv, message, running, capsys):
    assert watch(*(one.format(here=running) for one in argv)) == 2
    assert message in capsys.readouterr().err


def test_times_are_written_as_people_say_them():
    said = [duration(s) for s in (7, 99, 100, 599, 1441, 5900, 6000, 90000)]
    assert said == ["7 s", "99 s", "1.7 min", "10 min", "24 min", "98 min", "1.7 h", "25.0 h"]
