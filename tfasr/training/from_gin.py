"""Reads an experiment from gin files, and makes optimizers known to gin.

`load_config` turns files, presets and extra bindings into a `LoadedConfig`: an
`Experiment` and what only ``tfasr prepare`` needs. Everything that can be bound is
known to gin under its own name: the configs through `tfasr.kit.gin`, Keras's optimizers
and schedules, `fastest_precision`, and whatever users register in `OPTIMIZERS`.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import gin
import keras
from keras import optimizers

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

# Below this speedup, casts between the two types take most of what faster products
# save.
_WORTH_SPEEDUP = 1.2


@gin.register
def fastest_precision() -> str:
    """Returns the precision in which recurrent layers train fastest on this machine.

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

    # TensorFlow is needed anyway for training. Listing devices initialises none of
    # them.
    import tensorflow as tf

    return "float32" if tf.config.list_physical_devices("GPU") else "mixed_bfloat16"


# The names of users' optimizers that gin knows. It accepts each name only once.
_known_to_gin: set[str] = set()


def register_in_gin(name: str, make: Callable[..., Any], module: str) -> None:
    """Makes a class or function known to gin by a name, with its own parameters.

    gin would subclass a class, which Keras's optimizers do not allow, so it gets a
    function.

    Args:
        name: by which gin files bind it, as in ``@Adam``.
        make: the class or function.
        module: its prefix in gin, needed if another module has the same name.
    """

    def build(*args, **kwargs):
        return make(*args, **kwargs)

    build.__name__ = name
    build.__qualname__ = name
    # gin rejects bindings of parameters that the signature lacks, so ``**kwargs`` must
    # not stand for all.
    parameters = inspect.signature(make).parameters.values()
    build.__signature__ = inspect.Signature(
        [
            parameter
            for parameter in parameters
            if parameter.kind != parameter.VAR_KEYWORD
        ]
    )
    gin.external_configurable(build, name=name, module=module)


def _check(make: object) -> None:
    """Raises TypeError for what can't be an optimizer."""
    if callable(make):
        return

    raise TypeError(
        "it must be a class of keras.optimizers.Optimizer or of a LearningRateSchedule, "
        f"or a function that returns such an object. Received: {make!r}."
    )


def _make_known(name: str, make: Callable[..., Any]) -> None:
    """Makes a user's optimizer known to Keras and gin, by the name it is registered with."""
    if inspect.isclass(make):
        # Without this, Keras could not find the class when it reads a saved config.
        keras.saving.register_keras_serializable("own", name)(make)

    if name in _known_to_gin:
        # A notebook's cell registers the name again each time it is run.
        return

    _known_to_gin.add(name)

    # Looked up when called, so that the newest registration counts.
    @functools.wraps(make)
    def latest(*args, **kwargs):
        return OPTIMIZERS[name](*args, **kwargs)

    register_in_gin(name, latest, "own")


OPTIMIZERS: Registry[Callable[..., Any]] = Registry(
    "optimizer", check=_check, then=_make_known
)
"""Optimizers and schedules in addition to Keras's, by their gin names.

With ``@OPTIMIZERS.register("Sgd2")`` above a class, ``TrainingConfig.optimizer =
@Sgd2`` trains with it, and ``Sgd2.learning_rate = 0.1`` binds one of its parameters.
"""


@dataclass(frozen=True)
class LoadedConfig:
    """The configuration that gin files describe."""

    experiment: Experiment  # the configs of training and evaluation
    shards: ShardConfig  # how ``tfasr prepare`` packs
    given: str  # the files' text, includes in place, and the extra bindings
    operative: str  # every value in use, as gin
    hardware: HardwareConfig | None = None  # the machine, if a preset describes it
    # The noisy copies that ``tfasr prepare`` makes, if a binding describes them.
    noise: NoiseConfig | None = None
    # Which characters ``tfasr prepare`` chooses.
    alphabet: AlphabetConfig = field(default_factory=AlphabetConfig)


def _register_all_of(module: Any, base: type) -> None:
    """Makes a module's subclasses of a class known to gin, by their names."""
    for name, cls in sorted(vars(module).items()):
        if inspect.isclass(cls) and issubclass(cls, base) and cls is not base:
            register_in_gin(name, cls, "keras.optimizers")


_register_all_of(optimizers, optimizers.Optimizer)
_register_all_of(optimizers.schedules, optimizers.schedules.LearningRateSchedule)


def load_config(
    gin_file: str | Sequence[str] | None = None, bindings: Sequence[str] = ()
) -> LoadedConfig:
    """Reads an experiment from gin files and extra bindings.

    Args:
        gin_file: a path or the name of a preset, or several, such as an experiment's
            and a machine's; None for the defaults.
        bindings: lines of gin that override the file's, such as
            "TrainingConfig.seed = 2".

    Raises:
        UsageError: for a missing file, an unknown name, a wrong type or value, or a
            binding that nothing uses. The message names file and line.

    Example::

        loaded = load_config("paper_sys1.gin", ["TrainingConfig.seed = 2"])
        train(loaded.experiment, shard_dir="shards", run_dir="run")
    """
    if isinstance(gin_file, str):
        files = [gin_file]
    else:
        files = gin_file or []

    know_models()

    def build(lines: GinText) -> dict[str, Any]:
        """Makes the configs, while gin has the bindings."""
        classes = {group.name: group.default_factory for group in fields(Experiment)}
        classes["model"] = model_class(lines)
        configs = {name: make(cls, lines) for name, cls in classes.items()}
        configs["training"] = _with_own_optimizer(configs["training"], lines)
        made = {"experiment": Experiment(**configs), "shards": make(ShardConfig, lines)}

        # Made only if they are bound, so that other runs' operative configs don't
        # contain them.
        optional = {
            "hardware": HardwareConfig,
            "noise": NoiseConfig,
            "alphabet": AlphabetConfig,
        }
        bound = bound_names(lines)

        for name, cls in optional.items():
            if cls.__name__ in bound:
                made[name] = make(cls, lines)

        return made

    filled = fill(read_gin(files, bindings), build)
    return LoadedConfig(
        given=filled.given, operative=filled.operative, **filled.configs
    )


def trains_in_rounds(gin_file: Sequence[str] | None, bindings: Sequence[str]) -> bool:
    """Whether workers take steps by themselves, see `TrainingConfig.in_rounds`.

    Read without making the optimizer, which would start TensorFlow: workers must join
    before that.

    Args:
        gin_file: files and presets, as for `load_config`.
        bindings: lines of gin.
    """
    return peek(TrainingConfig, read_gin(gin_file or [], bindings)).in_rounds


def _with_own_optimizer(training: TrainingConfig, lines: GinText) -> TrainingConfig:
    """Replaces gin's reference to the optimizer with a function independent of gin.

    Raises UsageError if it doesn't make a Keras optimizer.
    """
    try:
        optimizer = training.optimizer()
        if not isinstance(optimizer, optimizers.Optimizer):
            raise TypeError(f"it made {optimizer!r}, which isn't a Keras optimizer")
    except (TypeError, ValueError) as error:
        message = str(error).split("\n")[0]
        place = binding_place(lines, "TrainingConfig", "optimizer")
        raise UsageError(
            f"{place}TrainingConfig.optimizer must make a Keras optimizer, such as @Adadelta. "
            f"Received: {message}"
        ) from error

    config = optimizers.serialize(optimizer)
    return replace(
        training, optimizer=functools.partial(optimizers.deserialize, config)
    )
