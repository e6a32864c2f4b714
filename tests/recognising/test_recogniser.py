"""Recordings to text: samples, files, long ones, and those that hold nothing."""

import tracemalloc

import numpy as np
import pytest
import soundfile

import tfasr
from tests.recognising.spoken_tones import (
    LETTER_S,
    RATE_HZ,
    RUN,
    pause,
    sentence,
    spoken,
    word_starts_s,
    write_wav,
)
from tfasr.data.audio import read_audio
from tfasr.data.features import expect_many_frames
from tfasr.errors import UsageError
from tfasr.recognising.recogniser import Recogniser
from tfasr.recognising.runtimes import OnnxAcoustics, open_exported
from tfasr.recognising.spec import GRAPH_FILE
from tfasr.scoring.errors import count_errors

TEXT = "abc dad bb"


def test_samples_become_text_with_times(recogniser):
    transcript = recogniser.transcribe(spoken(TEXT))

    assert transcript.text == TEXT
    assert transcript.duration_s == len(spoken(TEXT)) / RATE_HZ
    for word, start_s in zip(transcript.words, word_starts_s(TEXT), strict=True):
        # CTC writes a character anywhere in its sound, or a little later.
        assert start_s - 0.05 <= word.start_s <= start_s + LETTER_S + 0.1
        assert (
            word.start_s < word.end_s <= start_s + (len(word.text) + 1) * LETTER_S + 0.1
        )
        assert 0.3 < word.confidence <= 1


def test_samples_as_integers_become_the_same_text(recogniser):
    as_integers = (spoken(TEXT) * 32767).astype(np.int16)
    assert recogniser.transcribe(as_integers).text == TEXT


def test_a_file_becomes_the_same_text(recogniser, tmp_path):
    path = write_wav(tmp_path / "a.wav", spoken(TEXT))

    assert recogniser.transcribe(path) == recogniser.transcribe(str(path))
    assert recogniser.transcribe(path).text == TEXT


def test_a_batch_gives_what_each_gives_alone(recogniser):
    rng = np.random.default_rng(3)
    recordings = [spoken(sentence(rng, 1 + n % 4), seed=n) for n in range(9)]
    together = recogniser.transcribe_many(recordings, batch_size=4)

    for recording, transcript in zip(recordings, together, strict=True):
        alone = recogniser.transcribe(recording)

        assert alone.text == transcript.text
        assert [w.start_s for w in alone.words] == [w.start_s for w in transcript.words]


def several(graph, threads):
    """A graph that computes as many batches at once as threads are given."""
    acoustics = OnnxAcoustics(graph)
    acoustics.batches_at_once = threads
    return acoustics


def test_batches_at_once_change_neither_words_nor_order(exported_tones):
    spec, _ = open_exported(exported_tones, {})
    one, three = (
        Recogniser(spec, several(exported_tones / GRAPH_FILE, n)) for n in (1, 3)
    )
    rng = np.random.default_rng(8)
    recordings = [spoken(sentence(rng, 1 + 5 * n % 7), seed=n) for n in range(23)]
    recordings.insert(5, np.zeros(10, np.float32))

    expected = one.transcribe_many(recordings, batch_size=4)
    result = three.transcribe_many(recordings, batch_size=2)

    assert [t.text for t in result] == [t.text for t in expected]
    for transcript, other in zip(result, expected, strict=True):
        assert [w.start_s for w in transcript.words] == [w.start_s for w in other.words]


def test_the_texts_are_those_of_evaluate(recogniser, tmp_path):
    from tfasr.data.prepare_corpus import prepare

    rng = np.random.default_rng(4)
    texts = [sentence(rng, 2) for _ in range(6)]
    lines = ["path\tspeaker\tseconds\ttext"]

    for number, text in enumerate(texts):
        samples = spoken(text, seed=number)
        write_wav(tmp_path / f"{number}.wav", samples)
        lines.append(f"{number}.wav\tx\t{len(samples) / RATE_HZ:.3f}\t{text}")

    (tmp_path / "test.tsv").write_text("\n".join(lines) + "\n")
    spec = recogniser.spec
    prepare(
        corpus="tsv", corpus_dir=tmp_path, manifest="test.tsv", split="test",
        shard_dir=tmp_path / "shards", features=spec.features, num_workers=1,
    )  # fmt: skip
    result = tfasr.evaluate(run_dir=RUN, split="test", shard_dir=tmp_path / "shards")

    by_id = {
        utterance.text: " ".join(hypothesis.text.split())
        for utterance, hypothesis in zip(
            result.utterances, result.hypotheses, strict=True
        )
    }

    for number, text in enumerate(texts):
        assert recogniser.transcribe(tmp_path / f"{number}.wav").text == by_id[text]


