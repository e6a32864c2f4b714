"""From gin files to configs: the only place where gin's global state is touched."""

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import gin
import keras

from tfasr.bench.workload import BenchConfig, find_workload
from tfasr.data.shards import ShardConfig
from tfasr.errors import UsageError
from tfasr.presets_folder import Line, find_preset, read_preset
from tfasr.training.experiment import Experiment, TrainingConfig

_LINE = re.compile(r"line (\d+)")


@dataclass(frozen=True)
class LoadedConfig:
    """What gin files said.

    Attributes:
        experiment: the configs of training and evaluation.
        shards: how ``tfasr prepare`` packs.
        given: the files' text, includes in place, and the extra bindings.
        operative: every value in use, as gin.
    """

    experiment: Experiment
    shards: ShardConfig
    given: str
    operative: str


def _register_optimizers() -> None:
    """Makes every Keras optimizer and schedule a gin name with Keras's own parameters.

    gin cannot subclass Keras classes, so functions with their signatures stand for them.
    """

    def make(cls: type) -> Callable[..., Any]:
        def build(*args, **kwargs):
            return cls(*args, **kwargs)

        build.__name__ = build.__qualname__ = cls.__name__
        build.__signature__ = inspect.Signature(
            [p for p in inspect.signature(cls).parameters.values() if p.kind != p.VAR_KEYWORD]
        )
        return build

    schedule = keras.optimizers.schedules.LearningRateSchedule
    for module in (keras.optimizers, keras.optimizers.schedules):
        for name, cls in sorted(vars(module).items()):
            base = schedule if module is keras.optimizers.schedules else keras.optimizers.Optimizer
            if inspect.isclass(cls) and issubclass(cls, base) and cls is not base:
                gin.external_configurable(make(cls), name=name, module="keras.optimizers")


_register_optimizers()


def load_config(gin_file: str | None = None, bindings: Sequence[str] = ()) -> LoadedConfig:
    """Reads an experiment from a gin file and extra bindings.

    Args:
        gin_file: a path or the name of a preset; None for the defaults.
        bindings: lines of gin that override the file's, such as "TrainingConfig.seed = 2".

    Raises:
        UsageError: for a missing file, an unknown name, a wrong type or value, or a binding that
            nothing uses. It names file and line.
    """
    lines = read_preset(find_preset(gin_file)) if gin_file else []
    lines += [Line("--gin_binding", n, text) for n, text in enumerate(bindings, start=1)]
    given = "\n".join(line.text for line in lines) + "\n"
    gin.clear_config()
    try:
        _parse(given, lines)
        configs = {f.name: _make(f.default_factory, lines) for f in fields(Experiment)}
        shards = _make(ShardConfig, lines)
        configs["training"] = _with_own_optimizer(configs["training"], lines)
        _refuse_unused(lines)
        operative = gin.operative_config_str()
    finally:
        gin.clear_config()
    return LoadedConfig(Experiment(**configs), shards, given, operative)


@dataclass(frozen=True)
class LoadedBench:
    """What a preset of ``tfasr bench`` said.

    Attributes:
        bench: names the workload.
        configs: what the workload is configured by, in its own order.
    """

    bench: BenchConfig
    configs: list[Any]


def load_bench(gin_file: str, bindings: Sequence[str] = ()) -> LoadedBench:
    """Reads a workload's preset and extra bindings, as `load_config` reads an experiment.

    Raises:
        UsageError: see `load_config`; also if there is no such workload.
    """
    lines = read_preset(find_preset(gin_file))
    lines += [Line("--gin_binding", n, text) for n, text in enumerate(bindings, start=1)]
    text = "\n".join(line.text for line in lines) + "\n"
    gin.clear_config()
    try:
        # Which other names gin must know depends on the workload, whose modules come with it.
        _parse(text, lines, skip_unknown=True)
        workload = find_workload(_make(BenchConfig, lines).workload)
        classes = workload.config_classes()
        gin.clear_config()
        _parse(text, lines)
        bench, *configs = [_make(cls, lines) for cls in (BenchConfig, *classes)]
        _refuse_unused(lines)
    finally:
        gin.clear_config()
    return LoadedBench(bench, configs)


def _parse(text: str, lines: list[Line], skip_unknown: bool = False) -> None:
    try:
        gin.parse_config(text, skip_unknown=skip_unknown)
    except (ValueError, SyntaxError, AttributeError) as error:
        message = str(error).split("\n")[0]
        number = getattr(error, "lineno", None)
        found = _LINE.findall(str(error))
        number = int(found[-1]) if found else number
        where = _place(lines[number - 1]) if number and number <= len(lines) else "the gin file"
        raise UsageError(f"{where}: {message}. Names are those of tfasr's configs.") from error


def _make(cls: type, lines: list[Line]) -> Any:
    """Makes a config with gin's bindings, or says which line it dislikes."""
    try:
        return gin.get_configurable(cls)()
    except (TypeError, ValueError) as error:
        message = str(error).split("\n")[0]
        named = re.match(rf"{cls.__name__}\.(\w+)", message)
        raise UsageError(f"{_binding_place(lines, cls.__name__, named)}{message}") from error


def _with_own_optimizer(training: TrainingConfig, lines: list[Line]) -> TrainingConfig:
    """Replaces gin's reference by a function that no longer depends on gin's state."""
    try:
        optimizer = training.optimizer()
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise TypeError(f"it made {optimizer!r}, no Keras optimizer")
    except (TypeError, ValueError) as error:
        message = str(error).split("\n")[0]
        place = _binding_place(lines, "TrainingConfig", re.match(r".*?(optimizer)", "optimizer"))
        raise UsageError(
            f"{place}TrainingConfig.optimizer must make a Keras optimizer, such as @Adadelta. "
            f"Received: {message}"
        ) from error
    config = keras.optimizers.serialize(optimizer)
    own = functools.partial(keras.optimizers.deserialize, config)
    values = {f.name: getattr(training, f.name) for f in fields(training)}
    return TrainingConfig(**{**values, "optimizer": own})


def _refuse_unused(lines: list[Line]) -> None:
    given, used = gin.config._CONFIG, gin.config._OPERATIVE_CONFIG  # noqa: SLF001 - no public way
    for (scope, selector), parameters in given.items():
        known = used.get((scope, selector), {})
        for parameter in parameters:
            if parameter not in known and not selector.startswith("gin."):
                name = selector.split(".")[-1]
                place = _binding_place(lines, name, re.match(r"(\w+)", parameter))
                raise UsageError(
                    f"{place}{name}.{parameter} is bound but nothing uses it. Remove the line, or "
                    f"make the experiment use {name}."
                )


def _binding_place(lines: list[Line], class_name: str, parameter: re.Match | None) -> str:
    """Returns "file:line: " of a name's last binding, or nothing if it cannot be told."""
    if not parameter:
        return ""
    pattern = re.compile(rf"^\s*([\w./]*[./])?{class_name}\.{parameter[1]}\s*=")
    places = [_place(line) for line in lines if pattern.match(line.text)]
    return f"{places[-1]}: " if places else ""


def _place(line: Line) -> str:
    return f"{line.path}:{line.number}"
