"""Decoders measured: seconds, errors, memory, table and figure."""

import dataclasses
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.conftest import ALPHABET, spoken
from tfasr.bench.decoder import (
    DecoderRow,
    LogProbs,
    decoder_chart,
    decoder_configs,
    decoder_table,
    measure,
    measure_apart,
)
from tfasr.decoding.choice import DecoderConfig
from tfasr.decoding.decoder import GreedyDecoder, Hypothesis
from tfasr.decoding.word_beam_search import WordBeamSearch
from tfasr.display.chart import Labels, Line, Segments
from tfasr.display.vega import write_chart
from tfasr.errors import UsageError
from tfasr.scoring.errors import ErrorCounts, count_errors

WORD_BEAM = DecoderConfig(name="word_beam", beam_width=8)


class Slow:
    """Answers "a" to everything and sleeps as long as told."""

    def __init__(self, sleep_s: float):
        self.sleep_s = sleep_s
        self.decoded: list[int] = []

    def decode(self, log_probs, lengths):
        self.decoded.append(len(lengths))
        time.sleep(self.sleep_s)
        return [Hypothesis("a", 0.0) for _ in lengths]


def row(name: str, beam_width: int, **changes) -> dict:
    counts = ErrorCounts(utterances=2, words=200, substitutions=25, characters=900)
    config = DecoderConfig(name=name, beam_width=beam_width)
    measured = DecoderRow(config, 0.1, 2.0, 3.0, 1, 0.5, counts)
    return dataclasses.replace(measured, **changes).to_json()


def test_errors_are_those_of_the_references(load):
    measured = measure(
        load, WORD_BEAM, lambda: GreedyDecoder(load.alphabet), batch_size=3
    )
    assert measured.counts == count_errors(load.references, load.references)
    measured = measure(load, WORD_BEAM, lambda: Slow(0.2), batch_size=3)
    assert measured.counts == count_errors(load.references, ["a"] * 4)


def test_seconds_are_those_of_whole_passes_and_of_decoding_alone(load):
    slow = Slow(0.3)
    measured = measure(load, WORD_BEAM, lambda: slow, batch_size=3)
    assert measured.passes == 1
    assert slow.decoded == [1, 3, 1]  # the first is the warm-up
    assert 0.6 <= measured.wall_s < 60
    # Sleeping takes no processor time: the two clocks differ.
    assert measured.cpu_s < measured.wall_s / 2
    per_hour = measured.to_json()["wall_s_per_audio_hour"]
    assert per_hour == pytest.approx(measured.wall_s / load.audio_hours)


def test_short_passes_are_repeated(load):
    quick = Slow(0.0)
    measured = measure(load, WORD_BEAM, lambda: quick)
    assert measured.passes == 10
    assert quick.decoded == [1, *[4] * 10]


def test_a_process_of_its_own_finds_the_same(load, tmp_path):
    load.save(tmp_path / "load.npz")
    found = measure_apart(tmp_path / "load.npz", WORD_BEAM, num_threads=2)
    here = measure(
        load, WORD_BEAM, lambda: WordBeamSearch(load.alphabet, load.lexicon, 8)
    )
    assert found.counts == here.counts
    assert found.counts.wrong_utterances == 1  # "acc" is no word of the dictionary
    assert found.cpu_s > 0


@pytest.mark.skipif(
    sys.platform != "linux", reason="peak memory is read from Linux's /proc"
)
def test_memory_is_the_measuring_processs_own(load, tmp_path):
    load.save(tmp_path / "load.npz")
    ours = np.ones(40_000_000)  # 305 MiB that a child would inherit in getrusage's mark
    measured = measure_apart(tmp_path / "load.npz", WORD_BEAM, num_threads=1)
    assert (
        0 < measured.memory_before_mib <= measured.peak_memory_mib < ours.nbytes / 2**20
    )


def test_a_decoder_that_cannot_be_made_is_wrong_use(load, tmp_path):
    dataclasses.replace(load, lexicon=("ab", "xyz")).save(tmp_path / "load.npz")
    with pytest.raises(UsageError, match="'xyz'"):
        measure_apart(tmp_path / "load.npz", WORD_BEAM, num_threads=1)


def test_every_decoder_meets_every_beam_width_and_greedy_none():
    configs = decoder_configs(
        ["greedy", "word_beam", "greedy"], [16, 4, 16], recombine=True
    )
    found = [(config.name, config.beam_width, config.recombine) for config in configs]
    assert found == [
        ("greedy", 1, False),
        *(("word_beam", width, way) for way in (False, True) for width in (4, 16)),
    ]
    for decoders, widths in ((["dance"], [4]), (["beam"], [0])):
        with pytest.raises(ValueError, match="must be"):
            decoder_configs(decoders, widths)


def test_the_table_says_what_could_not_be_told(load):
    rows = [
        row("word_beam", 64, peak_memory_mib=98.4, memory_before_mib=50.0),
        row("greedy", 1),
    ]
    table = decoder_table(rows, load, 1)
    assert table.rows == [
        ["word beam", "64", "4.00", "6.00", "12.50", "0.00", "98"],
        ["greedy", "none", "4.00", "6.00", "12.50", "0.00", "n/a"],
    ]
    # "acc" is one of the six words that were said.
    assert any("4 words" in note and "16.67%" in note for note in table.notes)
    assert [found["peak_memory_mib"] for found in rows] == [98.4, None]
    assert [found["beam_width"] for found in rows] == [64, None]


