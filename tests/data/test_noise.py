"""Copies with noise, rooms and other speeds: what is mixed, what is recorded, what is refused."""

import dataclasses
import json
import logging
import math

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.made_corpus import (
    TINY_FEATURES,
    contents,
    make_utterances,
    noise,
    write_tsv,
)
from tfasr import cli
from tfasr.alphabet import Alphabet
from tfasr.data.audio import read_audio
from tfasr.data.augmentation import NoiseConfig, copies_of, mixed, reverberated
from tfasr.data.prepare_corpus import overlap, prepare
from tfasr.data.shards import ShardConfig, open_split
from tfasr.errors import UsageError
from tfasr.models.recurrent import AcousticModelConfig
from tfasr.training.experiment import Experiment
from tfasr.training.from_gin import load_config
from tfasr.training.train import comparability

RATE_HZ = 16000


@pytest.fixture
def corpus(tmp_path):
    """A corpus of short recordings of noise."""
    write_tsv(tmp_path / "corpus", make_utterances(tmp_path / "corpus", 10))
    return tmp_path / "corpus"


@pytest.fixture
def noises(tmp_path):
    """A folder of two recordings of noise, with a note next to them."""
    folder = tmp_path / "noises" / "inner"
    folder.mkdir(parents=True)
    soundfile.write(folder / "short.wav", np.sin(np.arange(1600) / 5), RATE_HZ)
    soundfile.write(folder / "long.flac", noise(30.0, 7)[::3], 8000)
    (folder / "notes.txt").write_text("licence")

    return tmp_path / "noises"


@pytest.fixture
def rooms(tmp_path):
    """A folder of impulse responses of rooms."""
    (tmp_path / "rooms").mkdir()
    decay = (
        np.exp(-np.arange(4000) / 800)
        * np.random.default_rng(3).normal(size=4000)
        * 0.2
    )
    decay[40] = 1.0
    soundfile.write(tmp_path / "rooms" / "room.wav", decay, RATE_HZ)

    return tmp_path / "rooms"


def prepared(corpus, shard_dir, split="train", **options):
    prepare(
        corpus="tsv",
        corpus_dir=corpus,
        manifest="train.tsv",
        split=split,
        shard_dir=shard_dir,
        features=TINY_FEATURES,
        shards=ShardConfig(utterances_per_shard=8, max_duration_s=1.15),
        model=AcousticModelConfig(conv_kernel=5, conv_stride=2),
        **options,
    )
    return open_split(shard_dir, split, content=True)


def power(samples):
    return np.mean(np.square(samples, dtype=np.float64))


finite = st.floats(-1, 1, width=32)
signals = st.lists(finite, min_size=8, max_size=64).map(
    lambda v: np.array(v, np.float32)
)


@settings(max_examples=100, deadline=None)
@given(signals, st.integers(0, 2**31), st.floats(-30, 60))
def test_the_ratio_of_powers_is_the_one_asked_for(samples, seed, snr_db):
    samples = samples + np.float32(0.01)
    if power(samples) < 1e-6:
        return

    added = np.random.default_rng(seed).normal(size=len(samples)).astype(np.float32)

    result = mixed(samples, added, snr_db).astype(np.float64) - samples
    expected = power(samples) / 10 ** (snr_db / 10)

    assert power(result) == pytest.approx(
        expected, rel=0.02, abs=1e-12 * power(samples) + 1e-13
    )


def test_a_room_keeps_length_loudness_and_the_time_of_the_direct_sound():
    samples = np.zeros(8000, np.float32)
    samples[1000] = 1
    impulse = np.zeros(3000)
    impulse[[100, 100 + 500, 100 + 900]] = 1.0, 0.5, -0.25

    wet = reverberated(samples, impulse)

    assert len(wet) == len(samples)
    assert np.linalg.norm(wet) == pytest.approx(1.0)

    places = np.flatnonzero(np.abs(wet) > 0.01)

    assert places.tolist() == [1000, 1500, 1900]
    np.testing.assert_allclose(wet[places] / wet[1000], [1, 0.5, -0.25], atol=1e-5)


def test_a_room_without_echo_changes_nothing():
    speech = noise(0.5, 1).astype(np.float32)
    np.testing.assert_allclose(reverberated(speech, np.array([0.3])), speech, atol=1e-6)


def test_speed_changes_length_and_pitch():
    copies = copies_of(NoiseConfig(speeds=(0.9, 1.1)), None, None)["train"]
    tone = np.sin(2 * np.pi * 1000 * np.arange(RATE_HZ) / RATE_HZ).astype(np.float32)
    for speed in (0.9, 1.1):
        changed = copies.changed(tone, f"u~speed{speed:g}", RATE_HZ)
        assert len(changed) == pytest.approx(RATE_HZ / speed, abs=2)

        spectrum = np.abs(np.fft.rfft(changed[2000:10000]))
        assert spectrum.argmax() * RATE_HZ / 8000 == pytest.approx(1000 * speed, abs=2)

    assert copies.changed(tone, "u", RATE_HZ) is tone


