"""Layers and training as on processors with fewer instructions than this one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

core = pytest.importorskip(
    "tfasr.layers._recurrent_core", reason="built without a compiler"
)

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.parametrize("name", core.instruction_sets())
def test_layers_and_training_pass_with_each_instruction_set(name):
    command = [sys.executable, "-m", "pytest", "tests/layers", "tests/training"]
    command += ["--numprocesses", "auto", "--dist", "loadfile"]

    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TFASR_INSTRUCTION_SET": name},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-4000:]
