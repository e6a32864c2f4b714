import json

import pytest

from tfasr.errors import UsageError
from tfasr.scoring.errors import Transcript, matched, read_transcripts


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def ours(identity, reference="a b", hypothesis="a", **more):
    return {"id": identity, "reference": reference, "hypothesis": hypothesis, **more}


def test_our_own_files_and_nemos(tmp_path):
    own = write(tmp_path / "own.jsonl", ours("u1", speaker="ann", score=-1.5), ours("u2"))
    assert read_transcripts(own) == [
        Transcript("u1", "a b", "a", "ann"),
        Transcript("u2", "a b", "a", ""),
    ]
    nemo = write(
        tmp_path / "nemo.json",
        {"audio_filepath": "/x/u1.wav", "duration": 1.0, "text": "A  B", "pred_text": "A"},
    )
    assert read_transcripts(nemo) == [Transcript("/x/u1.wav", "a b", "a")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Received: no line"),
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


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="must be text"):
        read_transcripts(tmp_path / "binary.jsonl")


def made(*ids, reference="a b"):
    return [Transcript(identity, reference, "a") for identity in ids]


def test_utterances_are_matched_by_id_in_the_firsts_order():
    pairs = matched(made("u1", "u2"), made("u2", "u1"))
    assert [(a.id, b.id) for a, b in pairs] == [("u1", "u1"), ("u2", "u2")]


def test_paths_are_matched_by_the_files_name_where_that_is_unique():
    pairs = matched(made("wav/x/u1", "wav/x/u2"), made("/data/u2.flac", "/data/u1.flac"))
    assert [b.id for _, b in pairs] == ["/data/u1.flac", "/data/u2.flac"]
    with pytest.raises(UsageError, match="the same utterances"):
        matched(made("a/u1", "b/u1"), made("c/u1", "d/u1"))


def test_other_utterances_are_named_and_counted():
    with pytest.raises(UsageError, match=r"3 and 1; 2 \(u1, u3\) only in the first, none only"):
        matched(made("u1", "u2", "u3"), made("u2"))
    with pytest.raises(UsageError, match=r"5 \(u1, u2, u3, \.\.\.\) only in the second"):
        matched(made("u0"), made("u0", "u1", "u2", "u3", "u4", "u5"))


def test_other_references_are_named_and_counted():
    with pytest.raises(UsageError, match=r"1 of 2 that differ \(u2: 'a b', here 'a c'\)"):
        matched(made("u1", "u2"), [*made("u1"), *made("u2", reference="a c")])


def test_three_are_named_and_the_rest_is_counted():
    def system(count, mark=""):
        return [Transcript(f"u{n}", f"said{mark}", "") for n in range(count)]

    with pytest.raises(UsageError, match=r"3 of 3 that differ \(u0: 'said', .*u2: [^;]*\)\.$"):
        matched(system(3), system(3, "!"))
    with pytest.raises(UsageError, match=r"4 of 4 .*u2: 'said', here 'said!'; and more\)"):
        matched(system(4), system(4, "!"))
    with pytest.raises(UsageError, match=r"3 \(u1, u2, u3\) only in the first, none only"):
        matched(system(4), system(1))
    with pytest.raises(UsageError, match=r"4 \(u1, u2, u3, \.\.\.\) only in the first"):
        matched(system(5), system(1))


def test_a_long_line_is_shown_in_part(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text("x" * 61 + "\n")
    with pytest.raises(UsageError, match=f"Received: '{'x' * 60}' in line 1 of"):
        read_transcripts(path)
