import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfasr.alphabet import Alphabet
from tfasr.corpora.manifests import TOO_LONG, ctc_frames_needed, fault
from tfasr.corpora.utterance import Utterance


def utterance(id, text="abc", duration_s=1.0):
    return Utterance(id, Path(f"/{id}.flac"), duration_s, text)


def fault_of(found, alphabet=None, frames=50, **options):
    return fault(
        found,
        alphabet or Alphabet(),
        output_frames=lambda duration_s: frames,
        **options,
    )


@given(st.lists(st.integers(0, 1), max_size=4))
def test_frames_needed_are_the_fewest_that_have_a_path(labels):
    def collapsed(path):
        return [label for label, _ in itertools.groupby(path) if label != 2]

    fewest = next(
        frames
        for frames in itertools.count()
        if any(collapsed(p) == labels for p in itertools.product(range(3), repeat=frames))
    )
    assert ctc_frames_needed(labels) == fewest


@pytest.mark.parametrize(
    ("found", "frames", "reason", "told"),
    [
        (utterance("u", ""), 50, "empty transcript", "u.flac"),
        (utterance("u", "café 7"), 50, "characters outside the alphabet", "['7', 'é']"),
        (utterance("u", "a_b"), 50, "characters outside the alphabet", "['_']"),
        (utterance("u"), 0, "too short for the model's convolution", "leave 0 frames"),
        (utterance("u"), -3, "too short for the model's convolution", "leave 0 frames"),
        (utterance("u", "abcd"), 3, "no CTC path", "4 needed"),
        (utterance("u", "all"), 3, "no CTC path", "4 needed"),
    ],
)
def test_every_fault_has_its_reason(found, frames, reason, told):
    bad = fault_of(found, frames=frames)
    assert (bad.id, bad.reason) == ("u", reason)
    assert told in bad.detail


def test_just_enough_frames_are_kept():
    assert fault_of(utterance("u", "abcd"), frames=4) is None
    assert fault_of(utterance("u", "all"), frames=4) is None
    # Without a separator a blank must stand between the two.
    assert fault_of(utterance("u", "all"), Alphabet(" al", None), frames=4) is None
    assert fault_of(utterance("u", "all"), Alphabet(" al", None), frames=3)


def test_the_cut_at_a_duration_is_told_apart():
    exact, longer = utterance("exact", duration_s=2.0), utterance("longer", duration_s=2.001)
    assert fault_of(exact, max_duration_s=2.0) is None
    assert fault_of(longer, max_duration_s=2.0).reason == TOO_LONG
    assert fault_of(longer, max_duration_s=math.inf) is None
