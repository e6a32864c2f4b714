import functools

import jiwer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.scoring.errors import ErrorCounts, count_errors, kaldi_line

sentences = st.lists(st.sampled_from(["a", "b", "ab", "abc"]), max_size=6).map(" ".join)
pairs = st.lists(st.tuples(sentences, sentences), max_size=6)


def levenshtein(one, other):
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        previous, row[0] = row[0], i
        for j, b in enumerate(other, start=1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (a != b))
    return row[-1]


@settings(deadline=None, max_examples=60)
@given(pairs)
def test_counts_agree_with_a_plain_levenshtein(texts):
    counts = count_errors([r for r, _ in texts], [h for _, h in texts])
    assert counts.utterances == len(texts)
    assert counts.word_edits == sum(levenshtein(r.split(), h.split()) for r, h in texts)
    assert counts.character_edits == sum(levenshtein(r, h) for r, h in texts)
    assert counts.words == sum(len(r.split()) for r, _ in texts)
    assert counts.characters == sum(len(r) for r, _ in texts)
    assert counts.longer_characters == sum(max(len(r), len(h)) for r, h in texts)
    assert counts.wrong_utterances == sum(r != h for r, h in texts)
    written = sum(len(h.split()) for _, h in texts)
    assert counts.insertions - counts.deletions == written - counts.words
    assert 0 <= counts.cer <= 1


@settings(deadline=None, max_examples=60)
@given(pairs, st.integers(0, 6), st.integers(0, 6))
def test_counts_of_parts_merge_to_those_of_the_whole(texts, cut, other_cut):
    begin, end = sorted((cut, other_cut))
    parts = [
        count_errors([r for r, _ in part], [h for _, h in part])
        for part in (texts[:begin], texts[begin:end], texts[end:])
    ]
    whole = count_errors([r for r, _ in texts], [h for _, h in texts])
    assert (parts[0] + parts[1]) + parts[2] == parts[0] + (parts[1] + parts[2]) == whole
    assert functools.reduce(ErrorCounts.__add__, parts, ErrorCounts()) == whole


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(sentences.filter(bool), sentences), min_size=1, max_size=6))
def test_rates_over_the_reference_are_jiwers(texts):
    references, hypotheses = map(list, zip(*texts, strict=True))
    counts = count_errors(references, hypotheses)
    assert counts.wer == pytest.approx(jiwer.wer(references, hypotheses))
    assert counts.cer_reference == pytest.approx(jiwer.cer(references, hypotheses))


def test_the_papers_cer_divides_by_the_longer_string():
    counts = count_errors(["ab"], ["abcd"])
    assert counts.cer == pytest.approx(2 / 4)
    assert counts.cer_reference == pytest.approx(2 / 2)
    counts = count_errors(["abcd"], ["ab"])
    assert counts.cer == counts.cer_reference == pytest.approx(2 / 4)


def test_what_is_written_where_nothing_was_said_is_inserted():
    counts = count_errors([""], ["two words"])
    assert (counts.words, counts.insertions, counts.character_edits) == (0, 2, 9)
    assert counts.wer == counts.cer == counts.cer_reference == 1.0
    silence = count_errors([""], [""])
    assert silence.wer == silence.cer == silence.cer_reference == 0.0
    assert silence.utterances == 1
    merged = count_errors(["", "one"], ["two", "one"])
    assert merged.wer == 1.0


def test_spaces_around_and_between_words_do_not_count():
    assert count_errors([" a  b "], ["a b"]).character_edits == 0


def test_a_missing_hypothesis_is_refused():
    with pytest.raises(ValueError, match="2 references, 1 hypotheses"):
        count_errors(["a", "b"], ["a"])


def test_kaldis_line_and_json():
    counts = count_errors(["a b c d e", "x"], ["a c d f e e", "y z"])
    assert (counts.substitutions, counts.deletions, counts.insertions) == (1, 1, 3)
    assert kaldi_line(counts) == "%WER 83.33 [ 5 / 6, 3 ins, 1 del, 1 sub ]"
    written = counts.to_json()
    assert written["utterances"] == 2
    assert written["wer"] == pytest.approx(5 / 6)
    assert (written["substitutions"], written["deletions"], written["insertions"]) == (1, 1, 3)
