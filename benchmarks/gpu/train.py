"""A complete training run without TensorFlow: of tfasr's model on JAX or PyTorch, or of its twin.

The twin is the same network in plain PyTorch (`benchmarks/twin`). Both models train on the batches
of `gpu.data`, are evaluated with a greedy decoder after each epoch, and are recorded by
`tfasr.Recorder`. Neither saves checkpoints.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import tfasr
from gpu.data import Batch, Packed
from tfasr.bench import steppers
from tfasr.decoding.decoder import GreedyDecoder
from tfasr.models.build import build_recogniser

POLICIES = {"bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def _optimizer(recipe: dict[str, Any]) -> keras.optimizers.Optimizer:
    return keras.optimizers.deserialize(recipe["optimizer"])


class _Intermediate(keras.Model):
    """A recogniser that in training also returns the class scores of a middle layer."""

    def __init__(self, recogniser: keras.Model):
        super().__init__()
        self.recogniser = recogniser
        self.built = True

    def call(self, features, feature_lengths, training=False):
        if training:
            inputs = features, feature_lengths
            return self.recogniser.call_with_intermediate(*inputs, training=True)

        return self.recogniser(features, feature_lengths, training=False)


class KerasLearner:
    """Trains tfasr's model on this process's Keras backend, with the steps of ``tfasr
    bench``.
    """

    def __init__(self, packed: Packed, seed: int, precision: str):
        recipe = packed.recipe
        self._packed = packed
        sizes = packed.config.num_features, packed.alphabet.num_classes
        model = build_recogniser(
            packed.model, *sizes, seed=seed, dtype=POLICIES.get(precision, "float32")
        )
        for layer in model.normalisations if recipe["momentum"] is not None else ():
            layer.momentum = recipe["momentum"]
        kernel = model.classifier.kernel
        if recipe["zero_output_layer"]:
            kernel.assign(np.zeros(kernel.shape, np.float32))
        self.parameters = model.count_params()
        loss = steppers.ctc_losses
        if weight := recipe["intermediate_loss_weight"]:
            model = _Intermediate(model)

            def loss(logits, *targets):
                last, middle = (
                    steppers.ctc_losses(scores, *targets) for scores in logits
                )
                return (1 - weight) * last + weight * middle

        self._stepper = steppers.make_stepper(model, loss, _optimizer(recipe))

    def step(self, batch: Batch) -> float:
        return self._stepper.update(self._placed(batch))

    def scores(self, batch: Batch) -> np.ndarray:
        """Returns the logits ``(batch, output frames, classes)``."""
        return self._stepper.predict(self._placed(batch))

    def _placed(self, batch: Batch) -> steppers.Batch:
        lengths = batch["feature_lengths"]
        frames = np.asarray(self._packed.model.output_lengths(lengths), np.int32)
        targets = (frames, batch["labels"], batch["label_lengths"])
        return self._stepper.place(
            steppers.Batch((batch["features"], lengths), targets)
        )


class TwinLearner:
    """The PyTorch twin, which cuDNN computes on a GPU."""

    def __init__(self, packed: Packed, seed: int, precision: str):
        import torch
        from twin.feeder import serialised
        from twin.torch_model import TorchTwin
        from twin.torch_optimizer import torch_optimizer

        torch.manual_seed(seed)
        recipe = packed.recipe
        self._torch = torch
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._dtype = torch.bfloat16 if precision == "bfloat16" else None
        sizes = packed.alphabet.num_classes, packed.config.num_features
        self._twin = TorchTwin(
            packed.model, *sizes, mask_statistics=True, momentum=recipe["momentum"]
        )
        if recipe["zero_output_layer"]:
            self._twin.zero_classifier()
        self._twin.to(self._device)
        self._trained = [p for p in self._twin.parameters() if p.requires_grad]
        self._wanted = serialised(_optimizer(recipe))
        self._steps = 0
        self._optimizer, self._rate = torch_optimizer(self._wanted, self._trained)
        self.parameters = sum(parameter.numel() for parameter in self._trained)

    def step(self, batch: Batch) -> float:
        from twin.torch_optimizer import clip_together

        tensors = self._placed(batch)
        self._twin.train()
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate(self._steps)
        self._steps += 1
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._twin.losses(self._logits(tensors), tensors).mean()
        loss.backward()
        clip_together(self._wanted, self._trained)
        self._optimizer.step()
        return float(loss.detach())

    def scores(self, batch: Batch) -> np.ndarray:
        """Returns the logits ``(batch, output frames, classes)``."""
        self._twin.eval()
        with self._torch.inference_mode():
            return (
                self._logits(self._placed(batch)).float().transpose(0, 1).cpu().numpy()
            )

    def _logits(self, tensors):
        dtype = self._dtype or self._torch.bfloat16
        with self._torch.autocast(self._device, dtype, enabled=self._dtype is not None):
            return self._twin(tensors["features"], tensors["feature_lengths"])

    def _placed(self, batch: Batch) -> dict[str, Any]:
        return {
            name: self._torch.from_numpy(value).to(self._device)
            for name, value in batch.items()
        }


def train(
    folder: Path,
    name: str,
    system: str,
    seed: int,
    precision: str,
    targets: list[tuple[str, float]],
    epochs: int | None = None,
):
    """Trains to a target and yields the results after each epoch.

    Args:
        folder: written by `gpu.data.pack`.
        name: names the corpus and recipe in that folder.
        system: "tfasr" or "torch".
        targets: metrics and values; the run ends when all are met.
        epochs: limit; None for the recipe's.
    """
    began = time.perf_counter()
    packed = Packed(folder, name)
    loaded_s = time.perf_counter() - began
    make = {"tfasr": KerasLearner, "torch": TwinLearner}[system]
    compiles = system == "tfasr" and keras.backend.backend() == "jax"
    with tempfile.TemporaryDirectory() as run_dir:
        recorder = tfasr.Recorder(
            run_dir,
            train_samples=len(packed.splits["train"]),
            targets=targets,
            global_batch_size=packed.recipe["batch_size"],
            seed=seed,
        )
        with recorder as run:
            learner = make(packed, seed, precision)
            run.note(parameters=learner.parameters)
            shapes = set()
            for _ in range(epochs or packed.recipe["epochs"]):
                number = run.epoch().number
                for batch in packed.training(seed, number):
                    shape = batch["features"].shape
                    with run.step(utterances=shape[0]) as step:
                        step.loss = learner.step(batch)
                        step.compiled = compiles and shape not in shapes

                    shapes.add(shape)

                with run.evaluation() as evaluation:
                    evaluation.score(*_recognised(packed, learner))
                yield {
                    **summary(tfasr.load_run(run_dir)),
                    "features_s": loaded_s,
                    "parameters": learner.parameters,
                }
                if run.targets_met:
                    break


def _recognised(packed: Packed, learner: Any) -> tuple[list[str], list[str]]:
    decoder = GreedyDecoder(packed.alphabet)
    recognised: dict[int, str] = {}
    for batch in packed.evaluation():
        scores = learner.scores(batch)
        scores = scores - np.logaddexp.reduce(scores, axis=2, keepdims=True)
        lengths = np.asarray(packed.model.output_lengths(batch["feature_lengths"]))
        texts = [hypothesis.text for hypothesis in decoder.decode(scores, lengths)]
        recognised.update(zip(batch["positions"].tolist(), texts, strict=True))

    references = [utterance.text for utterance in packed.splits["validation"]]
    return references, [recognised[number] for number in range(len(references))]


def summary(recorded: Any) -> dict[str, Any]:
    """Returns a `tfasr.tta.run.Run`'s times to its targets, scores and intervals."""
    reached = {
        f"{metric}={value}": recorded.time_to_accuracy(**{metric: value}).seconds
        for metric, value in recorded.targets
    }
    speed = recorded.throughput()
    curves = [recorded.accuracy_curve(metric) for metric in ("cer", "wer")]
    scores = [[cer.value, wer.value] for cer, wer in zip(*curves, strict=True)]
    return {
        "reached_s": reached,
        "epochs": len(scores),
        "curve": scores,
        "wall_s": recorded.wall_s,
        "intervals_s": recorded.intervals,
        "utterances_per_s": speed.utterances_per_s,
        "step_input_wait_share": speed.input_wait_share,
    }
