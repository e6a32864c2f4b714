"""The PyTorch twin's whole job: trains on tfasr's shards and books every second as tfasr does.

What surrounds the model is tfasr's own for both: the batches (`tfasr.data.pipeline.BatchSource`,
with the same features, padding, augmentation and order for a seed), the greedy decoder, the error
counts, the ledger, the sampler of utilisation. What is PyTorch's is the model, the loss, the update
and the checkpoint. It has its own process.
"""

import argparse
import logging
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tfasr.alphabet import Alphabet
from tfasr.data.pipeline import BatchSource
from tfasr.data.shards import ShardedSplit, open_split
from tfasr.decoding.lexicon import lexicon_from_transcripts
from tfasr.errors import RunError, UsageError
from tfasr.ledger import Ledger
from tfasr.telemetry.utilisation import UtilisationSampler
from tfasr.training.batch_statistics import moving_momentum
from tfasr.training.build import check_splits
from tfasr.training.comparability import comparability
from tfasr.training.experiment import Experiment
from tfasr.training.from_gin import load_config
from tfasr.training.run_folder import claim_run_folder, record_run_stop, record_sources
from twin.torch_evaluation import TwinEvaluator, as_arrays, as_tensors
from twin.torch_model import TorchTwin
from twin.torch_optimizer import torch_adadelta

log = logging.getLogger("twin")


def train_twin(
    experiment: Experiment,
    *,
    shard_dir: str | Path,
    run_dir: str | Path,
    gin_texts: dict[str, str] | None = None,
) -> list[dict[str, float]]:
    """Trains the twin and records the run as `tfasr.training.train.train` does.

    Args:
        experiment: as for tfasr; float32, Adadelta and the greedy decoder alone.
        shard_dir: holds the prepared splits "train" and "validation".
        run_dir: gets the run; it must hold none yet.
        gin_texts: files to write beside it, by name.

    Returns:
        Validation metrics of each epoch: "cer", "cer_reference", "wer" and "loss".

    Raises:
        UsageError: if the experiment asks for something else.
        RunError: if the loss is no number.
    """
    run_dir = Path(run_dir)
    _check(experiment)
    splits = {name: open_split(shard_dir, name) for name in ("train", "validation")}
    alphabet = check_splits(splits, experiment)
    claim_run_folder(run_dir, experiment, resume=False)
    experiment.save(run_dir, alphabet)
    ledger = Ledger(run_dir)
    try:
        for name, text in (gin_texts or {}).items():
            (run_dir / name).write_text(text, encoding="utf-8")
        record_sources(run_dir, Path(shard_dir), splits["train"].feature_statistics())
        with UtilisationSampler(run_dir), record_run_stop(ledger):
            return _TwinRun(experiment, run_dir, ledger, splits, alphabet).train()
    finally:
        ledger.close()


def _check(experiment: Experiment) -> None:
    training = experiment.training
    asked = (training.precision, training.num_replicas, experiment.decoder.name)
    if asked != ("float32", 1, "greedy"):
        raise UsageError(
            "The PyTorch twin trains in float32 on one device and decodes greedily. Received: "
            f"precision, num_replicas, decoder = {asked}."
        )


