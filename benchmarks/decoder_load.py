"""Log-probabilities and language models for the decoder benchmark."""

import gzip
import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FRAME_S = 0.02


@dataclass(frozen=True)
class Load:
    """Log-probabilities ``(batch, time, classes)`` and the reference texts."""

    log_probs: np.ndarray
    lengths: np.ndarray
    texts: list[str]
    lexicon: list[str]
    chars: str

    @property
    def audio_hours(self) -> float:
        return float(self.lengths.sum()) * FRAME_S / 3600

    @classmethod
    def read(cls, folder: Path, utterances: int) -> "Load":
        """Reads the first utterances, whose logits become log-probabilities."""
        with np.load(folder / "load.npz") as stored:
            offsets = stored["offsets"][: utterances + 1]
            logits = stored["logits"][: offsets[-1]]
            texts = [str(text) for text in stored["texts"][:utterances]]
            lexicon = [str(word) for word in stored["lexicon"]]
            chars = str(stored["chars"])

        lengths = np.diff(offsets)
        log_probs = np.zeros((len(lengths), lengths.max(), logits.shape[1]), np.float32)
        for row, begin, length in zip(log_probs, offsets, lengths, strict=False):
            part = logits[begin : begin + length]
            part = part - part.max(axis=1, keepdims=True)
            row[:length] = part - np.log(np.exp(part).sum(axis=1, keepdims=True))

        return cls(log_probs, lengths, texts, lexicon, chars)


def read_corpus(folder: Path) -> list[str]:
    """Returns the lines of the training text for language models."""
    with gzip.open(folder / "corpus.txt.gz", "rt", encoding="utf-8") as lines:
        return lines.read().splitlines()


def write_bigram_arpa(
    path: Path, transcripts: list[str], discount: float = 0.75
) -> None:
    """Writes an interpolated bigram model with absolute discounting and add-one unigrams."""
    sentences = [["<s>", *line.split(), "</s>"] for line in transcripts if line.split()]
    unigrams = Counter(word for sentence in sentences for word in sentence[1:])
    pairs = Counter(pair for s in sentences for pair in zip(s, s[1:], strict=False))
    contexts: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    for (first, _), count in pairs.items():
        contexts[first][0] += count
        contexts[first][1] += 1

    total = sum(unigrams.values()) + len(unigrams) + 1
    p = {word: (count + 1) / total for word, count in unigrams.items()}
    backoff = {v: discount * kinds / count for v, (count, kinds) in contexts.items()}

    with path.open("w", encoding="utf-8") as arpa:
        arpa.write(f"\\data\\\nngram 1={len(p) + 2}\nngram 2={len(pairs)}\n\n")
        arpa.write("\\1-grams:\n")
        arpa.write(f"{math.log10(1 / total):.5f}\t<unk>\n")
        arpa.write(f"-99\t<s>\t{_log10(backoff['<s>'])}\n")
        for word, probability in p.items():
            arpa.write(
                f"{_log10(probability)}\t{word}\t{_log10(backoff.get(word, 1.0))}\n"
            )

        arpa.write("\n\\2-grams:\n")

        for (first, second), count in pairs.items():
            seen = (count - discount) / contexts[first][0] + backoff[first] * p[second]
            arpa.write(f"{_log10(seen)}\t{first} {second}\n")

        arpa.write("\n\\end\\\n")


def _log10(probability: float) -> str:
    return f"{math.log10(min(probability, 1.0)):.5f}"
