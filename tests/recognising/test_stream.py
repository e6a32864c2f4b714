"""Speech in chunks is heard as it is in one piece."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recognising.spoken_tones import pause, spoken
from tfasr.decoding.choice import DecoderConfig, make_decoder
from tfasr.decoding.decoder import GreedyDecoder
from tfasr.errors import UsageError
from tfasr.models.build import build_recogniser
from tfasr.recognising.recogniser import Recogniser
from tfasr.recognising.segments import EndpointRules, Stream
from tfasr.recognising.spec import STREAMING_PRESET

SAMPLES = spoken("abc da bcd", seed=7)
SIZES = st.one_of(st.sampled_from([0, 1, 159, 160, 161, 512]), st.integers(0, 9000))


def chunks(samples: np.ndarray, sizes: list[int]):
    """Cuts samples into chunks of these sizes, and one of all that is left."""
    start = 0
    for size in sizes:
        yield samples[start : start + size]
        start += size

    yield samples[start:]


def offline(recogniser: Recogniser, samples: np.ndarray) -> np.ndarray:
    """The log-probabilities of a recording as a whole, shaped (frames, classes)."""
    features = recogniser.spec.normalised_features(samples)[None]
    return recogniser.acoustics.log_probs(
        features, np.array([features.shape[1]], np.int32)
    )[0]


@settings(max_examples=8, deadline=None)
@given(sizes=st.lists(SIZES, max_size=12))
def test_any_chunks_give_the_offline_result(recogniser, sizes):
    spec = recogniser.spec
    stream = Stream(spec, recogniser.acoustics, GreedyDecoder(spec.alphabet))
    for chunk in chunks(SAMPLES, sizes):
        stream.push(chunk)

    np.testing.assert_allclose(
        stream.log_probs, offline(recogniser, SAMPLES), atol=1e-4
    )

    (result,) = stream.finish()
    expected = recogniser.transcribe(SAMPLES)

    assert (result.text, result.final) == (expected.text, True)
    for word, other in zip(result.words, expected.words, strict=True):
        assert (word.start_s, word.end_s) == (other.start_s, other.end_s)
        assert word.confidence == pytest.approx(other.confidence, abs=1e-3)


def test_results_grow_and_the_last_one_is_final(recogniser):
    results = list(
        recogniser.stream(np.split(SAMPLES, range(1600, len(SAMPLES), 1600)))
    )
    assert [result.final for result in results] == [False] * (len(results) - 1) + [True]

    texts = [result.text for result in results]

    assert len(set(texts[:-1])) == len(texts) - 1 > 5  # whatever changes, nothing else
    assert texts[-1] == recogniser.transcribe(SAMPLES).text


def test_a_stream_without_samples_is_empty_text(recogniser):
    assert list(recogniser.stream([]))[0].text == ""


@settings(max_examples=3, deadline=None)
@given(sizes=st.lists(SIZES, max_size=6))
def test_utterances_end_at_the_same_places_however_they_are_cut(recogniser, sizes):
    speech = np.concatenate([spoken("abc da", 1), pause(4), spoken("bcd", 2), pause(2)])
    rules = EndpointRules()

    whole = [r for r in recogniser.stream([speech], rules) if r.final]

    assert [result.text for result in whole] == ["abc da", "bcd", ""]

    cut = [r for r in recogniser.stream(chunks(speech, sizes), rules) if r.final]

    assert [r.text for r in cut] == [r.text for r in whole]
    assert [[w.start_s for w in r.words] for r in cut] == [
        [w.start_s for w in r.words] for r in whole
    ]
    # The second utterance begins behind the first one and four seconds of pause.
    assert whole[1].words[0].start_s > 4 + whole[0].words[-1].end_s


def test_an_utterance_ends_when_it_is_too_long(recogniser):
    rules = EndpointRules(longest_s=1.0)
    results = [
        r for r in recogniser.stream([spoken("abcd abcd abcd abcd")], rules) if r.final
    ]

    assert len(results) >= 2
    assert sum(len(result.text.replace(" ", "")) for result in results) >= 14


def test_word_beam_search_streams_too(recogniser):
    decoder = make_decoder(
        DecoderConfig(name="word_beam", beam_width=8),
        recogniser.spec.alphabet,
        ["abc", "da", "bcd", "dad"],
    )
    stream = Stream(recogniser.spec, recogniser.acoustics, decoder)
    results = [r for chunk in np.array_split(SAMPLES, 9) for r in stream.push(chunk)]
    (final,) = stream.finish()
    log_probs = offline(recogniser, SAMPLES)

    (expected,) = decoder.decode(log_probs[None], np.array([len(log_probs)]))

    assert final.text == " ".join(expected.text.split())

    whole = {word for result in [*results, final] for word in result.text.split()[:-1]}

    assert len(results) > 2
    assert whole <= {"abc", "da", "bcd", "dad"}
    assert [word.text for word in final.words] == final.text.split()


def test_chunks_may_be_integers_and_must_be_finite(recogniser):
    stream = recogniser.open_stream()
    stream.push((SAMPLES * 32767).astype(np.int16))

    assert stream.finish()[0].text == recogniser.transcribe(SAMPLES).text
    with pytest.raises(ValueError, match=r"samples\[1\]=inf"):
        stream.push(np.array([0, np.inf], np.float32))


def test_models_that_cannot_stream_say_why_and_name_a_preset(recogniser):
    spec = recogniser.spec

    of_utterances = dataclasses.replace(
        spec, features=dataclasses.replace(spec.features, normalisation="utterance")
    )
    looks_ahead = dataclasses.replace(spec, model="conformer", streams=False)

    for other, reason in ((of_utterances, "'utterance'"), (looks_ahead, "'conformer'")):
        with pytest.raises(UsageError, match=f"{reason}.*{STREAMING_PRESET}"):
            Recogniser(other, recogniser.acoustics).open_stream()


def test_the_preset_that_is_named_can_stream():
    from tfasr.models.model import can_stream
    from tfasr.training.from_gin import load_config

    experiment = load_config(STREAMING_PRESET).experiment

    assert experiment.features.normalisation != "utterance"
    assert can_stream(experiment.model)


def models_that_can_stream():
    """Configs of models that look at no more than a few coming frames."""
    from tfasr.models.recurrent import AcousticModelConfig, GruModelConfig

    lstm = AcousticModelConfig(
        conv_filters=6, num_lstm_layers=2, lstm_units=5, conv_kernel=4
    )
    plain = dataclasses.replace(
        lstm, batch_normalisation=False, lstm_kernel="generic", conv_stride=3
    )
    gru = GruModelConfig(conv_filters=6, num_gru_layers=2, gru_units=5)

    return [lstm, plain, gru]


@pytest.mark.parametrize(
    "config", models_that_can_stream(), ids=["lstm", "plain", "gru"]
)
def test_every_such_model_continues_where_it_stopped(config):
    import keras

    model = build_recogniser(config, 3, 7, seed=2)
    features = np.random.default_rng(1).normal(size=(1, 40, 3)).astype(np.float32)
    whole = keras.ops.convert_to_numpy(model(features, np.array([40], np.int32)))
    state = model.initial_state(1)
    start = 0
    parts = []

    for frames in (1, 2, 5):
        last = start + config.conv_kernel + (frames - 1) * config.conv_stride
        logits, state = model.continued(features[:, start:last], state)
        parts.append(keras.ops.convert_to_numpy(logits))
        start += frames * config.conv_stride

    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole[:, :8], atol=1e-5)
