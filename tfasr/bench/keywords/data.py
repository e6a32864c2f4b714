"""One-second utterances of single words: from Speech Commands, or made up."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfasr.errors import UsageError
from tfasr.models.keyword_spotter import KeywordSpotterConfig

# The 30 words of the corpus's first version; the second added five.
WORDS = [
    "bed",
    "bird",
    "cat",
    "dog",
    "down",
    "eight",
    "five",
    "four",
    "go",
    "happy",
    "house",
    "left",
    "marvin",
    "nine",
    "no",
    "off",
    "on",
    "one",
    "right",
    "seven",
    "sheila",
    "six",
    "stop",
    "three",
    "tree",
    "two",
    "up",
    "wow",
    "yes",
    "zero",
]
SPLITS = ("train", "validation", "test")
SAMPLE_RATE_HZ = 16000
# 98 windows of 30 ms fit into a second.
WINDOW_SAMPLES = 480
STEP_SAMPLES = 160


@dataclass(frozen=True)
class KeywordSplit:
    """The utterances of one split.

    Attributes:
        features: float32 ``(utterances, num_frames, num_bins)``, each normalised.
        labels: int32 ``(utterances,)``: places in the list of words.
    """

    features: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class KeywordData:
    """All that a keyword spotter is trained and judged on.

    Attributes:
        words: what the labels mean.
        splits: "train", "validation" and "test".
        source: where it came from, for people.
        identity: changes with the utterances.
    """

    words: list[str]
    splits: dict[str, KeywordSplit]
    source: str
    identity: str


def synthetic_keywords(
    network: KeywordSpotterConfig, sizes: dict[str, int], seed: int
) -> KeywordData:
    """Returns made-up utterances: a word's smooth pattern, shifted, another word's over it, noise.

    The other word is of random strength, up to three quarters of the word's own.

    Args:
        network: sizes of the features and the number of words.
        sizes: utterances of each split.
        seed: of patterns, shifts and noise.
    """
    random = np.random.default_rng(seed)
    shape = (network.num_frames, network.num_bins)
    patterns = np.stack([_smooth(random, shape) for _ in range(network.num_words)])
    splits = {}
    for name, size in sizes.items():
        labels = random.integers(0, network.num_words, size, dtype=np.int32)
        others = random.integers(0, network.num_words, size)
        strengths = np.float32(0.75) * random.random(size, np.float32)
        shifts = random.integers(-10, 11, (2, size))
        features = random.standard_normal((size, *shape), np.float32)
        for index in range(size):
            own = np.roll(patterns[labels[index]], shifts[0, index], axis=0)
            other = np.roll(patterns[others[index]], shifts[1, index], axis=0)
            features[index] += own + strengths[index] * other
        features *= np.float32(1 / np.sqrt(1 + 1 + 0.75**2 / 3))
        splits[name] = KeywordSplit(features, labels)
    words = WORDS if network.num_words == len(WORDS) else map(str, range(network.num_words))
    identity = f"synthetic, seed {seed}, {sorted(sizes.items())}"
    return KeywordData(list(words), splits, "synthetic utterances", identity)


def _smooth(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Returns a random pattern without fine detail, of mean 0 and variance 1."""
    coarse = random.standard_normal((8, 6))
    for axis, size in enumerate(shape):
        places = np.linspace(0, coarse.shape[axis] - 1, size)
        known = np.arange(coarse.shape[axis])
        coarse = np.apply_along_axis(
            lambda values, at=places, known=known: np.interp(at, known, values), axis, coarse
        )
    return ((coarse - coarse.mean()) / coarse.std()).astype(np.float32)


def speech_commands_keywords(
    corpus_dir: Path, network: KeywordSpotterConfig, fraction: float, seed: int
) -> KeywordData:
    """Returns the recordings of the 30 words, a second of each.

    Args:
        corpus_dir: the folder that holds the words' folders.
        network: sizes of the features and the number of words.
        fraction: share of the recordings of each split, drawn at random.
        seed: of the draw.

    Raises:
        UsageError: if the folder is no Speech Commands, a split is empty, or the network is for
            other features.
    """
    from tfasr.corpora.speech_commands import read_speech_commands

    _check(network)
    words = WORDS
    random = np.random.default_rng(seed)
    splits, digest = {}, hashlib.sha256()
    for name in SPLITS:
        found = read_speech_commands(corpus_dir, name).utterances
        known = [utterance for utterance in found if utterance.text in words]
        count = max(1, round(fraction * len(known)))
        chosen = sorted(random.permutation(len(known))[:count])
        if not chosen:
            raise UsageError(
                f"--corpus_dir must hold recordings of the 30 words in each split. Received: "
                f"{corpus_dir}, without any in {name!r}."
            )
        digest.update("".join(f"{name}/{known[index].id};" for index in chosen).encode())
        splits[name] = KeywordSplit(
            np.stack([_features(known[index].audio_path, network) for index in chosen]),
            np.array([words.index(known[index].text) for index in chosen], np.int32),
        )
    return KeywordData(list(words), splits, "Speech Commands", digest.hexdigest())


def _check(network: KeywordSpotterConfig) -> None:
    frames = (SAMPLE_RATE_HZ - WINDOW_SAMPLES) // STEP_SAMPLES + 1
    if (network.num_frames, network.num_words) != (frames, len(WORDS)):
        raise UsageError(
            f"For Speech Commands KeywordSpotterConfig must be of {frames} frames and {len(WORDS)} "
            f"words. Received: {network.num_frames} and {network.num_words}."
        )


def _features(path: Path, network: KeywordSpotterConfig) -> np.ndarray:
    from tfasr.data.audio import read_audio
    from tfasr.data.features import FeatureConfig, compute_features, normalise_features

    config = FeatureConfig(
        window_samples=WINDOW_SAMPLES,
        step_samples=STEP_SAMPLES,
        num_mel_bins=network.num_bins,
        num_mfcc=0,
    )
    samples = read_audio(path, SAMPLE_RATE_HZ)[:SAMPLE_RATE_HZ]
    samples = np.pad(samples, (0, SAMPLE_RATE_HZ - len(samples)))
    return normalise_features(compute_features(samples, config), config).numpy()
