"""From gin files to a workload of `tfasr bench`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfasr.bench.workload import BenchConfig, find_workload
from tfasr.gin_files.bindings import fill, make, peek
from tfasr.gin_files.preset import GinText, read_gin
from tfasr.models.from_gin import know_models, model_class
from tfasr.models.recogniser import ModelConfig


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
    lines = read_gin([gin_file], bindings)
    # Which other names gin must know depends on the workload, whose modules come with it.
    workload = find_workload(peek(BenchConfig, lines).workload)
    classes = (BenchConfig, *workload.config_types)
    know_models()

    def build(lines: GinText) -> list[Any]:
        chosen = (model_class(lines) if cls is ModelConfig else cls for cls in classes)
        return [make(cls, lines) for cls in chosen]

    bench, *configs = fill(lines, build).configs
    return LoadedBench(bench, configs)