def test_the_figure_has_a_curve_a_decoder_and_a_line_where_there_is_no_beam():
    rows = [
        row("word_beam", 1, cpu_s=1.0),
        row("word_beam", 64, cpu_s=20.0),
        row("greedy", 1),
    ]
    cost, errors = decoder_chart(rows).panels
    assert cost.x.log
    assert cost.y.log
    assert not errors.y.log
    (curve,) = (mark for mark in cost.marks if isinstance(mark, Line))
    assert list(zip(curve.x, curve.y, strict=True)) == [(1, 2), (64, 40)]
    (line,) = (mark for mark in cost.marks if isinstance(mark, Segments))
    assert list(line.y0) == list(line.y1) == [4]
    ends = [mark for mark in errors.marks if isinstance(mark, Labels)]
    assert [mark.words for mark in ends] == [["12.5"], ["12.5"]]
    assert abs(ends[0].dy - ends[1].dy) > 10


@pytest.mark.parametrize("name", ["greedy", "beam"])
def test_a_figure_of_one_row_can_be_drawn(name, tmp_path):
    perfect = ErrorCounts(utterances=1, words=9)
    write_chart(decoder_chart([row(name, 4, counts=perfect)]), tmp_path)
    assert (tmp_path / "decoder.png").read_bytes().startswith(b"\x89PNG")


def utterances(load: LogProbs) -> list[np.ndarray]:
    return np.split(load.log_probs, load.offsets[1:-1])


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.text("abc ", min_size=1, max_size=6), min_size=1, max_size=9),
    st.integers(1, 5),
)
def test_batches_hold_every_frame_of_every_utterance_once(texts, size):
    load = spoken(texts)
    found = []
    for log_probs, lengths in load.batches(size):
        assert len(log_probs) == len(lengths) <= size
        assert log_probs.shape[1] == lengths.max()
        found += [
            rows[:length] for rows, length in zip(log_probs, lengths, strict=True)
        ]

    for batched, own in zip(found, utterances(load), strict=True):
        np.testing.assert_array_equal(batched, own)


def test_a_file_gives_back_what_was_saved(load, tmp_path):
    path = tmp_path / "new" / "log_probs.npz"
    load.save(path)
    read = LogProbs.load(path)
    for name in ("log_probs", "offsets", "audio_s"):
        np.testing.assert_array_equal(getattr(read, name), getattr(load, name))
    assert (read.references, read.alphabet, read.lexicon) == (
        load.references,
        load.alphabet,
        load.lexicon,
    )
    assert [file.name for file in path.parent.iterdir()] == ["log_probs.npz"]


def test_logits_become_log_probabilities_of_20_ms_frames(load, tmp_path):
    scale = np.linspace(-3, 90, len(load.log_probs), dtype=np.float32)[:, None]
    np.savez(
        tmp_path / "load.npz",
        logits=load.log_probs + scale,
        offsets=load.offsets,
        texts=np.array(load.references),
        lexicon=np.array(load.lexicon),
        chars=np.array(ALPHABET.characters),
    )
    read = LogProbs.load(tmp_path / "load.npz")
    np.testing.assert_allclose(read.log_probs, load.log_probs, atol=2e-5)
    np.testing.assert_allclose(read.audio_s, load.audio_s)
    assert (read.alphabet, read.lexicon) == (ALPHABET, load.lexicon)


def test_the_audio_is_counted_in_hours(load):
    hour = dataclasses.replace(load, audio_s=np.array([1800.0, 900.0, 450.0, 450.0]))
    assert hour.audio_hours == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log_probs": np.zeros((3, 2), np.float32)}, "shape"),
        ({"references": ["a"]}, "offsets"),
        ({"references": [], "offsets": np.array([0])}, "references"),
        ({"offsets": np.array([0, 5, 4, 9, 33])}, "rise"),
        ({"audio_s": np.array([1.0, 1.0, 1.0, 0.0])}, "durations"),
        ({"audio_s": np.array([1.0])}, "durations"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(load, changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(load, **changes)


@pytest.mark.parametrize("value", [np.nan, 0.5, np.inf])
def test_what_is_no_log_probability_is_refused(load, value):
    wrong = load.log_probs.copy()
    wrong[3, 1] = value
    with pytest.raises(ValueError, match="logarithms of probabilities"):
        dataclasses.replace(load, log_probs=wrong)


def test_what_is_no_such_file_is_refused_by_name(load, tmp_path):
    load.save(tmp_path / "whole.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:500])
    (tmp_path / "text.npz").write_text("not an archive")
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    np.save(tmp_path / "single.npy", np.zeros(3))
    for name in ("missing.npz", "cut.npz", "text.npz", "other.npz", "single.npy"):
        with pytest.raises(UsageError, match=name):
            LogProbs.load(tmp_path / name)
