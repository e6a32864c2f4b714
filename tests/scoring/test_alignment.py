import jiwer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.scoring.errors import (
    Transcript,
    align,
    alignment_text,
    confusions,
    count_errors,
    score,
    worst,
)

sentences = st.lists(st.sampled_from(["a", "b", "ab", "abc"]), max_size=7).map(" ".join)


@settings(deadline=None, max_examples=80)
@given(sentences, sentences)
def test_an_alignment_has_the_errors_that_metrics_count(reference, hypothesis):
    pairs = align(reference, hypothesis)
    assert [said for said, _ in pairs if said is not None] == reference.split()
    assert [heard for _, heard in pairs if heard is not None] == hypothesis.split()
    counts = count_errors([reference], [hypothesis])
    assert sum(None not in pair and pair[0] != pair[1] for pair in pairs) == counts.substitutions
    assert sum(heard is None for _, heard in pairs) == counts.deletions
    assert sum(said is None for said, _ in pairs) == counts.insertions
    if reference:
        found = jiwer.process_words(reference, hypothesis)
        assert found.hits == sum(said == heard for said, heard in pairs)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(sentences, sentences), max_size=6))
def test_confusions_are_all_errors(texts):
    scored = score(Transcript(str(i), r, h) for i, (r, h) in enumerate(texts))
    found = confusions(scored)
    counts = count_errors([r for r, _ in texts], [h for _, h in texts])
    assert sum(times for _, times in found.substitutions) == counts.substitutions
    assert sum(times for _, times in found.deletions) == counts.deletions
    assert sum(times for _, times in found.insertions) == counts.insertions
    for kind in (found.substitutions, found.deletions, found.insertions):
        assert [times for _, times in kind] == sorted((t for _, t in kind), reverse=True)


def scored(reference, hypothesis, identity="u1", speaker=""):
    (one,) = score([Transcript(identity, reference, hypothesis, speaker)])
    return one


def test_the_listing_shows_errors_in_upper_case_and_gaps_as_stars():
    text = alignment_text(scored("the cat sat on mat", "the hat down sat mat", speaker="ann"))
    assert text.splitlines() == [
        "id: u1 (ann)",
        "Scores: (#C #S #D #I) 3 1 1 1",
        "REF:  the CAT **** sat ON mat",
        "HYP:  the HAT DOWN sat ** mat",
        "Eval:     S   I        D",
    ] or text.splitlines() == [
        "id: u1 (ann)",
        "Scores: (#C #S #D #I) 3 1 1 1",
        "REF:  the *** CAT  sat ON mat",
        "HYP:  the HAT DOWN sat ** mat",
        "Eval:     I   S        D",
    ]


def test_columns_stay_below_each_other_in_wide_and_growing_letters():
    from rich.cells import cell_len

    for reference, hypothesis in (("日本 の", "日 の"), ("straße x", "strase x")):
        _, _, said, heard, _ = alignment_text(scored(reference, hypothesis)).splitlines()
        last = reference.split()[-1]
        assert cell_len(said[: said.rindex(last)]) == cell_len(heard[: heard.rindex(last)])


def test_silence_is_listed_too():
    text = alignment_text(scored("", "noise"))
    assert "Scores: (#C #S #D #I) 0 0 0 1" in text
    assert "REF:  *****\nHYP:  NOISE\nEval: I\n" in text


def test_the_worst_have_the_most_errors_and_none_is_without():
    utterances = [
        scored("a b c", "a b c", "right"),
        scored("a b c d", "x y c d", "long"),
        scored("a b", "x y", "short"),
        scored("a b", "x", "also two"),
        scored("a", "b", "one"),
    ]
    assert [one.transcript.id for one in worst(utterances, 10)] == [
        "also two", "short", "long", "one",
    ]  # fmt: skip
    assert [one.transcript.id for one in worst(utterances, 1)] == ["also two"]
    assert worst(utterances, 0) == []


@pytest.mark.parametrize("reference", ["", "a b"])
def test_scored_counts_are_those_of_metrics(reference):
    assert scored(reference, "a c c").counts == count_errors([reference], ["a c c"])


def test_equally_frequent_confusions_are_in_the_order_of_the_alphabet():
    def of(reference, hypothesis):
        return score([Transcript("u", reference, hypothesis)])[0]

    found = confusions([of("b q", "y q"), of("a q", "z q"), of("a q", "x q"), of("a q", "x q")])
    assert found.substitutions == [(("a", "x"), 2), (("a", "z"), 1), (("b", "y"), 1)]
    found = confusions([of("d q", "q"), of("c q", "q"), of("q", "q f"), of("q", "q e")])
    assert found.deletions == [("c", 1), ("d", 1)]
    assert found.insertions == [("e", 1), ("f", 1)]
