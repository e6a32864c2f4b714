"""Acoustic features: log-mel energies and their cepstra, in TensorFlow, offline and in graph."""

import tensorflow as tf

from tfasr.data.feature_config import LEAST_DEVIATION, LOG_FLOOR, FeatureConfig, cosines

__all__ = ["FeatureConfig", "compute_features", "normalise_features"]


def compute_features(samples: tf.Tensor, config: FeatureConfig) -> tf.Tensor:
    """Returns the features of one utterance, before normalisation.

    Log-mel: natural logarithm of the power spectrum through triangular filters that are linear in
    mel (HTK's scale and shape), plus 1e-6. MFCC: HTK's type-II cosine transform of those, scaled by
    sqrt(2 / num_mel_bins) for every coefficient, the zeroth included, without liftering.

    Args:
        samples: float32 ``(samples,)`` in -1..1.
        config: what to compute.

    Returns:
        float32 ``(frames, num_mel_bins + num_mfcc)``; no frames where no window fits.

    Source: the paper, section 2.1, which starts from a magnitude spectrogram where this takes
    power; S. Young et al., The HTK Book, section 5.6.
    """
    spectrum = tf.signal.stft(
        samples,
        frame_length=config.window_samples,
        frame_step=config.step_samples,
        fft_length=config.window_samples,
        window_fn=tf.signal.hann_window,
    )
    power = tf.math.square(tf.abs(spectrum))
    filters = tf.signal.linear_to_mel_weight_matrix(
        config.num_mel_bins,
        config.window_samples // 2 + 1,
        config.sample_rate_hz,
        config.lower_edge_hz,
        config.upper_edge_hz,
    )
    log_mel = tf.math.log(tf.matmul(power, filters) + LOG_FLOOR)
    if not config.num_mfcc:
        return log_mel
    mfcc = tf.matmul(log_mel, cosines(config.num_mel_bins, config.num_mfcc))
    return tf.concat([log_mel, mfcc], axis=-1)


def normalise_features(
    features: tf.Tensor,
    config: FeatureConfig,
    mean: tf.Tensor | None = None,
    deviation: tf.Tensor | None = None,
) -> tf.Tensor:
    """Returns one utterance's features normalised as ``config.normalisation`` says.

    Args:
        features: float32 ``(frames, num_features)``, without padding.
        mean: float32 ``(num_features,)`` of the training split, for "corpus" alone.
        deviation: float32 ``(num_features,)``, standard deviation, for "corpus" alone.
    """
    if config.normalisation == "none":
        return features
    if config.normalisation == "utterance":
        mean = tf.reduce_mean(features, axis=0)
        deviation = tf.math.reduce_std(features, axis=0)
    return (features - mean) / tf.maximum(deviation, LEAST_DEVIATION)
