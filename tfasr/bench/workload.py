"""The protocol of ``tfasr bench``: a workload, its `Context` and `Result`.

Each workload is a file or two in this package, or a plug-in; `WORKLOADS` lists them.
`tfasr.bench.perform` runs them. The first line of a workload's module is its
description in ``tfasr bench --help``.
"""

import ast
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from tfasr.display.table import Column, Table
from tfasr.errors import UsageError
from tfasr.kit.config import config_class, require
from tfasr.kit.registry import Registry

# Keras's; the first is the default.
BACKENDS = ("tensorflow", "jax", "torch")


@config_class
class BenchConfig:
    """Names the workload that a preset runs, and how to run it."""

    # A name of `WORKLOADS`.
    workload: str = ""
    # share of the workload's data to run, with unchanged proportions
    fraction: float = 1.0

    def check(self) -> None:
        # `find_workload` checks the name.
        require(0 < self.fraction <= 1, self, "fraction", "above 0 and at most 1")


@dataclass(frozen=True)
class Context:
    """A workload's input in addition to its configs; each workload uses what it needs.

    Attributes:
        backend: Keras's backend, already chosen in this process.
        fraction: share of the data to run.
        corpus_dir: recordings to use instead of synthetic data.
        out: folder for further files, such as a trained run; the caller writes the
            `Result`.
        run_dir: a trained run to evaluate.
        split: prepared data on which the run is evaluated.
        shard_dir: folder of that split; None for the run's own shards.
        checkpoint: of the run: "best" (by validation CER), "last", or a file.
        log_probs: log-probabilities to decode.
        save_log_probs: where to write the run's log-probabilities.
        lexicon: one word per line; None for the run's own lexicon.
    """

    backend: str = "tensorflow"
    fraction: float = 1.0
    corpus_dir: Path | None = None
    out: Path | None = None
    run_dir: Path | None = None
    split: str = "validation"
    shard_dir: Path | None = None
    checkpoint: str = "best"
    log_probs: Path | None = None
    save_log_probs: Path | None = None
    lexicon: Path | None = None


@dataclass(frozen=True)
class Result:
    """What a workload has measured so far.

    Attributes:
        tables: for readers.
        values: for programs, as JSON values; None for anything not measurable.
        warmup_steps: run first, and left out of all results.
        figures: by file name without suffix, each makes a `tfasr.display.chart.Chart`
            or a figure of Matplotlib; drawn only with --out.
    """

    tables: Sequence[Table]
    values: dict[str, Any]
    warmup_steps: int
    figures: dict[str, Callable[[], Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """Something that ``tfasr bench`` measures.

    Attributes:
        run: called with one config of each of ``config_types``, in that order, and the
            `Context`. It returns a `Result`, or yields ever larger ones, so a failure
            loses no measurement.
        config_types: config classes that its presets may bind. `ModelConfig` stands for
            the config of the model named in ``ModelConfig.name``.
        backends: Keras backends that it supports, each in a separate process. Empty if
            it runs in this process and starts others itself.
        by_flags: whether it is a subcommand of ``tfasr bench`` with flags, instead of
            presets. Its values are at the top level of ``results.json``, next to the
            machine's description, instead of under "results".
    """

    run: Callable[..., Result | Iterator[Result]]
    config_types: tuple[type, ...]
    backends: tuple[str, ...] = BACKENDS
    by_flags: bool = False


def seconds_of(call: Callable[..., Any], *arguments: Any, **options: Any) -> float:
    """Returns the wall-clock seconds of a call."""
    began = time.perf_counter()
    call(*arguments, **options)

    return time.perf_counter() - began


def columns_of_tuples(
    headings: Sequence[str],
    text: Callable[[Any], str],
    plain: int = 1,
) -> list[Column]:
    """Returns columns for rows that are tuples.

    ``text`` formats all values but the first ``plain`` ones and strings.
    """

    def formatted(value: Any) -> str:
        return value if isinstance(value, str) else text(value)

    return [
        Column(heading, "", itemgetter(place), str if place < plain else formatted)
        for place, heading in enumerate(headings)
    ]


def require_tensorflow(what: str, context: Context) -> None:
    """Raises UsageError with the sentence ``what`` unless the backend is TensorFlow."""
    if context.backend != "tensorflow":
        raise UsageError(f"{what} Received: --backend {context.backend}. Leave it out.")


def _check(workload: Workload) -> None:
    """Raises TypeError or ValueError if an object can't be registered as a workload."""
    if not isinstance(workload, Workload) or not callable(workload.run):
        raise TypeError(
            f"it must be a tfasr.bench.workload.Workload. Received: {workload!r}"
        )

    if unknown := set(workload.backends) - set(BACKENDS):
        raise ValueError(
            f"its backends must be among {BACKENDS}. Received: {sorted(unknown)}"
        )


WORKLOADS: Registry[Workload] = Registry(
    "workload",
    {
        "backends": "tfasr.bench.backends:BACKENDS_WORKLOAD",
        "keyword_spotting": "tfasr.bench.keywords:KEYWORD_SPOTTING",
        "ds2": "tfasr.bench.ds2:DS2",
        "scaling": "tfasr.bench.scaling.workload:SCALING",
        "hardware_sweep": "tfasr.bench.sweep:HARDWARE_SWEEP",
        "roofline": "tfasr.bench.roofline.workload:ROOFLINE",
        "decoder": "tfasr.bench.decoder:DECODER",
        "step": "tfasr.bench.step:STEP",
    },
    check=_check,
)
"""Every workload by the name that ``BenchConfig.workload`` is bound to.

A module of your own adds one: ``WORKLOADS.register("sorting", Workload(run, (SortingConfig,)))``.
"""


def purpose(name: str) -> str:
    """Returns the first line of a workload's module docstring.

    The module isn't imported, which would load Keras.
    """
    module = WORKLOADS.entry(name).module
    if module in sys.modules:
        description = sys.modules[module].__doc__
    else:
        source = Path(importlib.util.find_spec(module).origin)
        description = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8")))

    return (description or "").strip().split("\n")[0].rstrip(".")


def find_workload(name: str) -> Workload:
    """Returns a workload; UsageError with the known names if the name is unknown."""
    if name not in WORKLOADS:
        raise UsageError(
            f"BenchConfig.workload must be one of {WORKLOADS.listed()}. Received: {name!r}. "
            "A preset of tfasr bench binds it: try --gin_file bench/ds2_small.gin."
        )

    return WORKLOADS[name]
