"""Noisy, reverberant and faster or slower copies of utterances, made from their waveforms."""

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soxr

from tfasr.corpora.utterance import Rejection
from tfasr.data.audio import audio_blocks, audio_duration_s, read_audio
from tfasr.data.manifest import file_sha256
from tfasr.data.rows import Row, Rows
from tfasr.errors import UsageError
from tfasr.kit.config import config_class, require, to_json

_FILES = {".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3"}
_COPY = re.compile(r"~(?:noise(\d+)|speed(\d+(?:\.\d+)?))\Z")  # the end of a copy's id
_MOST_DRAWS = 10  # until an excerpt of noise is not silent


@config_class
class NoiseConfig:
    """Which copies ``tfasr prepare`` makes of each utterance, in addition to the recording itself.

    Attributes:
        copies: noisy copies, each with another room from ``--impulse_dir``, then another noise from
            ``--noise_dir``, where these are given.
        snr_db: the lowest and highest ratio of the powers of speech and noise, drawn evenly in
            decibels; both powers are means over the whole utterance.
        speeds: factors of copies that play faster or slower without noise, such as (0.9, 1.1):
            pitch and formants change, too.
        keep_clean: whether the recording itself is packed as well.
        splits: the splits that get copies.
        seed: decides, with an utterance's id, all that is drawn for it.

    Source: T. Ko et al., Audio augmentation for speech recognition, Interspeech 2015 (speeds), and
    A study on data augmentation of reverberant speech, ICASSP 2017 (rooms and noise).
    """

    copies: int = 1
    snr_db: tuple[float, float] = (5.0, 20.0)
    speeds: tuple[float, ...] = ()
    keep_clean: bool = True
    splits: tuple[str, ...] = ("train",)
    seed: int = 1

    def check(self) -> None:
        require(0 <= self.copies <= 1000, self, "copies", "in 0..1000")
        ordered = -100 <= self.snr_db[0] <= self.snr_db[1] <= 100
        require(ordered, self, "snr_db", "a lower and an upper number of decibels, in -100..100")
        # A copy's id names its speed.
        usable = all(0.5 <= s <= 2 and s != 1 and s == float(f"{s:g}") for s in self.speeds)
        distinct = len(set(self.speeds)) == len(self.speeds)
        require(
            usable and distinct,
            self,
            "speeds",
            "different factors in 0.5..2 of at most 6 digits, none of them 1",
        )
        require(self.seed >= 0, self, "seed", "at least 0")


@dataclass(frozen=True)
class Copies:
    """The copies of a split's utterances; of each, the id and a seed decide the samples."""

    config: NoiseConfig
    noises: tuple[Path, ...]
    impulses: tuple[Path, ...]
    files_hash: str  # of the names and contents of both

    def content(self) -> dict[str, Any]:
        return {**to_json(self.config), "files": self.files_hash}

    def rows(self, kept: Rows, folder: Path, why_not: Callable[[Row], Rejection | None]) -> Rows:
        """Returns rows of utterances and their copies; ``why_not`` leaves out copies that misfit.

        Raises UsageError if an utterance has the name of a copy.
        """
        noisy = self.config.copies if self.noises or self.impulses else 0
        endings = [(f"~noise{n}", 1.0) for n in range(1, noisy + 1)]
        endings += [(f"~speed{speed:g}", speed) for speed in self.config.speeds]
        rows = Rows(folder)
        for row in kept:
            if _COPY.search(row[0]):
                raise UsageError(
                    "An utterance's id must not end like that of a copy, such as ~noise1. "
                    f"Received: {row[0]!r}. Rename it in the corpus's list."
                )
            rows.extend([row] if self.config.keep_clean else [])
            made = ([row[0] + end, row[1], row[2] / speed, *row[3:]] for end, speed in endings)
            rows.extend(copy for copy in made if why_not(copy) is None)
        return rows

    def changed(self, samples: np.ndarray, id_: str, rate_hz: int) -> np.ndarray:
        """Returns the samples of the utterance or copy with this id."""
        number, speed = (match := _COPY.search(id_)) and match.groups() or (None, None)
        if speed:
            return soxr.resample(samples, float(speed) * rate_hz, rate_hz, quality="HQ")
        if not number or not samples.any():
            return samples
        digest = hashlib.sha256(id_.encode(errors="backslashreplace")).digest()
        rng = np.random.default_rng([self.config.seed, *digest])
        if self.impulses:
            impulse = read_audio(self.impulses[rng.integers(len(self.impulses))], rate_hz)
            samples = reverberated(samples, impulse)
        if self.noises:
            noise = self._drawn(len(samples), rng, rate_hz)
            samples = mixed(samples, noise, rng.uniform(*self.config.snr_db))
        return samples

    def _drawn(self, length: int, rng: np.random.Generator, rate_hz: int) -> np.ndarray:
        path = self.noises[0]
        for _ in range(_MOST_DRAWS):
            path = self.noises[rng.integers(len(self.noises))]
            there = int(audio_duration_s(path) * rate_hz)
            begin, read, parts = int(rng.integers(max(there - length, 0) + 1)), 0, []
            for block in audio_blocks(path, rate_hz):
                parts.append(block[max(begin - read, 0) :])
                read += len(block)
                if read >= begin + length:
                    break
            noise = np.resize(np.concatenate(parts), length)  # a short one is repeated
            if noise.any():
                return noise
        raise ValueError(f"{_MOST_DRAWS} excerpts of noise, the last one of {path}, were silent")


