"""PyTorch Lightning's ``Trainer``, recorded by one callback: which half of a vector is larger.

Run ``python examples/recorder/with_lightning.py runs/halves``, then ``tfasr report
runs/halves``.
"""

import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

import tfasr
from tfasr.adapters.lightning import RecordFit


class Halves(LightningModule):
    """Two layers that log their accuracy in validation."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)
        )

    def training_step(self, batch, batch_idx):
        """Returns the loss."""
        return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        """Logs the accuracy."""
        self.log(
            "val_acc", (self.layers(batch[0]).argmax(-1) == batch[1]).float().mean()
        )

    def configure_optimizers(self):
        """Returns the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


def loader(count: int, seed: int) -> DataLoader:
    """Returns batches of vectors and of which of their halves has the larger sum."""
    inputs = torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))
    labels = (inputs[:, :8].sum(1) > inputs[:, 8:].sum(1)).long()
    return DataLoader(TensorDataset(inputs, labels), batch_size=16)


def main(run_dir: str, epochs: int = 6, **arguments) -> None:
    """Trains, or continues."""
    saver = ModelCheckpoint(f"{run_dir}-checkpoints", save_last=True)
    with tfasr.Recorder(run_dir, train_samples=512, targets=["accuracy=0.9"]) as run:
        recorder = RecordFit(run, metrics={"accuracy": "val_acc"})
        trainer = Trainer(
            max_epochs=epochs, logger=False, accelerator="cpu", callbacks=[saver, recorder],
            **arguments,
        )  # fmt: skip
        last = f"{run_dir}-checkpoints/last.ckpt" if run.steps_done else None
        trainer.fit(Halves(), loader(512, seed=1), loader(128, seed=2), ckpt_path=last)


if __name__ == "__main__":
    main(sys.argv[1])
