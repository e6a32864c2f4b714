"""The keyword spotter in PyTorch alone, without Keras, in either layout of images."""

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tfasr.bench.probes.step import Batch
from tfasr.bench.probes.stepper_torch import timed_apart, waited
from tfasr.models.keyword_spotter import LAYERS, KeywordSpotterConfig

# Keras's: 1 less the momentum is PyTorch's.
_MOMENTUM, _EPSILON = 0.1, 1e-3


class TorchSpotter(torch.nn.Module):
    """The network of `tfasr.models.keyword_spotter.KeywordSpotter`, layer by layer.

    Args:
        config: sizes.
        layout: "NCHW", PyTorch's own, or "NHWC", where channels are the last in memory.
    """

    def __init__(self, config: KeywordSpotterConfig, layout: str = "NCHW"):
        super().__init__()
        self._format = torch.channels_last if layout == "NHWC" else torch.contiguous_format
        inputs = (1, *config.filters)
        self.convolutions = torch.nn.ModuleList(
            torch.nn.Conv2d(channels, filters, kernel, bias=False)
            for channels, filters, (kernel, _) in zip(inputs, config.filters, LAYERS, strict=False)
        )
        self.normalisations = torch.nn.ModuleList(
            torch.nn.BatchNorm2d(filters, eps=_EPSILON, momentum=_MOMENTUM)
            for filters in config.filters
        )
        self.classifier = torch.nn.Linear(config.filters[-1], config.num_words)
        for convolution in self.convolutions:
            torch.nn.init.kaiming_normal_(convolution.weight)
        torch.nn.init.xavier_uniform_(self.classifier.weight)
        torch.nn.init.zeros_(self.classifier.bias)
        self.to(memory_format=self._format)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Returns class scores ``(batch, num_words)`` of ``(batch, num_frames, num_bins)``."""
        hidden = features[:, None].contiguous(memory_format=self._format)
        layers = zip(self.convolutions, self.normalisations, LAYERS, strict=True)
        for convolution, normalisation, (_, pooled) in layers:
            hidden = functional.relu(normalisation(convolution(hidden)))
            hidden = functional.max_pool2d(hidden, 2) if pooled else hidden
        return self.classifier(hidden.mean(dim=(2, 3)))


class TorchSpotterStepper:
    """See `tfasr.bench.probes.step.Stepper`; eager, Adam and cross entropy as of the talk's peers.

    Args:
        config: sizes.
        layout: see `TorchSpotter`.
        learning_rate: of Adam.
        seed: of the initial weights.
    """

    def __init__(
        self, config: KeywordSpotterConfig, layout: str, learning_rate: float, seed: int = 0
    ):
        torch.manual_seed(seed)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self.module = TorchSpotter(config, layout).to(self._device)
        # Keras's Adam has this epsilon, PyTorch's another.
        self._optimizer = torch.optim.Adam(self.module.parameters(), learning_rate, eps=1e-7)

    @property
    def parameters(self) -> int:
        """Trainable ones."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    def place(self, batch: Batch) -> Batch:
        """See `Stepper.place`."""
        moved = (tuple(map(self._moved, part)) for part in (batch.inputs, batch.targets))
        return Batch(*moved)

    def _moved(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        # PyTorch's cross entropy takes 64 bits.
        return (tensor.long() if tensor.dtype == torch.int32 else tensor).to(self._device)

    def forward(self, batch: Batch) -> float:
        """See `Stepper.forward`."""
        return waited(self._mean_loss(batch))

    def gradients(self, batch: Batch) -> float:
        """See `Stepper.gradients`."""
        self._optimizer.zero_grad()
        loss = self._mean_loss(batch)
        loss.backward()
        return waited(loss)

    def apart(self, batch: Batch) -> tuple[float, float]:
        """See `Stepper.apart`."""
        self._optimizer.zero_grad()
        return timed_apart(lambda: self._mean_loss(batch))

    def update(self, batch: Batch) -> float:
        """See `Stepper.update`."""
        self._optimizer.zero_grad()
        loss = self._mean_loss(batch)
        loss.backward()
        self._optimizer.step()
        return waited(loss)

    def predict(self, batch: Batch) -> np.ndarray:
        """See `Stepper.predict`."""
        self.module.eval()
        with torch.no_grad():
            return self.module(*batch.inputs).cpu().numpy()

    def _mean_loss(self, batch: Batch) -> Any:
        self.module.train()
        return functional.cross_entropy(self.module(*batch.inputs), *batch.targets)
