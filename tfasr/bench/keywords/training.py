"""Trains the keyword spotter with a ledger, and counts its errors."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfasr.bench.keywords.config import KeywordTrainingConfig
from tfasr.bench.keywords.data import KeywordData, KeywordSplit
from tfasr.bench.probes.make_stepper import make_stepper
from tfasr.bench.probes.step import Batch, Stepper
from tfasr.errors import RunError, UsageError
from tfasr.ledger import Ledger
from tfasr.models.keyword_spotter import KeywordSpotter, KeywordSpotterConfig
from tfasr.run_files import EVENTS_FILE

METRIC = "top1_error"
UTTERANCE_S = 1.0

_log = logging.getLogger(__name__)


def word_losses(logits, labels):
    """Returns the cross entropy of each utterance."""
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def make_spotter(
    network: KeywordSpotterConfig,
    framework: str,
    layout: str,
    *,
    learning_rate: float,
    seed: int = 0,
) -> tuple[Stepper, int]:
    """Returns what trains the keyword spotter with Adam, and its number of parameters.

    Args:
        network: sizes.
        framework: "keras", or "torch" for PyTorch alone.
        layout: of `tfasr.models.keyword_spotter.LAYOUTS`.
        learning_rate: of Adam.
        seed: of the initial weights.
    """
    if framework == "torch":
        from tfasr.bench.keywords.torch_spotter import TorchSpotterStepper

        native = TorchSpotterStepper(network, layout, learning_rate, seed)
        return native, native.parameters
    model = KeywordSpotter(network, seed, layout=layout)
    model.build()
    parameters = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    return make_stepper(model, word_losses, keras.optimizers.Adam(learning_rate)), parameters


def train_keywords(
    network: KeywordSpotterConfig, config: KeywordTrainingConfig, data: KeywordData, run_dir: Path
) -> np.ndarray:
    """Trains a network and returns its confusion matrix on the test split.

    Args:
        network: sizes.
        config: how to train.
        data: what on.
        run_dir: gets the ledger; `tfasr.load_run` and ``tfasr report`` read it. Its metric is
            ``top1_error``, the share of wrong words.

    Returns:
        int ``(words, words)``: how often the word of a row was taken for that of a column.

    Raises:
        UsageError: if ``run_dir`` holds a run.
        RunError: if the loss is no number.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    if (run_dir / EVENTS_FILE).exists():
        raise UsageError(
            f"A run must have a folder of its own. Received: {run_dir}, which holds one; name "
            "another folder with --out."
        )
    ledger = Ledger(run_dir)
    status = "aborted"
    try:
        confusion = _KeywordRun(network, config, data, ledger).train()
        status = "success"
        return confusion
    finally:
        ledger.event("run_stop", event_type="INTERVAL_END", status=status)
        ledger.close()


class _KeywordRun:
    def __init__(
        self,
        network: KeywordSpotterConfig,
        config: KeywordTrainingConfig,
        data: KeywordData,
        ledger: Ledger,
    ):
        self._config = config
        self._data = data
        self._ledger = ledger
        self._sizes_seen: set[int] = set()
        session = {"session": 0, "resumed_from_step": None, "alive_until_ms": None}
        ledger.event("session_start", session)
        with ledger.interval("init"):
            ledger.event("model_creation")
            self._stepper, parameters = make_spotter(
                network,
                config.framework,
                config.layout,
                learning_rate=config.learning_rate,
                seed=config.seed,
            )
        ledger.event("run_start", event_type="INTERVAL_START")
        for key, value in self._facts(parameters).items():
            ledger.event(key, value)

    def _facts(self, parameters: int) -> dict[str, Any]:
        config, splits = self._config, self._data.splits
        return {
            "global_batch_size": config.batch_size,
            "num_replicas": 1,
            "seed": config.seed,
            "train_samples": len(splits["train"]),
            "eval_samples": len(splits["validation"]),
            "opt_name": "adam",
            "opt_base_learning_rate": config.learning_rate,
            "targets": [[METRIC, config.target_error]],
            "parameters": parameters,
            "comparability": {
                "task": "keyword spotting",
                "data": self._data.identity,
                "words": self._data.words,
            },
        }

    def train(self) -> np.ndarray:
        config, ledger = self._config, self._ledger
        random = np.random.default_rng(config.seed)
        step = 0
        for epoch in range(1, config.epochs + 1):
            ledger.start("epoch", epoch_num=epoch)
            order = random.permutation(len(self._data.splits["train"]))
            for stats in self._epoch(order):
                step += 1
                ledger.event("train_step", stats, epoch_num=epoch, step=step)
            self._evaluate(epoch)
            ledger.stop("epoch", epoch_num=epoch)
        return self._confusion(self._data.splits["test"])

    def _epoch(self, order: np.ndarray) -> Iterator[dict[str, Any]]:
        train = self._data.splits["train"]
        frames = train.features.shape[1]
        for begin in range(0, len(order), self._config.batch_size):
            began = time.perf_counter()
            chosen = order[begin : begin + self._config.batch_size]
            arrays = Batch((train.features[chosen],), (train.labels[chosen],))
            batch = self._stepper.place(arrays)
            fetched = time.perf_counter()
            loss = self._stepper.update(batch)
            step_s = time.perf_counter() - fetched
            if not np.isfinite(loss):
                raise RunError(
                    f"The loss must be a finite number. Received: {loss}. Try a smaller "
                    "KeywordTrainingConfig.learning_rate."
                )
            compiles = len(chosen) not in self._sizes_seen
            self._sizes_seen.add(len(chosen))
            yield {
                "loss": loss,
                "utterances": len(chosen),
                "audio_s": UTTERANCE_S * len(chosen),
                "frames": frames * len(chosen),
                "padded_frames": frames * len(chosen),
                "input_wait_s": fetched - began,
                "compile_s": step_s if compiles else 0.0,
                "train_s": 0.0 if compiles else step_s,
            }

    def _evaluate(self, epoch: int) -> None:
        ledger = self._ledger
        ledger.start("eval", epoch_num=epoch)
        with ledger.interval("eval_forward", epoch_num=epoch):
            confusion = self._confusion(self._data.splits["validation"])
        error = error_rate(confusion)
        scores = {METRIC: error, "utterances": int(confusion.sum())}
        ledger.event("tracked_stats", scores, epoch_num=epoch)
        ledger.stop("eval", epoch_num=epoch)
        _log.info("epoch %d: %.1f %% wrong words", epoch, 100 * error)

    def _confusion(self, split: KeywordSplit) -> np.ndarray:
        words = len(self._data.words)
        confusion = np.zeros((words, words), int)
        for begin in range(0, len(split), self._config.batch_size):
            part = slice(begin, begin + self._config.batch_size)
            batch = self._stepper.place(Batch((split.features[part],), ()))
            taken_for = self._stepper.predict(batch).argmax(axis=1)
            np.add.at(confusion, (split.labels[part], taken_for), 1)
        return confusion


def error_rate(confusion: np.ndarray) -> float:
    """Returns the share of wrong words."""
    return float(1 - np.trace(confusion) / confusion.sum())
