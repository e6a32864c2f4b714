import functools
import json

import jiwer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.errors import UsageError
from tfasr.scoring.errors import (
    ErrorCounts,
    Transcript,
    align,
    alignment_text,
    confusions,
    count_errors,
    kaldi_line,
    matched,
    read_transcripts,
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

    assert (
        sum(None not in pair and pair[0] != pair[1] for pair in pairs)
        == counts.substitutions
    )
    assert sum(heard is None for _, heard in pairs) == counts.deletions
    assert sum(said is None for said, _ in pairs) == counts.insertions

    if reference:
        result = jiwer.process_words(reference, hypothesis)

        assert result.hits == sum(said == heard for said, heard in pairs)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(sentences, sentences), max_size=6))
def test_confusions_are_all_errors(texts):
    scored = score(Transcript(str(i), r, h) for i, (r, h) in enumerate(texts))

    result = confusions(scored)
    counts = count_errors([r for r, _ in texts], [h for _, h in texts])

    assert sum(times for _, times in result.substitutions) == counts.substitutions
    assert sum(times for _, times in result.deletions) == counts.deletions
    assert sum(times for _, times in result.insertions) == counts.insertions
    for kind in (result.substitutions, result.deletions, result.insertions):
        assert [times for _, times in kind] == sorted(
            (t for _, t in kind), reverse=True
        )


def scored(reference, hypothesis, identity="u1", speaker=""):
    (one,) = score([Transcript(identity, reference, hypothesis, speaker)])
    return one


def test_the_listing_shows_errors_in_upper_case_and_gaps_as_stars():
    text = alignment_text(
        scored("the cat sat on mat", "the hat down sat mat", speaker="ann")
    )

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
        _, _, said, heard, _ = alignment_text(
            scored(reference, hypothesis)
        ).splitlines()
        last = reference.split()[-1]

        assert cell_len(said[: said.rindex(last)]) == cell_len(
            heard[: heard.rindex(last)]
        )


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


def of(reference, hypothesis):
    """The errors of one utterance."""
    return score([Transcript("u", reference, hypothesis)])[0]


def test_equally_frequent_confusions_are_in_the_order_of_the_alphabet():
    result = confusions(
        [of("b q", "y q"), of("a q", "z q"), of("a q", "x q"), of("a q", "x q")]
    )
    assert result.substitutions == [(("a", "x"), 2), (("a", "z"), 1), (("b", "y"), 1)]


def test_equally_frequent_lost_and_added_words_are_in_the_order_of_the_alphabet():
    result = confusions(
        [of("d q", "q"), of("c q", "q"), of("q", "q f"), of("q", "q e")]
    )

    assert result.deletions == [("c", 1), ("d", 1)]
    assert result.insertions == [("e", 1), ("f", 1)]


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def ours(identity, reference="a b", hypothesis="a", **more):
    """A line of tfasr's own hypotheses."""
    return {"id": identity, "reference": reference, "hypothesis": hypothesis, **more}


def test_our_own_files_are_read(tmp_path):
    own = write(
        tmp_path / "own.jsonl", ours("u1", speaker="ann", score=-1.5), ours("u2")
    )
    assert read_transcripts(own) == [
        Transcript("u1", "a b", "a", "ann"),
        Transcript("u2", "a b", "a", ""),
    ]


def test_nemos_files_are_read_with_paths_as_ids(tmp_path):
    nemo = write(
        tmp_path / "nemo.json",
        {
            "audio_filepath": "/x/u1.wav",
            "duration": 1.0,
            "text": "A  B",
            "pred_text": "A",
        },
    )
    assert read_transcripts(nemo) == [Transcript("/x/u1.wav", "a b", "a")]


@pytest.fixture
def nemos_segments(tmp_path):
    """NeMo's predictions for segments of one recording, and for a whole one."""
    texts = {"audio_filepath": "talks/u1.wav", "text": "a b", "pred_text": "a"}
    return write(
        tmp_path / "nemo.json",
        {**texts, "offset": 0.0, "duration": 1.5},
        {**texts, "offset": 1.5, "duration": 0.25},
        {**texts, "offset": 2, "duration": None},
        {**texts, "offset": None, "audio_filepath": "u2.wav"},
    )


