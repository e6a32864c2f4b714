"""A model of any family as a Keras file."""

import keras
import numpy as np
import pytest

from tests.models.families import CLASSES, FEATURES, batch, built, config, logits
from tfasr.models.build import SavedRecogniser

# TensorFlow 2.21 under numpy 2.4, wherever Keras turns a variable into an array.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)


# Those whose layers lie in lists of lists and in pairs; `tests/exporting` saves
# another.
@pytest.mark.parametrize("name", ["separable_conv", "conformer", "deep_speech_2"])
def test_keras_loads_what_it_saved(name, tmp_path):
    model = built(name)
    saved = SavedRecogniser(config(name), FEATURES, CLASSES, name="mine")
    saved.recogniser.set_weights(model.get_weights())
    saved.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    features, lengths = batch()
    expected = keras.ops.log_softmax(logits(model, features, lengths), axis=-1)
    found = loaded(features, lengths)
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=1e-6)
    assert (loaded.config, loaded.name) == (config(name), "mine")
    np.testing.assert_array_equal(
        loaded.output_lengths(lengths), config(name).output_lengths(lengths)
    )
