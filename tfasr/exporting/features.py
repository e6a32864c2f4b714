"""The features as an ONNX graph: from samples to the inputs of the recogniser's graph.

The Fourier transform is a convolution with cosines and sines, which any runtime has.
"""

import numpy as np
from onnx import TensorProto

from tfasr.data.features import (
    LEAST_DEVIATION,
    LOG_FLOOR,
    FeatureConfig,
    cosines,
    hann_window,
    mel_filters,
)
from tfasr.errors import RunError
from tfasr.exporting.check import session
from tfasr.exporting.onnx import GraphWriter, metadata
from tfasr.recognising.spec import FEATURES, RecogniserSpec

SAMPLES = "samples"
MOST_DIFFERENCE = 0.01
"""How far a normalised feature may be off: rounding where a filter hears next to nothing."""


def checked_feature_graph(spec: RecogniserSpec) -> bytes:
    """The graph of a recogniser's features; RunError if it differs from `RecogniserSpec.heard`."""
    graph = feature_graph(spec.features, spec.statistics, metadata(spec))
    samples = _sounds(spec.features)
    (features,) = session(graph).run([FEATURES], {SAMPLES: samples[None]})[0]
    expected = spec.heard(samples)
    same_shape = features.shape == expected.shape
    difference = float(np.abs(features - expected).max()) if same_shape else np.inf
    if not difference <= MOST_DIFFERENCE:
        raise RunError(
            "The graph of the features must compute what tfasr computes. Of generated sounds they "
            f"differ by up to {difference:.3g} (shapes {features.shape} and {expected.shape}). "
            "Nothing was written; please report it."
        )
    return graph


def _sounds(config: FeatureConfig) -> np.ndarray:
    """Two seconds of noise and tones, from near silence to half of full scale."""
    count = max(2 * config.sample_rate_hz, 4 * config.window_samples)
    times = np.arange(count) / count
    rng = np.random.default_rng(1)
    tone = np.sin(2 * np.pi * 0.2 * config.sample_rate_hz * times**2)
    loudness = 0.5 * 10 ** (-2 * (1 + np.sin(6 * np.pi * times)))
    return (loudness * (tone + 0.1 * rng.normal(size=count))).clip(-1, 1).astype(np.float32)


def feature_graph(
    config: FeatureConfig,
    statistics: tuple[np.ndarray, np.ndarray] | None,
    carried: dict[str, str],
) -> bytes:
    """The graph of `numpy_features` and `normalise_frames`, as a file's content.

    From ``samples`` (batch, samples), float32 in -1..1, at least one window and no padding, to
    ``features`` (batch, frames, num_features). The file stores the texts in ``carried``.
    """
    writer = GraphWriter()
    features = _normalised(writer, _features(writer, config), config, statistics)
    writer.node("Identity", [features], FEATURES)
    real = TensorProto.FLOAT
    inputs = [(SAMPLES, real, ["batch", "samples"])]
    outputs = [(FEATURES, real, ["batch", "frames", config.num_features])]
    return writer.file("features", inputs, outputs, carried)


def _features(writer: GraphWriter, config: FeatureConfig) -> str:
    filters = mel_filters(config)
    bins = np.flatnonzero(filters.any(axis=1))  # no filter hears the others
    channel = writer.weight("channel_axis", np.array([1], np.int64))
    by_channel = writer.node("Unsqueeze", [SAMPLES, channel], "samples_by_channel")
    waves = writer.weight("windowed_waves", _windowed_waves(config, bins))
    spectrum = writer.node(
        "Conv", [by_channel, waves], "spectrum", strides=[config.step_samples], pads=[0, 0]
    )
    by_frame = writer.node("Transpose", [spectrum], "spectrum_by_frame", perm=[0, 2, 1])
    squares = writer.node("Mul", [by_frame, by_frame], "squares")
    # Both parts of a bin have its filter: the product adds their squares, too.
    twice = writer.weight("mel_filters", np.concatenate([filters[bins], filters[bins]]))
    energies = writer.node("MatMul", [squares, twice], "mel_energies")
    floor = writer.weight("log_floor", np.array(LOG_FLOOR))
    log_mel = writer.node(
        "Log", [writer.node("Add", [energies, floor], "energies_above_floor")], "log_mel"
    )
    if not config.num_mfcc:
        return log_mel
    matrix = writer.weight("cosines", cosines(config.num_mel_bins, config.num_mfcc))
    mfcc = writer.node("MatMul", [log_mel, matrix], "mfcc")
    return writer.node("Concat", [log_mel, mfcc], "unnormalised", axis=2)


def _windowed_waves(config: FeatureConfig, bins: np.ndarray) -> np.ndarray:
    """Cosines and sines under the window ``(2 * bins, 1, window_samples)``."""
    window = np.arange(config.window_samples)
    # The whole turns are taken away in integers, before their rounding becomes the sine's.
    angles = 2 * np.pi * (np.outer(bins, window) % config.window_samples) / config.window_samples
    waves = np.concatenate([np.cos(angles), np.sin(angles)])
    return (waves * hann_window(config.window_samples))[:, None]


def _normalised(
    writer: GraphWriter,
    features: str,
    config: FeatureConfig,
    statistics: tuple[np.ndarray, np.ndarray] | None,
) -> str:
    if config.normalisation == "none":
        return features
    if config.normalisation == "corpus":
        if statistics is None:
            raise ValueError("Normalisation 'corpus' must have statistics. Received: None.")
        mean, deviation = statistics
        centred = writer.node("Sub", [features, writer.weight("mean", mean)], "centred")
        limited = writer.weight("deviation", np.maximum(deviation, LEAST_DEVIATION))
        return writer.node("Div", [centred, limited], "normalised")
    mean = writer.node("ReduceMean", [features], "mean", axes=[1], keepdims=1)
    centred = writer.node("Sub", [features, mean], "centred")
    squares = writer.node("Mul", [centred, centred], "squares_of_centred")
    variance = writer.node("ReduceMean", [squares], "variance", axes=[1], keepdims=1)
    deviation = writer.node("Sqrt", [variance], "deviation")
    least = writer.weight("least_deviation", np.array(LEAST_DEVIATION))
    limited = writer.node("Max", [deviation, least], "limited_deviation")
    return writer.node("Div", [centred, limited], "normalised")
