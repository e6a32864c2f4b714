"""Tab-separated lists and JSON manifests."""

import itertools
import json
import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tfasr.alphabet import Alphabet, normalise
from tfasr.corpora.corpus import available_splits, read_split
from tfasr.corpora.manifests import (
    TOO_LONG,
    ctc_frames_needed,
    fault,
    read_json_manifest,
    read_tsv,
)
from tfasr.corpora.utterance import Utterance
from tfasr.errors import UsageError

HEADER = "path\tspeaker\tseconds\ttext"

# What no line of a list can hold: its own separators, and halves of surrogate pairs.
FIELD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r"))
JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("name", "count", "hours", "speakers"),
    [
        ("an4/splits/train.tsv", 845, 0.625, 66),
        ("an4/splits/dev.tsv", 103, 0.082, 8),
        ("fsdd/splits/test.tsv", 300, None, 6),
        ("yesno/splits/train.tsv", 45, None, 1),
        ("librispeech/splits/dev.tsv", 20, 0.049, 4),
    ],
)
def test_real_lists_are_read_whole(shared_data, name, count, hours, speakers):
    corpus, _, manifest = name.partition("/")
    split = read_split("tsv", shared_data / corpus, "train", manifest=manifest)
    assert split.rejections == []
    assert len(split.utterances) == count
    assert len({u.speaker for u in split.utterances}) == speakers
    assert [u.id for u in split.utterances] == sorted(u.id for u in split.utterances)
    if hours is not None:
        assert round(sum(u.duration_s for u in split.utterances) / 3600, 3) == hours
    rows = [
        line.split("\t") for line in (shared_data / name).read_text().splitlines()[1:]
    ]
    stated = {
        path.rpartition(".")[0]: (float(seconds), text)
        for path, _, seconds, text in rows
    }
    for utterance in split.utterances:
        seconds, text = stated[utterance.id]
        assert math.isclose(utterance.duration_s, seconds, abs_tol=0.001)
        assert utterance.text == text.lower()
        assert utterance.audio_path.is_absolute()


def test_everything_unusable_in_a_tsv_is_listed(tmp_path, write_audio, write_lines):
    for stem in ("a", "b", "c.d"):
        write_audio(tmp_path / "wav" / f"{stem}.wav", 0.25)
    write_audio(tmp_path / "wav" / "zero.wav", 0)
    (tmp_path / "wav" / "broken.flac").write_bytes(b"fLaC")
    manifest = write_lines(
        tmp_path / "list.tsv",
        HEADER,
        "wav/c.d.wav\tsue\t0.25\tLast in ÉCOLE\r",
        "wav/a.wav\tjoe\t\tFirst  words",
        "",
        "./wav/a.wav\tjoe\t0.25\tagain",
        "wav/b.wav\tjoe\t0.25\t  ",
        "wav/none.wav\tjoe\t0.25\tnobody",
        "wav/broken.flac\tjoe\t0.25\tbroken",
        "wav/zero.wav\tjoe\t0\tnothing",
        "wav/b.wav\tjoe\ttwo\tword",
        "wav/b.wav\tjoe\tnan\tword",
        "wav/b.wav\tjoe\tword",
        "wav/..\tjoe\t1\tword",
        "\tjoe\t1\tword",
    )
    split = read_tsv(manifest, tmp_path)
    assert [(u.id, u.text, u.speaker, u.duration_s) for u in split.utterances] == [
        ("wav/a", "first words", "joe", 0.25),
        ("wav/c.d", "last in école", "sue", 0.25),
    ]
    assert [(r.id, r.reason) for r in split.rejections] == [
        ("list.tsv:10", "malformed line"),
        ("list.tsv:11", "malformed line"),
        ("list.tsv:12", "malformed line"),
        ("list.tsv:13", "malformed line"),
        ("list.tsv:14", "malformed line"),
        ("wav/a", "duplicate id"),
        ("wav/b", "empty transcript"),
        ("wav/broken", "unreadable audio"),
        ("wav/none", "transcript without audio"),
        ("wav/zero", "unreadable audio"),
    ]


