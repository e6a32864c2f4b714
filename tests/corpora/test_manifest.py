import itertools
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfasr.alphabet import Alphabet
from tfasr.corpora.manifest import ctc_frames_needed, reasons, select, write_dropped
from tfasr.corpora.utterance import CorpusSplit, Rejection, Utterance


def utterance(id, text="abc", duration_s=1.0):
    return Utterance(id, Path(f"/{id}.flac"), duration_s, text)


def select_one(found, alphabet=None, frames=50, **options):
    return select(
        CorpusSplit([found]),
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
    selection = select_one(found, frames=frames)
    assert (selection.kept, selection.too_long) == ([], [])
    (bad,) = selection.bad
    assert (bad.id, bad.reason) == ("u", reason)
    assert told in bad.detail


def test_just_enough_frames_are_kept():
    assert select_one(utterance("u", "abcd"), frames=4).kept
    assert select_one(utterance("u", "all"), frames=4).kept
    # Without a separator a blank must stand between the two.
    assert select_one(utterance("u", "all"), Alphabet(" al", None), frames=4).kept
    assert select_one(utterance("u", "all"), Alphabet(" al", None), frames=3).bad


def test_the_cut_at_a_duration_is_no_fault():
    exact, longer = utterance("exact", duration_s=2.0), utterance("longer", duration_s=2.001)
    assert select_one(exact, max_duration_s=2.0).kept == [exact]
    selection = select_one(longer, max_duration_s=2.0)
    assert [r.id for r in selection.too_long] == ["longer"]
    assert not selection.bad
    assert select_one(longer, max_duration_s=math.inf).kept == [longer]


def test_a_corpus_own_rejections_count_among_the_bad():
    stray = Rejection("stray", "audio without transcript", "stray.flac")
    corpus = CorpusSplit([utterance("a"), utterance("b", ""), utterance("c", "")], [stray])
    selection = select(corpus, Alphabet(), output_frames=lambda duration_s: 50)
    assert [u.id for u in selection.kept] == ["a"]
    assert {r.id for r in selection.bad} == {"stray", "b", "c"}
    assert corpus.rejections == [stray], "the corpus is left as it was"
    assert list(reasons(selection.bad).items()) == [
        ("empty transcript", 2),
        ("audio without transcript", 1),
    ]


def test_dropped_utterances_are_written_with_counts(tmp_path):
    too_long = [Rejection("l", "longer than max_duration_s", "20 s")]
    bad = [Rejection("é", "empty transcript", "x"), Rejection("f", "empty transcript", "y")]
    write_dropped(tmp_path / "dropped.json", too_long, bad)
    written = json.loads((tmp_path / "dropped.json").read_text(encoding="utf-8"))
    assert (written["too_long"], written["bad"]) == (1, 2)
    assert written["reasons"] == {"empty transcript": 2, "longer than max_duration_s": 1}
    assert [u["id"] for u in written["utterances"]] == ["l", "é", "f"]
    assert written["utterances"][1] == {"id": "é", "reason": "empty transcript", "detail": "x"}
