"""What a user may not read or write: one line that names it, and the rest goes on."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import soundfile

from tests.data.made_corpus import noise
from tests.reliability.conftest import TINY
from tests.reports.conftest import ledger_of
from tfasr.corpora.reading import require_folder
from tfasr.data.audio import read_audio
from tfasr.errors import UsageError

NOBODY = 65534


@contextlib.contextmanager
def without_privileges():
    """Lets permissions hold for the block: to a superuser none do."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder():
    """Returns a folder that every user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        for path in Path(folder).rglob("*"):
            path.chmod(0o755)


@pytest.mark.parametrize("locked", ["events.jsonl", "."])
def test_an_unreadable_run_is_left_out_of_a_folders_report_by_name(tfasr, open_folder, locked):
    for name in ("one", "two"):
        ledger_of([0.5, 0.1, 0.1]).write(open_folder / name)
    assert tfasr("report", open_folder).status == 0  # imports what nobody may not read
    (open_folder / "two" / locked).chmod(0)
    with without_privileges():
        folder = tfasr("report", open_folder)
        alone = tfasr("report", open_folder / "two")
    assert folder.status == 0, folder.err
    said = " ".join(folder.out.split())
    assert f"{open_folder / 'two'} is left out." in said
    assert "change its permissions" in said
    assert (alone.status, "Traceback" in alone.err) == (2, False)
    assert str(open_folder / "two") in alone.err
    assert "change its permissions" in alone.err


def test_unreadable_audio_and_folders_are_named_with_the_remedy(open_folder):
    sound = open_folder / "a.wav"
    soundfile.write(sound, noise(0.1), 16000)
    read_audio(sound)
    sound.chmod(0)
    (open_folder / "corpus").mkdir()
    (open_folder / "corpus").chmod(0)
    with without_privileges():
        with pytest.raises(ValueError, match=rf"{sound}: this user may not read it; change its p"):
            read_audio(sound)
        with pytest.raises(UsageError, match=r"must be readable\. Received: .*corpus: Permission"):
            require_folder(open_folder / "corpus", "a folder")


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs Linux's read-only /sys")
@pytest.mark.parametrize("command", ["train", "prepare", "report"])
def test_a_folder_that_takes_no_files_is_named(tfasr, corpus, shards, tmp_path, command):
    words = {
        "train": ("--gin_file", TINY, "--shard_dir", shards, "--run_dir", "/sys/kernel/run"),
        "prepare": ("--corpus", "tsv", "--corpus_dir", corpus, "--shard_dir", "/sys/kernel/s"),
        "report": (ledger_of([0.5]).write(tmp_path / "run"), "--out", "/sys/kernel/out"),
    }[command]
    ended = tfasr(command, *words)
    assert ended.status in (1, 2)
    assert "Traceback" not in ended.err
    assert "/sys/kernel/" in ended.err
    assert "choose another" in ended.err.lower()


def test_an_interrupt_while_modules_are_imported_is_one_line(tmp_path):
    plugin = tmp_path / "slow.py"
    plugin.write_text(
        f"import os, time\nos.kill(os.getpid(), {int(signal.SIGINT)})\ntime.sleep(9)\n"
    )
    (tmp_path / "tensorflow.py").write_text("raise KeyboardInterrupt\n")
    for command, more in (("report", ("x", "--import", plugin)), ("evaluate", ())):
        words = more or ("--run_dir", "x", "--split", "test")
        done = subprocess.run(
            [sys.executable, "-m", "tfasr.cli", command, *map(str, words)],
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
            capture_output=True,
            text=True,
            # A shell's background jobs, and what they start, ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert done.returncode == 1
        assert done.stderr.endswith("interrupted\n")
        assert "Traceback" not in done.stderr