def test_nemos_segments_of_a_recording_are_utterances_each(nemos_segments):
    ids = [transcript.id for transcript in read_transcripts(nemos_segments)]

    assert ids == [
        "talks/u1.wav",
        "talks/u1-1.500-1.750",
        "talks/u1-2.000-end",
        "u2.wav",
    ]


def test_nemos_segments_match_our_own_by_their_ids(tmp_path, nemos_segments):
    own = write(
        tmp_path / "own.jsonl",
        *map(ours, ("u1", "u1-1.500-1.750", "u1-2.000-end", "u2")),
    )

    assert len(matched(read_transcripts(nemos_segments), read_transcripts(own))) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Received: no transcript"),
        ('{"id": "u1", "reference": "a"}\n', "line 1 of"),
        ('{"id": "u1", "reference": "a", "hypothesis": null}\n', "line 1 of"),
        ('\n{"id": "u1", "refer', "line 2 of"),
        ("[1]\n", "must be a JSON object with id, reference and hypothesis"),
        (2 * '{"id": "u1", "reference": "a", "hypothesis": ""}\n', "u1 more than once"),
    ],
)
def test_a_broken_file_says_where(tmp_path, content, message):
    (tmp_path / "broken.jsonl").write_text(content)

    with pytest.raises(UsageError, match=message):
        read_transcripts(tmp_path / "broken.jsonl")


def test_a_binary_file_is_refused(tmp_path):
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(UsageError, match="hypotheses"):
        read_transcripts(tmp_path / "binary.jsonl")


def made(*ids, reference="a b"):
    """Transcripts with these ids."""
    return [Transcript(identity, reference, "a") for identity in ids]


def test_utterances_are_matched_by_id_in_the_firsts_order():
    pairs = matched(made("u1", "u2"), made("u2", "u1"))

    assert [(a.id, b.id) for a, b in pairs] == [("u1", "u1"), ("u2", "u2")]


def test_paths_are_matched_by_the_files_name_where_that_is_unique():
    pairs = matched(
        made("wav/x/u1", "wav/x/u2"), made("/data/u2.flac", "/data/u1.flac")
    )

    assert [b.id for _, b in pairs] == ["/data/u1.flac", "/data/u2.flac"]
    with pytest.raises(UsageError, match="the same utterances"):
        matched(made("a/u1", "b/u1"), made("c/u1", "d/u1"))


def test_other_utterances_are_named_and_counted():
    with pytest.raises(
        UsageError,
        match=r"3 and 1 utterances; 2 \(u1, u3\) only in the first, none only",
    ):
        matched(made("u1", "u2", "u3"), made("u2"))

    with pytest.raises(
        UsageError, match=r"5 \(u1, u2, u3, \.\.\.\) only in the second"
    ):
        matched(made("u0"), made("u0", "u1", "u2", "u3", "u4", "u5"))


def test_other_references_are_named_and_counted():
    with pytest.raises(UsageError, match=r"1 of 2 that differ \(u2: 'a b' and 'a c'\)"):
        matched(made("u1", "u2"), [*made("u1"), *made("u2", reference="a c")])


def test_three_are_named_and_the_rest_is_counted():
    def system(count, mark=""):
        return [Transcript(f"u{n}", f"said{mark}", "") for n in range(count)]

    with pytest.raises(
        UsageError, match=r"3 of 3 that differ \(u0: 'said' .*u2: [^;]*\)\.$"
    ):
        matched(system(3), system(3, "!"))

    with pytest.raises(
        UsageError, match=r"4 of 4 .*u2: 'said' and 'said!'; and more\)"
    ):
        matched(system(4), system(4, "!"))

    with pytest.raises(
        UsageError, match=r"3 \(u1, u2, u3\) only in the first, none only"
    ):
        matched(system(4), system(1))

    with pytest.raises(UsageError, match=r"4 \(u1, u2, u3, \.\.\.\) only in the first"):
        matched(system(5), system(1))


