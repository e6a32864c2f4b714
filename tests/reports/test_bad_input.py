"""Ledgers as crashes, clocks and people leave them, through ``tfasr report`` on real files."""

import json
import os
import subprocess
import sys
import time

import pytest

from tests.reports.conftest import COMPARABLE, ledger_of, objects
from tests.tta.ledger_builder import LedgerBuilder
from tfasr.commands.report import report
from tfasr.errors import UsageError


def flat(text):
    return " ".join(text.split())


def events_of(run_dir):
    """The lines of the run's ledger, as bytes with their ends."""
    return (run_dir / "events.jsonl").read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize(
    "tail",
    [
        b'{"key"',
        b'{"namespace": "", "time_ms": 17',
        b"\0" * 700,
        b"no event\n",
        b'"key"',
    ],
)
def test_a_ledger_cut_in_mid_line_counts_up_to_there(small, tail):
    lines = events_of(small)
    (small / "events.jsonl").write_bytes(b"".join(lines[:-1]) + tail)

    (result,) = objects(small)

    assert result["time_to_accuracy_s"] == 8.0
    assert "a crash cut the ledger's last line, which is left out" in result["notes"]


def test_a_ledger_cut_at_any_byte_is_a_report(small):
    content = (small / "events.jsonl").read_bytes()
    first = content.index(b"\n") + 1
    for cut in range(first, len(content), len(content) // 23):
        (small / "events.jsonl").write_bytes(content[:cut])
        (result,) = objects(small, targets=["cer=0.1"])

        assert result["time_to_accuracy_s"] in (None, 8.0)
        if b"\n" not in content[cut - 1 : cut + 1]:
            assert any("cut" in note for note in result["notes"])


def test_a_broken_line_in_the_middle_is_named(small):
    lines = events_of(small)
    lines[4] = lines[4][:20] + b"\n"

    (small / "events.jsonl").write_bytes(b"".join(lines))

    with pytest.raises(UsageError, match="Line 5 "):
        report([small])


def test_two_processes_that_write_one_run_are_refused_by_name(small, large, tmp_path):
    both = tmp_path / "both"
    both.mkdir()
    one = events_of(small)
    other = events_of(large)
    # As a file system without locks leaves them: line by line from either.
    mixed = [line for pair in zip(one, other, strict=False) for line in pair]

    (both / "events.jsonl").write_bytes(b"".join(mixed))

    with pytest.raises(UsageError, match=r"both.*session 0"):
        report([both])


def test_a_process_that_goes_on_after_another_took_over_is_refused(tmp_path):
    ledger = LedgerBuilder().begin().epoch(1, 0.5).resume(down_s=0, from_step=None)
    ledger.epoch(1, 0.4)
    ledger.session = 0

    run_dir = ledger.epoch(2, 0.4).end().write(tmp_path / "run")

    with pytest.raises(UsageError, match="of session 0 follows one of session 1"):
        report([run_dir])


def test_steps_that_go_back_within_a_session_are_refused(small):
    lines = events_of(small)
    steps = [index for index, line in enumerate(lines) if b'"train_step"' in line]
    lines[steps[0]], lines[steps[1]] = lines[steps[1]], lines[steps[0]]

    (small / "events.jsonl").write_bytes(b"".join(lines))

    with pytest.raises(UsageError, match="is step 1 and follows step 2"):
        report([small])


def test_a_broken_run_in_a_folder_is_left_out_and_said(tmp_path):
    for name in "ac":
        ledger_of([0.1] * 3).write(tmp_path / "runs" / name)

    (tmp_path / "runs" / "b").mkdir()
    (tmp_path / "runs" / "b" / "events.jsonl").touch()

    text = flat(report([tmp_path / "runs"], out=tmp_path / "out"))

    assert "runs/a" in text
    assert "runs/c" in text
    assert "no events" in text
    assert "is left out" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("named", ["only", "only/b"])
def test_a_broken_run_alone_is_refused(tmp_path, named):
    broken = tmp_path / "only" / "b"
    broken.mkdir(parents=True)
    (broken / "events.jsonl").touch()

    with pytest.raises(UsageError, match="no events"):
        report([tmp_path / named])


@pytest.mark.parametrize("jump_s", [-7200, -1, 3600, 10**7])
def test_a_wall_clock_that_jumps_changes_no_time(tmp_path, jump_s):
    ledger = LedgerBuilder().begin(init_s=2, targets=[["cer", 0.1]]).epoch(1, 0.5)
    ledger.wall_s += jump_s
    run_dir = ledger.epoch(2, 0.1).epoch(3, 0.1).end().write(tmp_path / "run")

    (result,) = objects(run_dir)

    assert (result["time_to_accuracy_s"], result["wall_s"]) == (8.0, 8.0)


def test_a_wall_clock_set_back_between_sessions_loses_no_time(tmp_path):
    ledger = (
        LedgerBuilder()
        .begin(init_s=2, targets=[["cer", 0.1]])
        .epoch(1, 0.5)
        .checkpoint()
    )
    # Resumed an hour before it was killed, as the wall clocks have it.
    ledger.resume(down_s=-3600, from_step=2, alive_s=0, init_s=2)
    run_dir = ledger.epoch(2, 0.1).epoch(3, 0.1).end().write(tmp_path / "run")

    (result,) = objects(run_dir)

    assert result["time_to_accuracy_s"] == 2 + 2 + 2 + 4
    assert (result["lost_work_s"], result["sessions"]) == (0, 2)


@pytest.mark.skipif(
    not hasattr(time, "tzset"), reason="this system has no time zones to set"
)
def test_the_time_zone_is_nobodys_business(small, monkeypatch):
    said = set()
    try:
        for zone in ("UTC", "Asia/Tokyo", "America/St_Johns"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            said.add(report([small], output_format="json"))
    finally:
        monkeypatch.undo()
        time.tzset()

    assert len(said) == 1


def test_runs_without_an_evaluation_beside_runs_with(small, tmp_path):
    bare = LedgerBuilder().begin(init_s=1, comparability=COMPARABLE).step(2)
    result = objects(small, bare.write(tmp_path / "bare"), out=tmp_path / "out")

    assert [one["time_to_accuracy_s"] for one in result] == [8.0, None]
    assert "it has no finished evaluation" in result[1]["notes"]


def test_a_run_that_only_began_has_no_time(tmp_path):
    only_begun = LedgerBuilder().event("session_start").write(tmp_path / "begun")
    (result,) = objects(only_begun, targets=["cer=0.1"], out=tmp_path / "out")

    assert (result["time_to_accuracy_s"], result["wall_s"]) == (None, 0)


def test_a_target_that_no_run_reaches_has_no_time(small, large):
    result = objects(small, large, targets=["wer=0.01"], policy="mlperf")
    assert [one["time_to_accuracy_s"] for one in result] == [[None], [None]]


def test_a_page_names_the_best_evaluation_where_no_run_reaches_a_target(
    small, large, tmp_path
):
    text = report([small, large], targets=["wer=0.01"], out=tmp_path / "out")
    assert " NA " in text

    page = (tmp_path / "out" / "report.html").read_text()
    assert "No run reached WER 1 % by the rule: the best single evaluation has" in page


def test_mixed_alphabets_are_refused_a_ranking_by_name(small, tmp_path):
    german = COMPARABLE | {"alphabet": [" abcäöüß", None]}
    first = ledger_of([0.1] * 3, comparability=COMPARABLE | {"alphabet": [" abc", "_"]})
    other = ledger_of([0.1] * 3, comparability=german).write(tmp_path / "german")
    first = first.write(tmp_path / "english")

    text = flat(report([first, other]))

    assert 'they differ in alphabet ([" abc", "_"], here [" abcäöüß", null])' in text
    assert objects(first, other)[1]["relative"] is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.log", b"epoch 1 loss 3.2\n"),
        ("result_1.txt", b"no mllog here\n"),
        ("eval.csv", b"a,b\n1,2\n"),
        ("picture.png", b"\x89PNG\r\n\x1a\n\0\0"),
        ("empty", b""),
    ],
)
def test_an_unknown_format_is_refused_with_those_that_are_known(
    tmp_path, name, content
):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(UsageError, match=r"\['algoperf', 'dawnbench', 'mlperf'\]"):
        report([tmp_path / name])


def test_many_runs_are_read_by_several_processes(tmp_path):
    """Seventy, from which on the command starts processes; as library they are read in one."""
    for number in range(70):
        ledger_of([0.5, 0.1, 0.1], train_s=1 + number).write(
            tmp_path / f"run{number:02}"
        )

    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "events.jsonl").write_text("garbage\n{}\n{}\n")

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tfasr.cli",
            "report",
            str(tmp_path),
            "--format",
            "json",
        ],
        capture_output=True,
        text=True,
        env=os.environ,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == objects(tmp_path)
    assert len(json.loads(done.stdout)) == 70


def test_a_broken_run_named_by_itself_ends_the_report_of_many(tmp_path):
    runs = [
        ledger_of([0.1] * 3).write(tmp_path / f"run{number:02}") for number in range(64)
    ]
    (runs[40] / "events.jsonl").write_text("garbage\n{}\n{}\n")
    command = [sys.executable, "-m", "tfasr.cli", "report", *map(str, runs)]

    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 2
    assert "Line 1 " in done.stderr
    assert "Traceback" not in done.stderr
