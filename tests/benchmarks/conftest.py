"""Puts the folder of the benchmarks on the path, from where they import one another."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
# Tests compare PyTorch with TensorFlow in one process. PyTorch's optimizers load triton
# where it is installed, and its LLVM aborts next to TensorFlow's; on a CPU nothing
# needs it.
sys.modules.setdefault("triton", None)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """PyTorch's threads wait for one another by spinning, which is slow beside other work."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
