"""Files of samples as kills, older versions and full disks leave them."""

import logging
import resource
import time

import pytest

from tfasr.telemetry.samplers import SampleFile, UtilisationSampler
from tfasr.tta.run import load_run

COLUMNS = ("time_ms", "cpu_percent", "process_percent")


def written(path, *lines):
    file = SampleFile(path, COLUMNS)
    for line in lines:
        file.add(*line)
    file.close()
    return path.read_text()


def test_the_heading_is_there_from_the_first_moment(tmp_path):
    path = tmp_path / "cpu.csv"
    file = SampleFile(path, COLUMNS)
    assert path.read_text() == "time_ms,cpu_percent,process_percent\n"
    file.close()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "time_ms,cpu_percent,process_percent\n7,8,9\n"),
        ("time_ms,cpu_perc", "time_ms,cpu_percent,process_percent\n7,8,9\n"),
        ("time_ms,cpu_percent\n1,2\n3,", "time_ms,cpu_percent\n1,2\n7,8\n"),
        ("1,2\n3,4\n5", "time_ms,cpu_percent\n1,2\n3,4\n7,8\n"),
        (
            "time_ms,cpu_percent,process_percent\n1,2,3\n",
            "time_ms,cpu_percent,process_percent\n1,2,3\n7,8,9\n",
        ),
    ],
)
def test_what_was_there_is_continued_with_its_own_columns(tmp_path, before, after):
    path = tmp_path / "cpu.csv"
    path.write_text(before)
    assert written(path, (7, 8, 9)) == after


def test_a_file_that_takes_no_more_ends_the_samples_with_one_word(tmp_path, caplog):
    file = SampleFile(tmp_path / "cpu.csv", COLUMNS)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        for number in range(5000):
            file.add(number, 1, 2)
        file.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not file.works
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "cpu.csv gets no more samples" in caplog.text


def test_the_process_is_told_from_the_machine(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"key": "session_start", "time_ms": 1}\n')
    with UtilisationSampler(tmp_path):
        busy_until = time.monotonic() + 0.5  # ten samples and more, on a busy machine a few
        while time.monotonic() < busy_until:
            sum(number * number for number in range(10_000))
    samples = load_run(tmp_path).utilisation("cpu")
    assert list(samples) == list(COLUMNS)
    assert samples["process_percent"].max() > 0
    assert (samples["process_percent"] <= 100).all()
