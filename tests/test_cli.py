"""The command line: exit codes, streams, help."""

import subprocess
import sys

import pytest

from tfasr.cli import COMMANDS


def tfasr(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tfasr.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_names_every_command():
    finished = tfasr("--help")
    assert finished.returncode == 0
    assert all(name in finished.stdout for name in COMMANDS)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command):
    finished = tfasr(command, "--help")
    assert finished.returncode == 0
    assert "usage: tfasr" in finished.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["dance"],
        ["prepare", "--corpus", "tsv"],
        ["prepare", "--corpus", "tsv", "--corpus_dir", "/nowhere", "--shard_dir", "/tmp/nowhere"],
        ["train", "--shard_dir", "/nowhere", "--run_dir", "/nowhere/run"],
        ["evaluate", "--run_dir", "/nowhere", "--split", "test"],
        ["report", "/nowhere"],
    ],
)
def test_wrong_use_exits_with_2_and_a_message(arguments):
    finished = tfasr(*arguments)
    assert finished.returncode == 2
    assert finished.stderr.strip()
    assert "Traceback" not in finished.stderr


def test_without_a_command_the_list_of_them_is_shown():
    finished = tfasr()
    assert finished.returncode == 2
    assert all(name in finished.stderr for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "Did you mean train instead of trian?"),
        (["report", "runs", "--fromat", "json"], "--fromat json. Did you mean --format instead"),
        (["prepare", "--shard-dir=x"], "--corpus_dir, --shard_dir. Did you mean --shard_dir"),
        (["report", "--form", "nothing"], "'markdown', 'latex', 'csv', 'json')\n"),
    ],
)
def test_a_misspelt_word_is_told_beside_the_commands_own_usage(arguments, said):
    finished = tfasr(*arguments)
    assert finished.returncode == 2
    assert said in finished.stderr
    command = arguments[0] if arguments[0] in COMMANDS else "["
    assert finished.stderr.startswith(f"usage: tfasr {command}")


def test_failed_work_exits_with_1(tmp_path):
    (tmp_path / "train.tsv").write_text(
        "path\tspeaker\tseconds\ttext\nmissing.wav\tnobody\t1.0\tyes\n"
    )
    finished = tfasr(
        *("prepare", "--corpus", "tsv", "--corpus_dir", str(tmp_path), "--split", "train"),
        *("--manifest", "train.tsv", "--shard_dir", str(tmp_path / "shards")),
    )
    assert finished.returncode == 1
    assert "transcript without audio" in finished.stderr
    assert finished.stdout == ""
