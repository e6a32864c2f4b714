"""The campaigns' own instruments: what was recorded, and what a power loss may leave of it."""

import pickle
import random
import signal
import subprocess
import sys

import pytest

from campaigns.disk_states import MODELS, Disk, read_state, relative
from campaigns.operations import Operation

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info < (3, 11),
    reason="needs Linux, Python 3.11",
)

# Uses files in the ways that tfasr does; argv: an observer, and the folder.
USER = """
import os, pickle, sys
from pathlib import Path
import numpy as np
from campaigns.operations import FailAt, KillAt, Recorder, observed
from tfasr.kit.files import locked, make_folder, whole_file, write_whole
place, kept = Path(sys.argv[2]), []
observer = eval(sys.argv[1])
observed(observer)
make_folder(place / "run" / "checkpoints")
with locked(place / "run" / "lock", "held"):
    with (place / "run" / "events.jsonl").open("ab") as ledger:
        for number in range(3):
            ledger.write(b"line\\n")
            ledger.flush()
            with whole_file(place / "run" / "checkpoints" / f"{number}.npz") as file:
                np.savez(file, weights=np.arange(100 * number), state=np.asarray("x"))
        os.fsync(ledger.fileno())
    os.truncate(place / "run" / "events.jsonl", 10)
    write_whole(place / "run" / "run.json", "old")
    write_whole(place / "run" / "run.json", "new")
    with (place / "run" / "cpu.csv").open("a", encoding="utf-8") as file:
        file.write("time_ms\\n")
    os.link(place / "run" / "checkpoints" / "0.npz", place / "run" / "best.partial")
    (place / "run" / "best.partial").replace(place / "run" / "best.npz")
    (place / "run" / "checkpoints" / "1.npz").unlink()
os.write(1, pickle.dumps(getattr(observer, "operations", None)))
"""


def use_files(observer, folder):
    command = [sys.executable, "-c", USER, observer, str(folder)]
    return subprocess.run(command, capture_output=True, check=False)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    ended = use_files("Recorder()", folder)
    assert ended.returncode == 0, ended.stderr.decode()
    return folder, list(relative(pickle.loads(ended.stdout), folder))


def test_what_was_recorded_played_back_is_what_lies_there(recorded):
    folder, operations = recorded
    disk = Disk({})
    for operation in operations:
        disk.do(operation)

    assert disk.now() == read_state(folder)
    assert {one.kind for one in operations} == {
        *("create", "write", "truncate", "sync", "rename", "link", "unlink", "mkdir")
    }


def test_no_state_tears_what_was_written_whole(recorded):
    chance = random.Random(1)
    wanted = read_state(recorded[0])
    disk = Disk({})
    seen = set()

    for operation in recorded[1]:
        disk.do(operation)
        for model in MODELS * 10:
            state = disk.crash(chance, model)
            seen.add(state.get("run/run.json"))
            for name in (
                "run/checkpoints/0.npz",
                "run/checkpoints/2.npz",
                "run/best.npz",
            ):
                assert state.get(name, wanted[name]) == wanted[name]

    assert seen == {None, b"old", b"new"}


def states_of(*operations):
    """Returns what a power loss can leave of a file "f", over many chances."""
    disk = Disk({})
    for operation in operations:
        disk.do(operation)

    return {
        model: {
            None if content is None else bytes(content)
            for seed in range(400)
            for content in [disk.crash(random.Random(seed), model).get("f")]
        }
        for model in MODELS
    }


def test_a_rename_without_a_sync_can_leave_an_empty_file():
    write = [
        Operation("create", "f.partial"),
        Operation("write", "f.partial", data=b"content"),
    ]
    rename = Operation("rename", "f.partial", "f")
    names = Operation("sync", "")

    for model in MODELS:
        assert {None, b"", b"cont", b"content", bytes(7)} <= states_of(*write, rename)[
            model
        ]
        synced = [*write, Operation("sync", "f.partial"), rename]
        assert states_of(*synced)[model] == {None, b"content"}
        assert states_of(*synced, names)[model] == {b"content"}


def test_names_keep_their_order_in_a_journal_alone():
    made = [Operation("create", "f"), Operation("create", "g")]
    disk = Disk({})
    for operation in made:
        disk.do(operation)

    left = {
        model: {tuple(disk.crash(random.Random(seed), model)) for seed in range(100)}
        for model in MODELS
    }
    assert left["journalled"] == {(), ("f",), ("f", "g")}
    assert left["reordered"] == {(), ("f",), ("g",), ("f", "g")}


def test_a_kill_within_a_write_leaves_half_of_it(recorded, tmp_path):
    numbers = [n for n, one in enumerate(recorded[1], start=1) if one.kind == "write"]
    # One more: the attempt to make a folder before the one that holds it.
    ended = use_files(f"KillAt({numbers[0] + 1}, 'within')", tmp_path)
    assert ended.returncode == -signal.SIGKILL
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == b"li"


def test_a_full_disk_fails_with_a_name(tmp_path):
    kinds = "frozenset({'write'})"
    failing = f"FailAt(3, 28, {kinds}, lasting=True, below={str(tmp_path)!r})"
    ended = use_files(failing, tmp_path)
    assert b"No space left on device: " in ended.stderr
    assert b"0.npz.tfasr-partial" in ended.stderr
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == []
