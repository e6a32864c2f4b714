import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfasr.errors import UsageError
from tfasr.kit.files import EVENTS_FILE, HEARTBEAT_FILE
from tfasr.ledger.events import LEDGER_FORMAT, Ledger, last_value, read_events

# Writes steps without end; prints one number once a step is surely written.
WRITER = """
import sys
from tfasr.ledger.events import Ledger
ledger = Ledger(sys.argv[1])
step = 0
while True:
    step += 1
    ledger.event("train_step", {"loss": 1.0}, step=step)
    print(step, flush=True)
"""


@pytest.fixture
def killed_run(tmp_path):
    """A run whose process was killed by SIGKILL while it wrote, and the last step it reported."""
    repository = str(Path(__file__).parents[1])
    path = os.pathsep.join([repository, os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
    ) as process:
        reported = 0
        while reported < 200:
            reported = int(process.stdout.readline())
        with pytest.raises(UsageError, match="Only one process may write a run"):
            Ledger(tmp_path)
        process.send_signal(signal.SIGKILL)
        *_, last = [reported, *map(int, process.stdout.read().split())]
        assert process.wait() == -signal.SIGKILL
    return tmp_path, last


def test_events_survive_a_kill_and_the_next_session_continues(killed_run):
    run_dir, reported = killed_run
    steps = [event["metadata"]["step"] for event in read_events(run_dir)]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= reported
    ledger = Ledger(run_dir, session=1)
    assert abs(ledger.alive_until_ms / 1000 - time.time()) < 3600
    ledger.event("session_start", {"alive_until_ms": ledger.alive_until_ms})
    ledger.close()
    events = read_events(run_dir)
    assert len(events) == len(steps) + 1
    assert events[-1]["metadata"]["session"] == 1
    assert events[-1]["value"]["alive_until_ms"] >= events[-2]["time_ms"] - 2000


def test_a_cut_line_is_left_out_and_repaired_on_reopening(tmp_path):
    (tmp_path / EVENTS_FILE).write_text('{"key": "a", "time_ms": 1}\n{"key": "b", "ti')
    assert [event["key"] for event in read_events(tmp_path)] == ["a"]
    ledger = Ledger(tmp_path, session=1)
    ledger.event("c")
    ledger.close()
    lines = (tmp_path / EVENTS_FILE).read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["a", "c"]


def test_a_closed_ledger_lets_the_next_process_write(tmp_path):
    Ledger(tmp_path).close()
    Ledger(tmp_path).close()


def test_two_ledgers_in_one_process_are_refused_too(tmp_path):
    ledger = Ledger(tmp_path)
    with pytest.raises(UsageError, match="wait for it, stop it, or choose another"):
        Ledger(tmp_path)
    ledger.close()


def test_an_event_is_one_line_with_mllogs_keys_and_our_two(tmp_path):
    ledger = Ledger(tmp_path, session=2)
    ledger.event("eval_accuracy", 0.25, epoch_num=3)
    with ledger.interval("decode", epoch_num=3):
        pass
    ledger.close()
    point, start, stop = read_events(tmp_path / EVENTS_FILE)
    assert set(point) == {"namespace", "time_ms", "event_type", "key", "value", "metadata"}
    assert (point["key"], point["value"], point["event_type"]) == (
        "eval_accuracy",
        0.25,
        "POINT_IN_TIME",
    )
    assert point["metadata"]["epoch_num"] == 3
    assert point["metadata"]["session"] == 2
    assert (start["key"], start["event_type"]) == ("decode_start", "INTERVAL_START")
    assert (stop["key"], stop["event_type"]) == ("decode_stop", "INTERVAL_END")
    assert stop["metadata"]["mono_s"] >= start["metadata"]["mono_s"]


def test_a_block_that_raises_leaves_its_interval_open(tmp_path):
    ledger = Ledger(tmp_path)
    with pytest.raises(KeyError), ledger.interval("decode"):
        raise KeyError
    ledger.close()
    assert [event["key"] for event in read_events(tmp_path)] == ["decode_start"]


def test_an_open_ledger_proves_that_it_is_alive(tmp_path):
    ledger = Ledger(tmp_path)
    assert ledger.alive_until_ms is None
    ledger.event("session_start")
    assert (tmp_path / HEARTBEAT_FILE).exists()
    ledger.close()


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    (tmp_path / EVENTS_FILE).write_text('{"key": "a", "time_ms": 1}\n[]\n{"key": "b"}\n\n')
    with pytest.raises(ValueError, match="Line 2 is not"):
        read_events(tmp_path)


def test_a_folder_without_a_ledger_is_no_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="A run folder must hold events.jsonl"):
        read_events(tmp_path)


def test_an_events_wall_clock_is_now(tmp_path):
    ledger = Ledger(tmp_path)
    before = time.time()
    ledger.event("a")
    after = time.time()
    ledger.close()
    assert 1000 * before - 1 <= read_events(tmp_path)[0]["time_ms"] <= 1000 * after
    mono_s = read_events(tmp_path)[0]["metadata"]["mono_s"]
    assert mono_s == round(mono_s, 6)  # microseconds, which is what reports count in


def test_the_last_value_of_a_key_is_not_that_of_a_text_which_names_it(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.event("targets", [["cer", 0.2]])
    ledger.event("targets", [["cer", 0.1]])
    ledger.event("comparability", {"targets": 3})
    ledger.close()
    assert [event["metadata"]["session"] for event in read_events(tmp_path)] == [0, 0, 0]
    assert last_value(tmp_path, "targets") == [["cer", 0.1]]
    with (tmp_path / EVENTS_FILE).open("a") as file:
        file.write('{"key": "targets", "time_ms": 1, "value": 4')
    assert last_value(tmp_path, "targets") == [["cer", 0.1]]
    assert last_value(tmp_path, "seed") is None
    assert last_value(tmp_path / "nowhere", "seed") is None
    (tmp_path / EVENTS_FILE).write_text('\n{"key": "seed", "time_ms": 1, "value": 7}\n["seed"]\n')
    assert last_value(tmp_path, "seed") == 7


def test_a_process_without_an_event_gives_no_sign_of_life(tmp_path):
    with contextlib.closing(Ledger(tmp_path)) as ledger:
        ledger.event("session_start")
    before = (tmp_path / HEARTBEAT_FILE).stat().st_mtime_ns
    os.utime(tmp_path / HEARTBEAT_FILE, ns=(before, before - 10**9))
    Ledger(tmp_path, session=1).close()
    with contextlib.closing(Ledger(tmp_path, session=1)) as ledger:
        assert ledger.alive_until_ms == (before - 10**9) // 10**6


def test_a_ledger_of_a_newer_format_is_refused_and_one_without_a_format_is_read(tmp_path):
    with contextlib.closing(Ledger(tmp_path)) as ledger:
        ledger.begin_session(None)
        ledger.event("seed", 3)
    path = tmp_path / EVENTS_FILE
    text = path.read_text()
    written = f'"ledger_format": {LEDGER_FORMAT}'
    assert written in text
    for changed in (text, text.replace(f", {written}", "")):
        path.write_text(changed)
        assert last_value(tmp_path, "seed") == read_events(tmp_path)[-1]["value"] == 3
    path.write_text(text.replace(written, f'"ledger_format": {LEDGER_FORMAT + 1}'))
    for read in (read_events, lambda folder: last_value(folder, "seed")):
        with pytest.raises(UsageError, match=rf"version {LEDGER_FORMAT + 1} .* Update it"):
            read(tmp_path)
