"""The PyTorch twin's evaluation: forward passes, greedy decoding, error counts."""

from collections.abc import Iterable

import numpy as np
import torch

from tfasr.alphabet import Alphabet
from tfasr.decoding.decoder import GreedyDecoder
from tfasr.recording.recorder import Evaluation
from twin.feeder import Arrays
from twin.torch_model import TorchTwin


def as_tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    """Converts the twin's part of a batch to tensors, without a copy."""
    names = ("features", "feature_lengths", "labels", "label_lengths")
    return {name: torch.from_numpy(arrays[name]) for name in names}


def mixed_precision(precision: str) -> torch.autocast:
    """Returns a context in which PyTorch computes in one of tfasr's precisions."""
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "mixed_bfloat16")


class TwinEvaluator:
    """Evaluates the twin on one split and records the time, with tfasr's decoder and counts.

    Args:
        references: the split's texts by position, in the split's order.
        alphabet: the classes.
        precision: "float32" or "mixed_bfloat16", as in training.
    """

    def __init__(
        self, references: dict[int, str], alphabet: Alphabet, precision: str = "float32"
    ):
        self._precision = precision
        self._references = references
        self._decoder = GreedyDecoder(alphabet)

    @torch.inference_mode()
    def evaluate(
        self, model: TorchTwin, batches: Iterable[Arrays], evaluation: Evaluation
    ) -> None:
        """Records error counts and loss of the split in a recorder's open evaluation."""
        model.eval()
        answers = [self._forward(model, batch) for batch in batches]
        with evaluation.decoding():
            recognised: dict[int, str] = {}
            for positions, log_probs, lengths, _ in answers:
                texts = [
                    hypothesis.text
                    for hypothesis in self._decoder.decode(log_probs, lengths)
                ]
                recognised.update(zip(positions.tolist(), texts, strict=True))

            hypotheses = [recognised[position] for position in self._references]
            evaluation.score(list(self._references.values()), hypotheses)
            losses = np.concatenate([losses for *_, losses in answers])
            evaluation.measure(loss=losses.mean())

    def _forward(self, model: TorchTwin, arrays: Arrays) -> tuple[np.ndarray, ...]:
        """Returns positions, log-probabilities ``(batch, frames, classes)``, lengths,
        losses.
        """
        batch = as_tensors(arrays)
        with mixed_precision(self._precision):
            logits = model(batch["features"], batch["feature_lengths"])

        log_probs = logits.float().log_softmax(dim=-1)
        losses = model.losses(log_probs, batch, log_probs=True)
        lengths = model.output_lengths(batch["feature_lengths"])
        by_batch = log_probs.transpose(0, 1).contiguous()

        return arrays["positions"], by_batch.numpy(), lengths.numpy(), losses.numpy()
