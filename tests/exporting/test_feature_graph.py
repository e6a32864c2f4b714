"""The graph of the features computes what tfasr computes, of any samples."""

import numpy as np
import pytest

from tests.data.test_features import CONFIGS, chirp
from tfasr.data.features import FeatureConfig, normalise_frames, numpy_features
from tfasr.exporting.onnx import feature_graph
from tfasr.recognising.runtimes import onnx_session

pytest.importorskip(
    "onnx", reason="needs the export extra: pip install 'tfasr[export]'"
)
pytest.importorskip("onnxruntime")


ODD = FeatureConfig(window_samples=401, step_samples=100, num_mel_bins=10, num_mfcc=0)


@pytest.mark.parametrize(
    "config", [*CONFIGS, ODD], ids=["power", "8 kHz", "magnitude", "odd window"]
)
@pytest.mark.parametrize("normalisation", ["utterance", "speaker", "corpus", "none"])
def test_it_computes_the_features(config, normalisation):
    given = {**vars(config), "normalisation": normalisation}
    config = FeatureConfig(**given)
    rng = np.random.default_rng(1)
    statistics = None
    if normalisation in ("corpus", "speaker"):
        count = config.num_features
        deviation = np.append(rng.uniform(1, 2, count - 1), 0)  # the last never moves
        statistics = (
            rng.normal(-5, 3, count).astype(np.float32),
            deviation.astype(np.float32),
        )

    running = onnx_session(feature_graph(config, statistics, {"key": "value"}))
    assert running.get_modelmeta().custom_metadata_map == {"key": "value"}
    samples = chirp()
    samples[len(samples) // 2 :] *= 1e-3  # near the floor
    for count in (config.window_samples, 6000, len(samples)):
        expected = normalise_frames(
            numpy_features(samples[:count], config),
            config,
            *(statistics or (None, None)),
        )
        (found,) = running.run(
            None, {"samples": np.stack([samples[:count], samples[-count:]])}
        )
        assert found.shape == (2, *expected.shape)
        # The last deviation is the least that is divided by: a thousandth.
        scale = np.ones(config.num_features)
        scale[-1] = 1e3 if normalisation == "corpus" else 1
        np.testing.assert_allclose(found[0] / scale, expected / scale, atol=2e-3)
