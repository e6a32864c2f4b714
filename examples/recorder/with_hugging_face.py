"""Records Hugging Face's ``Trainer`` with one callback.

The model learns which half of a vector has the larger sum.

Run ``python examples/recorder/with_hugging_face.py runs/halves``, then ``tfasr report
runs/halves``.
"""

import sys

import torch
from transformers import Trainer, TrainingArguments

import tfasr
from tfasr.adapters.hugging_face import RecordTrainer


class Halves(torch.nn.Module):
    """Two layers, with the loss that a ``Trainer`` asks of a model."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)
        )

    def forward(self, inputs, labels):
        """Returns loss and logits."""
        logits = self.layers(inputs)
        return {
            "loss": torch.nn.functional.cross_entropy(logits, labels),
            "logits": logits,
        }


def examples(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Returns vectors and which of their halves has the larger sum."""
    inputs = torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))
    labels = (inputs[:, :8].sum(1) > inputs[:, 8:].sum(1)).long()
    return [{"inputs": x, "labels": y} for x, y in zip(inputs, labels, strict=True)]


def main(run_dir: str, epochs: int = 6, **arguments) -> None:
    """Trains, or continues."""
    train = examples(512, seed=1)
    validation = examples(128, seed=2)
    with tfasr.Recorder(
        run_dir, train_samples=len(train), targets=["accuracy=0.9"]
    ) as run:
        trainer = Trainer(
            Halves(),
            TrainingArguments(
                f"{run_dir}-checkpoints",
                num_train_epochs=epochs,
                per_device_train_batch_size=16,
                learning_rate=0.01,
                eval_strategy="epoch",
                save_strategy="epoch",
                report_to="none",
                use_cpu=True,
                **arguments,
            ),
            train_dataset=train,
            eval_dataset=validation,
            compute_metrics=lambda p: {
                "accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())
            },
            callbacks=[RecordTrainer(run)],
        )
        trainer.train(resume_from_checkpoint=bool(run.steps_done))


if __name__ == "__main__":
    main(sys.argv[1])
