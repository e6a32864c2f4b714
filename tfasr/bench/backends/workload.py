"""The same training steps on TensorFlow, JAX and PyTorch, in alternation."""

import logging

from tfasr.bench.backends.config import NATIVE, BackendsConfig
from tfasr.bench.backends.figure import backends_chart
from tfasr.bench.backends.measure import KEYWORDS, measure, measure_native
from tfasr.bench.backends.table import backends_table
from tfasr.bench.backends.times import BackendAnswer, BackendTimes
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
    installed = installed_backends()
    present = [name for name in config.backends if _process(name) in installed]
    absent = [name for name in config.backends if name not in present]
    if not present:
        raise UsageError(
            f"Of BackendsConfig.backends one must be installed. Received: {config.backends}."
        )
    answers: dict[str, list[BackendAnswer]] = {name: [] for name in present}
    for number in range(config.rounds):
        # Another one begins each round, so that none always finds the machine warm or cold.
        for name in present[number % len(present) :] + present[: number % len(present)]:
            _log.info("round %d of %d: %s", number + 1, config.rounds, name)
            if name == NATIVE:
                answer = call(measure_native, config, keyword, backend=_process(name))
            else:
                configs = (config, keyword, acoustic, features.num_features)
                answer = call(measure, *configs, backend=name)
            answers[name].append(answer)
    times = [
        BackendTimes.of(name, _batch_size(config, processes[0].model), processes)
        for name in present
        for processes in zip(*(answer.models for answer in answers[name]), strict=True)
    ]
    times.sort(key=lambda row: row.model != KEYWORDS)
    backends = [answers[name][0].backend for name in present]
    return Result(
        tables=[backends_table(times, config, backends, absent)],
        values={
            "backends": backends,
            "not_installed": absent,
            "rows": [row.to_json() for row in times],
        },
        # In each process every model that ran, forward and whole.
        warmup_steps=2 * config.warmup_steps * config.rounds * sum(not row.reason for row in times),
        figures={"backends": lambda: backends_chart(times)},
    )


def _process(name: str) -> str:
    """Returns the backend of Keras's whose package a process needs."""
    return "torch" if name == NATIVE else name


def _batch_size(config: BackendsConfig, model: str) -> int:
    return config.keyword_batch_size if model == KEYWORDS else config.acoustic_batch_size


BACKENDS_WORKLOAD = Workload(
    run, (BackendsConfig, KeywordSpotterConfig, ModelConfig, FeatureConfig), backends=()
)
