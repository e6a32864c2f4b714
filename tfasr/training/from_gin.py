"""Reads an experiment from gin files."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import gin
import keras

from tfasr.data.alphabets import AlphabetConfig
from tfasr.data.augmentation import NoiseConfig
from tfasr.data.shards import ShardConfig
from tfasr.errors import UsageError
from tfasr.kit.gin import (
    GinText,
    binding_place,
    bound_names,
    fill,
    make,
    peek,
    read_gin,
)
from tfasr.kit.registry import Registry
from tfasr.models.build import know_models, model_class
from tfasr.telemetry.compiled import bfloat16_speedup
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.tta.costs import HardwareConfig

# Below this, casts between the two types take most of what faster products save.
_WORTH_SPEEDUP = 1.2


@gin.register
def fastest_precision() -> str:
    """The precision in which tfasr's recurrent layers train fastest on this machine.

    "mixed_bfloat16" if the processor multiplies bfloat16 itself (AMX, or AVX-512 with
    BF16) and a recurrence is at least `_WORTH_SPEEDUP` times as fast in it as in
    float32, which is measured once per process in a tenth of a second. "float32"
    otherwise, and on GPUs, where it has not been measured. A run keeps the precision it
    began with, which ``experiment.json`` holds; its ledger's ``instruction_set`` has
    the measured ``bfloat16_speedup``.

    Source: docs/recipes.md, "bfloat16's error rate".
    """
    speedup = bfloat16_speedup()
    if speedup is None or speedup < _WORTH_SPEEDUP:
        return "float32"

    import tensorflow as tf  # needed anyway; listing devices initialises none

    return "float32" if tf.config.list_physical_devices("GPU") else "mixed_bfloat16"


_known_to_gin: set[str] = set()


def register_in_gin(name: str, make: Callable[..., Any], module: str) -> None:
    """Makes a class or function known to gin by a name, with its own parameters.

    gin would subclass a class, which Keras's optimizers do not allow, so it gets a
    function.
    """

    def build(*args, **kwargs):
        return make(*args, **kwargs)

    build.__name__ = build.__qualname__ = name
    build.__signature__ = inspect.Signature(
        [
            p
            for p in inspect.signature(make).parameters.values()
            if p.kind != p.VAR_KEYWORD
        ]
    )
    gin.external_configurable(build, name=name, module=module)


def _check(make: object) -> None:
    if not callable(make):
        raise TypeError(
            "it must be a class of keras.optimizers.Optimizer or of a LearningRateSchedule, or a "
            f"function that returns such an object. Received: {make!r}."
        )


def _make_known(name: str, make: Callable[..., Any]) -> None:
    if inspect.isclass(make):
        # Without this, Keras could not find the class when it reads a saved config.
        keras.saving.register_keras_serializable("own", name)(make)

    if name in _known_to_gin:  # a cell of a notebook that is run again
        return

    _known_to_gin.add(name)
    latest = functools.wraps(make)(
        lambda *args, **kwargs: OPTIMIZERS[name](*args, **kwargs)
    )
    register_in_gin(name, latest, "own")


OPTIMIZERS: Registry[Callable[..., Any]] = Registry(
    "optimizer", check=_check, then=_make_known
)
"""Optimizers and schedules in addition to Keras's, by their gin names.

With ``@OPTIMIZERS.register("Sgd2")`` above a class, ``TrainingConfig.optimizer = @Sgd2`` trains
with it, and ``Sgd2.learning_rate = 0.1`` binds one of its parameters.
"""


@dataclass(frozen=True)
class LoadedConfig:
    """The configuration that gin files describe."""

    experiment: Experiment  # the configs of training and evaluation
    shards: ShardConfig  # how ``tfasr prepare`` packs
    given: str  # the files' text, includes in place, and the extra bindings
    operative: str  # every value in use, as gin
    hardware: HardwareConfig | None = None  # the machine, if a preset describes it
    # the noisy copies that ``tfasr prepare`` makes, if a binding describes them
    noise: NoiseConfig | None = None
    # which characters ``tfasr prepare`` chooses
    alphabet: AlphabetConfig = field(default_factory=AlphabetConfig)


for _module, _base in (
    (keras.optimizers, keras.optimizers.Optimizer),
    (keras.optimizers.schedules, keras.optimizers.schedules.LearningRateSchedule),
):
    for _name, _cls in sorted(vars(_module).items()):
        if inspect.isclass(_cls) and issubclass(_cls, _base) and _cls is not _base:
            register_in_gin(_name, _cls, "keras.optimizers")


def load_config(
    gin_file: str | Sequence[str] | None = None, bindings: Sequence[str] = ()
) -> LoadedConfig:
    """Reads an experiment from gin files and extra bindings.

    Args:
        gin_file: a path or the name of a preset, or several, such as an experiment's
            and a machine's; None for the defaults.
        bindings: lines of gin that override the file's, such as "TrainingConfig.seed =
            2".

    Raises:
        UsageError: for a missing file, an unknown name, a wrong type or value, or a
            binding that nothing uses. The message names file and line.
    """
    files = [gin_file] if isinstance(gin_file, str) else gin_file or []
    know_models()

    def build(lines: GinText) -> tuple[Any, ...]:
        classes = {f.name: f.default_factory for f in fields(Experiment)}
        classes["model"] = model_class(lines)
        configs = {name: make(cls, lines) for name, cls in classes.items()}
        configs["training"] = _with_own_optimizer(configs["training"], lines)
        shards = make(ShardConfig, lines)
        # Made only if they are bound, so that other runs' operative configs don't
        # contain them.
        bound = bound_names(lines)
        optional = (HardwareConfig, NoiseConfig, AlphabetConfig)
        hardware, noise, alphabet = (
            make(cls, lines) if cls.__name__ in bound else None for cls in optional
        )
        return (
            Experiment(**configs),
            shards,
            hardware,
            noise,
            alphabet or AlphabetConfig(),
        )

    filled = fill(read_gin(files, bindings), build)
    experiment, shards, *others = filled.configs
    return LoadedConfig(experiment, shards, filled.given, filled.operative, *others)


def trains_in_rounds(gin_file: Sequence[str] | None, bindings: Sequence[str]) -> bool:
    """Reads `TrainingConfig.in_rounds` without making the optimizer, which starts
    TensorFlow.
    """
    return peek(TrainingConfig, read_gin(gin_file or [], bindings)).in_rounds


def _with_own_optimizer(training: TrainingConfig, lines: GinText) -> TrainingConfig:
    """Replaces gin's reference to the optimizer with a function that is independent of gin."""
    try:
        optimizer = training.optimizer()
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise TypeError(f"it made {optimizer!r}, which isn't a Keras optimizer")
    except (TypeError, ValueError) as error:
        message = str(error).split("\n")[0]
        place = binding_place(lines, "TrainingConfig", "optimizer")
        raise UsageError(
            f"{place}TrainingConfig.optimizer must make a Keras optimizer, such as @Adadelta. "
            f"Received: {message}"
        ) from error

    config = keras.optimizers.serialize(optimizer)
    return replace(
        training, optimizer=functools.partial(keras.optimizers.deserialize, config)
    )