@given(st.lists(st.lists(FIELD, min_size=1, max_size=5)))
@settings(deadline=None, max_examples=100)
def test_every_line_of_a_tsv_is_used_or_listed(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("tsv")
    lines = ["\t".join(row) for row in rows]
    manifest = folder / "list.tsv"
    manifest.write_bytes("\n".join([HEADER, *lines]).encode())
    expected = sum(bool(line.encode().strip()) for line in lines)
    if not expected:
        with pytest.raises(UsageError, match="at least one utterance"):
            read_tsv(manifest, folder)
        return

    split = read_tsv(manifest, folder)
    assert split.utterances == []
    assert len(split.rejections) == expected


@given(text=FIELD, speaker=FIELD)
@settings(deadline=None, max_examples=100)
def test_the_text_of_a_tsv_survives(tmp_path_factory, text, speaker):
    folder = tmp_path_factory.mktemp("tsv")
    audio = folder / "a.wav"
    audio.write_bytes(WAV)
    manifest = folder / "list.tsv"
    manifest.write_bytes(f"{HEADER}\r\na.wav\t{speaker}\t1\t{text}\r\n".encode())
    split = read_tsv(manifest, folder)
    if normalise(text):
        assert [u.text for u in split.utterances] == [normalise(text)]
        assert [u.speaker for u in split.utterances] == [speaker.strip()]
    else:
        assert [r.reason for r in split.rejections] == ["empty transcript"]


# 100 samples of silence.
WAV = (
    b"RIFF\xec\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x80>\x00\x00\x00}\x00\x00"
    b"\x02\x00\x10\x00data\xc8\x00\x00\x00" + bytes(200)
)


@pytest.mark.parametrize(
    ("header", "received"),
    [
        ("", "no column path and no column text"),
        ("path,speaker,seconds,text", "no column path and no column text"),
        ("path\tspeaker\tsentence", "no column text in"),
        ("wav/a.wav\tjoe\t1\thello", "no column path and no column text"),
        ("path\ttext\tspeaker\ttext", "a column twice"),
    ],
)
def test_a_tsv_whose_header_lacks_a_column_is_an_error(tmp_path, header, received):
    (tmp_path / "list.tsv").write_text(header + "\nwav/a.wav\tjoe\t1\thello\n")
    with pytest.raises(UsageError, match=received):
        read_tsv(tmp_path / "list.tsv", tmp_path)


@given(
    order=st.permutations(["path", "text", "speaker", "votes"]),
    optional=st.sets(st.sampled_from(["speaker", "votes"])),
)
@settings(deadline=None, max_examples=20)
def test_a_tsv_may_have_its_columns_in_any_order_and_others(
    tmp_path_factory, order, optional
):
    folder = tmp_path_factory.mktemp("tsv")
    (folder / "a.wav").write_bytes(WAV)
    row = {"path": "a.wav", "text": "hello", "speaker": "joe", "votes": "3"}
    columns = [name for name in order if name in ("path", "text") or name in optional]
    lines = "\t".join(columns), "\t".join(row[name] for name in columns)
    (folder / "list.tsv").write_text("\n".join(lines))
    (found,) = read_tsv(folder / "list.tsv", folder).utterances
    speaker = "joe" if "speaker" in columns else ""
    assert (found.id, found.text, found.speaker) == ("a", "hello", speaker)


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path):
    (tmp_path / "a.wav").write_bytes(WAV)
    (tmp_path / "list.tsv").write_text(
        f"{HEADER}\na.wav\t\t1\thi\n", encoding="utf-8-sig"
    )
    assert [u.id for u in read_tsv(tmp_path / "list.tsv", tmp_path).utterances] == ["a"]


