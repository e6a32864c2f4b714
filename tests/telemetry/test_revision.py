"""Which revision of the user's code is booked, and that asking changes nothing."""

import os
import shutil
import subprocess

import pytest

from tfasr.telemetry.machine import revision

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder, *words):
    """Runs git in the folder and returns its output."""
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(
        ["git", *identity, *words],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A repository of one commit with one file, `model.py`."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / "model.py").write_text("units = 3\n")
    git(tmp_path, "add", "model.py")
    git(tmp_path, "commit", "--quiet", "--message", "first")

    return tmp_path


def test_it_is_the_commit_while_tracked_files_are_unchanged(repository):
    (repository / "notes.txt").write_text("not tracked")

    assert revision(repository) == git(repository, "rev-parse", "HEAD")


def test_a_plus_marks_tracked_files_that_changed_since_the_commit(repository):
    (repository / "model.py").write_text("units = 4\n")

    assert revision(repository) == git(repository, "rev-parse", "HEAD") + "+"


def test_the_users_repository_stays_as_it_is(repository):
    # git refreshes its index where a file was only touched, if it may.
    os.utime(repository / "model.py", (1, 1))
    index = repository / ".git" / "index"

    before = index.read_bytes()

    assert not revision(repository).endswith("+")
    assert index.read_bytes() == before

    git(repository, "status")
    assert index.read_bytes() != before, "or this test could not fail"


def test_outside_a_repository_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    assert revision(tmp_path) is None
