"""``tfasr watch``: runs that go on, runs that ended, and what is no run yet."""

import io
import json
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.reports.conftest import COMPARABLE, ledger_of
from tests.tta.ledger_builder import LedgerBuilder
from tests.tta.test_host import Machine
from tfasr import cli
from tfasr.reports.history import load_history
from tfasr.reports.watching import Watch, duration, line, screen
from tfasr.telemetry.machine import revision

# ``tfasr report --history``: what became slower, from which commit on, and why.

DAY_S = 86400


def history(*argv):
    return cli.run(cli.parse(["tfasr", "report", "--history", *map(str, argv)]))


def write(
    folder, number, *, step_s=1.0, wait_s=0.0, eval_s=0.0, init_s=2, epochs=5, commit=None,
    comparable=COMPARABLE,
):  # fmt: skip
    """A run of one day, that reaches CER 10 % with its last epochs."""
    ledger = LedgerBuilder(wall_s=1_700_000_000.0 + number * DAY_S)
    ledger.begin(init_s=init_s, targets=(("cer", 0.1),), comparability=comparable)
    seconds = {"train_s": step_s, "wait_s": wait_s, "forward_s": eval_s}
    # Enough steps an epoch for some to be steady.
    for epoch in range(1, epochs + 1):
        ledger.epoch(epoch, 0.5 if epoch < epochs - 1 else 0.1, steps=6, **seconds)
    run_dir = ledger.end().write(folder / f"run{number:03d}")
    (run_dir / "config.gin").write_text(f"x = 1\ntrain.seed = {number}\n")
    if commit is not None:
        (run_dir / "run.json").write_text(json.dumps({"revision": commit}))
    return run_dir


@pytest.fixture
def slower(tmp_path):
    """Two runs a commit; from the seventh commit on steps take 15 % longer."""
    rng = np.random.default_rng(3)
    for number in range(20):
        step_s = (1.15 if number >= 12 else 1.0) * float(
            np.exp(0.01 * rng.standard_normal())
        )
        write(tmp_path / "runs", number, step_s=step_s, commit=f"{number // 2:x}" * 40)

    return tmp_path / "runs"


def test_a_slower_step_is_named_as_the_cause_and_exits_with_3(slower, tmp_path, capsys):
    pytest.importorskip("vl_convert")
    assert history(slower, "--out", tmp_path / "out") == 3
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"SLOWER: step time per utterance \+1[3-7]\.\d % from 666666666666 on", text
    )
    assert "SLOWER: time to the target" in text
    assert "utterances to the target +" not in text
    assert (tmp_path / "out" / "history.png").stat().st_size > 10_000
    found = json.loads((tmp_path / "out" / "history.json").read_text())
    assert {one["series"] for one in found["changes"]} >= {"step_s", "time_s"}
    assert all(one["stands"] for one in found["changes"])
    assert len(found["runs"]) == 20


def test_runs_that_their_machine_slowed_down_are_no_slowdown(tmp_path, capsys):
    rng = np.random.default_rng(3)
    for number in range(24):
        busy = number >= 16
        step_s = (2.0 if busy else 1.0) * float(np.exp(0.01 * rng.standard_normal()))
        run_dir = write(tmp_path, number, step_s=step_s)
        machine = Machine()
        for _ in range(100):
            waited_s = 1.0 if busy else 0.0
            machine.second(ran_s=2.0 - waited_s, busy_s=2.0, waited_s=waited_s)

        machine.write(run_dir)

    assert history(tmp_path, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["runs"]) == 16
    (note, *others) = found["notes"]
    assert "run016 is left out: the machine took 50%" in note
    assert len(others) == 7
    # Asked for, they are shown, and slower.
    assert history(tmp_path, "--force", "--format", "json") == 3


def test_watch_names_a_machine_that_takes_processors(tmp_path):
    run_dir = write(tmp_path, 1)
    machine = Machine()
    for _ in range(100):
        machine.second(ran_s=1.0, busy_s=1.0, stolen_s=1.0)
    machine.write(run_dir)

    (watched,) = Watch([run_dir]).look()
    assert "the machine took 50% of what its steps could have used" in line(watched)
    assert "steal" in line(watched)


def test_an_accepted_slowdown_is_left_behind(slower, capsys):
    assert history(slower, "--since", "666") == 0
    assert "Not known yet: 8 of the 12 runs" in capsys.readouterr().out
    assert history(slower, "--since", "2023-11-27", "--format", "json") == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 7
    assert history(slower, "--since", "fff") == 2
    assert "--since must name a commit or a date" in capsys.readouterr().err


