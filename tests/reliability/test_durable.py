"""Files that are whole or as before, and locks that a killed process leaves to the next."""

import argparse
import contextlib
import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from tests.reliability.conftest import TINY
from tfasr import cli
from tfasr.errors import RunError, UsageError, explained
from tfasr.kit.files import PARTIAL_SUFFIX, locked, make_folder, whole_file, write_whole
from tfasr.ledger.events import Ledger, last_value, read_events
from tfasr.training.checkpoint import TrainingState, save_checkpoint
from tfasr.tta.run import load_run

# What a power loss and a failing system leave: zeros, errors without a name, no memory.


def ledger_with_zeros(run_dir, *, synced=0):
    """Writes a ledger of which a sector did not reach the disk, though what follows did.

    ``synced`` is how many events had come when the last sync was done.
    """
    ledger = Ledger(run_dir)
    for number in range(9):
        if number == synced > 0:
            ledger.sync()
        ledger.event("seed", number, about="x" * 50)

    ledger.close()
    path = run_dir / "events.jsonl"
    content = path.read_bytes()
    assert 3 < content[:1024].count(b"\n") < content[:1536].count(b"\n") < 7
    path.write_bytes(content[:1024] + bytes(512) + content[1536:])
    return content[:1024].count(b"\n")


@pytest.fixture(params=["a sector", "the end"])
def zeroed(tmp_path, request):
    """Returns a run whose ledger's end never reached the disk, though its length did."""
    whole = ledger_with_zeros(tmp_path, synced=2)
    path = tmp_path / "events.jsonl"
    if request.param == "the end":
        content = path.read_bytes()
        path.write_bytes(content[:1000] + bytes(len(content) - 1000))

    return tmp_path, whole


def test_a_ledger_ends_where_zeros_begin(zeroed):
    run_dir, whole = zeroed
    assert [event["value"] for event in read_events(run_dir)] == list(range(whole))
    assert last_value(run_dir, "seed") in range(9)
    assert load_run(run_dir).cut


def test_a_resumed_ledger_goes_on_before_the_zeros(zeroed):
    run_dir, whole = zeroed
    ledger = Ledger(run_dir, session=1)
    ledger.event("session_start")
    ledger.close()
    assert [event["value"] for event in read_events(run_dir)] == [*range(whole), None]
    assert not load_run(run_dir).cut


def test_zeros_in_what_had_reached_the_disk_are_damage(tmp_path):
    whole = ledger_with_zeros(tmp_path, synced=8)
    content = (tmp_path / "events.jsonl").read_bytes()
    for read in (read_events, load_run, lambda folder: Ledger(folder, session=1)):
        with pytest.raises(UsageError, match=f"Line {whole + 1}.*zero bytes"):
            read(tmp_path)

    assert (tmp_path / "events.jsonl").read_bytes() == content


def test_zeros_among_samples_are_passed_over(zeroed):
    text = "time_ms,cpu_percent\n1,10\n" + "\0" * 20 + "\n3,30\n"
    (zeroed[0] / "cpu.csv").write_text(text)
    assert load_run(zeroed[0]).utilisation()["cpu_percent"].tolist() == [10, 30]


def test_an_error_without_a_name_gets_the_file_s(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"run\.json"):
        write_whole(tmp_path / "run.json", "content")


