"""Log-probabilities in memory, in batches and in files."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.conftest import ALPHABET, spoken
from tfasr.bench.decoder import LogProbs, log_softmax
from tfasr.errors import UsageError


def utterances(load: LogProbs) -> list[np.ndarray]:
    return np.split(load.log_probs, load.offsets[1:-1])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text("abc ", min_size=1, max_size=6), min_size=1, max_size=9), st.integers(1, 5))
def test_batches_hold_every_frame_of_every_utterance_once(texts, size):
    load = spoken(texts)
    found = []
    for log_probs, lengths in load.batches(size):
        assert len(log_probs) == len(lengths) <= size
        assert log_probs.shape[1] == lengths.max()
        found += [rows[:length] for rows, length in zip(log_probs, lengths, strict=True)]
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


@given(st.lists(st.floats(-200, 200, width=32), min_size=2, max_size=8))
@settings(deadline=None)
def test_log_softmax_sums_to_one_and_keeps_distances(logits):
    logits = np.array([logits], np.float32)
    found = log_softmax(logits)
    assert np.exp(found.astype(float)).sum() == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose(found - found[:, :1], logits - logits[:, :1], atol=1e-3)


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
