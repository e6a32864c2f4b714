"""A model as one Keras file, whatever its family."""

from typing import Any

import keras

from tfasr.config import to_json
from tfasr.models.build import build_recogniser
from tfasr.models.recogniser import RecogniserConfig, model_from_json, model_source


@keras.saving.register_keras_serializable(package="tfasr")
class SavedRecogniser(keras.Model):
    """A recogniser from features to log-probabilities, which Keras saves and loads.

    Once this module is imported, ``keras.saving.load_model("model.keras")`` returns one.

    Args:
        config: of the recogniser, of a registered class.

    Attributes:
        recogniser: the model itself, see `tfasr.models.recogniser.RecogniserConfig`.
    """

    def __init__(
        self, config: RecogniserConfig, num_features: int, num_classes: int, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.config = config
        self.num_features = num_features
        self.num_classes = num_classes
        self.recogniser = build_recogniser(config, num_features, num_classes, dtype="float32")
        self.built = True

    def call(self, features: Any, feature_lengths: Any) -> Any:
        """Computes log-probabilities.

        Args:
            features: float ``(batch, frames, num_features)``, normalised, right-padded.
            feature_lengths: int32 ``(batch,)``: valid frames.

        Returns:
            float32 ``(batch, output frames, classes)``, natural logarithms; see `output_lengths`.
        """
        logits = self.recogniser(features, feature_lengths, training=False)
        return keras.ops.log_softmax(logits, axis=-1)

    def output_lengths(self, feature_lengths: Any) -> Any:
        return self.config.output_lengths(feature_lengths)

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "model": model_source(self.config),
            "sizes": to_json(self.config),
            "num_features": self.num_features,
            "num_classes": self.num_classes,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "SavedRecogniser":
        """Returns the model of a config.

        Raises:
            UsageError: if its kind is not registered.
        """
        sizes = model_from_json(config["model"], config["sizes"])
        return cls(sizes, config["num_features"], config["num_classes"], name=config["name"])
