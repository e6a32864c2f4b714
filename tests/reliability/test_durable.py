"""Files that are whole or as before, and locks that a killed process leaves to the next."""

import contextlib
import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys

import pytest

from tfasr.errors import UsageError
from tfasr.kit.files import locked, whole_file, write_whole


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
        with pytest.raises(UsageError, match="somebody else"), locked(path, "somebody else"):
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
    with pytest.raises(OSError, match="Input/output") if raised else contextlib.nullcontext():
        write_whole(tmp_path / "run.json", "content")
    assert (tmp_path / "run.json").read_text() == "content"