def test_the_words_of_a_long_recording_are_those_of_its_parts(recogniser):
    rng = np.random.default_rng(5)
    text = sentence(rng, 90)

    samples = spoken(text)

    assert len(samples) > 45 * RATE_HZ

    transcript = recogniser.transcribe(samples)
    assert count_errors([text], [transcript.text]).wer < 0.2

    starts = [word.start_s for word in transcript.words]
    assert starts == sorted(starts)

    # Words that both have at the same time: a cut moves nothing.
    expected = dict(zip(np.round(word_starts_s(text), 2), text.split(), strict=True))
    result = [
        min(expected, key=lambda start, word=word: abs(start - word.start_s))
        for word in transcript.words
    ]

    right = [
        expected[s] == w.text for s, w in zip(result, transcript.words, strict=True)
    ]

    assert np.mean(right) > 0.85


def test_an_hour_takes_no_more_memory_than_minutes(exported_tones):
    recogniser = tfasr.load_recogniser(exported_tones)
    silence = pause(10)

    recogniser.transcribe(silence)

    expect_many_frames()  # what is imported on the way is not of the recording

    tracemalloc.start()
    transcript = recogniser.transcribe_blocks(silence for _ in range(40))
    _, peak_bytes = tracemalloc.get_traced_memory()

    tracemalloc.stop()

    assert transcript.duration_s == 400
    assert transcript.words == []
    # All samples would be 26 MB; an hour reads on in the same way.
    assert peak_bytes < 15e6


@pytest.mark.parametrize("count", [0, 1, 511, 512, 700])
def test_next_to_nothing_has_no_words(recogniser, count):
    transcript = recogniser.transcribe(np.zeros(count, np.float32))

    assert (transcript.text, transcript.duration_s) == ("", count / RATE_HZ)


def test_silence_becomes_some_text_without_an_error(recogniser):
    assert recogniser.transcribe(pause(1)).text == ""
    assert isinstance(recogniser.transcribe(np.zeros(RATE_HZ, np.float32)).text, str)


def test_noise_becomes_some_text_without_an_error(recogniser):
    noise = np.random.default_rng(1).normal(0, 0.1, RATE_HZ).astype(np.float32)
    assert isinstance(recogniser.transcribe(noise).text, str)


@pytest.mark.parametrize(
    ("rate_hz", "subtype", "channels"),
    [(8000, "PCM_U8", 1), (96000, "PCM_24", 1), (44100, "PCM_16", 6)],
)
def test_files_of_any_rate_width_and_channels(
    recogniser, tmp_path, rate_hz, subtype, channels
):
    import soxr

    samples = soxr.resample(spoken("abc ab"), RATE_HZ, rate_hz)
    samples = np.repeat(samples[:, None], channels, axis=1)
    soundfile.write(tmp_path / "a.wav", samples, rate_hz, subtype=subtype)

    transcript = recogniser.transcribe(tmp_path / "a.wav")

    assert transcript.text == recogniser.transcribe(read_audio(tmp_path / "a.wav")).text
    # In eight bits the pauses are silent, which it has never heard.
    if subtype != "PCM_U8":
        assert transcript.text == "abc ab"


def test_samples_that_are_none_are_refused(recogniser):
    samples = spoken("ab")
    samples[100] = np.nan

    with pytest.raises(ValueError, match=r"samples\[100\]=nan"):
        recogniser.transcribe(samples)
    with pytest.raises(ValueError, match=r"shape=\(2, 8\)"):
        recogniser.transcribe(np.zeros((2, 8), np.float32))
    with pytest.raises(ValueError, match="int64"):
        recogniser.transcribe(np.zeros(8, np.int64))


def test_decoders_are_those_of_evaluate(recogniser):
    beam = tfasr.load_recogniser(RUN, decoder="word_beam", beam_width=8)
    assert beam.spec.decoder.name == "word_beam"

    transcript = beam.transcribe(spoken("abc dad"))

    assert len(transcript.words) == len(transcript.text.split()) > 0


def test_a_beam_without_width_is_refused(recogniser):
    with pytest.raises(UsageError, match="beam_width must be 1..65536"):
        tfasr.load_recogniser(RUN, beam_width=0)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="neither experiment.json nor recogniser.json"):
        tfasr.load_recogniser(tmp_path)
