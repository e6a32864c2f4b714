"""One model definition on Keras's backends: training steps side by side, in alternation."""

import logging
import statistics
from dataclasses import dataclass
from typing import Any

from tfasr.bench.backend import installed_backends
from tfasr.bench.backends_figure import backends_figure
from tfasr.bench.child import run_in_child
from tfasr.bench.workload import BACKENDS, Context, Result
from tfasr.config import config_class, require, to_json
from tfasr.data.features import FeatureConfig
from tfasr.errors import UsageError
from tfasr.models.acoustic_model import AcousticModelConfig
from tfasr.models.keyword_spotter import KeywordSpotterConfig
from tfasr.report.tables import Table

_log = logging.getLogger(__name__)


@config_class
class BackendsConfig:
    """What is compared, and how often.

    Attributes:
        backends: of "tensorflow", "jax" and "torch"; those not installed are left out.
        rounds: processes of each backend, in alternation.
        steps: steps of each model in each process.
        warmup_steps: steps of each model in each process that are left out.
        keyword_batch_size: utterances of the keyword spotter's batch.
        acoustic_batch_size: utterances of the acoustic model's batch.
        acoustic_frames: feature frames of its utterances.
    """

    backends: tuple[str, ...] = BACKENDS
    rounds: int = 3
    steps: int = 10
    warmup_steps: int = 3
    keyword_batch_size: int = 64
    acoustic_batch_size: int = 16
    acoustic_frames: int = 600

    def check(self) -> None:
        """Raises ValueError for values that compare nothing."""
        for field in ("rounds", "steps", "warmup_steps", "keyword_batch_size"):
            require(getattr(self, field) > 0, self, field, "at least 1")
        for field in ("acoustic_batch_size", "acoustic_frames"):
            require(getattr(self, field) > 0, self, field, "at least 1")
        known = bool(self.backends) and set(self.backends) <= set(BACKENDS)
        require(known, self, "backends", f"some of {BACKENDS}")


@dataclass(frozen=True)
class BackendTimes:
    """One model on one backend.

    Attributes:
        model: its name.
        backend: Keras's.
        batch_size: utterances of a step.
        first_s: seconds of the first step of each process.
        forward_ms: milliseconds of each forward pass, a list a process.
        step_ms: milliseconds of each whole step, a list a process.
    """

    model: str
    backend: str
    batch_size: int
    first_s: list[float]
    forward_ms: list[list[float]]
    step_ms: list[list[float]]

    @property
    def median_forward_ms(self) -> float:
        """The median of the processes' medians."""
        return statistics.median(map(statistics.median, self.forward_ms))

    @property
    def median_step_ms(self) -> float:
        """The median of the processes' medians."""
        return statistics.median(map(statistics.median, self.step_ms))

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {
            "model": self.model,
            "backend": self.backend,
            "batch_size": self.batch_size,
            "forward_ms": self.median_forward_ms,
            "step_ms": self.median_step_ms,
            "utterances_per_s": 1000 * self.batch_size / self.median_step_ms,
            "first_step_s": statistics.median(self.first_s),
            "all_forward_ms": self.forward_ms,
            "all_step_ms": self.step_ms,
        }


