"""From gin files to an experiment."""

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, fields

import keras

from tfasr.data.shards import ShardConfig
from tfasr.errors import UsageError
from tfasr.gin_files.bindings import binding_place, bound_names, fill, make
from tfasr.gin_files.preset import GinText, read_gin
from tfasr.models.from_gin import know_models, model_class
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.fastest_precision import fastest_precision  # noqa: F401 - known to gin by it
from tfasr.training.optimizer.registry import register_in_gin
from tfasr.tta.costs.hardware import HardwareConfig


@dataclass(frozen=True)
class LoadedConfig:
    """What gin files said.

    Attributes:
        experiment: the configs of training and evaluation.
        shards: how ``tfasr prepare`` packs.
        given: the files' text, includes in place, and the extra bindings.
        operative: every value in use, as gin.
        hardware: the machine, where a preset describes it.
    """

    experiment: Experiment
    shards: ShardConfig
    given: str
    operative: str
    hardware: HardwareConfig | None = None


def _register_optimizers() -> None:
    """Makes every Keras optimizer and schedule a gin name with Keras's own parameters."""
    schedule = keras.optimizers.schedules.LearningRateSchedule
    for module in (keras.optimizers, keras.optimizers.schedules):
        for name, cls in sorted(vars(module).items()):
            base = schedule if module is keras.optimizers.schedules else keras.optimizers.Optimizer
            if inspect.isclass(cls) and issubclass(cls, base) and cls is not base:
                register_in_gin(name, cls, "keras.optimizers")


_register_optimizers()


def load_config(
    gin_file: str | Sequence[str] | None = None, bindings: Sequence[str] = ()
) -> LoadedConfig:
    """Reads an experiment from gin files and extra bindings.

    Args:
        gin_file: a path or the name of a preset, or several, such as an experiment's and a
            machine's; None for the defaults.
        bindings: lines of gin that override the file's, such as "TrainingConfig.seed = 2".

    Raises:
        UsageError: for a missing file, an unknown name, a wrong type or value, or a binding that
            nothing uses. It names file and line.
    """
    files = [gin_file] if isinstance(gin_file, str) else gin_file or []
    know_models()

    def build(lines: GinText) -> tuple[Experiment, ShardConfig, HardwareConfig | None]:
        classes = {f.name: f.default_factory for f in fields(Experiment)}
        classes["model"] = model_class(lines)
        configs = {name: make(cls, lines) for name, cls in classes.items()}
        configs["training"] = _with_own_optimizer(configs["training"], lines)
        shards = make(ShardConfig, lines)
        hardware = make(HardwareConfig, lines) if "HardwareConfig" in bound_names(lines) else None
        return Experiment(**configs), shards, hardware

    filled = fill(read_gin(files, bindings), build)
    experiment, shards, hardware = filled.configs
    return LoadedConfig(experiment, shards, filled.given, filled.operative, hardware)


def _with_own_optimizer(training: TrainingConfig, lines: GinText) -> TrainingConfig:
    """Replaces gin's reference by a function that no longer depends on gin's state."""
    try:
        optimizer = training.optimizer()
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise TypeError(f"it made {optimizer!r}, no Keras optimizer")
    except (TypeError, ValueError) as error:
        message = str(error).split("\n")[0]
        place = binding_place(lines, "TrainingConfig", "optimizer")
        raise UsageError(
            f"{place}TrainingConfig.optimizer must make a Keras optimizer, such as @Adadelta. "
            f"Received: {message}"
        ) from error
    config = keras.optimizers.serialize(optimizer)
    own = functools.partial(keras.optimizers.deserialize, config)
    values = {f.name: getattr(training, f.name) for f in fields(training)}
    return TrainingConfig(**{**values, "optimizer": own})