def test_a_shard_that_tensorflow_cannot_write_names_its_file(tmp_path):
    from tfasr.data.shards import write_shard  # which loads TensorFlow

    with pytest.raises(RunError, match=r"train-00000\.tfrecord can.t be.*it resumes"):
        write_shard(tmp_path / "missing" / "train-00000.tfrecord", [b"record"], "")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        ImportError("libtensorflow.so: failed to map segment from shared object"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_a_full_memory_is_one_line(capsys, error):
    def run(arguments):
        raise error

    assert cli.run(argparse.Namespace(command="report", run=run)) == 1
    assert capsys.readouterr().err.startswith(
        "tfasr report: The memory that this process may use"
    )


NEAR_THE_LIMIT = """
import argparse, resource, sys
from tfasr import cli

def run(arguments):
    raise LookupError("Op type not registered ''\\nin a binary")

arguments = argparse.Namespace(command="report", run=run)
try:
    cli.run(arguments)
except LookupError as error:
    print("without a limit it is", error)
used = 1024 * int(open("/proc/self/status").read().partition("VmPeak:")[2].split()[0])
resource.setrlimit(resource.RLIMIT_AS, (used + 2**34, -1))
try:
    cli.run(arguments)
except LookupError as error:
    print("far from it", error)
resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, -1))
sys.exit(cli.run(arguments))
"""


NO_ROOM_FOR_A_THREAD = """
import argparse, resource, sys
import tensorflow
from tfasr import cli

cli._check_early = lambda arguments: None
arguments = argparse.Namespace(command="evaluate", run=lambda arguments: print("ran"))
used = 1024 * int(open("/proc/self/status").read().partition("VmSize:")[2].split()[0])
resource.setrlimit(resource.RLIMIT_AS, (used + 2**23, -1))
sys.exit(cli.run(arguments))
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="what Linux tells of a process"
)
def test_a_command_without_memory_for_threads_is_not_begun():
    command = [sys.executable, "-c", NO_ROOM_FOR_A_THREAD]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "memory" in ended.stderr.splitlines()[-1]


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="what Linux tells of a process"
)
def test_any_error_near_the_limit_of_address_space_is_one_line_about_memory():
    command = [sys.executable, "-c", NEAR_THE_LIMIT]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    # Errors without that cause stay.
    assert ended.stdout.count("Op type not registered") == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(
        "tfasr report: The memory that this process may use is full."
    )
    assert line.endswith("(LookupError: Op type not registered '' in a binary)")


def test_a_write_that_fails_leaves_the_old_content_and_no_part(tmp_path):
    path = tmp_path / "run.json"
    write_whole(path, "old")
    with pytest.raises(OSError, match="full"), whole_file(path) as file:
        file.write(b"ne")
        raise OSError("the disk is full")

    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]
    write_whole(path, "néw")
    assert path.read_bytes() == "néw".encode()


HOLDER = """
import sys, time
from pathlib import Path
from tfasr.kit.files import locked
with locked(Path(sys.argv[1]), "held"):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_lock_is_refused_while_held_and_free_after_a_kill(tmp_path):
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "locked\n"
        with (
            pytest.raises(UsageError, match="somebody else"),
            locked(path, "somebody else"),
        ):
            pass

        assert path.exists(), "the loser must not remove the holder's lock"
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()

    with locked(path, "nobody"):
        assert path.exists()
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch, caplog):
    def no_locks(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with locked(tmp_path / "lock", "held"):
        pass
    assert "this file system has no locks" in caplog.text


@pytest.mark.parametrize(("code", "raised"), [(errno.EIO, True), (errno.EINVAL, False)])
def test_a_folder_s_sync_that_fails_is_told_and_one_that_is_refused_is_not(
    tmp_path, monkeypatch, code, raised
):
    sync = os.fsync

    def no_folders(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", no_folders)
    with (
        pytest.raises(OSError, match="Input/output")
        if raised
        else contextlib.nullcontext()
    ):
        write_whole(tmp_path / "run.json", "content")

    assert (tmp_path / "run.json").read_text() == "content"


# What reaches the disk before what: a crash at any point leaves a checkpoint with its
# ledger.


@pytest.fixture
def operations(monkeypatch, tmp_path):
    """Returns what is synced, renamed and removed below the test's folder, as it happens."""
    happened = []

    def name_of(path):
        path = Path(path)
        if path.is_relative_to(tmp_path):
            return str(path.relative_to(tmp_path))

        return str(path)

    sync = os.fsync
    replace = Path.replace
    unlink = Path.unlink

    def fsync(descriptor):
        sync(descriptor)
        happened.append(
            ("sync", name_of(Path(f"/proc/self/fd/{descriptor}").readlink()))
        )

    def renamed(path, target):
        happened.append(("rename", name_of(target)))
        return replace(path, target)

    def removed(path, missing_ok=False):
        happened.append(("remove", name_of(path)))
        return unlink(path, missing_ok)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", renamed)
    monkeypatch.setattr(Path, "unlink", removed)
    return happened


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux's /proc")
def test_first_the_ledger_then_the_checkpoint_then_older_ones_go(
    operations, tfasr, shards, tmp_path
):
    words = [
        "train",
        "--gin_file",
        TINY,
        "--shard_dir",
        shards,
        "--run_dir",
        tmp_path / "run",
    ]
    for binding in ("TrainingConfig.epochs = 1", "TrainingConfig.keep_checkpoints = 1"):
        words += ["--gin_binding", binding]
    ended = tfasr(*words, "--no_memory_probe")
    assert ended.status == 0, ended.err
    assert operations.count(("sync", "run")) >= 2, (
        "the ledger's name, and that of checkpoints"
    )
    operations = [one for one in operations if one != ("sync", "run")]
    published = [
        number
        for number, (what, name) in enumerate(operations)
        if what == "rename" and name.startswith("run/checkpoints/step-")
    ]
    assert len(published) == 3  # of steps 5 and 10, and at the epoch's end
    for number in published:
        name = operations[number][1]
        assert operations[number - 2 : number + 2] == [
            ("sync", "run/events.jsonl"),
            ("sync", f"{name}{PARTIAL_SUFFIX}"),
            ("rename", name),
            ("sync", "run/checkpoints"),
        ]

    removed = [
        (n, name) for n, (what, name) in enumerate(operations) if what == "remove"
    ]
    older = [
        (n, name) for n, name in removed if name.startswith("run/checkpoints/step-")
    ]
    assert [name for _, name in older] == [operations[n][1] for n in published[:2]]
    assert [n for n, _ in older] == [n + 2 for n in published[1:]]


def test_weights_that_are_no_numbers_replace_no_checkpoint(tmp_path):
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer="sgd")
    save_checkpoint(tmp_path, model, TrainingState(step=1), keep=1)
    model.layers[0].kernel.assign([[float("nan"), 0.0]] * 3)
    with pytest.raises(RunError, match="All weights must be finite. After step 2"):
        save_checkpoint(tmp_path, model, TrainingState(step=2), keep=1)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == [
        "step-00000001.npz"
    ]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux's /proc")
def test_the_names_of_new_folders_reach_the_disk_from_the_top(operations, tmp_path):
    make_folder(tmp_path / "runs" / "one")
    make_folder(tmp_path / "runs" / "one")
    assert operations == [("sync", "."), ("sync", "runs")]


# What the operating system refuses, told with the file's name and what to do.


@pytest.mark.parametrize(
    ("number", "said", "status"),
    [
        (errno.ENOSPC, "is full", 1),
        (errno.EDQUOT, "free some space", 1),
        (errno.EACCES, "change its permissions", 2),
        (errno.EROFS, "read-only", 2),
        (errno.EISDIR, "it is a folder", 2),
        (errno.ENOTDIR, "not a folder", 2),
        (errno.ENOENT, "does not exist", 2),
        (errno.EIO, "dmesg", 1),
    ],
)
def test_an_error_names_its_file_and_a_remedy(number, said, status):
    text, code = explained(OSError(number, os.strerror(number), "/somewhere/run.json"))
    assert "/somewhere/run.json" in text
    assert said in text
    assert code == status


def test_what_has_no_file_or_no_known_cause_is_told_as_it_is():
    assert explained(OSError("the link is down")) == ("the link is down", 1)
    assert explained(OSError(errno.ENOSPC, "No space"))[0].startswith(
        "The disk is full"
    )


@pytest.mark.parametrize("command", ["train", "report"])
def test_a_run_folder_that_is_a_file_is_refused_by_name(
    refused, shards, tmp_path, command
):
    path = tmp_path / "file"
    path.write_text("mine")
    if command == "train":
        flags = ("--shard_dir", shards, "--run_dir", path)
    else:
        flags = (path,)

    refused(command, *flags, keeps=tmp_path, names=(str(path),))
