import shutil
from collections import Counter

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.corpora.audio_header import opened_audio, stated_duration_s
from tfasr.corpora.corpus import available_splits, read_split
from tfasr.errors import UsageError


def reasons(split) -> dict[str, str]:
    return {rejection.id: rejection.reason for rejection in split.rejections}


@pytest.fixture
def tree(tmp_path, write_audio, write_lines):
    root = tmp_path / "LibriSpeech"
    for subset, speaker in (
        ("train-clean-5", "19"),
        ("train-other-500", "20"),
        ("dev-clean", "7"),
    ):
        chapter = root / subset / speaker / "198"
        names = [f"{speaker}-198-{number:04}" for number in (1, 0)]
        for name in names:
            write_audio(chapter / f"{name}.flac", 0.25)
        write_lines(
            chapter / f"{speaker}-198.trans.txt", *(f"{name} SAY  IT" for name in names)
        )

    (root / "README.TXT").write_text("about")
    return root


def test_train_is_every_training_subset(tree):
    split = read_split("librispeech", tree, "train")
    assert [u.id for u in split.utterances] == [
        "19-198-0000",
        "19-198-0001",
        "20-198-0000",
        "20-198-0001",
    ]
    first = split.utterances[0]
    assert (first.text, first.speaker, first.duration_s) == ("say it", "19", 0.25)
    assert (
        first.audio_path == tree / "train-clean-5" / "19" / "198" / "19-198-0000.flac"
    )
    assert split.rejections == []


def test_validation_is_dev_clean_and_named_subsets_override(tree):
    assert [
        u.speaker for u in read_split("librispeech", tree, "validation").utterances
    ] == ["7"] * 2
    split = read_split("librispeech", tree, "validation", subsets=["train-other-500"])
    assert {u.speaker for u in split.utterances} == {"20"}
    assert available_splits("librispeech", tree) == ["train", "validation"]


def test_every_subset_is_a_split_of_its_name(tree):
    assert {
        u.speaker for u in read_split("librispeech", tree, "train-other-500").utterances
    } == {"20"}
    with pytest.raises(
        UsageError, match="test-other.*Found there: dev-clean, train-clean-5"
    ):
        read_split("librispeech", tree, "test-other")


def test_everything_unusable_is_listed(tree, write_audio, write_lines):
    chapter = tree / "dev-clean" / "8" / "300"
    for number in (0, 2, 3, 4):
        write_audio(chapter / f"8-300-000{number}.flac")
    cut = chapter / "8-300-0003.flac"
    cut.write_bytes(cut.read_bytes()[:10])
    write_audio(chapter / "8-300-0004.wav")
    transcript = write_lines(
        chapter / "8-300.trans.txt",
        "8-300-0001 NOBODY SAYS THIS",
        "8-300-0002",
        "8-300-0003 CUT SHORT",
        "8-300-0004 TWICE THERE",
        "7-198-0000 IN ANOTHER CHAPTER",
    )
    transcript.write_bytes(transcript.read_bytes() + b"8-300-0005 \xff\n")
    split = read_split("librispeech", tree, "validation")
    assert [u.id for u in split.utterances] == [
        "7-198-0000",
        "7-198-0001",
        "8-300-0004",
    ]
    assert split.utterances[0].text == "say it"
    assert reasons(split) == {
        "8-300-0000": "audio without transcript",
        "8-300-0001": "transcript without audio",
        "8-300-0002": "empty transcript",
        "8-300-0003": "unreadable audio",
        "8-300-0004": "duplicate id",
        "7-198-0000": "duplicate id",
        "8-300.trans.txt:6": "malformed line",
    }
    assert all(str(chapter) in rejection.detail for rejection in split.rejections)


def test_the_folder_above_and_a_subset_are_answered_with_the_right_folder(tree):
    for wrong in (tree.parent, tree / "dev-clean"):
        with pytest.raises(UsageError, match=f"Give --corpus_dir {tree} instead"):
            read_split("librispeech", wrong, "train")
        with pytest.raises(UsageError, match="Found there: "):
            available_splits("librispeech", wrong)


