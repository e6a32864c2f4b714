"""What the operating system refuses, told with the file's name and what to do."""

import errno
import os

import pytest

from tfasr.errors import explained


@pytest.mark.parametrize(
    ("number", "said", "status"),
    [
        (errno.ENOSPC, "is full", 1),
        (errno.EDQUOT, "free some space", 1),
        (errno.EACCES, "change its permissions", 2),
        (errno.EROFS, "read-only", 2),
        (errno.EISDIR, "it is a folder", 2),
        (errno.ENOTDIR, "no folder", 2),
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
    assert explained(OSError(errno.ENOSPC, "No space"))[0].startswith("The disk is full")


@pytest.mark.parametrize("command", ["train", "report"])
def test_a_run_folder_that_is_a_file_is_refused_by_name(refused, shards, tmp_path, command):
    path = tmp_path / "file"
    path.write_text("mine")
    flags = ("--shard_dir", shards, "--run_dir", path) if command == "train" else (path,)
    refused(command, *flags, keeps=tmp_path, names=(str(path),))
