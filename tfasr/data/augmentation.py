"""Seeded random augmentation: masks, tempos, vocal tracts and noisy copies.

It acts at two places on the data's way. `Copies` change samples while a corpus is
packed, so noise costs no time in training. Masks, `Tempo` and `VocalTract` change
features while batches are made, anew in each epoch.

All random choices follow from seeds and from what identifies an utterance, never from
the order of the work: a resumed run sees the same data. Each kind of augmentation in
training adds a different number to the seed: 0 and 1 for masks, 2 for tempo, 3 for
vocal tracts, and 4 and 5 for masks of a second view.
"""

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soxr
import tensorflow as tf

from tfasr.corpora.utterance import Rejection
from tfasr.data.audio import audio_blocks, audio_duration_s, read_audio
from tfasr.data.features import FeatureConfig, cosines, mel
from tfasr.data.manifest import file_sha256
from tfasr.data.rows import Row, Rows
from tfasr.errors import UsageError
from tfasr.kit.config import config_class, require, to_json


@config_class
class AugmentationConfig:
    """How utterances are masked and changed in training; by default, not at all.

    Attributes:
        time_masks: how many stretches of frames are set to 0.
        time_mask_frames: most frames of a stretch.
        time_mask_fraction: longest stretch as a share of the utterance, if that is
            shorter.
        frequency_masks: how many bands of log-mel features are set to 0. The MFCC are
            left alone, as their neighbours aren't close in frequency.
        frequency_mask_bins: most features of a band.
        from_epoch: the first epoch, counted from 1, with masks.
        tempo_change: 0.1 means that each utterance gets 0.9 to 1.1 times its frames,
            drawn anew in each epoch. This is not speed perturbation of the waveform,
            see `Tempo`.
        vocal_tract_change: 0.1 means that each utterance's frequencies are multiplied
            by 0.9 to 1.1, drawn anew in each epoch, as by another speaker's vocal
            tract; see `VocalTract`.

    Source: D. Park et al., SpecAugment, Interspeech 2019, section 2: bands of log-mel
    channels.
    """

    time_masks: int = 0
    time_mask_frames: int = 20
    time_mask_fraction: float = 0.1
    frequency_masks: int = 0
    frequency_mask_bins: int = 10
    from_epoch: int = 1
    tempo_change: float = 0.0
    vocal_tract_change: float = 0.0

    def check(self) -> None:
        for field in (
            "time_masks",
            "time_mask_frames",
            "frequency_masks",
            "frequency_mask_bins",
        ):
            require(getattr(self, field) >= 0, self, field, "at least 0")

        require(self.from_epoch >= 1, self, "from_epoch", "an epoch, counted from 1")
        for field in ("tempo_change", "vocal_tract_change"):
            require(0 <= getattr(self, field) <= 0.5, self, field, "in 0..0.5")

        require(
            0 <= self.time_mask_fraction <= 1,
            self,
            "time_mask_fraction",
            "in 0..1",
        )


def augment(
    features: tf.Tensor,
    config: AugmentationConfig,
    seed: tf.Tensor,
    num_mel_bins: int,
) -> tf.Tensor:
    """Sets random stretches and bands of features to 0, their mean.

    Args:
        features: normalised, float ``(frames, num_features)``.
        config: how many masks, and how wide.
        seed: integers ``(2,)``; the same seed gives the same masks.
        num_mel_bins: only these first features are masked by bands. The MFCC after them
            have no neighbours in frequency.
    """
    if config.time_masks:
        frames = tf.shape(features)[0]
        share = tf.cast(
            config.time_mask_fraction * tf.cast(frames, tf.float32), tf.int32
        )
        widest = tf.minimum(config.time_mask_frames, share)
        keep = _keep(frames, widest, config.time_masks, seed)
        features *= keep[:, None]

    if config.frequency_masks:
        others = tf.shape(features)[1] - num_mel_bins
        bins = tf.convert_to_tensor(num_mel_bins)
        widest = tf.minimum(config.frequency_mask_bins, bins)
        keep = _keep(bins, widest, config.frequency_masks, seed + 1)
        features *= tf.pad(keep, [[0, others]], constant_values=1.0)[None, :]

    return features