def test_json_paths_are_absolute_or_relative_to_either_folder(
    tmp_path, write_audio, write_lines
):
    corpus = tmp_path / "corpus"
    lists = tmp_path / "lists"
    write_audio(corpus / "x" / "a.wav", 0.25)
    write_audio(lists / "b.flac", 0.5)
    elsewhere = write_audio(tmp_path / "elsewhere" / "c.wav", 0.25)
    manifest = write_lines(
        lists / "train.json",
        {"audio_filepath": "x/a.wav", "duration": 99, "text": "Alpha", "speaker": 7},
        {"audio_filepath": "b.flac", "duration": 0.5, "text": "BETA", "offset": 0.0},
        {"audio_filepath": str(elsewhere), "text": "Gamma", "id": "own"},
        {
            "audio_filepath": str(corpus / "x" / "a.wav"),
            "text": "the same as the first",
        },
    )
    split = read_json_manifest(manifest, corpus)
    assert [(u.id, u.text, u.speaker, u.duration_s) for u in split.utterances] == [
        ("b", "beta", "", 0.5),
        ("own", "gamma", "", 0.25),
        ("x/a", "alpha", "7", 0.25),
    ]
    assert [(r.id, r.reason) for r in split.rejections] == [("x/a", "duplicate id")]
    alone = read_json_manifest(manifest)
    assert Counter(r.reason for r in alone.rejections) == {
        "transcript without audio": 1
    }


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not JSON"),
        ("[" * 100000, "not JSON"),
        ("[]", "JSON object"),
        ({"text": "a"}, "audio_filepath must be of type str"),
        ({"audio_filepath": 3, "text": "a"}, "audio_filepath must be of type str"),
        ({"audio_filepath": "a.wav"}, "text must be of type str"),
        ({"audio_filepath": "a.wav", "text": "a", "duration": "1"}, "duration must be"),
        ({"audio_filepath": "a.wav", "text": "a", "duration": -1}, "duration must not"),
        (
            {"audio_filepath": "a.wav", "text": "a", "duration": math.nan},
            "duration must not",
        ),
        (
            {"audio_filepath": "a.wav", "text": "a", "offset": -1.5},
            "begin at 0 s or later",
        ),
        (
            {"audio_filepath": "a.wav", "text": "a", "offset": math.inf},
            "begin at 0 s or later",
        ),
        (
            {"audio_filepath": "a.wav", "text": "a", "channel": "left"},
            "channel must be a number",
        ),
        (
            {"audio_filepath": "a.wav", "text": "a", "speed": 1.1},
            "speed would change the audio",
        ),
        (
            {"audio_filepath": "a.wav", "text": "a", "rir_filepath": "x"},
            "rir_filepath would",
        ),
        (
            {"audio_filepath": "a.wav", "text": "a", "start": 1},
            "start would change the audio",
        ),
        (
            {"audio_filepath": "a.wav", "text": "a", "audio_offset": 0.5},
            "audio_offset would",
        ),
        (
            {"audio_filepath": "a.wav", "text": "a", "augment": True},
            "augment would change",
        ),
        (
            {"audio_filepath": "a.wav", "text": "a", "pitch_shift": 1},
            "pitch_shift would change",
        ),
        ({"audio_filepath": "a.wav", "text": "\ud800"}, "not JSON"),
        ({"audio_filepath": "a\0.wav", "text": "a"}, "must name a file"),
    ],
)
def test_a_bad_json_line_is_listed(tmp_path, write_lines, line, complaint):
    (tmp_path / "a.wav").write_bytes(WAV)
    good = {"audio_filepath": "a.wav", "text": "a", "id": "good"}
    split = read_json_manifest(write_lines(tmp_path / "list.json", good, line))
    assert [u.id for u in split.utterances] == ["good"]
    assert [(r.id, r.reason) for r in split.rejections] == [
        ("list.json:2", "malformed line")
    ]
    assert complaint in split.rejections[0].detail


@pytest.mark.parametrize(
    ("column", "changing", "harmless"),
    [
        ("speed", "0.9", "1.0"),
        ("tempo_factor", "1.1", "1"),
        ("start_time", "1", "0.0"),
        ("Audio-Offset", "2.5", ""),
        ("rir", "room.wav", ""),
    ],
)
def test_a_column_that_changes_the_audio_costs_its_line(
    tmp_path, write_lines, column, changing, harmless
):
    for name in ("a", "b"):
        (tmp_path / f"{name}.wav").write_bytes(WAV)
    lines = [f"path\t{column}\ttext\tweekend", f"a.wav\t{changing}\ta\t1"]
    manifest = write_lines(tmp_path / "list.tsv", *lines, f"b.wav\t{harmless}\tb\t1")
    split = read_tsv(manifest, tmp_path)
    assert [u.id for u in split.utterances] == ["b"]
    (rejection,) = split.rejections
    assert f"its field {column} would change the audio" in rejection.detail


