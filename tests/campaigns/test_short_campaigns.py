"""A few cases of each campaign, through the campaigns' own code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info < (3, 11),
    reason="needs Linux, Python 3.11",
)
def test_kills_power_losses_and_full_disks_lose_nothing(tmp_path):
    root = Path(__file__).parents[2]
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))
    ended = subprocess.run(
        [sys.executable, "-m", "campaigns.short", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = re.search(
        r"'training': 1, 'preparing': [12]} kills, (\d+) states", ended.stdout
    )
    assert told and int(told[1]) >= 200, ended.stdout
