"""A few cases of each campaign, through the campaigns' own code."""

import re
import sys
from pathlib import Path

import pytest

from tests.warm import run_module


@pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info < (3, 11),
    reason="needs Linux, Python 3.11",
)
def test_kills_power_losses_and_full_disks_lose_nothing(tmp_path):
    """Runs the campaigns of docs/reliability.md on few cases.

    The campaign's own output counts its kills and the states of the disk that it tried.
    """
    root = Path(__file__).parents[2]

    ended = run_module("campaigns.short", "--out", tmp_path, folder=root)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = re.search(
        r"'training': 1, 'preparing': [12]} kills, (\d+) states", ended.stdout
    )
    assert told and int(told[1]) >= 200, ended.stdout
