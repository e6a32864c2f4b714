"""The registry of models and the protocol: what is refused, where, and what is filled in."""

import subprocess
import sys

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.errors import UsageError
from tfasr.kit.config import config_class
from tfasr.layers.geometry import conv_output_frames
from tfasr.models.build import build_recogniser
from tfasr.models.deep_speech_2 import DeepSpeech2Config
from tfasr.models.model import (
    MODELS,
    can_stream,
    estimated_step_bytes,
    frame_geometry,
    kernels,
    model_flops,
    model_from_json,
    model_source,
    portable,
)
from tfasr.models.recurrent import AcousticModelConfig, stages_of

# TensorFlow 2.21 under numpy 2.4, wherever Keras turns a variable into an array.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)


class Pooled(keras.Model):
    """The simplest model: the mean of two frames, then a dense layer."""

    def __init__(self, num_classes: int, dtype=None, logits_dtype="float32"):
        super().__init__(dtype=dtype)
        self.pooling = keras.layers.AveragePooling1D(2, dtype=self.dtype_policy)
        self.classifier = keras.layers.Dense(num_classes, dtype=logits_dtype)

    def call(self, features, lengths, training=False):
        return self.classifier(self.pooling(features))


@config_class
class PooledConfig:
    share: int = 2
    extra_classes: int = 0
    logits_dtype: str = "float32"
    mistake: str = ""

    def make(self, num_features, num_classes, *, seed, dtype):
        if self.mistake == "no model":
            return None
        if self.mistake == "raises":
            raise KeyError("not there")
        return Pooled(num_classes + self.extra_classes, dtype, self.logits_dtype)

    def output_lengths(self, lengths):
        return lengths // self.share


@pytest.fixture(scope="module", autouse=True)
def registered():
    """For these tests alone: what stays registered passes for a plug-in of every later run."""
    MODELS.register("pooled_for_tests", PooledConfig)
    yield
    del MODELS._entries["pooled_for_tests"], MODELS._things["pooled_for_tests"]


def test_listing_the_models_imports_no_keras():
    script = (
        "import sys\nfrom tfasr.models.model import MODELS\n"
        "assert list(MODELS)[:2] == ['acoustic_model', 'deep_speech_2']\n"
        "assert 'keras' not in sys.modules and 'tensorflow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_model_of_ones_own_is_built_and_keeps_to_cautious_defaults():
    config = PooledConfig()
    model = build_recogniser(config, 5, 7)
    assert model(np.zeros((1, 9, 5), np.float32), np.array([9])).shape == (1, 4, 7)
    assert model_flops(config, 5, 7, 2, 100, training=True) is None
    assert estimated_step_bytes(config, 5, 100, 2, 100) is None
    assert not can_stream(config)
    assert portable(config) is config
    assert kernels(model) == set()
    (stage,) = stages_of(model)
    assert len(stage.variables) == 2
    assert frame_geometry(config) == [2, 2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"share": 3},
            r"as output_lengths says: \(2, 3, 7\) for 9 .* Received: \(2, 4, 7\)",
        ),
        ({"share": 5000}, "at least 3 output frames"),
        ({"extra_classes": 1}, r"\(2, 3, 7\) for 6 .*Received: \(2, 3, 8\)"),
        ({"logits_dtype": "bfloat16"}, "must be float32.*Received: .*bfloat16"),
        ({"mistake": "no model"}, "make must return a keras.Model. Received: None"),
        (
            {"mistake": "raises"},
            r"Received KeyError at .*test_recogniser\.py:\d+: 'not there'",
        ),
    ],
)
def test_a_model_that_is_not_what_it_says_is_refused_by_file_and_line(values, message):
    match = rf"The model 'pooled_for_tests' \(.*test_recogniser\.py:\d+\).*{message}"
    with pytest.raises(UsageError, match=match):
        build_recogniser(PooledConfig(**values), 5, 7)


def test_what_lacks_a_method_is_refused_where_it_is_registered():
    with pytest.raises(
        UsageError, match=r"test_recogniser\.py:\d+: .*lacks output_lengths\("
    ):

        @MODELS.register("incomplete")
        @config_class
        class IncompleteConfig:
            def make(self, num_features, num_classes, *, seed, dtype):
                return None

    with pytest.raises(UsageError, match="@config_class"):

        @MODELS.register("plain")
        class Plain:
            make = PooledConfig.make
            output_lengths = PooledConfig.output_lengths

    assert "incomplete" not in MODELS
    assert "plain" not in MODELS


def test_a_config_is_written_and_read_back_with_its_model():
    for config in (AcousticModelConfig(lstm_units=9), PooledConfig(share=2)):
        source = model_source(config)
        assert source["module"] == type(config).__module__
        values = {
            name: getattr(config, name) for name in type(config).__dataclass_fields__
        }
        assert model_from_json(source, values) == config


def test_a_model_whose_module_is_not_imported_is_named_with_the_remedy():
    source = {"name": "theirs", "module": "my_lab.models"}
    with pytest.raises(UsageError, match="'theirs'.*--import my_lab.models"):
        model_from_json(source, {})
    with pytest.raises(UsageError, match="script or notebook"):
        model_from_json({"name": "theirs", "module": "__main__"}, {})
    with pytest.raises(
        UsageError, match=r"the file my_lab\.py, .* Add --import with that file's"
    ):
        model_from_json({"name": "theirs", "module": "tfasr_plugin_my_lab"}, {})


def test_fields_that_the_model_no_longer_has_are_named():
    with pytest.raises(UsageError, match="'acoustic_model'.*gru_units"):
        model_from_json({"name": "acoustic_model"}, {"gru_units": 9})


def test_a_method_in_the_place_of_a_property_is_refused():
    with pytest.raises(
        UsageError, match=r"Yes\.can_stream must be a property or a field"
    ):

        @MODELS.register("yes")
        @config_class
        class Yes(PooledConfig):
            def can_stream(self):
                return False


def test_an_unregistered_config_is_refused():
    @config_class
    class LooseConfig:
        pass

    with pytest.raises(UsageError, match=r"LooseConfig\. Write @MODELS\.register"):
        model_source(LooseConfig())


@settings(deadline=None, max_examples=30)
@given(kernel=st.integers(1, 30), stride=st.integers(1, 9))
def test_the_geometry_of_a_convolution_is_its_kernel_and_stride(kernel, stride):
    config = AcousticModelConfig(conv_kernel=kernel, conv_stride=stride)
    assert frame_geometry(config) == [kernel, stride]


def test_the_geometry_of_padded_convolutions_is_that_of_a_valid_one():
    config = DeepSpeech2Config()
    assert frame_geometry(config) == [1, 4]
    for frames in range(1, 50):
        assert config.output_lengths(frames) == conv_output_frames(frames, 1, 4)


def test_another_geometry_is_told_apart_by_its_lengths():
    class Odd(PooledConfig):
        def output_lengths(self, lengths):
            return lengths // 2 + 1

    class Other(PooledConfig):
        def output_lengths(self, lengths):
            return lengths // 3 + 1

    (one,), (other,) = frame_geometry(Odd()), frame_geometry(Other())
    assert isinstance(one, str)
    assert one != other
