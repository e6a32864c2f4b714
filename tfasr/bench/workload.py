"""What a workload of ``tfasr bench`` is, what it is told, what it returns, and which there are."""

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tfasr.config import config_class, require
from tfasr.display.table import Table
from tfasr.errors import UsageError
from tfasr.registry import Registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BACKENDS = ("tensorflow", "jax", "torch")


@config_class
class BenchConfig:
    """Which workload a preset describes, and how it is run.

    Attributes:
        workload: a name of `WORKLOADS`.
        backend: Keras's backend.
        fraction: share of the workload's data that is run; its distribution is kept.
    """

    workload: str = ""
    backend: Literal["tensorflow", "jax", "torch"] = "tensorflow"
    fraction: float = 1.0

    def check(self) -> None:
        """Raises ValueError for a fraction of nothing; the name is checked by `find_workload`."""
        require(0 < self.fraction <= 1, self, "fraction", "above 0 and at most 1")


@dataclass(frozen=True)
class Context:
    """What a workload is told beside its configs.

    Attributes:
        backend: Keras's backend, which runs already.
        fraction: share of the data to run.
        corpus_dir: recordings to use where the workload can, or None for synthetic data.
        out: a folder for what is more than tables, JSON and figures, or None to leave that out.
        run_dir: a trained run to evaluate where the workload can, or None.
        split: the prepared split to evaluate it on.
        shard_dir: where that is; None for the run's own.
        checkpoint: of the run: "best" (by validation CER), "last", or a file.
        log_probs: a file of log-probabilities to decode, or None.
        save_log_probs: a file that gets a run's log-probabilities, or None.
        lexicon: a file with a word a line; None for the run's own.
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
    """What a workload measured.

    Attributes:
        tables: to be read by a person.
        values: the same for a program, as JSON values; None is what could not be told.
        warmup_steps: steps that were run and left out of every figure.
        figures: by file name without its suffix; each is drawn only where it is written.
    """

    tables: Sequence[Table]
    values: dict[str, Any]
    warmup_steps: int
    figures: dict[str, "Callable[[], Figure]"] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """Something that is measured: what it is configured by, where it can run, and how.

    Attributes:
        run: is given a config of each type in their order, then the `Context`; returns the
            `Result`, or yields one that grows with each measurement, so that none is lost.
        config_types: config classes that its presets may bind. In the place of `ModelConfig` it is
            given the config of the model that this names, with its sizes.
        backends: Keras's backends that it can run on, in a process of its own. Empty for a
            workload that starts processes itself, each on the backend that it wants.
        flat: whether its values stand in ``results.json`` beside the description of the machine
            instead of under "results".
    """

    run: Callable[..., Result | Iterator[Result]]
    config_types: tuple[type, ...]
    backends: tuple[str, ...] = BACKENDS
    flat: bool = False


def _check(workload: Workload) -> None:
    if not isinstance(workload, Workload) or not callable(workload.run):
        raise TypeError(f"it must be a tfasr.bench.workload.Workload. Received: {workload!r}")
    strange = [name for name in workload.backends if name not in BACKENDS]
    if strange:
        raise ValueError(f"its backends must be of {BACKENDS}. Received: {strange}")


WORKLOADS: Registry[Workload] = Registry(
    "workload",
    {
        "backends": "tfasr.bench.backends.workload:BACKENDS_WORKLOAD",
        "keyword_spotting": "tfasr.bench.keywords.workload:KEYWORD_SPOTTING",
        "ds2": "tfasr.bench.ds2.workload:DS2",
        "scaling": "tfasr.bench.scaling.workload:SCALING",
        "hardware_sweep": "tfasr.bench.sweep.workload:HARDWARE_SWEEP",
        "roofline": "tfasr.bench.roofline.workload:ROOFLINE",
        "decoder": "tfasr.bench.decoder.workload:DECODER",
        "step": "tfasr.bench.step.workload:STEP",
    },
    check=_check,
)
"""Every workload by the name that ``BenchConfig.workload`` is bound to.

A module of one's own adds one: ``WORKLOADS.register("sorting", Workload(run, (SortingConfig,)))``.
"""


def purpose(name: str) -> str:
    """Returns what a workload measures: the first line of its module's description.

    A module that is not loaded is read, not imported: an import would load Keras.
    """
    module = WORKLOADS.entry(name).module
    if module in sys.modules:
        description = sys.modules[module].__doc__
    else:
        source = Path(importlib.util.find_spec(module).origin)
        description = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8")))
    return (description or "").strip().split("\n")[0].rstrip(".")


def find_workload(name: str) -> Workload:
    """Returns a workload.

    Raises:
        UsageError: if there is none of that name; it lists those there are.
    """
    if name not in WORKLOADS:
        raise UsageError(
            f"BenchConfig.workload must be one of {WORKLOADS.listed()}. Received: {name!r}. "
            "A preset of tfasr bench binds it: try --gin_file bench/ds2_small.gin."
        )
    return WORKLOADS[name]
