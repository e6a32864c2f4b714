"""docs/sources.md: its commands run, its rows have a state, its pictures are there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reports.conftest import COMPARABLE, ledger_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    line.partition(" #")[0].strip()
    for block in BLOCKS
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("tfasr ")
]
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split(" | ")]
    for line in PAGE[PAGE.index("## The paper") :].splitlines()
    if re.match(r"\| \S", line) and not line.startswith(("| row", "| ---"))
]
STATES = ("done", "deviation", "partial", "missing")
PATIENCE_S = 1500


def is_quick(command: str) -> bool:
    """Whether a command needs no TensorFlow and nothing but runs' ledgers."""
    words = shlex.split(command)
    return words[1] == "report" or "study --gin_file" in command and "--dry_run" in words


def run(command: str, folder: Path) -> str:
    words = shlex.split(command)[1:]
    done = subprocess.run(
        [sys.executable, "-m", "tfasr.cli", *words],
        cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_the_page_is_read_as_it_is_written():
    assert len(COMMANDS) >= 12
    assert len(ROWS) >= 55
    assert sum(map(is_quick, COMMANDS)) >= 3


def test_every_row_has_a_state_and_a_command_of_the_page():
    named = set(re.findall(r"^### ([A-Z])\b", PAGE, re.MULTILINE))
    for row in ROWS:
        assert len(row) == 4, row
        feature, state, commands, _ = row
        assert state.startswith(STATES), row
        letters = re.findall(r"\b[A-Z]\b", commands)
        assert set(letters) <= named, row
        assert letters or commands.startswith(("test", "—")), f"{feature}: no command"


def test_pictures_and_pages_that_are_named_exist():
    linked = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGE)
    missing = [one for one in linked if "://" not in one and not (ROOT / "docs" / one).exists()]
    assert missing == []


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """A folder whose study ``small`` has ledgers written by hand."""
    folder = tmp_path_factory.mktemp("page")
    for number, name in enumerate(("sys1", "sys2", "sys10"), start=1):
        ledger = ledger_of([0.5, 0.1, 0.07 * number, 0.06, 0.06, 0.05], comparability=COMPARABLE)
        ledger.write(folder / "small" / "runs" / name)
    return folder


@pytest.mark.parametrize("command", [one for one in COMMANDS if is_quick(one)])
def test_commands_that_need_no_training_run(command, stand_in):
    assert run(command, stand_in).strip()


@pytest.mark.long
def test_every_command_runs_in_the_pages_order(tmp_path):
    for command in COMMANDS:
        print(f"$ {command}", flush=True)
        assert run(command, tmp_path).strip()
