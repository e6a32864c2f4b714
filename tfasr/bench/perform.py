"""Runs a workload, in this process or in one with the Keras backend that it needs.

``tfasr bench`` calls `bench_preset` for workloads of presets and `run_workload` for
those with flags. Each partial result is written at once, so that a failure loses no
measurement.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.bench.devices import describe_backend, installed_backends
from tfasr.bench.workload import (
    BACKENDS,
    BenchConfig,
    Context,
    Result,
    Workload,
    find_workload,
)
from tfasr.display.table import JSON, WRITERS, Table, check_format, to_json_text
from tfasr.errors import UsageError, wrong_values_are_wrong_use
from tfasr.kit.config import to_json
from tfasr.kit.files import (
    check_owned,
    check_replaceable,
    object_or_empty,
    whole_file,
    write_whole,
)
from tfasr.kit.gin import GinText, fill, make, peek, read_gin
from tfasr.kit.process import stream
from tfasr.models.build import know_models, model_class
from tfasr.models.model import ModelConfig
from tfasr.telemetry.system import describe_system


@dataclass(frozen=True)
class Measured:
    """A result with all that is written: tables for readers, and ``results.json``."""

    tables: list[Table]
    values: dict[str, Any]

    def to_format(self, output_format: str) -> str:
        """Returns the tables in a format of ``--format``, or ``results.json``."""
        if output_format == JSON:
            return to_json_text(self.values)

        return WRITERS[output_format](self.tables)

    def write(self, out: Path) -> None:
        """Writes ``results.json`` and ``table.md`` to a folder.

        Or the JSON alone, if ``out`` ends in ``.json``.
        """
        if is_file(out):
            write_whole(out, self.to_format(JSON))
            return

        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / "results.json", self.to_format(JSON))
        write_whole(out / "table.md", self.to_format("markdown"))


def is_file(out: Path) -> bool:
    """Whether ``--out`` names a file instead of a folder."""
    return out.suffix == ".json"


def check_results_folder(out: Path) -> None:
    """Raises UsageError if results would overwrite a device or files that aren't results."""
    if is_file(out):
        check_replaceable(out)
    else:
        content = object_or_empty(out / "results.json")
        owned = bool({"configs", "predicted"} & content.keys())
        check_owned(
            out,
            "--out",
            "results of tfasr",
            ("results.json", "table.md"),
            owned=owned,
        )


def draw(figures: Mapping[str, Callable[[], Any]], folder: Path) -> None:
    """Writes each chart as PNG and SVG, and each of Matplotlib's figures as a PNG."""
    # Imported late, as drawing libraries load slowly and text needs none.
    from tfasr.display.chart import Chart
    from tfasr.display.vega import write_chart

    folder.mkdir(parents=True, exist_ok=True)
    for name, figure_of in figures.items():
        figure = figure_of()
        if isinstance(figure, Chart):
            write_chart(dataclasses.replace(figure, name=name), folder)
        else:
            with whole_file(folder / f"{name}.png") as file:
                figure.savefig(file, format="png", dpi=160, facecolor="white")


@dataclass(frozen=True)
class LoadedBench:
    """A preset's configs: of the bench, and one of each of the workload's types."""

    bench: BenchConfig
    configs: list[Any]


def load_bench(gin_file: str, bindings: Sequence[str] = ()) -> LoadedBench:
    """Reads a workload's preset and extra bindings; UsageError if one is invalid."""
    lines = read_gin([gin_file], bindings)
    # Finding the workload imports its modules, which define the names that gin must
    # know.
    name = peek(BenchConfig, lines).workload
    workload = find_workload(name)

    if workload.by_flags:
        raise UsageError(
            f"{gin_file} must name a workload that takes presets. Received: {name!r}. Run it with "
            f"flags: tfasr bench {name} --help."
        )

    classes = (BenchConfig, *workload.config_types)
    know_models()

    def build(lines: GinText) -> list[Any]:
        chosen = (model_class(lines) if cls is ModelConfig else cls for cls in classes)
        return [make(cls, lines) for cls in chosen]

    # In the order of the classes.
    bench, *configs = fill(lines, build).configs

    return LoadedBench(bench, configs)


