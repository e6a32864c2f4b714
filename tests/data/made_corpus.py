"""Small corpora of noise, and splits prepared from them, with known contents."""

import math
from pathlib import Path

import numpy as np
import soundfile

from tfasr.alphabet import Alphabet
from tfasr.corpora.utterance import CorpusSplit, Rejection, Utterance
from tfasr.data.features import FeatureConfig
from tfasr.data.packing import Packing
from tfasr.data.prepare import pack_split
from tfasr.data.shards import ShardConfig
from tfasr.models.recurrent import AcousticModelConfig

HEADER = "path\tspeaker\tseconds\ttext\n"
TINY_FEATURES = FeatureConfig(num_mel_bins=8, num_mfcc=2, spectrum="power")


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.3, 0.3, round(seconds * 16000))


def make_utterances(folder: Path, count: int, text: str = "yes no") -> list[Utterance]:
    """Writes ``count`` files of 0.3 to 1.2 s."""
    folder.mkdir(parents=True, exist_ok=True)
    utterances = []
    for number in range(count):
        seconds = 0.3 + 0.1 * (number * 7 % 10)
        path = folder / f"u{number:03d}.flac"
        soundfile.write(path, noise(seconds, number), 16000)
        utterances.append(
            Utterance(path.stem, path, seconds, text, f"speaker {number % 3}")
        )

    return utterances


def write_tsv(
    folder: Path, utterances: list[Utterance], name: str = "train.tsv"
) -> Path:
    """Lists the utterances in a table as `tfasr prepare --corpus tsv` reads it."""
    lines = [
        f"{u.audio_path.name}\t{u.speaker}\t{u.duration_s}\t{u.text}\n"
        for u in utterances
    ]
    path = folder / name
    path.write_text(HEADER + "".join(lines), encoding="utf-8")

    return path


def packing(
    per_shard: int = 4, features: FeatureConfig = TINY_FEATURES, **shards
) -> Packing:
    """How tiny features are packed, so many utterances to a shard."""
    return Packing(
        alphabet=Alphabet(),
        features=features,
        shards=ShardConfig(utterances_per_shard=per_shard, **shards),
        model=AcousticModelConfig(conv_kernel=5, conv_stride=2),
    )


def prepare_split(
    utterances: list[Utterance],
    shard_dir: Path,
    how: Packing | None = None,
    split: str = "train",
    rejections: tuple[Rejection, ...] = (),
    max_duration_s: float = math.inf,
    **options,
) -> dict:
    """Packs utterances as `tfasr prepare` does and returns the index."""
    corpus = CorpusSplit(utterances, list(rejections))
    return pack_split(
        corpus,
        split,
        shard_dir,
        how or packing(),
        max_duration_s=max_duration_s,
        **options,
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Returns the bytes of a prepared split, its resume key aside: that knows times of
    files.
    """
    return {
        p.name: p.read_bytes()
        for p in sorted(folder.iterdir())
        if p.name != "plan.json"
    }