def mixed(samples: np.ndarray, noise: np.ndarray, snr_db: float) -> np.ndarray:
    """Returns samples with as many of noise, whose mean power is ``snr_db`` below theirs."""
    powers = [float(np.mean(np.square(values, dtype=np.float64))) for values in (samples, noise)]
    gain = math.sqrt(powers[0] / powers[1] / 10 ** (snr_db / 10))
    return (samples + gain * noise).astype(np.float32)


def reverberated(samples: np.ndarray, impulse: np.ndarray) -> np.ndarray:
    """Returns samples as a room's impulse response changes them, as many, in time, and as loud.

    What is in the response before its largest value, the direct sound, is left out.
    """
    from scipy.signal import fftconvolve

    impulse = impulse[int(np.abs(impulse).argmax()) :].astype(np.float64)
    wet = fftconvolve(samples, impulse)[: len(samples)]
    loudness = np.linalg.norm(wet)
    return (wet * (np.linalg.norm(samples) / loudness if loudness else 1.0)).astype(np.float32)


def copies_of(
    config: NoiseConfig | None,
    noise_dir: str | Path | None,
    impulse_dir: str | Path | None,
    splits: Sequence[str] = ("train",),
) -> dict[str, Copies]:
    """Returns the copies that each of some splits gets, {} if none does.

    Raises UsageError for a folder that can't be used, or settings that would make no copy.
    """
    config = config or NoiseConfig()
    digest = hashlib.sha256()
    noises = _recordings("--noise_dir", noise_dir, digest)
    impulses = _recordings("--impulse_dir", impulse_dir, digest)
    if noises or impulses:
        made, needs = bool(config.copies), "NoiseConfig.copies must be at least 1"
    else:
        made = bool(config.speeds) or config == NoiseConfig()
        needs = "NoiseConfig needs --noise_dir, --impulse_dir or NoiseConfig.speeds"
    if not made:
        raise UsageError(f"{needs}, or it makes no copies. Received: {config}.")
    if not (noises or impulses or config.speeds):
        return {}
    of_splits = [name for name in splits if name in config.splits]
    if not of_splits:
        raise UsageError(
            f"NoiseConfig.splits must name a split that is prepared. Received: {config.splits}, "
            f"while {', '.join(splits)} is prepared."
        )
    return dict.fromkeys(of_splits, Copies(config, noises, impulses, digest.hexdigest()[:16]))


def _recordings(flag: str, folder: str | Path | None, digest: Any) -> tuple[Path, ...]:
    paths = [] if folder is None else sorted(Path(folder).absolute().rglob("*"))
    paths = [path for path in paths if path.suffix.lower() in _FILES]
    if folder is not None and not paths:
        raise UsageError(
            f"{flag} must be a folder of recordings ({', '.join(sorted(_FILES))}). Received: "
            f"{folder}, which holds none."
        )
    for path in paths:
        try:
            audio_duration_s(path)
            if flag == "--impulse_dir" and not read_audio(path).any():
                raise ValueError(f"{path} is silent")
        except ValueError as error:
            raise UsageError(f"{flag} must hold sound. {error}. Remove the file.") from None
        digest.update(f"{flag}\0{path.name}\0{file_sha256(path)}\n".encode())
    return tuple(paths)