def bench_preset(
    gin_file: str,
    *,
    bindings: Sequence[str] = (),
    backend: str | None = None,
    fraction: float | None = None,
    out: str | Path | None = None,
    output_format: str = "table",
    **places: str | Path | None,
) -> str:
    """Runs the workload that a preset names and returns its tables as text.

    Args:
        gin_file: of the preset.
        bindings: gin lines that override it.
        backend: Keras's; None for TensorFlow.
        fraction: of the workload's data; None for the preset's.
        out: a folder for JSON, tables and figures, or a ``.json`` file for the JSON
            alone; None to write nothing.
        output_format: of the returned text.
        **places: further fields of `Context`.

    Raises:
        UsageError: if the preset, a value or the backend is invalid.
        RunError: if the workload fails; earlier measurements are in ``out``.
        OSError: if a file can't be written.
    """
    loaded = load_bench(gin_file, bindings)
    name = loaded.bench.workload
    bench = loaded.bench

    if fraction is not None:
        with wrong_values_are_wrong_use():
            bench = dataclasses.replace(bench, fraction=fraction)

    _check_backend(name, find_workload(name), asked=backend)
    # Absolute, because another process may have another working directory.
    for field, value in places.items():
        if value is not None and field != "split":
            places[field] = Path(value).resolve()

    context = Context(backend=backend or BACKENDS[0], fraction=bench.fraction, **places)

    return run_workload(
        name,
        loaded.configs,
        context,
        out=out,
        output_format=output_format,
    )


def run_workload(
    name: str,
    configs: Sequence[Any],
    context: Context,
    *,
    out: str | Path | None = None,
    output_format: str = "table",
) -> str:
    """Runs a workload and returns its tables as text.

    ``out`` gets every partial result; the other arguments are those of `bench_preset`.
    """
    check_format(output_format)
    if out is not None:
        out = Path(out).resolve()
        # Fails before the measurements if results can't be written there.
        check_results_folder(out)
        (out.parent if is_file(out) else out).mkdir(parents=True, exist_ok=True)
        if not is_file(out):
            context = dataclasses.replace(context, out=out)

    configs = list(configs)
    if find_workload(name).backends:
        results = stream(perform, name, configs, context, backend=context.backend)
    else:
        results = perform(name, configs, context)

    for measured in results:
        if out is not None:
            measured.write(out)

    return measured.to_format(output_format)


def perform(name: str, configs: list[Any], context: Context) -> Iterator[Measured]:
    """Runs a workload in this process and yields partial results, then the complete one."""
    workload = find_workload(name)
    results = workload.run(*configs, context)

    for result in [results] if isinstance(results, Result) else results:
        if context.out is not None:
            draw(result.figures, context.out)

        values = {
            "workload": name,
            "system": describe_system(),
            # Workloads that compare backends list them in their own values.
            "backend": describe_backend() if workload.backends else None,
            "fraction": context.fraction,
            "configs": {type(config).__name__: to_json(config) for config in configs},
            "warmup_steps": result.warmup_steps,
        }
        values |= result.values if workload.by_flags else {"results": result.values}
        yield Measured(list(result.tables), values)


def _check_backend(name: str, workload: Workload, *, asked: str | None) -> None:
    """Raises UsageError if a workload doesn't run on a backend, or it isn't installed."""
    if asked is not None and not workload.backends:
        raise UsageError(
            f"--backend must be left out for the workload {name!r}, which starts "
            f"the backends that its preset names. Received: {asked!r}."
        )

    backend = asked or BACKENDS[0]
    # A workload that starts backends itself needs none here.
    possible = workload.backends or BACKENDS[:1]
    if backend not in possible:
        raise UsageError(
            f"The backend of the workload {name!r} must be one of {', '.join(possible)}. "
            f"Received: {backend!r}."
        )

    installed = installed_backends()
    if backend not in installed:
        raise UsageError(
            f"--backend must be one that is installed: {', '.join(installed)}. "
            f"Received: {backend!r}; install it by pip install {backend}."
        )
