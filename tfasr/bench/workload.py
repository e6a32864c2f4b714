"""Synthetic workloads by name: what each is configured by, what runs it, what it leaves behind."""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tfasr.config import config_class, require
from tfasr.display.table import Table
from tfasr.errors import UsageError

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
    """

    backend: str = "tensorflow"
    fraction: float = 1.0
    corpus_dir: Path | None = None
    out: Path | None = None
    run_dir: Path | None = None
    split: str = "validation"
    shard_dir: Path | None = None


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
    """A workload by the names of its parts, which are imported when it is run.

    Attributes:
        purpose: what it measures, in a line.
        run: ``module:function``, which is given the configs in their order, then the `Context`,
            and returns the `Result`.
        configs: ``module:class`` of the config classes that its presets may bind.
        in_child: whether it runs in a process of its own, whose backend is then the wanted one.
            A workload that starts processes itself, one a backend, needs none.
    """

    purpose: str
    run: str
    configs: tuple[str, ...]
    in_child: bool = True

    def config_classes(self) -> list[type]:
        """Imports and returns the config classes."""
        return [load(name) for name in self.configs]


_MODEL = ("tfasr.models.acoustic_model:AcousticModelConfig", "tfasr.data.features:FeatureConfig")
WORKLOADS: dict[str, Workload] = {
    "backends": Workload(
        "the same training steps on TensorFlow, JAX and PyTorch",
        "tfasr.bench.backends.workload:run",
        (
            "tfasr.bench.backends.config:BackendsConfig",
            "tfasr.models.keyword_spotter:KeywordSpotterConfig",
            "tfasr.models.acoustic_model:AcousticModelConfig",
            "tfasr.data.features:FeatureConfig",
        ),
        in_child=False,
    ),
    "keyword_spotting": Workload(
        "a network of 8504 parameters on single words",
        "tfasr.bench.keywords.workload:run",
        (
            "tfasr.models.keyword_spotter:KeywordSpotterConfig",
            "tfasr.bench.keywords.training:KeywordTrainingConfig",
        ),
    ),
    "ds2": Workload(
        "DeepMark's Deep Speech 2, forward and backward",
        "tfasr.bench.ds2.workload:run",
        ("tfasr.models.deep_speech_2:DeepSpeech2Config", "tfasr.bench.ds2.workload:DeepMarkConfig"),
    ),
    "scaling": Workload(
        "weak and strong scaling of data parallelism",
        "tfasr.bench.scaling.workload:run",
        ("tfasr.bench.scaling.config:ScalingConfig", *_MODEL),
        in_child=False,
    ),
    "hardware_sweep": Workload(
        "batch sizes and precisions: speed, memory, and what a precision costs in errors",
        "tfasr.bench.sweep.workload:run",
        ("tfasr.bench.sweep.workload:SweepConfig", *_MODEL),
        in_child=False,
    ),
    "roofline": Workload(
        "this machine's ceilings, and the model's layers, steps and kernels below them",
        "tfasr.bench.roofline.workload:run",
        ("tfasr.bench.roofline.config:RooflineConfig", *_MODEL),
        in_child=False,
    ),
}


def load(name: str) -> Any:
    """Returns what ``module:attribute`` names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def find_workload(name: str) -> Workload:
    """Returns a workload.

    Raises:
        UsageError: if there is none of that name; it lists those there are.
    """
    if name not in WORKLOADS:
        raise UsageError(
            f"BenchConfig.workload must be one of {', '.join(WORKLOADS)}. Received: {name!r}. "
            "A preset of tfasr bench binds it: try --gin_file bench/ds2_small.gin."
        )
    return WORKLOADS[name]


def table_to_json(table: Table) -> dict[str, Any]:
    """Returns a table as JSON values; ``Table(**values)`` reads it back."""
    return dataclasses.asdict(table)
