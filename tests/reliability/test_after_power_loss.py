"""What a power loss and a failing system leave: zeros, errors without a name, no memory."""

import argparse
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfasr import cli
from tfasr.errors import RunError
from tfasr.kit.files import write_whole
from tfasr.ledger.events import Ledger, ends_cut, last_value, read_events
from tfasr.tta.run import load_run


@pytest.fixture
def zeroed(tmp_path):
    """Returns a run whose ledger's fourth line never reached the disk, though its length did."""
    ledger = Ledger(tmp_path)
    for number in range(6):
        ledger.event("seed", number, step=number)
    ledger.close()
    path = tmp_path / "events.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[3] = lines[3][:10] + bytes(len(lines[3]) - 10)
    path.write_bytes(b"\n".join(lines))
    return tmp_path


def test_a_ledger_ends_where_zeros_begin(zeroed):
    assert [event["value"] for event in read_events(zeroed)] == [0, 1, 2]
    assert ends_cut(zeroed)
    assert last_value(zeroed, "seed") == 2
    assert load_run(zeroed).cut


def test_a_resumed_ledger_goes_on_before_the_zeros(zeroed):
    ledger = Ledger(zeroed, session=1)
    ledger.event("session_start")
    ledger.close()
    assert [event["value"] for event in read_events(zeroed)] == [0, 1, 2, None]
    assert not ends_cut(zeroed)


def test_zeros_among_samples_are_passed_over(zeroed):
    text = "time_ms,cpu_percent\n1,10\n" + "\0" * 20 + "\n3,30\n"
    (zeroed / "cpu.csv").write_text(text)
    assert load_run(zeroed).utilisation()["cpu_percent"].tolist() == [10, 30]


def test_an_error_without_a_name_gets_the_file_s(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"run\.json"):
        write_whole(tmp_path / "run.json", "content")


def test_a_shard_that_tensorflow_cannot_write_names_its_file(tmp_path):
    from tfasr.data.shards import write_shard  # which loads TensorFlow

    with pytest.raises(RunError, match=r"train-00000\.tfrecord cannot be.*it resumes"):
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
    assert capsys.readouterr().err.startswith("tfasr report: The memory that this process may use")


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


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="what Linux tells of a process")
def test_any_error_near_the_limit_of_address_space_is_one_line_about_memory():
    command = [sys.executable, "-c", NEAR_THE_LIMIT]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stdout.count("Op type not registered") == 2  # errors without that cause stay
    (line,) = ended.stderr.splitlines()
    assert line.startswith("tfasr report: The memory that this process may use is full.")
    assert line.endswith("(LookupError: Op type not registered '' in a binary)")
