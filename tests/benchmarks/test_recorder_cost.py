"""The benchmark of the recorder says what it measured; how fast that is, is measured elsewhere."""

import json
import sys

import pytest


def test_it_tells_the_difference_and_its_share_of_a_step(tmp_path, monkeypatch, capsys):
    import recorder

    flags = ["--rounds", "3", "--steps", "2", "--empty_steps", "20", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["recorder.py", *flags, "--format", "json"])
    recorder.main()
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert [row["step_ms"] for row in table["rows"]] == [0.0, 50.0]
    for row in table["rows"]:
        assert row["recorded_us"] > 0
        assert row["share_pct"] == pytest.approx(row["recorder_us"] / 500)
    (markdown,) = tmp_path.glob("*-recorder.md")
    assert "of a step of 50 ms, %" in markdown.read_text()
