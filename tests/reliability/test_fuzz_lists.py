"""Damaged lists of utterances and audio files: judged line by line and file by file."""

import json

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from tests.data.made_corpus import make_utterances, noise, write_tsv
from tests.reliability.fuzzing import bounded, damaged, values
from tfasr.corpora.manifests import read_json_manifest, read_tsv
from tfasr.data.audio import audio_duration_s, read_audio
from tfasr.errors import UsageError

FORMATS = [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"),
           ("OGG", "OPUS"), ("AIFF", "PCM_16"), ("MP3", "MPEG_LAYER_III")]  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    utterances = make_utterances(folder, 3)
    write_tsv(folder, utterances)
    lines = [{"audio_filepath": u.audio_path.name, "text": u.text, "duration": 0.3, "speaker": 1}
             for u in utterances]  # fmt: skip
    (folder / "train.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def judged(read, path, folder, content):
    path.write_bytes(content)
    try:
        found = read(path, folder)
    except UsageError as error:
        assert str(path) in str(error)  # noqa: PT017 - either is right
        return
    assert found.utterances or found.rejections
    for rejection in found.rejections:
        assert path.name in f"{rejection.id} {rejection.detail}"


@bounded(40)
@given(st.data())
def test_a_damaged_tab_separated_list(corpus, data):
    content = (corpus / "train.tsv").read_bytes()
    judged(read_tsv, corpus / "bad.tsv", corpus, data.draw(damaged(content)))


@bounded(40)
@given(st.data())
def test_a_damaged_json_manifest(corpus, data):
    content = (corpus / "train.json").read_bytes()
    judged(read_json_manifest, corpus / "bad.json", corpus, data.draw(damaged(content)))


@bounded(30)
@given(st.lists(st.dictionaries(st.sampled_from(
    ["audio_filepath", "text", "duration", "offset", "speaker", "id"]), values), min_size=1,
    max_size=4))  # fmt: skip
def test_a_json_manifest_of_any_values(corpus, lines):
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    judged(read_json_manifest, corpus / "bad.json", corpus, content)


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sounds")
    written = {}
    for form, kind in FORMATS:
        if soundfile.check_format(form, kind):
            written[form, kind] = folder / f"{form}-{kind}.{form.lower()}"
            soundfile.write(written[form, kind], noise(0.1), 16000, kind, format=form)
    return written


@bounded(40)
@given(st.data())
def test_a_damaged_audio_file_is_heard_or_refused_by_name(sounds, data):
    path = sounds[data.draw(st.sampled_from(sorted(sounds)))]
    content = path.read_bytes()
    # Headers are what lies, and they are small.
    head = data.draw(damaged(content[:200]) | damaged(content))
    bad = path.parent / f"bad{path.suffix}"
    bad.write_bytes(head + (content[200:] if len(head) <= 400 else b""))
    try:
        assert audio_duration_s(bad) >= 0
        samples = read_audio(bad)
    except ValueError as error:
        assert str(bad) in str(error)  # noqa: PT017 - either is right
        return
    assert samples.dtype == np.float32
    assert np.isfinite(samples).all()
