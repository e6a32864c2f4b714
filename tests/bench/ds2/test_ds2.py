"""The DeepMark workload: what it measures, and what it makes of it."""

import json
import subprocess
import sys

import pytest

from tfasr.bench.ds2.figure import lengths_figure
from tfasr.bench.ds2.tables import deepmark_tables
from tfasr.bench.ds2.times import DeepMarkMeasurement, LengthMeasurement

COUNTS = [3, 10, 11, 13, 14, 13, 9, 8, 5, 4, 3, 2, 2, 2, 1]


def measured(scale=1, per_audio_s=0.01, skip=()):
    """Batches of 4 that take ``per_audio_s`` for each second of audio, a quarter of it forward."""
    lengths = []
    for length_s, count in enumerate(COUNTS, start=1):
        count = 0 if length_s in skip else scale * count
        sizes = [4] * (count // 4) + [count % 4] * (count % 4 > 0)
        total_s = [size * length_s * per_audio_s for size in sizes]
        lengths.append(LengthMeasurement(length_s, sizes, [x / 4 for x in total_s], total_s))
    return DeepMarkMeasurement(4, 1, lengths)


def test_sums_and_rates_are_those_of_the_batches():
    found = measured().to_json()
    assert found["utterances"] == 100
    assert found["audio_s"] == 594
    assert found["total_s"] == pytest.approx(5.94)
    assert found["backward_s"] == pytest.approx(5.94 * 3 / 4)
    assert found["audio_s_per_s"] == pytest.approx(100)
    assert found["utterances_per_s"] == pytest.approx(100 / 5.94)
    assert found["total_ms"] == pytest.approx(5940 / found["batches"])
    assert found["lengths"][0]["total_ms"] == pytest.approx(30)


@pytest.mark.parametrize("skip", [(), (12, 15), (1,)])
def test_an_epoch_is_extrapolated_length_by_length(skip):
    one = measured(skip=skip)
    assert one.epoch_s == pytest.approx(1280 * 5.94)
    assert one.to_json()["epoch_is_extrapolated"]


def test_a_whole_epoch_is_its_own_time():
    whole = measured(scale=1280)
    assert whole.is_whole
    assert whole.epoch_s == pytest.approx(whole.total_s)
    tables = deepmark_tables([whole], "tensorflow", 1, 15)
    assert not [note for note in tables[-1].notes if "extrapolated" in note]


def test_tables_and_figure_show_lengths_without_utterances_as_unknown():
    one = measured(skip=(12,))
    by_length, summary = deepmark_tables([one], "jax", 69_430_301, 15)
    assert by_length.rows[11] == ["12", "0", "0", *["n/a"] * 5]
    assert [row[0] for row in summary.rows][1:] == ["1 Titan X (Torch)", "4 Titan X (Torch)"]
    assert summary.rows[1][4:9] == ["83", "72", "154", "32", "189"]
    assert any("15 warm-up" in note for note in summary.notes)
    assert len(lengths_figure(one, "jax").axes) == 2


def test_the_command_writes_what_it_measured_on_two_devices(tmp_path):
    command = [sys.executable, "-m", "tfasr.cli", "bench", "--gin_file", "bench/ds2_small.gin"]
    for binding in (
        "DeepSpeech2Config.units = 4",
        "DeepSpeech2Config.num_recurrent_layers = 1",
        "DeepSpeech2Config.conv_filters = 2",
        "DeepMarkConfig.num_devices = 2",
        "DeepMarkConfig.batch_size = 2",
    ):
        command += ["--gin_binding", binding]
    # Two utterances, of 4 and 5 s: batches of fewer utterances than devices.
    command += ["--fraction", "0.000016", "--format", "json", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (tmp_path / "out" / "results.json").read_text() == done.stdout
    assert "| 1 Titan X" in (tmp_path / "out" / "table.md").read_text()
    assert (tmp_path / "out" / "ds2.png").stat().st_size > 10_000
    assert found["backend"]["name"] == "tensorflow"
    assert found["system"]["memory_bytes"] > 0
    assert found["configs"]["DeepSpeech2Config"]["units"] == 4
    runs = found["results"]["runs"]
    assert [run["num_devices"] for run in runs] == [1, 2]
    assert [run["utterances"] for run in runs] == [2, 2]
    assert runs[0]["epoch_is_extrapolated"]
    assert found["results"]["scaling"] > 0
    assert found["warmup_steps"] == 2 * runs[0]["batches"]
