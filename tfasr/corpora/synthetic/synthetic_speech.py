"""What the synthetic corpus says, and how: voices, rates, pitches, loudness, noise."""

import io
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import soundfile

from tfasr.corpora.synthetic.espeak import SAMPLE_RATE_HZ
from tfasr.corpora.synthetic.grammar import random_sentence

_ACCENTS = (
    "en",
    "en-us",
    "en-029",
    "en-gb-scotland",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
    "en-gb-x-rp",
    "en-us-nyc",
)
_VARIANTS = ("m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "f1", "f2", "f3", "f4", "f5")
VOICES = tuple(f"{accent}+{variant}" for accent in _ACCENTS for variant in _VARIANTS)

_RATES_WPM = (130, 200)
_PITCHES = (35, 65)
_GAINS_DB = (-9.0, 0.0)
_SIGNAL_TO_NOISE_DB = (25.0, 45.0)
_PAUSES_S = (0.0, 0.15)


class Speaker(Protocol):
    """What speaks: `tfasr.corpora.synthetic.espeak.Espeak`, or what tells more of it."""

    def speak(self, text: str, voice: str, rate_wpm: int = 175, pitch: int = 50) -> np.ndarray:
        """Returns int16 ``(samples,)`` at `SAMPLE_RATE_HZ`."""


@dataclass(frozen=True)
class SpokenSentence:
    """A sentence as a 16-bit WAV file's bytes.

    Attributes:
        text: what is said.
        voice: who says it.
        duration_s: of all of it.
        pause_before_s: before the speech.
        wav: the file.
    """

    text: str
    voice: str
    duration_s: float
    pause_before_s: float
    wav: bytes


def voices_of_splits(seed: int, num_voices: int) -> tuple[list[str], list[str], list[str]]:
    """Returns the voices for training, validation and test; none is in two of them.

    Args:
        num_voices: voices in all, 3 to as many as `VOICES`; a sixth goes to validation, a sixth to
            test, at least one each.
    """
    order = np.random.default_rng([seed, 0]).permutation(len(VOICES))
    chosen = [VOICES[index] for index in order[:num_voices]]
    held_out = max(1, num_voices // 6)
    return chosen[2 * held_out :], chosen[:held_out], chosen[held_out : 2 * held_out]


def speak_sentence(
    speaker: Speaker, voices: list[str], generator: np.random.Generator
) -> SpokenSentence:
    """Returns a random sentence in one of the voices, at the synthesiser's own rate."""
    text = random_sentence(generator)
    voice = voices[int(generator.integers(len(voices)))]
    rate_wpm = int(generator.integers(*_RATES_WPM))
    pitch = int(generator.integers(*_PITCHES))
    samples, before = _in_a_room(speaker.speak(text, voice, rate_wpm, pitch), generator)
    # Written to memory first: from there a full disk is an OSError, in libsndfile it is not.
    wav = io.BytesIO()
    soundfile.write(wav, samples, SAMPLE_RATE_HZ, format="WAV", subtype="PCM_16")
    duration_s, pause_before_s = len(samples) / SAMPLE_RATE_HZ, before / SAMPLE_RATE_HZ
    return SpokenSentence(text, voice, duration_s, pause_before_s, wav.getvalue())


def _in_a_room(speech: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, int]:
    """Returns int16 speech of another loudness, between pauses, over white noise.

    The second number is the samples before the speech.
    """
    before, after = (generator.uniform(*_PAUSES_S, size=2) * SAMPLE_RATE_HZ).astype(int)
    gain = 10 ** (generator.uniform(*_GAINS_DB) / 20)
    noise_to_signal = 10 ** (-generator.uniform(*_SIGNAL_TO_NOISE_DB) / 20)
    # Summed in integers: a sum of floats may differ from machine to machine in its last bits.
    energy = int(np.sum(speech.astype(np.int64) ** 2))
    noise_level = noise_to_signal * (energy / max(1, len(speech))) ** 0.5
    quiet = np.pad(speech.astype(np.float64), (before, after))
    noisy = quiet + noise_level * generator.standard_normal(len(quiet))
    clipped = np.clip(np.rint(gain * noisy), -(2**15), 2**15 - 1)
    return clipped.astype(np.int16), int(before)
