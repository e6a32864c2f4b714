"""Run folders with one damaged file, through ``tfasr report``: alone, and beside a good run."""

import pytest

from tests.reports.conftest import ledger_of

BINARY = b"\x89PNG\r\n\x1a\n\0\xff\xfe" * 40


@pytest.fixture
def runs(tmp_path):
    """Returns a folder of two runs."""
    for name in ("good", "bad"):
        ledger_of([0.5, 0.1, 0.1]).write(tmp_path / "runs" / name)
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("cpu.csv", BINARY),
        ("gpu.csv", BINARY),
        ("config.gin", BINARY),
        ("operative_config.gin", BINARY),
        ("experiment.json", BINARY),
        ("run.json", BINARY),
        ("run.json", b"[" * 100_000),
        ("run.json", b'{"system": {"packages": "x"}}'),
        ("events.jsonl", BINARY),
        ("events.jsonl", b""),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_goes_on(
    tfasr, refused, runs, tmp_path, file, content
):
    (runs / "bad" / file).write_bytes(content)
    out = tmp_path / "out"
    refused("report", runs / "bad", "--policy", "paper", keeps=runs, names=(file,))
    ended = tfasr("report", runs, "--policy", "paper", "--format", "markdown")
    assert ended.status == 0, ended.err
    assert "bad is left out." in " ".join(ended.out.replace("\\", "").split())
    assert "runs/good" in ended.out.replace("\\", "")
    assert not out.exists()


@pytest.mark.parametrize("file", ["cpu.csv", "config.gin"])
def test_a_page_is_not_begun_on_a_damaged_run(refused, runs, tmp_path, file):
    (runs / "bad" / file).write_bytes(BINARY)
    out = tmp_path / "out"
    refused("report", runs / "bad", "--out", out, keeps=runs, names=(str(runs / "bad" / file),))
    assert not out.exists()


def test_samples_that_a_power_loss_has_torn_are_read_up_to_there(tfasr, runs):
    lines = "time_ms,cpu_percent,process_percent\n" + "".join(f"{n},50,40\n" for n in range(99))
    (runs / "bad" / "cpu.csv").write_bytes(lines.encode() + b"\0" * 300_000)
    (runs / "bad" / "energy.csv").write_bytes(BINARY + b"\0" * 300_000)
    ended = tfasr("report", runs, "--policy", "paper")
    assert ended.status == 0, ended.err
    assert "is left out" not in " ".join(ended.out.split())


@pytest.mark.parametrize("content", [BINARY, b"", b"{}\n", b"[" * 100_000])
def test_hypotheses_that_are_none_are_named(refused, runs, content):
    folder = runs / "good" / "hypotheses"
    folder.mkdir()
    (folder / "validation-epoch-0003.jsonl").write_bytes(content)
    refused("report", runs / "good", "--errors", keeps=runs, names=("hypotheses",))
