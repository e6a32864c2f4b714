"""From gin files to a workload of `tfasr bench`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gin

from tfasr.bench.workload import BenchConfig, find_workload
from tfasr.gin_files.bindings import make, parse, refuse_unused
from tfasr.gin_files.preset import Line, find_preset, read_preset


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
        parse(text, lines, skip_unknown=True)
        workload = find_workload(make(BenchConfig, lines).workload)
        classes = workload.config_classes()
        gin.clear_config()
        parse(text, lines)
        bench, *configs = [make(cls, lines) for cls in (BenchConfig, *classes)]
        refuse_unused(lines)
    finally:
        gin.clear_config()
    return LoadedBench(bench, configs)
