"""Some of the third list's hostile cases, through the campaign's own code."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from campaigns.hostile_cases import CASES
from tests.warm import run_module

ROOT = Path(__file__).parents[2]


def test_each_case_has_a_name_of_its_own():
    names = Counter(case.name for case in CASES)

    assert len(CASES) >= 150
    assert not [name for name, count in names.items() if count > 1]


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_some_hostile_cases_end_well(tmp_path):
    """Tries every 90th case of the list.

    ``python -m campaigns.hostile`` tries all of them.
    """
    for package in ("onnxruntime", "tf2onnx", "aiohttp"):
        pytest.importorskip(package)

    words = ["--every", "90", "--out", tmp_path]
    ended = run_module("campaigns.hostile", *words, folder=ROOT)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " 0 weak, 0 bad" in ended.stdout
