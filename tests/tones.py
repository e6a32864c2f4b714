"""A corpus that is made in milliseconds, every letter a tone, and a model small enough for it."""

import wave
from pathlib import Path

import keras
import numpy as np

from tfasr.data.batches import PipelineConfig
from tfasr.data.features import FeatureConfig
from tfasr.decoding.choice import DecoderConfig
from tfasr.models.recurrent import AcousticModelConfig
from tfasr.training.experiment import Experiment, TrainingConfig

DATA = Path(__file__).parent / "data_tones"
SHARDS = DATA / "shards"
TONES_GIN = DATA / "tones.gin"
TRAIN_UTTERANCES = 24
RATE_HZ = 16000
LETTERS = "abcd"
LETTER_S = 0.12


def write_tone_corpus(folder: Path, **splits: int) -> Path:
    """Writes a tsv corpus of words of tones, so many utterances for each split."""
    (folder / "audio").mkdir(parents=True)
    rng = np.random.default_rng(1)
    for split, count in splits.items():
        lines = ["path\tspeaker\tseconds\ttext"]
        for number in range(count):
            text = "".join(rng.choice(list(LETTERS), 3 + number % 3))
            path = f"audio/{split}-{number:02d}.wav"
            samples = np.concatenate([tone(letter, rng) for letter in text])
            with wave.open(str(folder / path), "wb") as file:
                file.setparams((1, 2, RATE_HZ, 0, "NONE", ""))
                file.writeframes((samples * 20000).astype("<i2").tobytes())

            lines.append(f"{path}\ts{number % 4}\t{len(samples) / RATE_HZ:.2f}\t{text}")

        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")

    return folder


def tone(letter: str, rng: np.random.Generator) -> np.ndarray:
    times_s = np.arange(int(LETTER_S * RATE_HZ)) / RATE_HZ
    pitch_hz = 400 * 2 ** LETTERS.index(letter)
    envelope = np.sin(np.pi * times_s / LETTER_S)
    return 0.5 * envelope * np.sin(2 * np.pi * pitch_hz * times_s) + 0.01 * rng.normal(
        size=times_s.shape
    )


def tones_experiment(**training) -> Experiment:
    """Returns an experiment on `SHARDS`: six steps an epoch, a model of a few hundred
    weights.
    """
    values = {"epochs": 2, "optimizer": adam, "sentences_every_steps": 0}
    values |= {"evaluation_placement": "shared", **training}
    return Experiment(
        features=FeatureConfig(num_mel_bins=12, num_mfcc=4, spectrum="power"),
        pipeline=PipelineConfig(
            global_batch_size=4,
            num_readers=2,
            shuffle_buffer=16,
            padding="bucketed",
            num_buckets=2,
        ),
        model=AcousticModelConfig(
            conv_kernel=5, conv_filters=8, num_lstm_layers=1, lstm_units=12, dropout=0.1
        ),
        decoder=DecoderConfig(name="greedy"),
        training=TrainingConfig(**values),
    )


def adam(**more) -> keras.optimizers.Optimizer:
    """Returns an optimizer that learns tones in some epochs."""
    return keras.optimizers.Adam(0.01, name="adam", **more)
