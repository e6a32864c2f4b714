"""What the models of this package have in common: how they are called, and how they end."""

from typing import Any

import keras


class Network(keras.Model):
    """Hidden values of each output frame, by `encode`, and their class scores.

    A subclass makes its layers, `class_scores` as ``classifier`` behind all others, and defines
    ``build`` and `encode`. Layers count as they are assigned: a checkpoint holds their variables in
    that order.

    Args:
        name: of the model, for Keras.
        config: sizes; it tells the output lengths, see `tfasr.models.recogniser.RecogniserConfig`.
        dtype: Keras's dtype policy of all layers but the last, which stays in float32.
    """

    def __init__(self, name: str, config: Any, dtype: str | keras.DTypePolicy | None = None):
        super().__init__(name=name, dtype=dtype)
        self.config = config

    def output_lengths(self, feature_lengths: Any) -> Any:
        """Returns the number of output frames for numbers of feature frames."""
        return self.config.output_lengths(feature_lengths)

    def call(self, features: Any, feature_lengths: Any, training: bool = False) -> Any:
        """Computes class scores.

        Args:
            features: float ``(batch, frames, num_features)``, right-padded.
            feature_lengths: int32 ``(batch,)``: valid frames.
            training: whether dropout and batch statistics are on.

        Returns:
            float32 logits ``(batch, output frames, classes)``; see `output_lengths`.
        """
        return self.classifier(self.encode(features, feature_lengths, training))

    def encode(self, features: Any, feature_lengths: Any, training: bool) -> Any:
        """Returns what the classifier scores: ``(batch, output frames, width)``.

        Args: see `call`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define encode.")


def class_scores(num_classes: int, seed: int) -> keras.layers.Dense:
    """Returns the last layer, ``classifier``: logits of the classes, the CTC blank last.

    It computes in float32 even under mixed precision, because the loss is computed from them.

    Args:
        num_classes: how many.
        seed: of its weights, which are Glorot uniform.
    """
    return keras.layers.Dense(
        num_classes,
        kernel_initializer=keras.initializers.GlorotUniform(seed),
        dtype="float32",
        name="classifier",
    )
