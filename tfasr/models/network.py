"""What the models of this package have in common: how they are called, and how they end."""

from typing import Any

import keras

from tfasr.errors import UsageError


class Network(keras.Model):
    """Hidden values of each output frame, by `encode`, and their class scores.

    A subclass makes its layers, `class_scores` as ``classifier`` behind all others, and defines
    ``build`` and `encode` or `encodings`. Layers count as they are assigned: a checkpoint holds
    their variables in that order.

    A model is made of its config, the number of classes (the CTC blank is the last), the seed of
    its initial weights and of dropout, and Keras's dtype policy of all layers but the last, which
    stays in float32.

    Args:
        config: sizes; it tells the output lengths, see `tfasr.models.recogniser.RecogniserConfig`.
    """

    def __init__(self, name: str, config: Any, dtype: str | keras.DTypePolicy | None = None):
        super().__init__(name=name, dtype=dtype)
        self.config = config

    def output_lengths(self, feature_lengths: Any) -> Any:
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

    def call_with_intermediate(
        self, features: Any, feature_lengths: Any, training: bool = False
    ) -> tuple[Any, Any]:
        """Computes class scores, and those that the last layer gives a middle layer's outputs.

        Returns:
            logits as `call` returns them, and those of the middle one of the layers that
            `encodings` holds, the earlier of two.

        Raises:
            UsageError: if there is no layer of the last one's width before it.

        Source: J. Lee and S. Watanabe, Intermediate Loss Regularization for CTC-based Speech
        Recognition, ICASSP 2021, section 3.
        """
        encodings = self.encodings(features, feature_lengths, training)
        if len(encodings) < 2:
            raise UsageError(
                "For TrainingConfig.intermediate_loss_weight the model must have two layers or "
                "more of one width before its classifier. Received: a model of the class "
                f"{type(self).__name__} that has none or tells of none. Give it more layers, or "
                "bind the weight to 0."
            )
        middle = encodings[(len(encodings) - 1) // 2]
        return self.classifier(encodings[-1]), self.classifier(middle)

    def encode(self, features: Any, feature_lengths: Any, training: bool) -> Any:
        """Returns what the classifier scores: ``(batch, output frames, width)``."""
        return self.encodings(features, feature_lengths, training)[-1]

    def encodings(self, features: Any, feature_lengths: Any, training: bool) -> list:
        """Returns what each layer of the last one's width returns, in order.

        Each is ``(batch, output frames, width)``, the last one what `encode` returns.
        """
        if type(self).encode is Network.encode:
            raise NotImplementedError(f"{type(self).__name__} must define encode or encodings.")
        return [self.encode(features, feature_lengths, training)]


def class_scores(num_classes: int, seed: int) -> keras.layers.Dense:
    """Returns the last layer, ``classifier``: logits of the classes, the CTC blank last.

    It computes in float32 even under mixed precision, because the loss is computed from them.
    """
    return keras.layers.Dense(
        num_classes,
        kernel_initializer=keras.initializers.GlorotUniform(seed),
        dtype="float32",
        name="classifier",
    )


def add_to_blank_bias(model: Any, amount: float) -> None:
    """Adds to the bias of the CTC blank in a model's last layer, on which every frame's odds hang.

    Args:
        model: built; its last layer is `class_scores` or another dense layer with a bias, assigned
            as ``classifier``.
        amount: above 0 for a network that begins with more blanks than by chance.

    Raises:
        UsageError: if the model has no such layer.
    """
    bias = _weight_of_classifier(model, "bias", 1, f"initial_blank_bias = {amount}")
    classes = bias.shape[0]
    bias.assign_add(amount * keras.ops.one_hot(classes - 1, classes, dtype=bias.dtype))


def zero_classifier(model: Any) -> None:
    """Sets the kernel of a model's last layer to 0: every frame then has the same class scores.

    Args:
        model: as for `add_to_blank_bias`; its last layer has a kernel.

    Raises:
        UsageError: if the model has no such layer.
    """
    kernel = _weight_of_classifier(model, "kernel", 2, "zero_output_layer = True")
    kernel.assign(keras.ops.zeros_like(kernel))


def _weight_of_classifier(model: Any, name: str, dimensions: int, setting: str) -> Any:
    classifier = getattr(model, "classifier", None)
    weight = getattr(classifier, name, None)
    if weight is None or len(weight.shape) != dimensions:
        found = "none" if classifier is None else f"a {type(classifier).__name__} without it"
        raise UsageError(
            f"For TrainingConfig.{setting} the model's last layer must be assigned as its "
            f"`classifier` and have a {name} of {dimensions} dimensions, as "
            f"tfasr.models.network.class_scores makes it. Received: {type(model).__name__}, which "
            f"has {found}."
        )
    return weight
