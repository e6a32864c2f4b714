"""Measures the training steps of two models on one backend, in a process of its own."""

from collections.abc import Callable
from importlib import metadata

import keras
import numpy as np

from tfasr.bench.backends.config import NATIVE, BackendsConfig
from tfasr.bench.backends.times import BackendAnswer, ModelTimes
from tfasr.bench.keywords.training import make_spotter
from tfasr.bench.probes.backend import describe_backend
from tfasr.bench.probes.ctc import ctc_losses
from tfasr.bench.probes.make_stepper import make_stepper
from tfasr.bench.probes.step import Batch, Stepper, seconds_of
from tfasr.models.build import build_recogniser
from tfasr.models.keyword_spotter import KeywordSpotterConfig
from tfasr.models.recogniser import RecogniserConfig

KEYWORDS, ACOUSTIC = "keyword spotter", "acoustic model"
NUM_CLASSES = 29
FRAMES_PER_LABEL = 8
_REASON = 160


def measure(
    config: BackendsConfig,
    keyword: KeywordSpotterConfig,
    acoustic: RecogniserConfig,
    num_features: int,
) -> BackendAnswer:
    """Measures each model's step on the running backend.

    Args:
        config: sizes of batches, and how many steps.
        keyword: the keyword spotter.
        acoustic: the acoustic model.
        num_features: features of each of the acoustic model's frames.
    """
    models = [_keywords(config, keyword, "keras", layout) for layout in config.layouts]
    if config.acoustic_batch_size:
        prepared = _acoustic_model(config, acoustic, num_features)
        models.append(_times(ACOUSTIC, "", *prepared, config))
    return BackendAnswer(describe_backend(), models)


def measure_native(config: BackendsConfig, keyword: KeywordSpotterConfig) -> BackendAnswer:
    """Measures the step of the keyword spotter in PyTorch alone, see `measure`."""
    versions = {"torch": metadata.version("torch")}
    described = {**describe_backend(), "name": NATIVE, "versions": versions}
    models = [_keywords(config, keyword, "torch", layout) for layout in config.layouts]
    return BackendAnswer(described, models)


def _keywords(
    config: BackendsConfig, network: KeywordSpotterConfig, framework: str, layout: str
) -> ModelTimes:
    random = np.random.default_rng(0)
    size = config.keyword_batch_size
    features = random.standard_normal((size, network.num_frames, network.num_bins), np.float32)
    words = random.integers(0, network.num_words, size, np.int32)
    stepper, _ = make_spotter(network, framework, layout, learning_rate=0.001)
    batch = Batch((features,), (words,))
    return _if_it_runs(layout, lambda: _times(KEYWORDS, layout, stepper, batch, config))


def _if_it_runs(layout: str, measured: Callable[[], ModelTimes]) -> ModelTimes:
    """Returns the times, or why a backend has no operation for a layout."""
    try:
        return measured()
    except Exception as error:  # each framework has a class of its own for it
        sentence = next((s for s in str(error).split(". ") if "only support" in s), None)
        if sentence is None:
            raise
        said = next(line for line in sentence.splitlines() if "only support" in line)
        return ModelTimes(KEYWORDS, layout, reason=said.strip().rstrip(".")[:_REASON])


def _acoustic_model(
    config: BackendsConfig, network: RecogniserConfig, num_features: int
) -> tuple[Stepper, Batch]:
    model = build_recogniser(network, num_features, NUM_CLASSES)
    random = np.random.default_rng(0)
    size, frames = config.acoustic_batch_size, config.acoustic_frames
    features = random.standard_normal((size, frames, num_features), np.float32)
    lengths = np.full(size, frames, np.int32)
    num_labels = max(1, frames // FRAMES_PER_LABEL)
    targets = (
        np.asarray(network.output_lengths(lengths), np.int32),
        random.integers(0, NUM_CLASSES - 1, (size, num_labels), np.int32),
        np.full(size, num_labels, np.int32),
    )
    stepper = make_stepper(model, ctc_losses, keras.optimizers.Adadelta(1.0))
    return stepper, Batch((features, lengths), targets)


def _times(
    model: str, layout: str, stepper: Stepper, batch: Batch, config: BackendsConfig
) -> ModelTimes:
    placed = stepper.place(batch)
    first_s = seconds_of(stepper.update, placed)
    for _ in range(config.warmup_steps - 1):
        stepper.update(placed)
    for _ in range(config.warmup_steps):
        stepper.forward(placed)
    forward_ms, step_ms = [], []
    for _ in range(config.steps):
        forward_ms.append(1000 * seconds_of(stepper.forward, placed))
        step_ms.append(1000 * seconds_of(stepper.update, placed))
    return ModelTimes(model, layout, first_s, forward_ms, step_ms)
