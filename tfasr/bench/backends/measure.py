"""Measures the training steps of two models on one backend, in a process of its own."""

from typing import Any

import keras
import numpy as np

from tfasr.bench.backends.config import BackendsConfig
from tfasr.bench.keywords.training import word_losses
from tfasr.bench.probes.backend import describe_backend
from tfasr.bench.probes.ctc import ctc_losses
from tfasr.bench.probes.make_stepper import make_stepper
from tfasr.bench.probes.step import Batch, Stepper, seconds_of
from tfasr.models.build import build_recogniser
from tfasr.models.keyword_spotter import KeywordSpotter, KeywordSpotterConfig
from tfasr.models.recogniser import RecogniserConfig

NUM_CLASSES = 29
FRAMES_PER_LABEL = 8


def measure(
    config: BackendsConfig,
    keyword: KeywordSpotterConfig,
    acoustic: RecogniserConfig,
    num_features: int,
) -> dict[str, Any]:
    """Measures each model's step on the running backend.

    Args:
        config: sizes of batches, and how many steps.
        keyword: the keyword spotter.
        acoustic: the acoustic model.
        num_features: features of each of the acoustic model's frames.

    Returns:
        ``backend``, and by model ``first_s`` (the first step, which compiles), ``forward_ms`` and
        ``step_ms`` (of each step that counts).
    """
    models = {
        "keyword spotter": _keyword_spotter(config, keyword),
        "acoustic model": _acoustic_model(config, acoustic, num_features),
    }
    return {
        "backend": describe_backend(),
        "models": {name: _times(*prepared, config) for name, prepared in models.items()},
    }


def _keyword_spotter(
    config: BackendsConfig, network: KeywordSpotterConfig
) -> tuple[Stepper, Batch]:
    model = KeywordSpotter(network)
    model.build()
    random = np.random.default_rng(0)
    size = config.keyword_batch_size
    features = random.standard_normal((size, network.num_frames, network.num_bins), np.float32)
    words = random.integers(0, network.num_words, size, np.int32)
    stepper = make_stepper(model, word_losses, keras.optimizers.Adam())
    return stepper, Batch((features,), (words,))


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


def _times(stepper: Stepper, batch: Batch, config: BackendsConfig) -> dict[str, Any]:
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
    return {"first_s": first_s, "forward_ms": forward_ms, "step_ms": step_ms}