def test_copies_are_drawn_from_their_ids_and_the_seed(noises, rooms):
    speech = noise(1.0, 2).astype(np.float32)

    def made(id_, **config):
        copies = copies_of(NoiseConfig(snr_db=(10.0, 10.0), **config), noises, rooms)[
            "train"
        ]
        return copies.changed(speech, id_, RATE_HZ)

    one = made("u~noise1")

    assert np.array_equal(one, made("u~noise1", copies=5))
    for other in (made("u~noise2"), made("v~noise1"), made("u~noise1", seed=2)):
        assert len(other) == len(one)
        assert not np.array_equal(one, other)


def test_silence_gets_no_noise(noises):
    # Silence has no level that noise could be set against.
    silence = np.zeros(1000, np.float32)
    copies = copies_of(None, noises, None)["train"]

    assert copies.changed(silence, "u~noise1", RATE_HZ) is silence


def test_a_split_gets_its_copies_and_the_recordings_stay_bit_for_bit(
    corpus, noises, tmp_path
):
    plain = prepared(corpus, tmp_path / "plain")
    before = contents(plain.folder)
    config = NoiseConfig(copies=2, speeds=(0.9, 1.1))
    split = prepared(corpus, tmp_path / "noisy", noise=config, noise_dir=noises)
    by_id = {utterance.id: utterance for utterance in split.utterances}
    originals = {utterance.id: utterance for utterance in plain.utterances}

    assert by_id.keys() >= originals.keys()

    for id_, original in originals.items():
        assert by_id[id_].content == original.content

        for ending in ("~noise1", "~noise2", "~speed1.1"):
            copy = by_id[id_ + ending]

            assert (copy.text, copy.speaker) == (original.text, original.speaker)
            assert copy.content == original.content  # it is the same recording

        assert by_id[f"{id_}~noise1"].frames == original.frames
        assert by_id[f"{id_}~speed1.1"].duration_s == pytest.approx(
            original.duration_s / 1.1, abs=1e-3
        )

    # A slow copy that is too long is left out, without being counted as bad.
    slow = {id_ for id_ in by_id if id_.endswith("~speed0.9")}
    short = {
        f"{id_}~speed0.9" for id_, u in originals.items() if u.duration_s / 0.9 <= 1.15
    }

    assert slow == short
    assert len(slow) < len(originals)
    assert split.index["bad"] == plain.index["bad"]
    assert split.index["noise"]["copies"] == 2
    assert "noise" not in plain.index

    # The same again, and in several processes' order, is the same bit for bit.
    again = prepared(
        corpus, tmp_path / "again", noise=config, noise_dir=noises, num_workers=1
    )

    assert contents(again.folder) == contents(split.folder)
    assert contents(prepared(corpus, tmp_path / "plain").folder) == before


def test_other_noise_makes_other_shards_and_a_change_is_not_resumed_into(
    corpus, noises, tmp_path
):
    config = NoiseConfig(keep_clean=False)
    first = prepared(corpus, tmp_path / "shards", noise=config, noise_dir=noises)

    assert all(utterance.id.endswith("~noise1") for utterance in first.utterances)

    soundfile.write(
        noises / "inner" / "short.wav", np.cos(np.arange(1600) / 9), RATE_HZ
    )
    other = prepared(corpus, tmp_path / "shards", noise=config, noise_dir=noises)

    assert first.index["content_hash"] != other.index["content_hash"]
    assert first.index["noise"]["files"] != other.index["noise"]["files"]


def test_leaks_between_splits_are_seen_through_noise(corpus, noises, tmp_path, caplog):
    both = NoiseConfig(keep_clean=False, splits=("train", "validation"))
    train = prepared(corpus, tmp_path / "shards", noise=both, noise_dir=noises)

    with caplog.at_level(logging.WARNING):
        held_out = prepared(
            corpus, tmp_path / "shards", "validation", noise=both, noise_dir=noises
        )

    assert "its noise and rooms are those of training" in caplog.text

    count = len(held_out.utterances)
    assert len(overlap(train.utterances, held_out.utterances).utterances) == count

    clean = prepared(corpus, tmp_path / "clean", "validation")
    assert len(overlap(train.utterances, clean.utterances).utterances) == count

    facts = [
        comparability(Experiment(), split, Alphabet(), [])
        for split in (clean, held_out)
    ]

    assert facts[1]["validation_noise"] == held_out.index["noise"]
    assert "validation_noise" not in facts[0]
    assert facts[0]["hash"] != facts[1]["hash"]


