"""What a model must offer for training, timing, decoding and export.

Code outside `tfasr.models` uses a model only through its registered config, see
`RecogniserConfig`. This module's functions call a config's optional methods; if one is
missing, they return a default. `MODELS` lists the registered ones; docs/extending.md
shows how to add your own.
"""

import hashlib
import inspect
from typing import Any, Protocol

import numpy as np

from tfasr.errors import UsageError
from tfasr.kit.config import config_class
from tfasr.kit.registry import FILE_MODULE, Registry

DEFAULT_MODEL = "acoustic_model"  # the paper's
_MOST_FRAMES = 4096  # feature frames, 41 s: far longer than training utterances


class RecogniserConfig(Protocol):
    """A config class for `MODELS`: the sizes of a model, and how to create it.

    Decorate your own class with `tfasr.kit.config.config_class` (below
    ``MODELS.register``), which checks the types of its fields, gives them gin names and
    saves them in ``experiment.json``.

    Optional methods (for their defaults, see this module's functions):

    - ``flops(num_features, num_classes, frames, *, training) -> int``: floating-point
      operations per utterance, forward or, in training, forward and backward.
    - ``step_bytes(num_features, parameters, batch, frames) -> int``: estimated memory
      of a process that trains on such batches.
    - ``least_parameters(num_features, num_classes) -> int``: a close lower bound on the
      number of weights, without building the model.
    - ``step_costs(*, num_features, num_classes, batch, frames, labels,
      bytes_per_number, cache_bytes)``: a `tfasr.models.costs.ModuleCost` for each of
      the model's stages, the loss and the update.
    - ``smaller(units) -> RecogniserConfig``: a small model of the same kind.
    - ``portable() -> RecogniserConfig``: the same model, with the same variables, built
      only from operations that exporters support.

    Optional properties or fields:

    - ``can_stream: bool``: whether no logit depends on frames beyond its own output
      frame's.
    - ``keeps_momentum: bool``: whether batch normalisations keep their initial momentum
      (True), or all follow ``TrainingConfig.batch_norm_window_utterances`` (False).
    """

    def make(
        self,
        num_features: int,
        num_classes: int,
        *,
        seed: int,
        dtype: str | None,
    ) -> Any:
        """Returns the model: a ``keras.Model`` whose ``call`` takes ``(features, lengths)``.

        ``call(features, lengths, training=False)`` gets right-padded float ``(batch,
        frames, num_features)`` and int32 ``(batch,)`` numbers of valid frames. It
        returns float32 logits ``(batch, output_lengths(frames), num_classes)``; those
        of padded frames are ignored. A model may also have

        - a property ``kernels``: the names of the implementations that computed the
          recurrence;
        - a method ``stages``, see `tfasr.models.recurrent`;
        - a method ``call_with_intermediate``, see `tfasr.models.recurrent.Network`;
        - a method ``output_layer()``: the last layer, a ``Dense`` with kernel and bias,
          so that training can change its initial weights
          (``TrainingConfig.zero_output_layer``, which presets of ``gin/fast`` set).

        A model that can stream has two more methods. ``initial_state(batch)`` returns a
        list of tensors ``(batch, ...)``: the recurrence's state before any frame.
        ``continued(features, state)`` returns the next output frames' logits and the
        state after them. ``features`` start with the first frame that the next output
        frame sees, and have no padding. However a stream is cut into chunks, the logits
        must equal those of ``call``.

        ``seed`` is for initial weights and dropout; ``dtype`` is Keras's dtype policy:
        "float32", "mixed_bfloat16", "mixed_float16" or None.
        """

    def output_lengths(self, lengths: Any) -> Any:
        """Returns how many output frames so many feature frames get.

        ``lengths`` may be an int, an array or a tensor; the result is of the same kind.
        """


# Methods that a config must have, as a message describes them.
_REQUIRED = {
    "make": "make(num_features, num_classes, *, seed, dtype), which returns a keras.Model",
    "output_lengths": "output_lengths(lengths), the number of output frames for feature frames",
}
_ANSWERS = ("can_stream", "keeps_momentum")  # properties, never methods


def check_config_class(cls: Any) -> None:
    """Raises TypeError if a class can't be registered as a model's config."""
    if not inspect.isclass(cls):
        raise TypeError(f"it must be a config class. Received: {cls!r}.")

    lacking = [
        text
        for name, text in _REQUIRED.items()
        if not callable(getattr(cls, name, None))
    ]
    if lacking:
        raise TypeError(f"{cls.__name__} lacks {' and '.join(lacking)}.")

    for name in _ANSWERS:  # a method would always count as true
        if inspect.isfunction(getattr(cls, name, None)):
            raise TypeError(
                f"{cls.__name__}.{name} must be a property or a field. Received: a method. Write "
                "@property above it."
            )

    # Its sizes must be fields, or a run couldn't be read back.
    if not hasattr(cls, "__dataclass_fields__"):
        raise TypeError(
            f"{cls.__name__} must be a config class: write @config_class (of tfasr.kit.config) "
            "between @MODELS.register(...) and the class."
        )


