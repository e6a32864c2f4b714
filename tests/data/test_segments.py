"""Utterances that are parts of recordings: the same from every list that describes them."""

import hashlib
import json
import logging
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.made_talks import NUM_TALKS, PER_TALK, made_talks, put, write_lists
from tests.tones import RATE_HZ, tone, tones_experiment
from tfasr.alphabet import Alphabet
from tfasr.corpora import audio_header
from tfasr.corpora.corpus import read_split
from tfasr.corpora.utterance import Segment
from tfasr.data.audio import read_audio, read_segments
from tfasr.data.manifest import read_index, read_manifest
from tfasr.data.packing import audio_hash
from tfasr.data.prepare_corpus import prepare
from tfasr.data.shards import ShardConfig


def prepared(
    corpus: str, corpus_dir: Path, shard_dir: Path, split: str | None = None
) -> dict:
    """The indexes of the splits that `prepare` packs."""
    return prepare(
        corpus=corpus,
        corpus_dir=corpus_dir,
        shard_dir=shard_dir,
        split=split,
        features=tones_experiment().features,
        model=tones_experiment().model,
        shards=ShardConfig(utterances_per_shard=5),
        alphabet=Alphabet(),
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Talks of two splits, with lists of their segments in every format."""
    folder = tmp_path_factory.mktemp("corpus")
    for split, name in (("train", "talk"), ("dev", "other")):
        spoken = made_talks(folder / split / "sph", name)
        write_lists(folder, spoken, "train" if split == "train" else "validation")

    return folder


def test_all_lists_of_the_same_segments_make_equal_shards(corpus, tmp_path):
    hashes = {}
    for name in ("tedlium", "kaldi", "json", "lhotse"):
        folder = corpus / "kaldi" if name == "kaldi" else corpus
        index = prepared(name, folder, tmp_path / name)

        assert sorted(index) == ["train", "validation"]
        assert index["train"]["utterances"] == NUM_TALKS * PER_TALK
        assert index["train"]["bad"] == 0

        hashes[name] = [
            index[split]["content_hash"] for split in ("train", "validation")
        ]

    assert len({tuple(pair) for pair in hashes.values()}) == 1

    by_tsv = prepared("tsv", corpus, tmp_path / "tsv")
    assert by_tsv["train"]["duration_s"] == index["train"]["duration_s"]

    # The same audio and texts, although the ids, and so the order, differ.
    contents = [
        sorted((u.content, u.text) for u in read_manifest(folder, read_index(folder)))
        for folder in (tmp_path / "tsv" / "train", tmp_path / "kaldi" / "train")
    ]
    assert contents[0] == contents[1]


def test_a_segment_is_what_a_file_of_it_would_be(corpus):
    talk = corpus / "train" / "sph" / "talk1.sph"
    for utterance in read_split("kaldi", corpus / "kaldi", "train").utterances:
        if utterance.audio_path == talk:
            begin, end = (
                round(t * RATE_HZ)
                for t in (utterance.segment.begin_s, utterance.segment.end_s)
            )
            expected = soundfile.read(talk, dtype="float32")[0][begin:end]

            np.testing.assert_array_equal(
                read_audio(talk, segment=utterance.segment), expected
            )


@given(samples=st.lists(st.floats(-3, 3, width=32), max_size=50))
@settings(deadline=None)
def test_audio_has_the_hash_of_its_samples_in_16_bits(samples):
    array = np.array(samples, np.float32)

    before = array.copy()
    whole = np.rint(np.clip(array, -1, 1) * np.float32(32767)).astype("<i2")

    assert audio_hash(array) == hashlib.sha256(whole.tobytes()).hexdigest()[:16]
    np.testing.assert_array_equal(array, before)


def test_shards_of_segments_train_and_are_evaluated(corpus, tmp_path):
    from tfasr.training.train import train

    prepared("tedlium", corpus, tmp_path / "shards")
    history = train(
        tones_experiment(), shard_dir=tmp_path / "shards", run_dir=tmp_path / "run"
    )

    assert len(history) == 2
    assert np.isfinite(history[-1]["cer"])


@pytest.mark.parametrize("form", ["wav", "flac", "mp3", "ogg"])
def test_a_long_recording_is_opened_once_for_each_shard(tmp_path, monkeypatch, form):
    spoken = made_talks(tmp_path / "audio", form=form)
    put(
        tmp_path / "train.tsv",
        "path\tbegin\tend\ttext",
        *(f"audio/{s.talk}.{form}\t{s.begin_s}\t{s.end_s}\t{s.text}" for s in spoken),
    )
    opened = []
    original = audio_header._opened

    def counted(path, stack):
        opened.append(path)
        return original(path, stack)

    monkeypatch.setattr(audio_header, "_opened", counted)
    index = prepare(
        corpus="tsv",
        corpus_dir=tmp_path,
        shard_dir=tmp_path / "shards",
        features=tones_experiment().features,
        model=tones_experiment().model,
        shards=ShardConfig(utterances_per_shard=1000),
        alphabet=Alphabet(),
    )

    assert index["train"]["utterances"] == len(spoken)
    assert len(opened) <= 2 * NUM_TALKS  # once to list, once to pack


@pytest.mark.parametrize("rate_hz", [8000, 16000])
@pytest.mark.parametrize("form", ["wav", "flac", "mp3", "ogg"])
@given(data=st.data())
@settings(deadline=None, max_examples=10)
def test_segments_in_any_order_are_parts_of_the_whole(
    tmp_path_factory, form, rate_hz, data
):
    path = tmp_path_factory.getbasetemp() / f"{form}-{rate_hz}.{form}"
    if not path.exists():
        noise = np.random.default_rng(1).uniform(-0.3, 0.3, (3 * rate_hz, 2))
        soundfile.write(path, noise, rate_hz)

    channels = [0, 1, None]
    whole = {
        channel: read_audio(path, rate_hz, segment=Segment(channel=channel))
        for channel in channels
    }
    times = st.integers(0, 299).flatmap(
        lambda begin: st.tuples(st.just(begin), st.none() | st.integers(begin + 1, 300))
    )
    drawn = data.draw(
        st.lists(st.tuples(times, st.sampled_from(channels)), min_size=1, max_size=6)
    )
    segments = [
        Segment(begin / 100, None if end is None else end / 100, channel)
        for (begin, end), channel in drawn
    ]
    results = read_segments(path, segments, rate_hz)

    for segment, result in zip(segments, results, strict=True):
        begin = round(segment.begin_s * rate_hz)
        end = None if segment.end_s is None else round(segment.end_s * rate_hz)

        np.testing.assert_array_equal(result.samples, whole[segment.channel][begin:end])


def test_a_call_of_two_channels_has_a_transcript_for_each(tmp_path, caplog):
    rng = np.random.default_rng(3)
    left = np.concatenate([tone(letter, rng) for letter in "abcd"])
    right = np.concatenate([tone(letter, rng) for letter in "dcba"])
    soundfile.write(
        tmp_path / "call.wav", np.stack([left, right], axis=1), RATE_HZ, subtype="FLOAT"
    )
    put(
        tmp_path / "train.stm",
        f"call A anna 0.0 {len(left) / RATE_HZ:.6f} abcd",
        f"call B ben 0.0 {len(left) / RATE_HZ:.6f} dcba",
    )
    put(tmp_path / "validation.tsv", "path\tchannel\ttext", "call.wav\t1\tdcba")

    split = read_split("stm", tmp_path, "train")

    assert [(u.speaker, u.segment.channel) for u in split.utterances] == [
        ("anna", 0),
        ("ben", 1),
    ]

    for utterance, channel in zip(split.utterances, (left, right), strict=True):
        samples = read_audio(utterance.audio_path, RATE_HZ, segment=utterance.segment)

        np.testing.assert_array_equal(samples, channel.astype(np.float32))

    assert (
        prepared("stm", tmp_path, tmp_path / "shards", "train")["train"]["utterances"]
        == 2
    )

    with caplog.at_level(logging.WARNING, logger="tfasr"):
        prepared("tsv", tmp_path, tmp_path / "shards", "validation")

    assert "1 of 1 recordings have segments in the training split too" in caplog.text
    assert f"{tmp_path.name}/call" in caplog.text


def test_what_a_kaldi_folder_cannot_give_is_rejected_by_name(tmp_path):
    made_talks(tmp_path / "audio")
    data = tmp_path / "data" / "train"
    put(
        data / "wav.scp",
        "talk0 audio/talk0.sph",
        "piped sph2pipe -f wav -p -c 1 audio/talk1.sph |",
        "archived raw_wav.1.ark:1024",
    )
    put(
        data / "segments",
        "good talk0 0.5 1.5",
        "rest talk0 2.0 -1",
        "second talk0 0.5 1.5 1",
        "backwards talk0 1.5 0.5",
        "beyond talk0 0.5 1000",
        "of-pipe piped 0.5 1.5",
        "of-archive archived 0.5 1.5",
        "of-none missing 0 1",
        "untold talk0 0.5 0.9",
    )
    ids = [
        "good",
        "rest",
        "second",
        "backwards",
        "beyond",
        "of-pipe",
        "of-archive",
        "of-none",
    ]
    put(data / "text", *(f"{id_} abc" for id_ in ids), "unsegmented abc")

    split = read_split("kaldi", tmp_path / "data", "train")

    assert [u.id for u in split.utterances] == ["good", "rest", "second"]

    details = {r.id: f"{r.reason}: {r.detail}" for r in split.rejections}

    assert "end after that" in details["backwards"]
    assert "segment outside its recording" in details["beyond"]
    assert "sph2pipe" in details["of-pipe"]
    assert "archive" in details["of-archive"]
    assert "missing is not in wav.scp" in details["of-none"]
    assert "audio without transcript" in details["untold"]
    assert "not in segments" in details["unsegmented"]
    assert len(details) == 7


def test_a_channel_that_a_recording_lacks_costs_its_segment(tmp_path):
    made_talks(tmp_path / "audio", form="wav")
    put(
        tmp_path / "train.tsv",
        "path\tbegin\tend\tchannel\ttext",
        "audio/talk0.wav\t0.5\t1.5\t0\tabc",
        "audio/talk0.wav\t0.5\t1.5\t1\tabc",
    )

    index = prepare(
        corpus="tsv",
        corpus_dir=tmp_path,
        shard_dir=tmp_path / "shards",
        features=tones_experiment().features,
        model=tones_experiment().model,
        alphabet=Alphabet(),
        max_bad_fraction=0.5,
    )

    assert index["train"]["utterances"] == 1

    dropped = json.loads((tmp_path / "shards" / "train" / "dropped.json").read_text())
    assert "only channel 0" in dropped["utterances"][0]["detail"]


def test_a_nemo_duration_cuts_a_longer_file_and_leaves_a_whole_one(tmp_path):
    made_talks(tmp_path, form="wav")
    whole_s = soundfile.info(tmp_path / "talk0.wav").duration
    path = {"audio_filepath": "talk0.wav", "text": "abc"}
    put(
        tmp_path / "train.json",
        {**path, "id": "whole", "duration": round(whole_s, 2)},
        {**path, "id": "first", "duration": 1.25},
        {**path, "duration": 0.5, "offset": 1.25},
        {**path, "duration": 0.5, "offset": 1.25, "channel_selector": 0},
    )
    split = read_split("json", tmp_path, "train")

    result = {u.id: (u.segment, round(u.duration_s, 3)) for u in split.utterances}

    assert result == {
        "whole": (None, round(whole_s, 3)),
        "first": (Segment(0.0, 1.25), 1.25),
        "talk0-1.250-1.750": (Segment(1.25, 1.75), 0.5),
        "talk0-channel0-1.250-1.750": (Segment(1.25, 1.75, 0), 0.5),
    }


def cut(**changes) -> dict:
    """A cut of lhotse's, with some values changed."""
    source = {"type": "file", "channels": [0, 1], "source": "two.wav"}
    recording = {"id": "r", "sources": [source], "duration": 2.0, "channel_ids": [0, 1]}
    supervision = {"id": "s", "start": 0, "duration": 2.0, "text": "abc"}
    values = {"id": "c", "type": "MonoCut", "start": 0, "duration": 2.0, "channel": 0}

    return {**values, "supervisions": [supervision], "recording": recording, **changes}


def test_lhotse_channels_parts_and_transforms(tmp_path):
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, (2 * RATE_HZ, 2))
    soundfile.write(tmp_path / "two.wav", noise, RATE_HZ)
    recording = cut()["recording"]

    def changed(*names: str) -> dict:
        return {
            **recording,
            "transforms": [{"name": name, "kwargs": {}} for name in names],
        }

    two = [
        {"id": f"s{n}", "start": n, "duration": 1.0, "text": "abc", "channel": n}
        for n in (0, 1)
    ]
    put(
        tmp_path / "train.jsonl",
        cut(id="second", channel=1),
        cut(id="both", channel=[0, 1], type="MultiCut"),
        cut(id="part", start=0.5, duration=1.0),
        cut(id="resampled", recording=changed("Resample")),
        cut(id="of-two", supervisions=two),
        cut(id="slow", recording=changed("Resample", "Speed")),
        cut(id="reverberant", recording=changed("ReverbWithImpulseResponse")),
        cut(id="louder", transforms=[{"name": "Volume"}]),
        {"id": "mixed", "type": "MixedCut", "tracks": []},
        {"id": "padding", "type": "PaddingCut", "duration": 1, "supervisions": []},
    )

    split = read_split("lhotse", tmp_path, "train")

    assert {u.id: u.segment for u in split.utterances} == {
        "second": Segment(channel=1),
        "both": None,
        "part": Segment(0.5, 1.5, 0),
        "resampled": Segment(channel=0),
        "s0": Segment(0.0, 1.0, 0),
        "s1": Segment(1.0, 2.0, 1),
    }

    details = " ".join(r.detail for r in split.rejections)

    for name in ("Speed", "ReverbWithImpulseResponse", "Volume", "PaddingCut"):
        assert name in details
    assert len(split.rejections) == 5


@given(begin=st.floats(-1, 10), length=st.floats(-1, 10) | st.just(float("nan")))
@settings(deadline=None)
def test_a_segment_has_a_begin_and_a_later_end(begin, length):
    end = begin + length
    if 0 <= begin < end:
        assert Segment(begin, end).end_s == pytest.approx(end, abs=1e-6)

        return

    with pytest.raises(ValueError, match="begin at 0 s or later"):
        Segment(begin, end)


@pytest.mark.parametrize("column", ["start", "offset", "stop"])
def test_columns_that_other_lists_use_for_times_are_refused(tmp_path, column):
    put(tmp_path / "train.tsv", f"path\t{column}\ttext", "a.wav\t1\tabc")

    with pytest.raises(ValueError, match=f"{column}.*Call it"):
        read_split("tsv", tmp_path, "train")