class _TwinRun:
    """One process's run."""

    def __init__(
        self,
        experiment: Experiment,
        run_dir: Path,
        ledger: Ledger,
        splits: dict[str, ShardedSplit],
        alphabet: Alphabet,
    ):
        self._experiment = experiment
        self._training = experiment.training
        self._run_dir = run_dir
        self._ledger = ledger
        self._splits = splits
        self._alphabet = alphabet
        self._step = 0
        self._history: list[dict[str, float]] = []
        statistics_ = splits["train"].feature_statistics()
        self._train_source, self._validation = (
            BatchSource(
                splits[name],
                experiment.features,
                experiment.pipeline,
                experiment.augmentation,
                statistics_,
            )
            for name in ("train", "validation")
        )

    def train(self) -> list[dict[str, float]]:
        ledger = self._ledger
        ledger.event(
            "session_start",
            {"session": 0, "resumed_from_step": None, "alive_until_ms": None},
            pid=os.getpid(),
        )
        ledger.start("init")
        self._build()
        ledger.stop("init")
        ledger.event("run_start", event_type="INTERVAL_START")
        self._book_facts()
        self._batches = self._begin_epoch(1)
        for epoch in range(1, self._training.epochs + 1):
            ledger.start("epoch", epoch_num=epoch)
            self._train_epoch(epoch)
            self._save_checkpoint(epoch)
            if epoch < self._training.epochs:  # read beside the evaluation, as tfasr's are
                self._batches = self._begin_epoch(epoch + 1)
            self._evaluate(epoch)
            ledger.stop("epoch", epoch_num=epoch)
            if self._reached():
                break
        return self._history

    def _build(self) -> None:
        self._ledger.event("model_creation")
        experiment = self._experiment
        torch.manual_seed(self._training.seed)
        self._model = TorchTwin(
            experiment.model,
            self._alphabet.num_classes,
            experiment.features.num_features,
            mask_statistics=True,
            momentum=moving_momentum(experiment, len(self._splits["train"].utterances)),
        )
        self._parameters = [p for p in self._model.parameters() if p.requires_grad]
        wanted = self._training.optimizer()
        self._optimizer, self._rate = torch_adadelta(wanted, self._parameters)
        self._optimizer_name = wanted.name
        self._evaluator = TwinEvaluator(self._validation, self._alphabet)

    def _begin_epoch(self, epoch: int):
        return iter(self._train_source.training(self._training.seed, epoch))

    def _train_epoch(self, epoch: int) -> None:
        self._model.train()
        while True:
            began = time.perf_counter()
            batch = next(self._batches, None)
            if batch is None:
                return
            arrays = as_arrays(batch)
            fetched = time.perf_counter()
            losses = self._train_step(arrays)
            train_s = time.perf_counter() - fetched
            self._step += 1
            facts = {**_facts(arrays, losses), "input_wait_s": round(fetched - began, 6)}
            facts |= {"compile_s": 0.0, "train_s": round(train_s, 6)}
            self._ledger.event("train_step", facts, epoch_num=epoch, step=self._step)
            if facts["loss"] is None:
                ids = arrays["positions"][~np.isfinite(losses)].tolist()
                raise RunError(f"The loss must be finite. Step {self._step}: positions {ids}.")

    def _train_step(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        batch = as_tensors(arrays)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate(self._step)
        self._optimizer.zero_grad(set_to_none=True)
        logits = self._model(batch["features"], batch["feature_lengths"])
        losses = self._model.losses(logits, batch)
        losses.mean().backward()
        self._optimizer.step()
        return losses.detach().numpy()

    def _save_checkpoint(self, epoch: int) -> None:
        """Saves what tfasr saves at an epoch's end, and as safely."""
        path = self._run_dir / "checkpoints" / "last.pt"
        path.parent.mkdir(exist_ok=True)
        with self._ledger.interval("checkpoint", step=self._step, epoch_num=epoch):
            partial = path.with_suffix(".partial")
            with partial.open("wb") as file:
                state = {"model": self._model.state_dict(), "step": self._step}
                torch.save({**state, "optimizer": self._optimizer.state_dict()}, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)

    def _evaluate(self, epoch: int) -> None:
        scores = self._evaluator.evaluate(self._model, self._ledger, epoch)
        kept = ("cer", "cer_reference", "wer", "loss")
        self._history.append({metric: scores[metric] for metric in kept})
        log.info("epoch %d: CER %.2f %%", epoch, 100 * scores["cer"])

    def _reached(self) -> bool:
        training = self._training
        recent = self._history[-training.target_window :]
        if not training.stop_at_targets or len(recent) < training.target_window:
            return False
        return all(
            statistics.median(past[metric] for past in recent) <= value
            for metric, value in training.targets
        )

    def _count_parameters(self) -> int:
        """Counts as Keras does: moving statistics, too, and an LSTM's one bias."""
        moving = [n.running_mean for n in self._model.normalisations]
        moving += [n.running_var for n in self._model.normalisations]
        return sum(tensor.numel() for tensor in [*self._parameters, *moving])

    def _book_facts(self) -> None:
        experiment, splits = self._experiment, self._splits
        lexicon = lexicon_from_transcripts(u.text for u in splits["train"].utterances)
        facts = {
            "global_batch_size": experiment.pipeline.global_batch_size,
            "num_replicas": 1,
            "seed": self._training.seed,
            "train_samples": len(self._splits["train"].utterances),
            "eval_samples": len(splits["validation"].utterances),
            "opt_name": self._optimizer_name,
            "opt_base_learning_rate": self._rate(0),
            "targets": [list(target) for target in self._training.targets],
            "parameters": self._count_parameters(),
            "comparability": comparability(
                experiment, splits["validation"], self._alphabet, lexicon
            ),
        }
        for key, value in facts.items():
            self._ledger.event(key, value)


def _facts(arrays: dict[str, np.ndarray], losses: np.ndarray) -> dict[str, Any]:
    loss = float(losses.mean(dtype=np.float64))
    return {
        "loss": round(loss, 6) if math.isfinite(loss) else None,
        "utterances": len(losses),
        "audio_s": round(float(arrays["duration_s"].sum(dtype=np.float64)), 6),
        "frames": int(arrays["feature_lengths"].sum()),
        "padded_frames": math.prod(arrays["features"].shape[:2]),
    }


def main() -> None:
    """Trains the twin as ``tfasr train`` trains tfasr's model."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--gin_file")
    parser.add_argument("--gin_binding", action="append", default=[])
    parser.add_argument("--shard_dir", required=True)
    parser.add_argument("--run_dir", required=True)
    flags = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    config = load_config(flags.gin_file, flags.gin_binding)
    texts = {"config.gin": config.given, "operative_config.gin": config.operative}
    train_twin(config.experiment, shard_dir=flags.shard_dir, run_dir=flags.run_dir, gin_texts=texts)


if __name__ == "__main__":
    main()
