"""Trains the PyTorch twin on tfasr's shards and records every second as tfasr does.

Everything around the model is tfasr's own: the batches
(`tfasr.data.batches.BatchSource`, with the same features, padding, augmentation and
order for a seed, from another process: see `twin.feeder`), the greedy decoder, the
error counts, and `tfasr.Recorder` for the ledger. The model, the loss, the update and
the checkpoint are PyTorch's. Neither TensorFlow nor Keras is imported here.
"""

import argparse
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

import tfasr
from tfasr.errors import RunError, UsageError
from twin.feeder import Arrays, Feeder
from twin.torch_evaluation import TwinEvaluator, as_tensors, mixed_precision
from twin.torch_model import TorchTwin
from twin.torch_optimizer import clip_together, torch_optimizer

log = logging.getLogger("twin")


def train_twin(
    gin_file: str | None,
    gin_bindings: list[str],
    *,
    shard_dir: str | Path,
    run_dir: str | Path,
) -> list[dict[str, float]]:
    """Trains the twin and records the run as `tfasr.training.train.train` does.

    Args:
        gin_file: as for tfasr; float32 or mixed_bfloat16 (PyTorch's own mixed
            precision), Adadelta, Adam or AdamW, only the last layer's loss and the
            greedy decoder.
        gin_bindings: further bindings.
        shard_dir: has the prepared splits "train" and "validation".
        run_dir: for the run; it must not contain one.

    Returns:
        Validation metrics of each epoch: "cer", "cer_reference", "wer" and "loss".

    Raises:
        UsageError: if the experiment asks for something else.
        RunError: if the loss is not a number.
    """
    run_dir = Path(run_dir)
    feeder = Feeder(gin_file, gin_bindings, str(shard_dir))
    try:
        plan = feeder.plan
        training = SimpleNamespace(**plan["training"])
        recorder = tfasr.Recorder(
            run_dir,
            train_samples=plan["train_utterances"],
            targets=training.targets,
            target_window=training.target_window,
            global_batch_size=plan["global_batch_size"],
            seed=training.seed,
            facts={"num_replicas": 1, "eval_samples": len(plan["references"])},
            comparability=plan["comparability"],
            utilisation=True,
        )

        with recorder as run:
            if run.resumed_from_step is not None:
                raise UsageError(
                    f"The twin must have a new folder. {run_dir} holds a run."
                )

            for name, text in plan["files"].items():
                (run_dir / name).write_text(text, encoding="utf-8")

            return _TwinRun(feeder, run, training).train()
    finally:
        feeder.close()


class _TwinRun:
    """One process's run."""

    def __init__(self, feeder: Feeder, run: tfasr.Recorder, training: SimpleNamespace):
        self._feeder = feeder
        self._plan = feeder.plan
        self._training = training
        self._run = run

    def train(self) -> list[dict[str, float]]:
        run = self._run
        self._build()
        self._batches = self._begin_epoch(1)

        for epoch in range(1, self._training.epochs + 1):
            run.epoch()
            self._train_epoch()
            self._save_checkpoint()

            # Read during the evaluation, as tfasr's are.
            if epoch < self._training.epochs:
                self._batches = self._begin_epoch(epoch + 1)

            with run.evaluation() as evaluation:
                self._evaluator.evaluate(
                    self._model, self._feeder.evaluation(), evaluation
                )

            log.info("epoch %d: CER %.2f %%", epoch, 100 * evaluation.scores["cer"])

            if self._training.stop_at_targets and run.targets_met:
                break

        names = ("cer", "cer_reference", "wer", "loss")
        return [{metric: scores[metric] for metric in names} for scores in run.history]

    def _build(self) -> None:
        plan = self._plan
        torch.manual_seed(self._training.seed)
        self._model = TorchTwin(
            SimpleNamespace(**plan["model"]),
            plan["alphabet"].num_classes,
            plan["num_features"],
            mask_statistics=True,
            momentum=plan["momentum"],
        )

        if self._training.zero_output_layer:
            self._model.zero_classifier()

        self._parameters = [p for p in self._model.parameters() if p.requires_grad]
        self._optimizer, self._rate = torch_optimizer(
            plan["optimizer"], self._parameters
        )
        self._evaluator = TwinEvaluator(
            plan["references"], plan["alphabet"], self._training.precision
        )
        self._run.note(
            opt_name=plan["optimizer_name"],
            opt_base_learning_rate=self._rate(0),
            parameters=self._count_parameters(),
        )

    def _begin_epoch(self, epoch: int) -> Iterator[Arrays]:
        return self._feeder.training(epoch)

    def _train_epoch(self) -> None:
        self._model.train()
        for arrays in self._batches:
            with self._run.step(**_amounts(arrays)) as step:
                losses = self._train_step(arrays)
                step.loss = losses.mean(dtype=np.float64)

            if not np.isfinite(losses).all():
                ids = arrays["positions"][~np.isfinite(losses)].tolist()
                done = self._run.steps_done
                raise RunError(
                    f"The loss must be finite. Step {done}: positions {ids}."
                )

    def _train_step(self, arrays: Arrays) -> np.ndarray:
        batch = as_tensors(arrays)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate(self._run.steps_done)

        self._optimizer.zero_grad(set_to_none=True)

        with mixed_precision(self._training.precision):
            logits = self._model(batch["features"], batch["feature_lengths"])

        losses = self._model.losses(logits, batch)
        losses.mean().backward()
        clip_together(self._plan["optimizer"], self._parameters)
        self._optimizer.step()

        return losses.detach().numpy()

    def _save_checkpoint(self) -> None:
        """Saves the same as tfasr at an epoch's end, and as safely."""
        path = self._run.run_dir / "checkpoints" / "last.pt"
        path.parent.mkdir(exist_ok=True)
        with self._run.saving():
            partial = path.with_suffix(".partial")
            with partial.open("wb") as file:
                state = {
                    "model": self._model.state_dict(),
                    "step": self._run.steps_done,
                }
                torch.save({**state, "optimizer": self._optimizer.state_dict()}, file)
                file.flush()
                os.fsync(file.fileno())

            partial.replace(path)

    def _count_parameters(self) -> int:
        """Counts like Keras: with moving statistics, and one bias per LSTM."""
        moving = [n.running_mean for n in self._model.normalisations]
        moving += [n.running_var for n in self._model.normalisations]
        return sum(tensor.numel() for tensor in [*self._parameters, *moving])


def _amounts(arrays: Arrays) -> dict[str, float]:
    return {
        "utterances": len(arrays["positions"]),
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
    train_twin(
        flags.gin_file,
        flags.gin_binding,
        shard_dir=flags.shard_dir,
        run_dir=flags.run_dir,
    )


if __name__ == "__main__":
    main()