@pytest.mark.parametrize(
    "after", [{"step_s": 0.7}, {"step_s": 0.9, "wait_s": 0.1}, {"epochs": 4}]
)
def test_a_speed_up_alone_is_never_slower(after, tmp_path, capsys):
    rng = np.random.default_rng(1)
    for number in range(24):
        about = {"step_s": 1.0, "eval_s": 2.0, "init_s": 6} | (
            after if number >= 12 else {}
        )
        about["step_s"] *= float(np.exp(0.01 * rng.standard_normal()))
        write(tmp_path, number, **about)

    assert history(tmp_path, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert not found["slower"]
    if "wait_s" not in after:
        assert any(one["ratio"] < 1 for one in found["changes"])


def test_slower_evaluations_are_named_in_seconds_per_epoch(tmp_path, capsys):
    rng = np.random.default_rng(1)
    for number in range(24):
        eval_s = (5.0 if number >= 12 else 2.0) * float(
            np.exp(0.02 * rng.standard_normal())
        )
        write(tmp_path, number, eval_s=eval_s, init_s=5)

    assert history(tmp_path, "--format", "json") == 3
    slower = {
        one["series"]: one for one in json.loads(capsys.readouterr().out)["slower"]
    }
    assert set(slower) == {"rest_s", "time_s"}
    assert slower["rest_s"]["from_run"] == "run012"
    assert slower["rest_s"]["before"] == pytest.approx(2 + 5 / 5, rel=0.05)
    assert slower["rest_s"]["after"] == pytest.approx(5 + 5 / 5, rel=0.05)


@pytest.mark.parametrize(
    ("repaired", "code"), [(1.3, 3), (1.25, 3), (1.17, 3), (1.0, 0)]
)
def test_a_slowdown_stands_until_it_is_made_good(repaired, code, tmp_path, capsys):
    rng = np.random.default_rng(2)
    for number in range(45):
        level = 1.0 if number < 15 else 1.3 if number < 30 else repaired
        write(
            tmp_path, number, step_s=level * float(np.exp(0.02 * rng.standard_normal()))
        )

    assert history(tmp_path, "--format", "json") == code
    found = json.loads(capsys.readouterr().out)
    steps = [one for one in found["slower"] if one["series"] == "step_s"]
    assert len(steps) == (code == 3)
    for one in steps:  # against the best level, from the commit that lost it
        assert one["from_run"] == "run015"
        assert one["ratio"] == pytest.approx(
            repaired, rel=0.04 if repaired < 1.2 else 0.06
        )

    # Accepted is the level at the commit that is named.
    assert history(tmp_path, "--since", found["runs"][16]["mark"]) == 0


def test_more_utterances_are_another_cause_and_dates_stand_for_commits(
    tmp_path, capsys
):
    for number in range(18):
        write(tmp_path, number, epochs=5 if number < 10 else 8)
    assert history(tmp_path, "--format", "markdown") == 3
    text = capsys.readouterr().out
    assert (
        "SLOWER: utterances to the target +60.0 % from 2023-11-24 on (120 to 192; "
        in text
    )
    assert "step time per utterance +" not in text
    assert "2023-11-14" in text


def test_without_a_change_it_exits_with_0(tmp_path, capsys):
    rng = np.random.default_rng(5)
    for number in range(14):
        write(tmp_path, number, step_s=float(np.exp(0.02 * rng.standard_normal())))
    assert history(tmp_path) == 0
    assert "No change" in capsys.readouterr().out


def test_unlike_runs_broken_ones_and_unfinished_ones(tmp_path, capsys):
    for number in range(4):
        write(tmp_path, number)
    write(tmp_path, 10, comparable=COMPARABLE | {"beam_width": 9})
    other = write(tmp_path, 11)
    (other / "config.gin").write_text("x = 2\n")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "events.jsonl").write_text("{}\n{}\n")
    growing = write(tmp_path, 12)
    text = (growing / "events.jsonl").read_text()
    (growing / "events.jsonl").write_text(text[: len(text) // 2])
    assert history(tmp_path) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "run010 is left out: it is not comparable with the newest run, run012" in said
    )
    assert "beam_width" in said
    assert "run011 is left out: its configuration" in said
    assert "broken is left out." in said
    assert "Not known yet: 5 of the 12 runs" in said
    assert len(load_history(tmp_path, force=True).entries) == 7
    (unreached,) = [
        e for e in load_history(tmp_path).entries if e.values["time_s"] is None
    ]
    assert unreached.name == "run012"
    assert unreached.values["step_s"] is not None


def test_clocks_and_files_that_nobody_vouches_for(tmp_path, capsys):
    for number, wall_s in enumerate((-1e9, 9e11)):
        ledger = LedgerBuilder(wall_s=wall_s).begin(targets=(("cer", 0.1),))
        for epoch in range(1, 4):
            ledger.epoch(epoch, 0.1)
        run_dir = ledger.end().write(tmp_path / f"run{number}")
        (run_dir / "run.json").write_text("[" * 100_000)

    assert history(tmp_path) == 0
    text = capsys.readouterr().out
    assert "1938-04-24" in text
    assert "no date" in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["/nowhere"], "Received: /nowhere"),
        (["{empty}"], "each with events.jsonl"),
        (["{runs}"], "such as --target cer=0.10"),
        (
            ["{runs}", "--target", "cer=0.1", "--target", "cer=0.2"],
            "['cer=0.1', 'cer=0.2']",
        ),
    ],
)
def test_wrong_use_of_history(argv, message, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    ledger_of([0.1], targets=None).write(tmp_path / "runs" / "a")
    places = {"empty": tmp_path / "empty", "runs": tmp_path / "runs"}
    assert history(*(one.format(**places) for one in argv)) == 2
    assert message in capsys.readouterr().err


def test_the_revision_is_the_commit_and_whether_files_were_changed(tmp_path):
    assert revision(tmp_path) is None
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    (tmp_path / "file").write_text("1")
    for words in (["init", "-q"], ["add", "file"], [*who, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, env=environment)
    clean = revision(tmp_path)
    assert len(clean) == 40
    (tmp_path / "file").write_text("2")
    assert revision(tmp_path) == clean + "+"
    assert revision(tmp_path / "missing") is None


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
    run_dir = growing(FALLING[:17]).write(tmp_path / "running")
    (run_dir / "progress.json").write_text(json.dumps({"epochs": 18}))
    return run_dir


def test_running_ended_and_coming_runs_side_by_side(tmp_path, running, capsys):
    ended = growing(FALLING[:40]).end().write(tmp_path / "ended")
    never = growing(FALLING[:8]).end().write(tmp_path / "never")
    assert (
        watch(running, ended, never, tmp_path / "coming", "--once", "--window", 1) == 0
    )
    first, second, third, fourth = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "running: training; epoch 17 of 18, 17 min; CER 16.4 %; WER 32.9 %"
    )
    assert re.search(r"CER 15 % in \d+-\d+ min \(80 %\)", first)
    assert "its last epoch" in first
    assert second.startswith("ended: finished; epoch 40, 40 min")
    assert second.endswith("CER 15 % met after 20 min")
    assert third.endswith("CER 15 % never met (in 8.0 min)")
    assert fourth == "coming: starting; no such folder yet: is the name right?"


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
    assert "10 min: it may be dead" in line(silent)
    # A long step: the process lives, and the clock goes on.
    (running / "heartbeat").touch()
    (busy,) = Watch([running], window=1).look()
    assert busy.status == "training"
    assert busy.now_s == pytest.approx(alive.now_s + 600, abs=5)
    assert "due: it was expected by now" in line(busy) or " in 0 s" in line(busy)


def test_five_hundred_runs_are_looked_at_and_read_once(tmp_path, monkeypatch):
    text = (
        growing(FALLING[:6]).end().write(tmp_path / "one") / "events.jsonl"
    ).read_bytes()
    paths = []
    for number in range(500):
        paths.append(tmp_path / "many" / f"run{number}")
        paths[-1].mkdir(parents=True)
        (paths[-1] / "events.jsonl").write_bytes(text)

    looking = Watch(paths, window=1)
    assert len(looking.look()) == 500
    monkeypatch.setattr(
        "tfasr.reports.watching.load_log", lambda path: pytest.fail("read again")
    )
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
    command = [
        sys.executable,
        "-m",
        "tfasr.cli",
        "watch",
        str(run_dir),
        "--every_s",
        "0.1",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert "not known yet (5 of the 6 evaluations" in process.stdout.readline()
    ledger.epoch(6, 0.3, train_s=30.0).end().write(run_dir)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert rest.splitlines()[-1].startswith("run: finished; epoch 6")


def test_no_target_is_said_and_one_may_be_named(tmp_path, capsys):
    run_dir = growing(FALLING[:17], targets=None).write(tmp_path / "run")
    watch(run_dir, "--once")
    assert (
        "it has no target: name one, such as --target wer=0.2"
        in capsys.readouterr().out
    )
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
    assert said == [
        "7 s",
        "99 s",
        "1.7 min",
        "10 min",
        "24 min",
        "98 min",
        "1.7 h",
        "25.0 h",
    ]
