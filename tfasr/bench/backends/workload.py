"""The same training steps on TensorFlow, JAX and PyTorch, in alternation."""

import logging
from typing import Any

from tfasr.bench.backends.config import BackendsConfig
from tfasr.bench.backends.figure import backends_figure
from tfasr.bench.backends.measure import measure
from tfasr.bench.backends.table import backends_table
from tfasr.bench.backends.times import collected
from tfasr.bench.probes.backend import installed_backends
from tfasr.bench.workload import Context, Result, Workload
from tfasr.child import call
from tfasr.data.features import FeatureConfig
from tfasr.errors import UsageError
from tfasr.models.keyword_spotter import KeywordSpotterConfig
from tfasr.models.recogniser import ModelConfig, RecogniserConfig

_log = logging.getLogger(__name__)


def run(
    config: BackendsConfig,
    keyword: KeywordSpotterConfig,
    acoustic: RecogniserConfig,
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
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in present}
    for number in range(config.rounds):
        # Another one begins each round, so that none always finds the machine warm or cold.
        for name in present[number % len(present) :] + present[: number % len(present)]:
            _log.info("round %d of %d: %s", number + 1, config.rounds, name)
            configs = (config, keyword, acoustic, features.num_features)
            answers[name].append(call(measure, *configs, backend=name))
    sizes = {
        "keyword spotter": config.keyword_batch_size,
        "acoustic model": config.acoustic_batch_size,
    }
    times = [
        collected(model, name, size, answers[name])
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


BACKENDS_WORKLOAD = Workload(
    run, (BackendsConfig, KeywordSpotterConfig, ModelConfig, FeatureConfig), backends=()
)
