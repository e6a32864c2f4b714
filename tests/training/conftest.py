"""Starts real training processes and watches their ledgers."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.warm import start_tfasr
from tfasr.ledger.events import read_events

TINY = Path(__file__).parent / "tiny.gin"


class TrainingProcess:
    """`tfasr train` in a process of its own."""

    def __init__(
        self, shard_dir: Path, run_dir: Path, *more: str, gin_file: Path = TINY
    ):
        words = ["--gin_file", gin_file, "--shard_dir", shard_dir, "--run_dir", run_dir]
        self.run_dir = run_dir
        self._process = start_tfasr("train", *words, *more, one_stream=True)

    def finish(self) -> tuple[int, str]:
        """Waits and returns the exit code and all output."""
        output, _ = self._process.communicate()
        return self._process.returncode, output

    def kill_when(self, seen) -> None:
        """Sends SIGKILL as soon as ``seen(events)`` holds; fails if the run ends before."""
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            if (self.run_dir / "events.jsonl").exists() and seen(
                read_events(self.run_dir)
            ):
                os.kill(self._process.pid, signal.SIGKILL)
                self._process.communicate()
                assert self._process.returncode == -signal.SIGKILL
                return

            if self._process.poll() is not None:
                pytest.fail(
                    f"the run ended before it could be killed:\n{self.finish()[1]}"
                )

            time.sleep(0.02)

        pytest.fail("the run never came to the point where it was to be killed")


@pytest.fixture
def start_training(shard_dir):
    """Returns a function that starts `tfasr train` on the synthetic shards."""

    def start(run_dir: Path, *more: str) -> TrainingProcess:
        return TrainingProcess(shard_dir, run_dir, *more)

    return start
