"""The length that a header states is libsndfile's, or none is stated."""

import shutil

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.corpora.audio_header import opened_audio, stated_duration_s


def written(path, form, subtype, samples, rate_hz=8000):
    soundfile.write(path, samples, rate_hz, format=form, subtype=subtype)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("headers")
    mono, stereo = np.zeros(12345), np.zeros((777, 2))
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
def test_damage_never_states_another_length_than_libsndfile(files, tmp_path_factory, data):
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
            assert stated == file.frames / file.samplerate
    except ValueError:  # what packing will say, where it is decoded
        assert stated > 0