def test_the_command_makes_noisy_copies(corpus, noises, rooms, tmp_path, capsys):
    gin_file = tmp_path / "noise.gin"
    gin_file.write_text("NoiseConfig.snr_db = (0.0, 5.0)\nNoiseConfig.copies = 3\n")
    words = ["--corpus", "tsv", "--corpus_dir", str(corpus), "--manifest", "train.tsv"]
    words += ["--split", "train", "--shard_dir", str(tmp_path / "shards"), "--quiet"]

    words += [
        "--gin_file",
        str(gin_file),
        "--noise_dir",
        str(noises),
        "--impulse_dir",
        str(rooms),
    ]

    assert cli.run(cli.parse(["tfasr", "prepare", *words])) == 0, (
        capsys.readouterr().err
    )

    index = json.loads((tmp_path / "shards" / "train" / "index.json").read_text())

    assert index["utterances"] == 40
    assert index["noise"]["snr_db"] == [0.0, 5.0]


def test_gin_files_describe_noise(tmp_path):
    gin_file = tmp_path / "noise.gin"
    gin_file.write_text("NoiseConfig.snr_db = (0.0, 5.0)\nNoiseConfig.copies = 3\n")

    assert load_config(str(gin_file)).noise == NoiseConfig(snr_db=(0.0, 5.0), copies=3)
    assert load_config(None).noise is None
    assert "NoiseConfig" not in load_config(None).operative


def write_broken(folder):
    (folder / "broken.wav").write_bytes(b"RIFF\0\0\0\0WAVE")
    return {"noise_dir": folder}


def write_silent_room(folder):
    soundfile.write(folder / "silent.wav", np.zeros(100), RATE_HZ)
    return {"impulse_dir": folder}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: {"noise_dir": f / "none"}, r"--noise_dir .*none, which holds none"),
        (lambda f: {"impulse_dir": f}, r"--impulse_dir .*which holds none"),
        (write_broken, r"--noise_dir .*broken.wav.*Remove the file"),
        (write_silent_room, r"--impulse_dir .*silent.wav is silent.*Remove the file"),
        (
            lambda f: {"noise": NoiseConfig(copies=3)},
            "needs --noise_dir.*makes no copies",
        ),
        (
            lambda f: {"noise": NoiseConfig(speeds=(0.9,), splits=("test",))},
            r"NoiseConfig.splits .*'test'.*while train is prepared",
        ),
    ],
)
def test_what_cannot_be_mixed_is_refused_in_one_line(corpus, tmp_path, make, message):
    (tmp_path / "sounds").mkdir()

    with pytest.raises(UsageError, match=message) as caught:
        prepared(corpus, tmp_path / "shards", **make(tmp_path / "sounds"))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "shards").exists()


def test_noise_with_no_copy_is_refused(corpus, noises, tmp_path):
    with pytest.raises(UsageError, match="copies must be at least 1"):
        prepared(corpus, tmp_path / "s", noise=NoiseConfig(copies=0), noise_dir=noises)


def test_ids_like_those_of_copies_are_refused(corpus, noises, tmp_path):
    (corpus / "u000.flac").rename(corpus / "u000~noise1.flac")
    table = (corpus / "train.tsv").read_text().replace("u000.", "u000~noise1.")

    (corpus / "train.tsv").write_text(table)

    with pytest.raises(
        UsageError, match=r"must not end like that of a copy.*u000~noise1"
    ):
        prepared(corpus, tmp_path / "s", noise_dir=noises)

    assert len(prepared(corpus, tmp_path / "plain").utterances)


def test_silent_noise_leaves_its_utterances_out_with_the_reason(corpus, tmp_path):
    (tmp_path / "quiet").mkdir()
    soundfile.write(tmp_path / "quiet" / "q.wav", np.zeros(32000), RATE_HZ)
    options = {"noise_dir": tmp_path / "quiet", "max_bad_fraction": 0.6}

    split = prepared(corpus, tmp_path / "shards", **options)
    dropped = (tmp_path / "shards" / "train" / "dropped.json").read_text()

    assert "excerpts of noise" in dropped
    assert not any("~" in utterance.id for utterance in split.utterances)


@pytest.mark.parametrize(
    "values",
    [
        {"snr_db": (10.0, 5.0)},
        {"snr_db": (math.nan, 5.0)},
        {"speeds": (1.0,)},
        {"speeds": (0.9, 0.9)},
        {"speeds": (3.0,)},
        {"speeds": (0.90000001,)},
        {"copies": -1},
        {"seed": -1},
    ],
)
def test_impossible_settings_are_refused(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        NoiseConfig(**values)


def test_a_noise_at_another_rate_is_resampled(noises):
    copies = dataclasses.replace(
        copies_of(NoiseConfig(snr_db=(0.0, 0.0)), noises, None)["train"],
        noises=(noises / "inner" / "long.flac",),
    )
    speech = noise(2.0, 5).astype(np.float32)
    added = copies.changed(speech, "u~noise1", RATE_HZ) - speech
    there = read_audio(noises / "inner" / "long.flac", RATE_HZ)
    # The excerpt is a part of the recording, at one gain.
    scores = np.correlate(there, added[:4000], "valid")
    begin = int(scores.argmax())
    excerpt = there[begin : begin + len(added)]

    cosine = excerpt @ added / np.linalg.norm(excerpt) / np.linalg.norm(added)

    assert cosine == pytest.approx(1.0, abs=1e-3)