def _keep(size: tf.Tensor, widest: tf.Tensor, masks: int, seed: tf.Tensor) -> tf.Tensor:
    """Returns float32 ``(size,)``: 0 inside ``masks`` random intervals, and 1 elsewhere.

    Widths are uniform in 0..``widest``, then starts are uniform among those that fit,
    as in SpecAugment.
    """
    draws = tf.random.stateless_uniform([2, masks, 1], seed)
    width = tf.cast(draws[0] * tf.cast(widest + 1, tf.float32), tf.int32)
    start = tf.cast(draws[1] * tf.cast(size - width + 1, tf.float32), tf.int32)
    places = tf.range(size)[None, :]
    inside = tf.logical_and(places >= start, places < start + width)

    return tf.cast(~tf.reduce_any(inside, axis=0), tf.float32)


def most_frames(frames: Any, change: float) -> Any:
    """Returns an upper bound on utterances' frames (int or array) at the slowest tempo.

    `Tempo` rounds to the nearest number of frames, in float32, so the bound is one more
    than the product. Buckets and fixed padding must hold it.
    """
    if change:
        return np.floor(np.multiply(frames, 1 + change)).astype(np.int64) + 1

    return frames


def least_frames(frames: Any, change: float) -> Any:
    """Returns the matching lower bound at the fastest tempo."""
    if change:
        return np.ceil(np.multiply(frames, 1 - change)).astype(np.int64) - 1

    return frames


