"""Studies on two hosts whose processes are killed at random give the runs of one machine."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="needs Dask: pip install 'tfasr[cluster]'")

pytestmark = pytest.mark.long
PATIENCE_S = 3600


def test_random_kills_lose_no_run_and_count_none_twice(tmp_path):
    command = [sys.executable, "-m", "campaigns.study_hosts", "--out", str(tmp_path)]
    command += ["--hosts", "2", "--seeds", "2", "--kills", "4", "--loopback"]
    folder = Path(__file__).parents[2]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(": 0 faults")
