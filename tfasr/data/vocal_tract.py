"""Vocal tract length perturbation: an utterance as speakers of other sizes might have said it."""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tfasr.data.feature_config import FeatureConfig, cosines

# Of half the sample rate: up to there frequencies are scaled, above they are drawn together or out
# so that half the sample rate stays itself. 4800 Hz at 16 kHz, below which the formants lie.
_SCALED_SHARE = 0.6


@dataclass(frozen=True)
class VocalTract:
    """Scales the frequencies of log-mel features, as the length of a vocal tract does its formants.

    Args:
        change: frequencies become between ``1 - change`` and ``1 + change`` times as high, evenly.

    Source: N. Jaitly and G. E. Hinton, Vocal tract length perturbation (VTLP) improves speech
    recognition, ICML workshop 2013: its piecewise linear map, but of computed log-mel energies,
    which are interpolated linearly, and not of the filters.
    """

    change: float
    config: FeatureConfig

    def drawn(self, features: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns features of a vocal tract that is drawn; the same seed draws the same.

        Args:
            features: float32 ``(frames, num_features)``, before normalisation.
            seed: integers ``(2,)``.
        """
        span = (1 - self.change, 1 + self.change)
        # Another seed than those of the masks and of the tempo.
        return self.scaled(features, tf.random.stateless_uniform([], seed + 3, *span))

    def scaled(self, features: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        """Returns features of which what was at a frequency is at ``factor`` times that.

        Args:
            features: float32 ``(frames, num_features)``, before normalisation.
            factor: float32, positive; 1 changes nothing but rounding.
        """
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
        edges = _mel(np.array([config.lower_edge_hz, config.upper_edge_hz]))
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


def _mel(hz: np.ndarray) -> np.ndarray:
    return 1127 * np.log1p(hz / 700)
