"""The DeepMark workload: what it measures, and what it makes of it."""

import json
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.bench.ds2 import (
    LABEL_LENGTHS,
    BatchTried,
    DeepMarkConfig,
    DeepMarkMeasurement,
    Passes,
    RandomBlock,
    Search,
    batch_sizes,
    deepmark_tables,
    lengths_chart,
    search_chart,
    utterance_counts,
)
from tfasr.display.vega import picture_spec

COUNTS = [3, 10, 11, 13, 14, 13, 9, 8, 5, 4, 3, 2, 2, 2, 1]


def measured(scale=1, per_audio_s=0.01, skip=()):
    """Batches of 4 that take ``per_audio_s`` for each second of audio, a quarter of it
    forward.
    """
    lengths = []
    for length_s, count in enumerate(COUNTS, start=1):
        count = 0 if length_s in skip else scale * count
        audio_s = length_s * count
        batches = -(-count // 4)
        total_s = audio_s * per_audio_s
        lengths.append(
            Passes(audio_s, count, batches, total_s / 4, total_s * 3 / 4, total_s)
        )

    return DeepMarkMeasurement(4, 1, lengths)


def tables(measurements, search=None, backend="tensorflow"):
    return deepmark_tables(
        measurements, search, backend, 69_430_301, 15, visible_gpus=0
    )


SEARCH = Search(
    [
        BatchTried(8, {1: 0.010, 15: 0.150}),
        BatchTried(9, {1: 0.012, 15: 0.180}),
        BatchTried(64, {1: 0.006, 15: 0.090}),
        BatchTried(96, {}, "out of memory"),
    ],
    lengths_s=(1, 15),
    tolerance=0.05,
)


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
    assert whole.epoch_s == pytest.approx(whole.overall.total_s)
    assert not [note for note in tables([whole])[-1].notes if "extrapolated" in note]


def test_tables_and_figure_show_lengths_without_utterances_as_unknown():
    one = measured(skip=(12,))
    by_length, summary = tables([one], backend="jax")
    assert by_length.rows[11] == ["12", "0", "0", *["n/a"] * 5]
    published = [row[1:3] + row[4:] for row in summary.rows[1:]]
    assert published == [
        ["1", "32", "83", "72", "154", "32", "189", "4013", "n/a"],
        ["4", "32", "99", "81", "180", "106", "632", "1204", "3.31"],
    ]
    assert any("15 warm-up" in note for note in summary.notes)
    assert any(
        "n/a for one device: 0 GPUs are visible" in note for note in summary.notes
    )
    assert len(picture_spec(lengths_chart(one, "jax"))["concat"]) == 2


def test_the_fastest_batch_is_found_over_the_distribution_and_cliffs_are_marked():
    assert SEARCH.tried[0].mean_s == pytest.approx(0.01 * 5.94)
    assert SEARCH.fastest.batch == SEARCH.largest.batch == 64
    assert [row["cliff"] for row in SEARCH.sizes()] == [False, True, False, False]
    found, *_ = tables([measured()], SEARCH)
    assert [row[-1] for row in found.rows] == ["", "cliff", "fastest", "out of memory"]
    assert SEARCH.to_json()["sizes"][2]["epoch_s"] == pytest.approx(
        128_000 * 0.006 * 5.94
    )
    marks = search_chart(SEARCH, "tensorflow").panels[0].marks
    assert [list(mark.x) for mark in marks if "cliff" in mark.series] == [[9]]


@pytest.mark.parametrize(
    "wrong",
    [{"search_batches": (8, 4)}, {"search_batches": (0,)}, {"search_lengths_s": (16,)}],
)
def test_a_search_over_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DeepMarkConfig(**wrong)


@pytest.mark.long
def test_the_command_writes_what_it_measured_on_two_devices(tmp_path):
    command = [
        sys.executable,
        "-m",
        "tfasr.cli",
        "bench",
        "--gin_file",
        "bench/ds2_small.gin",
    ]
    for binding in (
        "DeepSpeech2Config.units = 4",
        "DeepSpeech2Config.num_recurrent_layers = 1",
        "DeepSpeech2Config.conv_filters = 2",
        "DeepMarkConfig.num_devices = 2",
        "DeepMarkConfig.search_batches = (1, 2)",
        "DeepMarkConfig.search_lengths_s = (1,)",
    ):
        command += ["--gin_binding", binding]

    # Two utterances, of 4 and 5 s, on devices of one utterance each: batches of fewer
    # than devices.
    command += [
        "--fraction",
        "0.000016",
        "--format",
        "json",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (tmp_path / "out" / "results.json").read_text() == done.stdout
    assert "| 1 Titan (Torch)" in (tmp_path / "out" / "table.md").read_text()
    for name in ("ds2.png", "ds2.svg", "ds2_search.png"):
        assert (tmp_path / "out" / name).stat().st_size > 5_000
    assert found["backend"]["name"] == "tensorflow"
    assert found["system"]["memory_bytes"] > 0
    assert found["configs"]["DeepSpeech2Config"]["units"] == 4
    runs = found["results"]["runs"]
    assert [run["num_devices"] for run in runs] == [1, 2]
    assert [run["utterances"] for run in runs] == [2, 2]
    assert runs[0]["epoch_is_extrapolated"]
    assert [run["timed_apart"] for run in runs] == [True, False]
    assert min(runs[0][way] for way in ("forward_ms", "backward_ms", "total_ms")) > 0
    assert found["results"]["scaling"] > 0
    assert found["warmup_steps"] == 2 * runs[0]["batches"] + 1


def test_the_whole_epoch_has_1280_times_the_counts():
    assert utterance_counts(1.0) == [1280 * count for count in COUNTS]
    assert sum(utterance_counts(1.0)) == 128_000


@settings(deadline=None)
@given(fraction=st.floats(1e-6, 1.0), batch_size=st.integers(1, 300))
def test_every_utterance_is_in_one_batch_and_every_batch_of_one_length(
    fraction, batch_size
):
    counts = utterance_counts(fraction)
    seen: Counter[int] = Counter()
    smaller: Counter[int] = Counter()
    for length_s, count in enumerate(counts, 1):
        for size in batch_sizes(count, batch_size):
            assert 0 < size <= batch_size
            seen[length_s] += size
            smaller[length_s] += size < batch_size

    assert [seen[length_s] for length_s in range(1, 16)] == counts
    assert max(smaller.values()) <= 1


@settings(deadline=None)
@given(fraction=st.floats(1e-6, 1.0))
def test_a_fraction_keeps_the_distribution_to_within_one_utterance(fraction):
    counts = utterance_counts(fraction)
    total = max(1, round(Fraction(fraction) * 128_000))
    assert sum(counts) == total
    shares = [Fraction(count * total, 100) for count in COUNTS]
    assert all(
        abs(count - share) < 1 for count, share in zip(counts, shares, strict=True)
    )


@settings(deadline=None)
@given(hundreds=st.integers(1, 1280))
def test_a_fraction_of_whole_hundreds_is_exact(hundreds):
    assert utterance_counts(hundreds / 1280) == [hundreds * count for count in COUNTS]


def test_missing_utterances_go_to_the_lengths_that_lost_most():
    # 10 utterances: shares 0.3 1.0 1.1 1.3 1.4 1.3 0.9 0.8 0.5 0.4 0.3 0.2 0.2 0.2 0.1
    expected = [0, 1, 1, 1, 2, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert utterance_counts(10 / 128_000) == expected


def test_batches_are_cut_from_one_block():
    block = RandomBlock(batch_size=4, num_bins=5, num_labels=28, longest_s=3, seed=1)
    features, labels = block.cut(3, 4)
    shorter, fewer = block.cut(2, 3)
    assert features.shape == (4, 300, 5)
    assert labels.shape == (4, LABEL_LENGTHS[2])
    assert fewer.shape == (3, LABEL_LENGTHS[1])
    np.testing.assert_array_equal(shorter, features[:3, :200])
    np.testing.assert_array_equal(fewer, labels[:3, : LABEL_LENGTHS[1]])
    assert labels.min() >= 0 and labels.max() < 28
    again = RandomBlock(batch_size=4, num_bins=5, num_labels=28, longest_s=3, seed=1)
    np.testing.assert_array_equal(again.cut(3, 4)[0], features)
    other = RandomBlock(batch_size=4, num_bins=5, num_labels=28, longest_s=3, seed=2)
    assert (other.cut(3, 4)[0] != features).any()