def test_a_long_line_is_shown_in_part(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text("x" * 61 + "\n")

    with pytest.raises(UsageError, match=f"Received: '{'x' * 60}' in line 1 of"):
        read_transcripts(path)


sentence_pairs = st.lists(st.sampled_from(["a", "b", "ab", "abc"]), max_size=6).map(
    " ".join
)
pairs = st.lists(st.tuples(sentence_pairs, sentence_pairs), max_size=6)


def levenshtein(one, other):
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        previous, row[0] = row[0], i
        for j, b in enumerate(other, start=1):
            previous, row[j] = (
                row[j],
                min(row[j] + 1, row[j - 1] + 1, previous + (a != b)),
            )

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
@given(
    st.lists(
        st.tuples(sentence_pairs.filter(bool), sentence_pairs), min_size=1, max_size=6
    )
)
def test_rates_over_the_reference_are_jiwers(texts):
    references, hypotheses = map(list, zip(*texts, strict=True))
    counts = count_errors(references, hypotheses)

    assert counts.wer == pytest.approx(jiwer.wer(references, hypotheses))
    assert counts.cer_reference == pytest.approx(jiwer.cer(references, hypotheses))


def test_the_papers_cer_divides_by_the_longer_string():
    counts = count_errors(["ab"], ["abcd"])

    assert counts.cer == pytest.approx(2 / 4)
    assert counts.cer_reference == pytest.approx(2 / 2)


def test_the_papers_cer_of_too_short_a_text_is_the_usual_one():
    counts = count_errors(["abcd"], ["ab"])
    assert counts.cer == counts.cer_reference == pytest.approx(2 / 4)


def test_what_is_written_where_nothing_was_said_is_inserted():
    counts = count_errors([""], ["two words"])

    assert (counts.words, counts.insertions, counts.character_edits) == (0, 2, 9)
    assert counts.wer == counts.cer == counts.cer_reference == 1.0


def test_nothing_written_where_nothing_was_said_is_right():
    silence = count_errors([""], [""])

    assert silence.wer == silence.cer == silence.cer_reference == 0.0
    assert silence.utterances == 1


def test_words_written_where_nothing_was_said_count_in_the_sum():
    merged = count_errors(["", "one"], ["two", "one"])
    assert merged.wer == 1.0


def test_spaces_around_and_between_words_do_not_count():
    assert count_errors([" a  b "], ["a b"]).character_edits == 0


def test_a_missing_hypothesis_is_refused():
    with pytest.raises(ValueError, match="2 references, 1 hypotheses"):
        count_errors(["a", "b"], ["a"])


def test_counts_are_written_as_kaldis_line():
    counts = count_errors(["a b c d e", "x"], ["a c d f e e", "y z"])

    assert (counts.substitutions, counts.deletions, counts.insertions) == (1, 1, 3)
    assert kaldi_line(counts) == "%WER 83.33 [ 5 / 6, 3 ins, 1 del, 1 sub ]"


def test_counts_are_written_as_json():
    counts = count_errors(["a b c d e", "x"], ["a c d f e e", "y z"])

    written = counts.to_json()

    assert written["utterances"] == 2
    assert written["wer"] == pytest.approx(5 / 6)
    assert written["substitutions"] == 1
    assert written["deletions"] == 1
    assert written["insertions"] == 3


@pytest.mark.parametrize(
    ("reference", "hypothesis", "words", "edits", "characters", "character_edits"),
    [
        ("打开厨房", "打开书房", 4, 1, 4, 1),
        ("打开 ok", "打开 oh", 3, 1, 5, 1),
        ("कि कम", "की कम", 2, 1, 4, 1),
        ("", "नमस्ते", 0, 1, 0, 4),
        ("مرحبا بك", "مرحبا لك", 2, 1, 8, 1),
        ("한국어", "한국말", 1, 1, 3, 1),
    ],
)
def test_words_and_characters_are_those_of_the_script(
    reference, hypothesis, words, edits, characters, character_edits
):
    counts = count_errors([reference], [hypothesis])

    assert (counts.words, counts.word_edits) == (words, edits)
    assert counts.characters == characters
    # "स्ते" is one or two clusters
    assert counts.character_edits in (character_edits, 3)
    assert len([p for p in align(reference, hypothesis) if p[0] != p[1]]) == edits
