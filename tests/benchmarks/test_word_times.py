"""The benchmark of word times compares the words that were heard right, and no others."""

import numpy as np
import pytest
from word_times import TellingLibrary, TrueWord, errors_ms, summary, true_words

from tfasr.corpora.espeak import SAMPLE_RATE_HZ
from tfasr.recognising.spec import Word

pytest.importorskip("espeakng_loader", reason="needs pip install 'tfasr[demo]'")


def test_words_that_were_heard_right_are_compared():
    said = [
        TrueWord("in", 0.1, None),
        TrueWord("the", None, 0.5),
        TrueWord("hall", 0.5, 0.9),
    ]
    heard = [
        Word("in", 0.15, 0.2, 1.0),
        Word("a", 0.3, 0.4, 1.0),
        Word("hall", 0.48, 1.0, 1.0),
    ]

    starts, ends = errors_ms(said, heard)

    np.testing.assert_allclose(starts, [50, -20])
    np.testing.assert_allclose(ends, [100])

    result = summary(starts)

    assert (result["words"], result["within_50_ms"]) == (2, 1.0)
    assert result["mean_ms"] == pytest.approx(15)
    assert result["median_off_ms"] == pytest.approx(35)


def test_the_synthesiser_tells_where_words_begin():
    library = TellingLibrary()
    text = "go left two steps in the hall"
    samples = library.speak(text, "en", 150)

    words = true_words(text, library, pause_before_s=1.0)

    assert [word.word for word in words] == text.split()
    assert words[5].start_s is None  # "in the" is one to the synthesiser

    starts = [word.start_s for word in words if word.start_s is not None]

    assert starts == sorted(starts)
    assert starts[0] == pytest.approx(1.0)
    assert words[-1].end_s == pytest.approx(1.0 + library.end / SAMPLE_RATE_HZ)
    assert library.end <= len(samples)
