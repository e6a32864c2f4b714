"""SpecAugment masks, and changes of tempo and vocal tract length, drawn from a seed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfasr.data.features import FeatureConfig, cosines, mel
from tfasr.kit.config import config_class, require


@config_class
class AugmentationConfig:
    """How much of an utterance is masked in training, and otherwise changed; nothing by default.

    Attributes:
        time_masks: stretches of frames set to 0.
        time_mask_frames: longest stretch.
        time_mask_fraction: longest stretch as a share of the utterance.
        frequency_masks: bands of features set to 0.
        frequency_mask_bins: widest band.
        frequency_masks_over: "log_mel" leaves the MFCC, whose neighbours are not close in
            frequency; "all_features" runs bands over both, as tfasr 0.1.0 did.
        from_epoch: the first epoch, counted from 1, with masks.
        tempo_change: 0.1 gives each utterance, anew in each epoch, between 0.9 and 1.1 times its
            frames. It is not speed perturbation of the waveform, see `Tempo`.
        vocal_tract_change: 0.1 scales each utterance's frequencies, anew in each epoch, by 0.9 to
            1.1, as other speakers' vocal tracts do: `VocalTract`.

    Source: D. Park et al., SpecAugment, Interspeech 2019, section 2: bands of log-mel channels.
    """

    time_masks: int = 0
    time_mask_frames: int = 20
    time_mask_fraction: float = 0.1
    frequency_masks: int = 0
    frequency_mask_bins: int = 10
    frequency_masks_over: Literal["log_mel", "all_features"] = "log_mel"
    from_epoch: int = 1
    tempo_change: float = 0.0
    vocal_tract_change: float = 0.0

    def check(self) -> None:
        for field in ("time_masks", "time_mask_frames", "frequency_masks", "frequency_mask_bins"):
            require(getattr(self, field) >= 0, self, field, "at least 0")
        require(self.from_epoch >= 1, self, "from_epoch", "an epoch, counted from 1")
        for field in ("tempo_change", "vocal_tract_change"):
            require(0 <= getattr(self, field) <= 0.5, self, field, "in 0..0.5")
        require(0 <= self.time_mask_fraction <= 1, self, "time_mask_fraction", "in 0..1")


def augment(
    features: tf.Tensor, config: AugmentationConfig, seed: tf.Tensor, num_mel_bins: int
) -> tf.Tensor:
    """Returns normalised features ``(frames, num_features)``, random stretches and bands at 0."""
    if config.time_masks:
        frames = tf.shape(features)[0]
        share = tf.cast(config.time_mask_fraction * tf.cast(frames, tf.float32), tf.int32)
        widest = tf.minimum(config.time_mask_frames, share)
        keep = _keep(frames, widest, config.time_masks, seed)
        features *= keep[:, None]
    if config.frequency_masks:
        others = tf.shape(features)[1] - num_mel_bins
        if config.frequency_masks_over == "all_features":
            num_mel_bins, others = tf.shape(features)[1], 0
        bins = tf.convert_to_tensor(num_mel_bins)
        widest = tf.minimum(config.frequency_mask_bins, bins)
        keep = _keep(bins, widest, config.frequency_masks, seed + 1)
        features *= tf.pad(keep, [[0, others]], constant_values=1.0)[None, :]
    return features


def _keep(size: tf.Tensor, widest: tf.Tensor, masks: int, seed: tf.Tensor) -> tf.Tensor:
    draws = tf.random.stateless_uniform([2, masks, 1], seed)
    width = tf.cast(draws[0] * tf.cast(widest + 1, tf.float32), tf.int32)
    start = tf.cast(draws[1] * tf.cast(size - width + 1, tf.float32), tf.int32)
    places = tf.range(size)[None, :]
    inside = tf.logical_and(places >= start, places < start + width)
    return tf.cast(~tf.reduce_any(inside, axis=0), tf.float32)


def most_frames(frames: Any, change: float) -> Any:
    """Returns a bound on the frames (int or array) of an utterance at the slowest tempo."""
    return np.floor(np.multiply(frames, 1 + change)).astype(np.int64) + 1 if change else frames


def least_frames(frames: Any, change: float) -> Any:
    return np.ceil(np.multiply(frames, 1 - change)).astype(np.int64) - 1 if change else frames


class Tempo:
    """Draws how many frames an utterance gets, between ``1 - change`` and ``1 + change`` times as
    many.

    It is the tempo of speed perturbation (T. Ko et al., Audio augmentation for speech recognition,
    Interspeech 2015), but of features and not of the waveform: frames are interpolated linearly,
    and pitch and formants stay where they are. No utterance gets fewer of the model's output frames
    (``output_lengths``) than CTC needs for its labels. ``longest`` is the split's longest utterance
    in frames.
    """

    def __init__(self, change: float, output_lengths: Callable[[Any], Any], longest: int):
        self._change = change
        outputs = np.asarray(output_lengths(np.arange(1, longest + 1, dtype=np.int32)))
        # The fewest for a length and all above it, as a model may have fewer for more.
        outputs = np.minimum.accumulate(outputs[::-1])[::-1]
        needed = np.arange(max(int(outputs[-1]), 0) + 1)
        # By output frames: the fewest feature frames that give so many.
        self._least = (np.searchsorted(outputs, needed) + 1).astype(np.int32)

    def frames(self, frames: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns how many frames an utterance gets; ``seed`` is integers ``(2,)``."""
        span = (1 - self._change, 1 + self._change)
        # + 2: not a seed of the masks.
        factor = tf.random.stateless_uniform([], seed + 2, *span)
        drawn = tf.cast(tf.round(factor * tf.cast(frames, tf.float32)), tf.int32)
        # CTC needs a blank between two equal labels.
        needed = tf.size(labels) + tf.math.count_nonzero(labels[1:] == labels[:-1], dtype=tf.int32)
        least = tf.gather(self._least, tf.minimum(needed, len(self._least) - 1))
        return tf.maximum(drawn, tf.minimum(least, frames))

    def ranges(self, frames: np.ndarray, needed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the fewest and the most frames of utterances with so many ``needed`` outputs."""
        least = self._least[np.minimum(needed, len(self._least) - 1)]
        fewest = np.maximum(least_frames(frames, self._change), np.minimum(least, frames))
        return fewest, most_frames(frames, self._change)


def resampled(features: tf.Tensor, frames: tf.Tensor) -> tf.Tensor:
    """Returns features interpolated at evenly spaced places, the first and last ones kept."""
    last = tf.shape(features)[0] - 1
    step = tf.cast(last, tf.float32) / tf.cast(tf.maximum(frames - 1, 1), tf.float32)
    places = tf.cast(tf.range(frames), tf.float32) * step
    before = tf.minimum(tf.cast(places, tf.int32), last)
    weight = (places - tf.cast(before, tf.float32))[:, None]
    return (1 - weight) * tf.gather(features, before) + weight * tf.gather(
        features, tf.minimum(before + 1, last)
    )


# The share of half the sample rate up to which frequencies are scaled; above, they are stretched so
# that half the sample rate stays itself. 4800 Hz at 16 kHz: the formants are below.
_SCALED_SHARE = 0.6


@dataclass(frozen=True)
class VocalTract:
    """Scales the frequencies of log-mel features, as the length of a vocal tract does its formants.

    They become between ``1 - change`` and ``1 + change`` times as high, evenly drawn.

    Source: N. Jaitly and G. E. Hinton, Vocal tract length perturbation (VTLP) improves speech
    recognition, ICML workshop 2013: its piecewise linear map, but of computed log-mel energies,
    which are interpolated linearly, and not of the filters.
    """

    change: float
    config: FeatureConfig

    def drawn(self, features: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns features, float32 before normalisation, of a vocal tract that is drawn."""
        span = (1 - self.change, 1 + self.change)
        # + 3: not a seed of the masks or the tempo.
        return self.scaled(features, tf.random.stateless_uniform([], seed + 3, *span))

    def scaled(self, features: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        """Returns features in which every frequency is multiplied by ``factor``."""
        bins = self.config.num_mel_bins
        places = self._places(factor)
        below = tf.cast(places, tf.int32)
        weight = places - tf.cast(below, tf.float32)
        log_mel = features[:, :bins]
        log_mel = (1 - weight) * tf.gather(log_mel, below, axis=1) + weight * tf.gather(
            log_mel, tf.minimum(below + 1, bins - 1), axis=1
        )
        if not self.config.num_mfcc:
            return log_mel
        mfcc = tf.matmul(log_mel, cosines(bins, self.config.num_mfcc))
        return tf.concat([log_mel, mfcc], axis=-1)

    def _places(self, factor: tf.Tensor) -> tf.Tensor:
        """Returns where each mel bin's energy comes from, in bins: float32 ``(num_mel_bins,)``."""
        config = self.config
        edges = mel(np.array([config.lower_edge_hz, config.upper_edge_hz]))
        centres = np.linspace(*edges, config.num_mel_bins + 2)[1:-1]
        hz = (700 * np.expm1(centres / 1127)).astype(np.float32)
        highest = config.sample_rate_hz / 2
        # The end of the scaled part, before and after; see the source's equation.
        after = _SCALED_SHARE * highest * tf.minimum(factor, 1.0)
        before = after / factor
        slope = (highest - before) / (highest - after)
        origins = tf.where(hz <= after, hz / factor, highest - (highest - hz) * slope)
        spacing = (edges[1] - edges[0]) / (config.num_mel_bins + 1)
        places = (1127 * tf.math.log1p(origins / 700) - edges[0]) / spacing - 1
        return tf.clip_by_value(places, 0.0, config.num_mel_bins - 1.0)
