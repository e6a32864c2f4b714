"""The compiled decoder against the published implementation's own answers."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.decoding.word_beam_reference import Problem
from tfasr import Alphabet
from tfasr.decoding.word_beam_search import WordBeamSearch

DATA = Path(__file__).parents[2] / ".." / "shared" / "data" / "decoding"
MODES = {
    "Words": "words",
    "NGrams": "ngrams",
    "NGramsForecast": "ngrams_forecast",
    "NGramsForecastAndSample": "ngrams_forecast_sample",
}

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(),
    reason="the golden cases (shared/data/decoding) are not on this machine",
)


def golden_problems():
    for case in json.loads((DATA / "golden_cases.json").read_text(encoding="utf-8")):
        with np.errstate(divide="ignore"):
            log_probs = np.log(np.array(case["mat"])).astype(np.float32)
        yield (
            Problem(
                chars=case["chars"],
                word_chars=case["word_chars"],
                corpus=case["corpus"],
                log_probs=log_probs,
                beam_width=case["bw"],
                mode=MODES[case["mode"]],
                k=case["k"],
            ),
            tuple(case["labels"]),
        )


def test_every_golden_case_is_answered_as_the_published_code_does():
    wrong = [
        (number, problem.mode, problem.decoded(1)[0][0], labels)
        for number, (problem, labels) in enumerate(golden_problems())
        if problem.decoded(1)[0][0] != labels
    ]
    assert wrong == []


def test_the_reference_answers_every_golden_case_too():
    assert all(
        problem.reference()[0][0] == labels for problem, labels in golden_problems()
    )


@pytest.fixture(scope="module")
def load():
    with np.load(DATA / "load.npz") as stored:
        logits = stored["logits"]
        offsets = stored["offsets"]
        lexicon = [str(word) for word in stored["lexicon"]]

    lengths = np.diff(offsets)
    log_probs = np.zeros((len(lengths), lengths.max(), logits.shape[1]), np.float32)
    for row, begin, length in zip(log_probs, offsets, lengths, strict=False):
        part = logits[begin : begin + length].astype(np.float64)
        part -= part.max(axis=1, keepdims=True)
        row[:length] = part - np.log(np.exp(part).sum(axis=1, keepdims=True))

    expected = json.loads((DATA / "load_hypotheses.json").read_text(encoding="utf-8"))
    return log_probs, lengths, lexicon, expected


@pytest.mark.parametrize("beam_width", [64, 256, 512])
def test_the_load_is_answered_as_the_published_code_does(load, beam_width):
    log_probs, lengths, lexicon, expected = load
    expected = expected[str(beam_width)]
    decoder = WordBeamSearch(Alphabet(), lexicon, beam_width)
    found = decoder.decode(log_probs[: len(expected)], lengths[: len(expected)])
    assert [hypothesis.text for hypothesis in found] == expected
