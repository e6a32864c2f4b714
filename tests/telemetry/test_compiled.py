"""Compiled parts that are missing are told, booked and refused by benchmarks."""

import json
import logging
import os
import subprocess
import sys

import pytest

from tfasr.errors import RunError
from tfasr.telemetry.compiled import missing_parts, require_compiled_parts, warn_of_missing_parts


@pytest.mark.skipif(sys.platform == "win32", reason="has no compiled layers")
def test_a_part_that_does_not_load_is_told_with_the_command_that_builds_it(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "tfasr.layers._recurrent_core", None)
    assert list(missing_parts()) == ["recurrent layers"]
    with caplog.at_level(logging.WARNING):
        assert warn_of_missing_parts() == ["recurrent layers"]
    assert "pip install --editable ." in caplog.text
    with pytest.raises(RunError, match="pip install --editable"):
        require_compiled_parts()


def test_nothing_is_said_where_all_load(caplog):
    pytest.importorskip("tfasr.layers._recurrent_core")
    pytest.importorskip("tfasr.decoding._word_beam_core")
    assert warn_of_missing_parts() == []
    require_compiled_parts()
    assert not caplog.records


SAY = """
import json
from tfasr.telemetry.compiled import layers_instruction_set
from tfasr.errors import RunError
try:
    print(json.dumps(layers_instruction_set()))
except RunError as error:
    print(json.dumps(str(error)))
"""


def told(variable: str | None):
    """Returns what a new process says that has the variable."""
    environment = {k: v for k, v in os.environ.items() if k != "TFASR_INSTRUCTION_SET"}
    environment |= {} if variable is None else {"TFASR_INSTRUCTION_SET": variable}
    command = [sys.executable, "-c", SAY]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(said.stdout)


def test_the_environment_names_the_instruction_set_of_the_compiled_layers():
    core = pytest.importorskip("tfasr.layers._recurrent_core")
    best = core.instruction_sets()[0]
    assert told(None) == told("") | {"forced": False} == {"name": best, "forced": False}
    assert told("portable") == {"name": "portable", "forced": True}
    refusal = told("abacus")
    assert refusal.startswith("The environment variable TFASR_INSTRUCTION_SET must be one of")
    assert refusal.endswith("portable, emulated_amx. Received: abacus")
