"""SpecAugment: masks over time and frequency, drawn from a seed; and how much tempo changes."""

from typing import Literal

import tensorflow as tf

from tfasr.config import config_class, require


@config_class
class AugmentationConfig:
    """How much of an utterance is masked in training, and otherwise changed; nothing by default.

    Attributes:
        time_masks: stretches of frames set to 0.
        time_mask_frames: longest stretch.
        time_mask_fraction: longest stretch as a share of the utterance.
        frequency_masks: bands of features set to 0.
        frequency_mask_bins: widest band.
        frequency_masks_over: "log_mel" masks bands of the log-mel features and leaves the MFCC, in
            which neighbours are no neighbours in frequency; "all_features" runs bands over both
            as tfasr 0.1.0 did.
        from_epoch: the first epoch, counted from 1, whose utterances are masked; in those before
            it the model sees speech without masks.
        tempo_change: 0.1 gives each utterance, anew in each epoch, between 0.9 and 1.1 times its
            frames. It is no speed perturbation of the waveform, see `tfasr.data.tempo.Tempo`.
        vocal_tract_change: 0.1 scales each utterance's frequencies, anew in each epoch, by 0.9 to
            1.1, as other speakers' vocal tracts do: `tfasr.data.vocal_tract.VocalTract`.

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
    """Returns features with random stretches and bands at 0, the mean of normalised features.

    Args:
        features: float32 ``(frames, num_features)``, normalised.
        seed: integers ``(2,)``; the same seed masks the same.
        num_mel_bins: how many of the features are log-mel; they come first.
    """
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
    """Returns float32 ``(size,)``: 0 inside any of the masks, else 1."""
    draws = tf.random.stateless_uniform([2, masks, 1], seed)
    width = tf.cast(draws[0] * tf.cast(widest + 1, tf.float32), tf.int32)
    start = tf.cast(draws[1] * tf.cast(size - width + 1, tf.float32), tf.int32)
    places = tf.range(size)[None, :]
    inside = tf.logical_and(places >= start, places < start + width)
    return tf.cast(~tf.reduce_any(inside, axis=0), tf.float32)