@given(
    st.lists(
        JSON_VALUE
        | st.fixed_dictionaries(
            {"audio_filepath": st.text(min_size=1), "text": st.text()},
            optional={"duration": JSON_VALUE, "id": JSON_VALUE, "speaker": JSON_VALUE},
        ),
        min_size=1,
    )
)
@settings(deadline=None, max_examples=100)
def test_every_line_of_a_json_manifest_is_used_or_listed(tmp_path_factory, values):
    # A list alone in the file is a JSON array of objects, which is refused as a whole.
    assume(len(values) > 1 or not isinstance(values[0], list))
    manifest = tmp_path_factory.mktemp("json") / "list.json"
    manifest.write_text("\n".join(json.dumps(value) for value in values))
    split = read_json_manifest(manifest)
    assert len(split.utterances) + len(split.rejections) == len(values)


def test_lists_are_found_by_the_split_or_named(tmp_path, write_lines, monkeypatch):
    corpus = tmp_path / "corpus"
    here = tmp_path / "here"
    for path in ("train.tsv", "splits/test.tsv", "splits/mine.tsv"):
        write_lines(corpus / path, HEADER, f"a.wav\t{path}\t1\tword")
    (corpus / "a.wav").write_bytes(WAV)
    write_lines(here / "other.tsv", HEADER, "a.wav\there\t1\tword")
    monkeypatch.chdir(here)

    def speaker(split, manifest=None):
        return read_split("tsv", corpus, split, manifest=manifest).utterances[0].speaker

    assert available_splits("tsv", corpus) == ["train", "test"]
    assert speaker("train") == "train.tsv"
    assert speaker("test") == "splits/test.tsv"
    assert speaker("validation", "splits/mine.tsv") == "splits/mine.tsv"
    assert speaker("validation", "other.tsv") == "here"
    assert speaker("validation", here / "other.tsv") == "here"
    with pytest.raises(
        UsageError, match="--manifest, or be validation.tsv.*Found there: a.wav"
    ):
        speaker("validation")
    with pytest.raises(
        UsageError, match=f"{corpus / 'none.tsv'} and {here / 'none.tsv'}"
    ):
        speaker("train", "none.tsv")


def test_wrong_names_are_errors(tmp_path):
    with pytest.raises(UsageError, match="librispeech, speech_commands.*'timit'"):
        read_split("timit", tmp_path, "train")
    with pytest.raises(UsageError, match="'timit'"):
        available_splits("timit", tmp_path)
    with pytest.raises(UsageError, match="train, validation, test.*'dev/other'"):
        read_split("tsv", tmp_path, "dev/other", manifest="dev.tsv")
    with pytest.raises(UsageError, match="--manifest belongs to --corpus json or tsv"):
        read_split("librispeech", tmp_path, "train", manifest="a.tsv")
    with pytest.raises(UsageError, match="--subsets belongs to --corpus librispeech"):
        read_split("tsv", tmp_path, "train", subsets=["dev-clean"])
    with pytest.raises(UsageError, match="nowhere, which does not exist"):
        read_split("json", tmp_path / "nowhere", "train")
    with pytest.raises(UsageError, match="nowhere, which does not exist"):
        available_splits("tsv", tmp_path / "nowhere")


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
        if any(
            collapsed(p) == labels for p in itertools.product(range(3), repeat=frames)
        )
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
    exact = utterance("exact", duration_s=2.0)
    longer = utterance("longer", duration_s=2.001)
    assert fault_of(exact, max_duration_s=2.0) is None
    assert fault_of(longer, max_duration_s=2.0).reason == TOO_LONG
    assert fault_of(longer, max_duration_s=math.inf) is None