MODELS: Registry[type] = Registry(
    "model",
    {
        DEFAULT_MODEL: "tfasr.models.recurrent:AcousticModelConfig",
        "deep_speech_2": "tfasr.models.deep_speech_2:DeepSpeech2Config",
        "gru": "tfasr.models.recurrent:GruModelConfig",
        "separable_conv": "tfasr.models.separable_conv:SeparableConvConfig",
        "conformer": "tfasr.models.conformer:ConformerConfig",
    },
    check=check_config_class,
)


@config_class
class ModelConfig:
    """Selects one of `MODELS` to train, whose config class has its sizes as fields."""

    name: str = DEFAULT_MODEL  # of `MODELS`, such as acoustic_model, gru or conformer


def model_name(config: RecogniserConfig) -> str:
    """Returns the name under which a config's class is registered; UsageError if it isn't."""
    name = MODELS.name_of(type(config))
    if name is None:
        raise UsageError(
            "A model's config class must be registered, so that a run can be read back. "
            f"Received: {type(config).__module__}.{type(config).__qualname__}. Write "
            f"@MODELS.register('some_name') above the class. Known models: {MODELS.listed()}."
        )

    return name


def model_source(config: RecogniserConfig) -> dict[str, str]:
    """Returns a model's name and the module that registers it, for a run's record."""
    name = model_name(config)
    return {"name": name, "module": MODELS.entry(name).module}


def model_from_json(source: dict[str, str], values: dict[str, Any]) -> RecogniserConfig:
    """Returns a config from its `model_source` and its fields.

    Raises:
        UsageError: if the model is not registered, or its fields have changed. Nothing
        is imported: a run's record may come from someone else.
    """
    name = source["name"]
    if name not in MODELS:
        module = source["module"]
        origin = f"the module {module}"
        # How to register it depends on where it was defined.
        remedy = f"Add --import {module}, or import {module} first."
        if module == "__main__":
            remedy = "It was defined in a script or notebook: put it into a module and import that."
        elif module.startswith(FILE_MODULE):
            origin = f"the file {module.removeprefix(FILE_MODULE)}.py"
            remedy = "Add --import with that file's path, if you trust its code."

        raise UsageError(
            f"The model {name!r} is not registered: {origin}, which registers it, "
            f"has not been imported. {remedy} Known models: {MODELS.listed()}."
        )

    cls = MODELS[name]
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"The model {name!r} ({MODELS.entry(name).place}) must take the fields it was recorded "
            f"with. Received: {values}. {error}"
        ) from error


def output_frames(config: RecogniserConfig, frames: int) -> int:
    """Returns the number of output frames of one utterance as an int."""
    return int(config.output_lengths(frames))


def frame_geometry(config: RecogniserConfig) -> list[int] | list[str]:
    """Returns a value that is equal for two models with the same `output_lengths`.

    It is the kernel and stride of one unpadded convolution with the same output lengths
    or, if no convolution has them, a hash of the output lengths.
    """
    lengths = np.arange(1, _MOST_FRAMES + 1, dtype=np.int32)
    outputs = np.asarray(config.output_lengths(lengths))
    # The fewest frames that give one output frame, and two.
    kernel, second = (int(np.searchsorted(outputs, n)) + 1 for n in (1, 2))
    stride = second - kernel
    if stride > 0 and second <= _MOST_FRAMES:
        of_convolution = (lengths - kernel) // stride + 1
        if np.array_equal(np.maximum(outputs, 0), np.maximum(of_convolution, 0)):
            return [kernel, stride]

    return [hashlib.sha256(outputs.astype(np.int64).tobytes()).hexdigest()[:16]]


def model_flops(
    config: Any,
    num_features: int,
    num_classes: int,
    batch: int,
    frames: int,
    *,
    training: bool,
) -> int | None:
    """Returns a padded batch's floating-point operations, without the optimizer's.

    None if the config can't state them.
    """
    if not hasattr(config, "flops"):
        return None

    per_utterance = config.flops(num_features, num_classes, frames, training=training)
    return None if per_utterance is None else batch * per_utterance


def estimated_step_bytes(
    config: RecogniserConfig,
    num_features: int,
    parameters: int,
    batch: int,
    frames: int,
) -> int | None:
    """Returns the estimated memory of training on such batches; None if unknown."""
    if not hasattr(config, "step_bytes"):
        return None

    return config.step_bytes(num_features, parameters, batch, frames)


def least_parameters(
    config: RecogniserConfig,
    num_features: int,
    num_classes: int,
) -> int | None:
    """Returns a lower bound on the number of weights; None if unknown."""
    if not hasattr(config, "least_parameters"):
        return None

    return config.least_parameters(num_features, num_classes)


def can_stream(config: RecogniserConfig) -> bool:
    """Whether logits can be computed while speech arrives; by default not."""
    return bool(getattr(config, "can_stream", False))


def keeps_momentum(config: RecogniserConfig) -> bool | None:
    """Whether batch normalisations keep their initial momentum.

    None if the config doesn't say: then those with their class's default momentum
    follow the training's window.
    """
    return getattr(config, "keeps_momentum", None)


def portable(config: RecogniserConfig) -> RecogniserConfig:
    """Returns the config of the same model for exporters; by default itself."""
    return config.portable() if hasattr(config, "portable") else config


def kernels(model: Any) -> set[str]:
    """Returns the names of the implementations that computed a model's recurrence."""
    return set(getattr(model, "kernels", ()))
