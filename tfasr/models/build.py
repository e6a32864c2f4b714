"""Builds a model from its registered config and checks its logits.

Training, exports and benchmarks create their models here, after the config came from
gin or from a run's folder, and before any data is read. A plug-in's mistakes, such as
wrong output lengths, are reported within seconds, with the place in its file.
"""

import traceback
from typing import Any

import keras
import numpy as np

from tfasr.errors import UsageError
from tfasr.kit.config import to_json
from tfasr.kit.gin import GinText, binding_place, make
from tfasr.models import model as registry
from tfasr.models.model import (
    MODELS,
    ModelConfig,
    RecogniserConfig,
    model_name,
    output_frames,
)

_FEW = 3  # output frames of the shortest utterance tried


def build_recogniser(
    config: RecogniserConfig,
    num_features: int,
    num_classes: int,
    *,
    seed=0,
    dtype=None,
    check=None,
) -> keras.Model:
    """Creates a model with all its weights and tries it on a few frames.

    Args:
        config: a registered model's.
        num_features: features per frame.
        num_classes: including the CTC blank.
        seed: of initial weights and dropout.
        dtype: Keras's dtype policy; None for the default.
        check: gets the model before it has weights and may raise an error.

    Raises:
        UsageError: with the place where a plug-in registered the model, if it can't be
        created or called, or if its logits have other lengths than
        ``config.output_lengths`` returns.
    """
    name = model_name(config)
    entry = MODELS.entry(name)
    named = f"The model {name!r}"
    # A built-in model's place is the list of models, which wouldn't help to find the
    # error.
    if not entry.attribute:
        named += f" ({entry.place})"

    try:
        model = config.make(num_features, num_classes, seed=seed, dtype=dtype)
        if not isinstance(model, keras.layers.Layer):
            raise TypeError(f"make must return a keras.Model. Received: {model!r}.")

        if check is not None:
            # Before the weights exist, as large ones take seconds to make.
            check(model)
        # Models without their own build get their weights in the first call.
        if type(model).build not in (keras.Model.build, keras.layers.Layer.build):
            model.build((None, None, num_features))

        _try(config, model, num_features, num_classes)
    except UsageError as error:
        raise UsageError(f"{named}: {error}") from error
    except (
        TypeError,
        ValueError,
        AttributeError,
        LookupError,
        NotImplementedError,
    ) as error:
        raise UsageError(
            f"{named} must be made by make(num_features, num_classes, *, "
            "seed, dtype) and be called as model(features, lengths, training=False). Received "
            f"{type(error).__name__}{_raised_at(error, entry.file)}: {error}"
        ) from error

    return model


def check_intermediate(config: RecogniserConfig, model: Any, num_features: int) -> None:
    """Raises UsageError if a model has no layer for an intermediate loss.

    It tries the model, whose number of layers decides.
    """
    if not hasattr(model, "call_with_intermediate"):
        raise UsageError(
            "TrainingConfig.intermediate_loss_weight needs a model with a method "
            "call_with_intermediate, as in tfasr.models.recurrent.Network. Received: "
            f"{type(model).__name__}. Set the weight to 0, or train an acoustic_model, gru or "
            "conformer."
        )

    frames = _shortest(config)
    features = keras.ops.zeros((1, frames, num_features))
    model.call_with_intermediate(
        features, keras.ops.convert_to_tensor(np.int32([frames]))
    )


def _shortest(config: RecogniserConfig) -> int:
    """Returns the fewest feature frames that give a few output frames.

    Raises:
        UsageError: if even 41 s of audio don't.
    """
    shortest = next(
        (n for n in range(1, 4096) if output_frames(config, n) >= _FEW), None
    )
    if shortest is None:
        raise UsageError(
            f"output_lengths must leave at least {_FEW} output frames of 4095 feature frames. "
            f"Received: {output_frames(config, 4095)}."
        )

    return shortest


