"""The acoustic model as a PyTorch user would write it."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class MaskedBatchNorm(nn.BatchNorm1d):
    """Batch normalisation of ``(frames, channels)`` that learns from some of the frames alone."""

    def forward(self, frames: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
        """Normalises.

        Args:
            frames: ``(frames, channels)``.
            valid: booleans ``(frames,)``: those that count; None for all. In training the others
                come back as zeros.
        """
        if valid is None or not self.training:
            return super().forward(frames)
        normalised = torch.zeros_like(frames)
        normalised[valid] = super().forward(frames[valid])
        return normalised


class TorchTwin(nn.Module):
    """Conv1d, then `torch.nn.LSTM` layers, then a linear layer to classes; time-major within.

    Time before batch is what `torch.nn.LSTM` and the CTC loss work in: nothing is transposed but
    the convolution's output. An LSTM's second bias stays 0, as Keras has but one.

    Args:
        config: sizes, a `tfasr.models.acoustic_model.AcousticModelConfig`. Where it runs LSTMs
            backwards too, batches are packed, so that those begin at an utterance's last frame and
            not in its padding.
        num_classes: classes, the CTC blank last.
        num_features: features per frame.
        mask_statistics: whether padded frames are left out of batch statistics, as tfasr does, or
            counted, which is what `torch.nn.BatchNorm1d` does and costs less.
        momentum: of the moving statistics a step, as in Keras; None for Keras's 0.99.
    """

    def __init__(
        self,
        config,
        num_classes: int,
        num_features: int,
        *,
        mask_statistics: bool,
        momentum: float | None = None,
    ):
        super().__init__()
        self.config = config
        self._mask_statistics = mask_statistics
        self.convolution = nn.Conv1d(
            num_features, config.conv_filters, config.conv_kernel, config.conv_stride
        )
        outputs = config.directions * config.lstm_units
        widths = [config.conv_filters] + [outputs] * config.num_lstm_layers
        self.recurrent = nn.ModuleList(
            nn.LSTM(width, config.lstm_units, bidirectional=config.bidirectional)
            for width in widths[: config.num_lstm_layers]
        )
        for layer in self.recurrent:
            for direction in directions(layer):
                direction["bias_hh"].requires_grad_(False)
        # Keras's epsilon and momentum, which PyTorch counts from the other end.
        forgets = 0.01 if momentum is None else 1.0 - momentum
        self.normalisations = nn.ModuleList(
            MaskedBatchNorm(width, eps=1e-3, momentum=forgets)
            for width in widths
            if config.batch_normalisation
        )
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(widths[-1], num_classes)
        self.reset_parameters()

    def add_to_blank_bias(self, amount: float) -> None:
        """Adds to the bias of the last class, as ``TrainingConfig.initial_blank_bias`` does."""
        with torch.no_grad():
            self.classifier.bias[-1] += amount

    def reset_parameters(self) -> None:
        """Draws weights by the scheme of tfasr's model: Glorot uniform, forget gates' biases 1."""
        recurrent = {"orthogonal": nn.init.orthogonal_, "glorot_uniform": nn.init.xavier_uniform_}
        for layer in (self.convolution, self.classifier):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        units = self.config.lstm_units
        for direction in (one for layer in self.recurrent for one in directions(layer)):
            nn.init.xavier_uniform_(direction["weight_ih"])
            recurrent[self.config.recurrent_initializer](direction["weight_hh"])
            nn.init.zeros_(direction["bias_hh"])
            nn.init.zeros_(direction["bias_ih"])
            with torch.no_grad():
                direction["bias_ih"][units : 2 * units] = 1.0

    def output_lengths(self, feature_lengths: torch.Tensor) -> torch.Tensor:
        """Returns the output frames of so many feature frames."""
        return (feature_lengths - self.config.conv_kernel) // self.config.conv_stride + 1

    def forward(self, features: torch.Tensor, feature_lengths: torch.Tensor) -> torch.Tensor:
        """Returns logits ``(output frames, batch, classes)``.

        Args:
            features: ``(batch, frames, num_features)``, right-padded.
            feature_lengths: integers ``(batch,)``: valid frames.
        """
        hidden = functional.relu(self.convolution(features.transpose(1, 2))).permute(2, 0, 1)
        valid = None
        lengths = self.output_lengths(feature_lengths)
        if self._mask_statistics:
            steps = torch.arange(hidden.shape[0])
            valid = (steps[:, None] < lengths[None, :]).reshape(-1)
        for block in range(len(self.recurrent) + 1):
            if self.normalisations:
                frames = hidden.reshape(-1, hidden.shape[2])
                hidden = self.normalisations[block](frames, valid).view(hidden.shape)
            hidden = self.dropout(hidden)
            if block < len(self.recurrent):
                hidden = self._recurred(block, hidden, lengths)
        return self.classifier(hidden)

    def _recurred(self, block: int, hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        layer = self.recurrent[block]
        if not layer.bidirectional:
            return layer(hidden)[0]
        packed = pack_padded_sequence(hidden, lengths, enforce_sorted=False)
        return pad_packed_sequence(layer(packed)[0], total_length=hidden.shape[0])[0]

    def losses(
        self, logits: torch.Tensor, batch: dict[str, torch.Tensor], log_probs: bool = False
    ) -> torch.Tensor:
        """Returns the CTC losses ``(batch,)``, computed in float32.

        Args:
            logits: ``(output frames, batch, classes)``.
            batch: ``feature_lengths``, ``labels`` and ``label_lengths``.
            log_probs: whether ``logits`` are log-probabilities already.
        """
        return functional.ctc_loss(
            logits if log_probs else functional.log_softmax(logits.float(), dim=-1),
            batch["labels"],
            self.output_lengths(batch["feature_lengths"]),
            batch["label_lengths"],
            blank=logits.shape[2] - 1,
            reduction="none",
        )


def directions(layer: nn.LSTM) -> Iterator[dict[str, nn.Parameter]]:
    """Yields the weights of each direction, forwards first, under PyTorch's names without ends."""
    for end in ("l0", "l0_reverse")[: 1 + layer.bidirectional]:
        yield {
            name: getattr(layer, f"{name}_{end}")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
