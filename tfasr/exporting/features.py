"""Feature computation as an ONNX graph: from samples to the inputs of the recogniser's graph.

The Fourier transform is a convolution with cosines and sines, which every runtime supports.
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
from tfasr.exporting.onnx import GraphWriter, metadata
from tfasr.recognising.runtimes import onnx_session
from tfasr.recognising.spec import FEATURES, RecogniserSpec

SAMPLES = "samples"
MOST_DIFFERENCE = 0.01  # of normalised features, from rounding in nearly silent filters


def checked_feature_graph(spec: RecogniserSpec) -> bytes:
    """Returns the features' graph; RunError if it differs from the recogniser's own features."""
    graph = feature_graph(spec.features, spec.statistics, metadata(spec))
    samples = _sounds(spec.features)
    (features,) = onnx_session(graph).run([FEATURES], {SAMPLES: samples[None]})[0]
    expected = spec.normalised_features(samples)
    same_shape = features.shape == expected.shape
    difference = float(np.abs(features - expected).max()) if same_shape else np.inf
    if not difference <= MOST_DIFFERENCE:
        raise RunError(
            "The features' graph must compute the same as tfasr. For generated sounds they "
            f"differ by up to {difference:.3g} (shapes {features.shape} and {expected.shape}). "
            "Nothing was written; please report it."
        )
    return graph


def _sounds(config: FeatureConfig) -> np.ndarray:
    count = max(2 * config.sample_rate_hz, 4 * config.window_samples)
    times = np.arange(count) / count
    rng = np.random.default_rng(1)
    tone = np.sin(2 * np.pi * 0.2 * config.sample_rate_hz * times**2)
    loudness = 0.5 * 10 ** (-2 * (1 + np.sin(6 * np.pi * times)))
    return (loudness * (tone + 0.1 * rng.normal(size=count))).clip(-1, 1).astype(np.float32)


def feature_graph(config: FeatureConfig, statistics, carried: dict[str, str]) -> bytes:
    """Returns the graph of `numpy_features` and `normalise_frames`, as a file's content.

    It maps ``samples`` (batch, samples), float32 in -1..1, unpadded and at least one window, to
    ``features`` (batch, frames, num_features). The file also stores the texts in ``carried``.
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
    bins = np.flatnonzero(filters.any(axis=1))  # no filter uses the others
    by_channel = writer.add("Unsqueeze", SAMPLES, writer.constant([1], np.int64))
    waves = writer.weight("windowed_waves", _windowed_waves(config, bins))
    spectrum = writer.add("Conv", by_channel, waves, strides=[config.step_samples], pads=[0, 0])
    by_frame = writer.add("Transpose", spectrum, perm=[0, 2, 1])
    squares = writer.add("Mul", by_frame, by_frame)
    if config.spectrum == "power":
        # Sine and cosine of a bin share its filter, so the product also adds their squares.
        weights = np.concatenate([filters[bins], filters[bins]])
    else:
        pairs = writer.weight("both_parts", np.tile(np.eye(len(bins), dtype=np.float32), (2, 1)))
        squares, weights = writer.add("Sqrt", writer.add("MatMul", squares, pairs)), filters[bins]
    energies = writer.add("MatMul", squares, writer.weight("mel_filters", weights))
    log_mel = writer.add("Log", writer.add("Add", energies, writer.constant(LOG_FLOOR)))
    if not config.num_mfcc:
        return log_mel
    matrix = writer.weight("cosines", cosines(config.num_mel_bins, config.num_mfcc))
    return writer.add("Concat", log_mel, writer.add("MatMul", log_mel, matrix), axis=2)


def _windowed_waves(config: FeatureConfig, bins: np.ndarray) -> np.ndarray:
    """Returns windowed cosines and sines ``(2 * bins, 1, window_samples)``."""
    window = np.arange(config.window_samples)
    # Whole turns are removed as integers, before they cause rounding errors in the sine.
    angles = 2 * np.pi * (np.outer(bins, window) % config.window_samples) / config.window_samples
    waves = np.concatenate([np.cos(angles), np.sin(angles)])
    return (waves * hann_window(config.window_samples))[:, None]


def _normalised(writer: GraphWriter, features: str, config: FeatureConfig, statistics) -> str:
    if config.normalisation == "none":
        return features
    if config.normalisation == "corpus":
        if statistics is None:
            raise ValueError("Normalisation 'corpus' must have statistics. Received: None.")
        mean, deviation = statistics
        centred = writer.add("Sub", features, writer.weight("mean", mean))
        limited = writer.weight("deviation", np.maximum(deviation, LEAST_DEVIATION))
        return writer.add("Div", centred, limited)
    mean = writer.add("ReduceMean", features, axes=[1], keepdims=1)
    centred = writer.add("Sub", features, mean)
    squares = writer.add("Mul", centred, centred)
    deviation = writer.add("Sqrt", writer.add("ReduceMean", squares, axes=[1], keepdims=1))
    limited = writer.add("Max", deviation, writer.constant(LEAST_DEVIATION))
    return writer.add("Div", centred, limited)
