"""A small load whose right answers are known."""

import numpy as np
import pytest

from tfasr import Alphabet
from tfasr.bench.decoder import LogProbs

ALPHABET = Alphabet(" abc_")


def spoken(texts: list[str], lexicon: tuple[str, ...] = ()) -> LogProbs:
    """Log-probabilities that say each text clearly, two frames a label and a blank at
    the end.
    """
    paths = [
        [*np.repeat(ALPHABET.encode(text), 2), ALPHABET.blank_id] for text in texts
    ]
    labels = np.concatenate(paths).astype(int)
    probabilities = np.full((len(labels), ALPHABET.num_classes), 0.02)
    probabilities[np.arange(len(labels)), labels] = 0.9
    return LogProbs(
        log_probs=np.log(probabilities).astype(np.float32),
        offsets=np.cumsum([0, *map(len, paths)]),
        references=texts,
        audio_s=np.array([0.02 * len(path) for path in paths]),
        alphabet=ALPHABET,
        lexicon=lexicon,
    )


@pytest.fixture
def load() -> LogProbs:
    return spoken(["ab ba", "cab", "a", "acc ab"], lexicon=("ab", "ba", "cab", "a"))