def _try(
    config: RecogniserConfig,
    model: Any,
    num_features: int,
    num_classes: int,
) -> None:
    """Compares the logits of a few lengths with what the config promises."""
    shortest = _shortest(config)
    # Consecutive lengths, because wrong output_lengths usually differ in rounding.
    for frames in (shortest, shortest + 1, shortest + 2, shortest + 7):
        features = np.zeros((2, frames, num_features), np.float32)
        lengths = np.array([frames, shortest], np.int32)
        tensors = (keras.ops.convert_to_tensor(value) for value in (features, lengths))
        logits = model(*tensors, training=False)
        expected = (2, output_frames(config, frames), num_classes)
        if tuple(logits.shape) != expected:
            raise UsageError(
                "its logits must have the shape (batch, output frames, classes), with as many "
                f"output frames as output_lengths says: {expected} for {frames} feature frames. "
                f"Received: {tuple(logits.shape)}. Correct output_lengths or call."
            )

        if keras.backend.standardize_dtype(logits.dtype) != "float32":
            raise UsageError(
                "its logits must be float32, because the loss is computed from them. Received: "
                f"{logits.dtype}. Give the last layer dtype='float32'."
            )


def _raised_at(error: Exception, file: str) -> str:
    """Returns where in a plug-in's file an error was raised, such as " at models.py:12".

    "" if it was raised elsewhere.
    """
    lines = [
        at.lineno
        for at in traceback.extract_tb(error.__traceback__)
        if at.filename == file
    ]
    return f" at {file}:{lines[-1]}" if lines else ""


def know_models() -> None:
    """Imports all models, so that a gin file may bind the fields of any model's config."""
    for name in MODELS:
        MODELS[name]


def model_class(lines: GinText) -> type:
    """Returns the config class that ``ModelConfig.name`` selects; UsageError if unknown."""
    name = make(ModelConfig, lines).name
    if name not in MODELS:
        raise UsageError(
            f"{binding_place(lines, 'ModelConfig', 'name')}ModelConfig.name must be a known model: "
            f"{MODELS.listed()}. Received: {name!r}. To use one from your own module, import the "
            "module: --import my_lab.models."
        )

    return MODELS[name]


@keras.saving.register_keras_serializable(package="tfasr")
class SavedRecogniser(keras.Model):
    """A recogniser from features to log-probabilities that Keras can save and load.

    ``tfasr export --to keras`` writes it. Import this module before
    ``keras.saving.load_model("model.keras")``, so that Keras knows the class.
    """

    def __init__(
        self,
        config: RecogniserConfig,
        num_features: int,
        num_classes: int,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.config = config
        self.num_features = num_features
        self.num_classes = num_classes
        self.recogniser = build_recogniser(
            config,
            num_features,
            num_classes,
            dtype="float32",
        )
        self.built = True

    def call(self, features: Any, feature_lengths: Any) -> Any:
        """Returns log-probabilities ``(batch, output frames, classes)``.

        Features are ``(batch, frames, num_features)``, padded on the right.
        """
        logits = self.recogniser(features, feature_lengths, training=False)
        return keras.ops.log_softmax(logits, axis=-1)

    def output_lengths(self, feature_lengths: Any) -> Any:
        return self.config.output_lengths(feature_lengths)

    def get_config(self) -> dict[str, Any]:
        """Returns `from_config`'s arguments: the model's registered name and sizes."""
        return {
            "name": self.name,
            "model": registry.model_source(self.config),
            "sizes": to_json(self.config),
            "num_features": self.num_features,
            "num_classes": self.num_classes,
        }

    @classmethod
    def from_config(
        cls,
        config: dict[str, Any],
        custom_objects: Any = None,
    ) -> "SavedRecogniser":
        sizes = registry.model_from_json(config["model"], config["sizes"])
        return cls(
            sizes,
            config["num_features"],
            config["num_classes"],
            name=config["name"],
        )