def run(
    config: BackendsConfig,
    keyword: KeywordSpotterConfig,
    acoustic: AcousticModelConfig,
    features: FeatureConfig,
    context: Context,
) -> Result:
    """Measures every installed backend, each in processes of its own."""
    present = [name for name in config.backends if name in installed_backends()]
    absent = [name for name in config.backends if name not in present]
    if not present:
        raise UsageError(
            f"Of BackendsConfig.backends one must be installed. Received: {config.backends}."
        )
    request = {
        "keyword": to_json(keyword),
        "acoustic": to_json(acoustic),
        "num_features": features.num_features,
        "keyword_batch_size": config.keyword_batch_size,
        "acoustic_batch_size": config.acoustic_batch_size,
        "acoustic_frames": config.acoustic_frames,
        "warmup_steps": config.warmup_steps,
        "steps": config.steps,
    }
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in present}
    for number in range(config.rounds):
        # Another one begins each round, so that none always finds the machine warm or cold.
        for name in present[number % len(present) :] + present[: number % len(present)]:
            _log.info("round %d of %d: %s", number + 1, config.rounds, name)
            answers[name].append(
                run_in_child("tfasr.bench.backend_step:measure", request, backend=name)
            )
    sizes = {
        "keyword spotter": config.keyword_batch_size,
        "acoustic model": config.acoustic_batch_size,
    }
    times = [
        _collected(model, name, size, answers[name])
        for model, size in sizes.items()
        for name in present
    ]
    backends = [answers[name][0]["backend"] for name in present]
    return Result(
        tables=[backends_table(times, config, backends, absent)],
        values={
            "backends": backends,
            "not_installed": absent,
            "rows": [row.to_json() for row in times],
        },
        # In each process both models, forward and whole.
        warmup_steps=2 * 2 * config.warmup_steps * config.rounds * len(present),
        figures={"backends": lambda: backends_figure(times)},
    )


def _collected(
    model: str, backend: str, batch_size: int, answers: list[dict[str, Any]]
) -> BackendTimes:
    found = [answer["models"][model] for answer in answers]
    columns = ([one[key] for one in found] for key in ("first_s", "forward_ms", "step_ms"))
    return BackendTimes(model, backend, batch_size, *columns)


def backends_table(
    times: list[BackendTimes],
    config: BackendsConfig,
    backends: list[dict[str, Any]],
    absent: list[str],
) -> Table:
    """Returns a row for each model and backend, with the ratio to the model's fastest backend."""
    fastest = {row.model: row.median_step_ms for row in times}
    for row in times:
        fastest[row.model] = min(fastest[row.model], row.median_step_ms)
    rows = []
    for row in times:
        medians = [statistics.median(steps) for steps in row.step_ms]
        rows.append(
            [
                f"{row.model}, batch {row.batch_size}",
                row.backend,
                f"{row.median_forward_ms:.1f}",
                f"{row.median_step_ms:.1f}",
                f"{min(medians):.1f}–{max(medians):.1f}",
                f"{1000 * row.batch_size / row.median_step_ms:,.1f}",
                f"{row.median_step_ms / fastest[row.model]:.2f}",
                f"{statistics.median(row.first_s):.1f}",
            ]
        )
    columns = ["model", "backend", "forward, ms", "step, ms", "rounds, ms", "utterances/s"]
    return Table(
        title="One training step on Keras's backends",
        columns=[*columns, "of the fastest", "first step, s"],
        rows=rows,
        notes=_notes(config, backends, absent),
    )


def _notes(config: BackendsConfig, backends: list[dict[str, Any]], absent: list[str]) -> list[str]:
    versions = ", ".join(
        f"{backend['name']} {backend['versions'][backend['name']]} on "
        f"{' and '.join(backend['devices'])}"
        for backend in backends
    )
    notes = [
        f"Medians over {config.rounds} processes of each backend, in alternation, of the medians "
        f"of {config.steps} steps; the first {config.warmup_steps} steps of each process are left "
        "out. A step is forward, loss, backward and update; every one is waited for.",
        f"The acoustic model gets {config.acoustic_frames} frames. Keras {_keras(backends)}; "
        f"{versions}. TensorFlow runs graphs with tfasr's LSTM, JAX compiles the whole step, "
        "PyTorch is eager, with Keras's LSTM both.",
    ]
    if absent:
        notes.append(f"Not installed and left out: {', '.join(absent)}.")
    return notes


def _keras(backends: list[dict[str, Any]]) -> str:
    return " and ".join(dict.fromkeys(backend["versions"]["keras"] for backend in backends))