def test_what_is_not_there_is_named_with_what_is(tree):
    with pytest.raises(
        UsageError, match="test-clean.*Found there: dev-clean, train-clean-5"
    ):
        read_split("librispeech", tree, "test")
    with pytest.raises(
        UsageError, match="Missing: dev-other.*Found there: README.TXT, dev-clean/"
    ):
        read_split("librispeech", tree, "test", subsets=["dev-clean", "dev-other"])
    with pytest.raises(UsageError, match="nowhere, which does not exist"):
        read_split("librispeech", tree / "nowhere", "train")
    with pytest.raises(UsageError, match="README.TXT, which is a file"):
        read_split("librispeech", tree / "README.TXT", "train")
    (tree / "test-clean").mkdir()
    with pytest.raises(UsageError, match="at least one utterance.*test-clean"):
        read_split("librispeech", tree, "test")


def test_the_real_tree_matches_its_lists(shared_data):
    root = shared_data / "librispeech"
    assert available_splits("librispeech", root / "LibriSpeech") == ["train", "test"]
    listed = read_split("tsv", root, "test")
    native = read_split("librispeech", root / "LibriSpeech", "test")
    assert [u.text for u in native.utterances] == [u.text for u in listed.utterances]
    assert [u.audio_path for u in native.utterances] == [
        u.audio_path for u in listed.utterances
    ]
    assert [u.speaker for u in native.utterances] == [
        u.speaker for u in listed.utterances
    ]
    assert native.rejections == listed.rejections == []
    hours = sum(u.duration_s for u in native.utterances) / 3600
    assert (len(native.utterances), round(hours, 3)) == (60, 0.157)
    train = read_split("librispeech", root / "LibriSpeech", "train").utterances
    assert (len(train), len(Counter(u.speaker for u in train))) == (161, 18)
    longest = max(train, key=lambda u: u.duration_s)
    assert longest.duration_s == soundfile.info(longest.audio_path).duration


# The length that a header states is libsndfile's, or none is stated.


def written(path, form, subtype, samples, rate_hz=8000):
    soundfile.write(path, samples, rate_hz, format=form, subtype=subtype)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("headers")
    mono = np.zeros(12345)
    stereo = np.zeros((777, 2))
    return [
        written(folder / "a.flac", "FLAC", "PCM_16", mono),
        written(folder / "b.flac", "FLAC", "PCM_24", stereo, 44100),
        written(folder / "a.wav", "WAV", "PCM_16", mono),
        written(folder / "b.wav", "WAV", "PCM_U8", mono[:99]),
        written(folder / "c.wav", "WAV", "PCM_24", stereo, 48000),
    ]


def test_plain_files_are_as_long_as_libsndfile_says(files):
    for path in files:
        with opened_audio(path) as file:
            assert stated_duration_s(path) == file.frames / file.samplerate


@pytest.mark.parametrize(
    ("form", "subtype"),
    [("WAV", "FLOAT"), ("WAVEX", "PCM_16"), ("OGG", "VORBIS"), ("AIFF", "PCM_16")],
)
def test_of_other_layouts_nothing_is_said(tmp_path, form, subtype):
    path = written(tmp_path / "other", form, subtype, np.zeros(500))
    assert stated_duration_s(path) is None


def test_nothing_is_said_of_what_is_missing_cut_or_endless(files, tmp_path):
    assert stated_duration_s(tmp_path / "none") is None
    assert stated_duration_s(tmp_path) is None
    assert stated_duration_s("a\0b") is None
    for path in files:
        content = path.read_bytes()
        cut = tmp_path / "cut"
        # Two, because the last one may be padding.
        cut.write_bytes(content[:41] if path.suffix == ".flac" else content[:-2])
        assert stated_duration_s(cut) is None

    endless = bytearray(files[2].read_bytes())
    endless[40:44] = b"\xff\xff\xff\xff"
    (tmp_path / "endless").write_bytes(endless)
    assert stated_duration_s(tmp_path / "endless") is None
    unknown = bytearray(files[0].read_bytes())
    unknown[21] &= 0xF0
    unknown[22:26] = bytes(4)
    (tmp_path / "unknown").write_bytes(unknown)
    assert stated_duration_s(tmp_path / "unknown") is None


@given(st.data())
@settings(deadline=None, max_examples=80)
def test_a_header_whose_length_is_wrong_is_noticed_when_the_file_is_read(
    files, tmp_path_factory, data
):
    source = data.draw(st.sampled_from(files))
    path = shutil.copy(source, tmp_path_factory.getbasetemp() / "damaged")
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 2))):
        content[data.draw(st.integers(0, 43))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    stated = stated_duration_s(path)
    if stated is None:
        return
    try:
        with opened_audio(path) as file:
            while len(file.read(10_000)):
                pass
            assert file.remark or stated == file.frames / file.samplerate
    except ValueError:  # what packing will say, where it is decoded
        assert stated > 0