class Tempo:
    """Multiplies an utterance's frames by a random factor around 1.

    Changes the tempo like speed perturbation (T. Ko et al., Audio augmentation for
    speech recognition, Interspeech 2015), but of features instead of the waveform:
    frames are interpolated linearly, so pitch and formants don't change.

    Args:
        change: such as 0.1, for 0.9 to 1.1 times the frames.
        output_lengths: the model's, of an int32 array of frames. A fast utterance never
            gets fewer output frames than CTC needs for its labels, or its loss would be
            infinite.
        longest: frames of the longest utterance.
    """

    def __init__(
        self,
        change: float,
        output_lengths: Callable[[Any], Any],
        longest: int,
    ):
        self._change = change
        outputs = np.asarray(output_lengths(np.arange(1, longest + 1, dtype=np.int32)))
        # The fewest outputs of any input at least this long; longer inputs may give
        # fewer outputs.
        outputs = np.minimum.accumulate(outputs[::-1])[::-1]
        needed = np.arange(max(int(outputs[-1]), 0) + 1)
        # For each number of output frames, the fewest feature frames that give so many.
        self._least = (np.searchsorted(outputs, needed) + 1).astype(np.int32)

    def frames(
        self,
        frames: tf.Tensor,
        labels: tf.Tensor,
        seed: tf.Tensor,
    ) -> tf.Tensor:
        """Returns how many frames an utterance gets, an int32 scalar.

        Args:
            frames: its own number of frames, a scalar.
            labels: int ``(labels,)``, which decide how many frames it must keep.
            seed: integers ``(2,)``.
        """
        span = (1 - self._change, 1 + self._change)
        # + 2, because the masks use the seeds + 0 and + 1.
        factor = tf.random.stateless_uniform([], seed + 2, *span)
        # The tempo's number of frames, before what CTC needs.
        drawn = tf.cast(tf.round(factor * tf.cast(frames, tf.float32)), tf.int32)
        # CTC needs a blank between two equal labels.
        needed = tf.size(labels) + tf.math.count_nonzero(
            labels[1:] == labels[:-1], dtype=tf.int32
        )
        least = tf.gather(self._least, tf.minimum(needed, len(self._least) - 1))

        return tf.maximum(drawn, tf.minimum(least, frames))

    def ranges(
        self,
        frames: np.ndarray,
        needed: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the fewest and most frames of utterances, int64 ``(utterances,)`` each.

        ``needed`` is the number of output frames that CTC needs for each.
        `tfasr.training.memory` finds the largest possible batch by these.
        """
        least = self._least[np.minimum(needed, len(self._least) - 1)]
        fewest = np.maximum(
            least_frames(frames, self._change), np.minimum(least, frames)
        )
        return fewest, most_frames(frames, self._change)


def resampled(features: tf.Tensor, frames: tf.Tensor) -> tf.Tensor:
    """Interpolates features linearly to so many evenly spaced frames.

    The first and last frame stay where they are. Returns float32 ``(frames,
    num_features)``.
    """
    last = tf.shape(features)[0] - 1
    step = tf.cast(last, tf.float32) / tf.cast(tf.maximum(frames - 1, 1), tf.float32)
    places = tf.cast(tf.range(frames), tf.float32) * step
    before = tf.minimum(tf.cast(places, tf.int32), last)
    # Of the frame after the place; the rest belongs to the one before.
    weight = (places - tf.cast(before, tf.float32))[:, None]

    return (1 - weight) * tf.gather(features, before) + weight * tf.gather(
        features, tf.minimum(before + 1, last)
    )


# Frequencies are scaled up to this share of half the sample rate: 4800 Hz at 16 kHz,
# above the formants. Higher ones are mapped so that half the sample rate stays where it
# is.
_SCALED_SHARE = 0.6


@dataclass(frozen=True)
class VocalTract:
    """Scales the frequencies of log-mel features, like a longer or shorter vocal tract.

    The factor is drawn uniformly between ``1 - change`` and ``1 + change``.

    Source: N. Jaitly and G. E. Hinton, Vocal tract length perturbation (VTLP) improves
    speech recognition, ICML workshop 2013. Its piecewise linear map is applied by
    interpolating computed log-mel energies, instead of moving the mel filters.
    """

    change: float
    config: FeatureConfig

    def drawn(self, features: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Scales the frequencies of features by a random factor.

        Args:
            features: log-mel energies, then MFCC if the config has them, float32
                ``(frames, num_features)``, not yet normalised.
            seed: integers ``(2,)``.
        """
        span = (1 - self.change, 1 + self.change)
        # + 3, because masks and tempo use the seeds + 0 to + 2.
        return self.scaled(features, tf.random.stateless_uniform([], seed + 3, *span))

    def scaled(self, features: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        """Multiplies frequencies by ``factor``, up to `_SCALED_SHARE`.

        MFCC are computed anew from the scaled energies. Shapes are those of `drawn`.
        """
        bins = self.config.num_mel_bins
        places = self._places(factor)
        below = tf.cast(places, tf.int32)
        weight = places - tf.cast(below, tf.float32)
        log_mel = features[:, :bins]
        log_mel = (1 - weight) * tf.gather(log_mel, below, axis=1) + weight * tf.gather(
            log_mel,
            tf.minimum(below + 1, bins - 1),
            axis=1,
        )
        if not self.config.num_mfcc:
            return log_mel

        mfcc = tf.matmul(log_mel, cosines(bins, self.config.num_mfcc))

        return tf.concat([log_mel, mfcc], axis=-1)

    def _places(self, factor: tf.Tensor) -> tf.Tensor:
        """Returns where each bin's energy comes from, fractional bins ``(num_mel_bins,)``.

        1127 and 700 Hz are the constants of HTK's mel scale, see
        `tfasr.data.features.mel`.
        """
        config = self.config
        edges = mel(np.array([config.lower_edge_hz, config.upper_edge_hz]))
        centres = np.linspace(*edges, config.num_mel_bins + 2)[1:-1]
        hz = (700 * np.expm1(centres / 1127)).astype(np.float32)
        highest = config.sample_rate_hz / 2
        # The highest scaled frequency before and after scaling; see the source's
        # equation.
        after = _SCALED_SHARE * highest * tf.minimum(factor, 1.0)
        before = after / factor
        slope = (highest - before) / (highest - after)
        origins = tf.where(hz <= after, hz / factor, highest - (highest - hz) * slope)
        spacing = (edges[1] - edges[0]) / (config.num_mel_bins + 1)
        places = (1127 * tf.math.log1p(origins / 700) - edges[0]) / spacing - 1

        return tf.clip_by_value(places, 0.0, config.num_mel_bins - 1.0)


# Formats that libsndfile reads; other files in a folder of noise, such as its license,
# are ignored.
_FILES = {".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3"}
_COPY = re.compile(r"~(?:noise(\d+)|speed(\d+(?:\.\d+)?))\Z")  # the end of a copy's id
_MOST_DRAWS = 10  # excerpts of noise to try until one isn't silent


@config_class
class NoiseConfig:
    """Which copies ``tfasr prepare`` makes of utterances, in addition to the recordings.

    Attributes:
        copies: number of noisy copies, each with a random room from ``--impulse_dir``,
            then a random noise from ``--noise_dir``, if these folders are given.
        snr_db: the lowest and highest ratio of speech to noise power in decibels,
            between which it is drawn uniformly; both powers are means over the whole
            utterance.
        speeds: factors, such as (0.9, 1.1), each for a copy without noise that plays
            slower or faster; pitch and formants change, too.
        keep_clean: whether the recording itself is packed as well.
        splits: the splits that get copies.
        seed: decides, together with an utterance's id, all random choices for it.

    Source: T. Ko et al., Audio augmentation for speech recognition, Interspeech 2015
    (speeds), and A study on data augmentation of reverberant speech, ICASSP 2017 (rooms
    and noise).
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
        require(
            ordered,
            self,
            "snr_db",
            "a lower and an upper number of decibels, in -100..100",
        )
        # A copy's id contains its speed.
        usable = all(
            0.5 <= s <= 2 and s != 1 and s == float(f"{s:g}") for s in self.speeds
        )
        distinct = len(set(self.speeds)) == len(self.speeds)
        rule = "different factors in 0.5..2 of at most 6 digits, none of them 1"
        require(usable and distinct, self, "speeds", rule)
        require(self.seed >= 0, self, "seed", "at least 0")


@dataclass(frozen=True)
class Copies:
    """Makes copies of a split's utterances; a copy's id and the seed decide its samples.

    A copy is a separate utterance, with an id that ends in ``~noise1`` or
    ``~speed0.9``. It is listed, shuffled and packed like any other; only its samples
    are changed when they are read.
    """

    config: NoiseConfig
    noises: tuple[Path, ...]
    impulses: tuple[Path, ...]
    files_hash: str  # hash of the names and contents of noises and impulses

    def content(self) -> dict[str, Any]:
        """Returns the copies' settings and files' hash, as JSON for index and plan."""
        return {**to_json(self.config), "files": self.files_hash}

    def rows(
        self,
        kept: Rows,
        folder: Path,
        why_not: Callable[[Row], Rejection | None],
    ) -> Rows:
        """Returns rows for utterances and their copies.

        Args:
            kept: of `tfasr.data.prepare.kept_row`.
            folder: where the list goes if it is too large for memory.
            why_not: returns why a copy can't be used, such as a fast one that has too
                few frames for its text; None for usable ones. Such copies are left out
                without counting as faults of the corpus.

        Raises:
            UsageError: if an utterance's id ends like a copy's.
        """
        noisy = self.config.copies if self.noises or self.impulses else 0
        endings = [(f"~noise{n}", 1.0) for n in range(1, noisy + 1)]
        endings += [(f"~speed{speed:g}", speed) for speed in self.config.speeds]
        rows = Rows(folder)

        for row in kept:
            # Or a copy's samples would be made of the wrong recording.
            if _COPY.search(row[0]):
                raise UsageError(
                    "An utterance's id must not end like that of a copy, such as ~noise1. "
                    f"Received: {row[0]!r}. Rename it in the corpus's list."
                )

            # The recording first, then its copies.
            rows.extend([row] if self.config.keep_clean else [])
            made = (
                [row[0] + end, row[1], row[2] / speed, *row[3:]]
                for end, speed in endings
            )
            rows.extend(copy for copy in made if why_not(copy) is None)

        return rows

    def changed(self, samples: np.ndarray, id_: str, rate_hz: int) -> np.ndarray:
        """Returns the samples of the utterance or copy with this id.

        Args:
            samples: of the recording, float32 ``(samples,)``.
            id_: it decides what is done, by its ending, and every random choice.
            rate_hz: of samples, noise and impulse responses.
        """
        match = _COPY.search(id_)
        if match is None:
            return samples

        number, speed = match.groups()
        if speed:
            return soxr.resample(samples, float(speed) * rate_hz, rate_hz, quality="HQ")
        if not number or not samples.any():
            return samples

        # Python's own hash differs between processes.
        digest = hashlib.sha256(id_.encode(errors="backslashreplace")).digest()
        rng = np.random.default_rng([self.config.seed, *digest])
        if self.impulses:
            impulse = read_audio(
                self.impulses[rng.integers(len(self.impulses))], rate_hz
            )
            samples = reverberated(samples, impulse)

        if self.noises:
            noise = self._drawn(len(samples), rng, rate_hz)
            samples = mixed(samples, noise, rng.uniform(*self.config.snr_db))

        return samples

    def _drawn(self, length: int, rng: np.random.Generator, rate_hz: int) -> np.ndarray:
        """Draws an excerpt of a random noise, float32 ``(length,)``.

        Raises:
            ValueError: if all of 10 excerpts are silent.
        """
        path = self.noises[0]
        for _ in range(_MOST_DRAWS):
            path = self.noises[rng.integers(len(self.noises))]
            # Reads in blocks up to the excerpt's end, because files of
            # noise may last hours.
            available = int(audio_duration_s(path) * rate_hz)
            begin = int(rng.integers(max(available - length, 0) + 1))
            read = 0
            parts = []

            for block in audio_blocks(path, rate_hz):
                parts.append(block[max(begin - read, 0) :])
                read += len(block)
                if read >= begin + length:
                    break

            # A short noise is repeated.
            noise = np.resize(np.concatenate(parts), length)
            if noise.any():
                return noise

        raise ValueError(
            f"{_MOST_DRAWS} excerpts of noise, the last one of {path}, were silent"
        )


def mixed(samples: np.ndarray, noise: np.ndarray, snr_db: float) -> np.ndarray:
    """Adds noise of equal length at a ratio of ``snr_db`` between speech and noise.

    Both are float32 ``(samples,)``, and neither may be silent. Powers are means over
    the whole utterance, in float64.
    """
    speech_power = float(np.mean(np.square(samples, dtype=np.float64)))
    noise_power = float(np.mean(np.square(noise, dtype=np.float64)))
    gain = math.sqrt(speech_power / noise_power / 10 ** (snr_db / 10))

    return (samples + gain * noise).astype(np.float32)


def reverberated(samples: np.ndarray, impulse: np.ndarray) -> np.ndarray:
    """Applies a room's impulse response to samples.

    Their number, timing and loudness (root mean square) stay, so that transcripts and
    signal-to-noise ratios still hold. The response starts with the direct sound, its
    largest value; everything before is cut off. Both are float32 ``(samples,)``.
    """
    from scipy.signal import fftconvolve

    impulse = impulse[int(np.abs(impulse).argmax()) :].astype(np.float64)
    # The echo after the end is cut off.
    wet = fftconvolve(samples, impulse)[: len(samples)]
    loudness = np.linalg.norm(wet)
    if loudness:
        wet *= np.linalg.norm(samples) / loudness

    return wet.astype(np.float32)


def copies_of(
    config: NoiseConfig | None,
    noise_dir: str | Path | None,
    impulse_dir: str | Path | None,
    splits: Sequence[str] = ("train",),
) -> dict[str, Copies]:
    """Returns the copies of each split that gets any, by its name.

    Args:
        config: None for the defaults: one noisy copy of each training utterance.
        noise_dir: a folder of noise recordings; None for none.
        impulse_dir: a folder of rooms' impulse responses; None for none.
        splits: those that are prepared.

    Raises:
        UsageError: if settings and folders make no copies, or a folder holds no sound.
    """
    config = config or NoiseConfig()
    digest = hashlib.sha256()
    noises = _recordings("--noise_dir", noise_dir, digest)
    impulses = _recordings("--impulse_dir", impulse_dir, digest)
    if noises or impulses:
        made = bool(config.copies)
        needs = "NoiseConfig.copies must be at least 1"
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

    return dict.fromkeys(
        of_splits, Copies(config, noises, impulses, digest.hexdigest()[:16])
    )


def _recordings(flag: str, folder: str | Path | None, digest: Any) -> tuple[Path, ...]:
    """Lists a folder's recordings, and adds their names and contents to ``digest``.

    They are hashed because they decide the shards' bytes, like the corpus itself.
    ``flag`` is the folder's, for messages and to keep noise and rooms apart.
    """
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
            raise UsageError(
                f"{flag} must hold sound. {error}. Remove the file."
            ) from None

        digest.update(f"{flag}\0{path.name}\0{file_sha256(path)}\n".encode())

    return tuple(paths)
