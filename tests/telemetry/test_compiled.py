"""Compiled parts that are missing are told, booked and refused by benchmarks."""

import logging
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
