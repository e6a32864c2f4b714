"""The acoustic model as a PyTorch user would write it."""

import torch
from torch import nn
from torch.nn import functional


class MaskedBatchNorm(nn.BatchNorm1d):
    """Batch normalisation of ``(frames, channels)`` with statistics of some frames only."""

    def forward(
        self, frames: torch.Tensor, valid: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Normalises.

        Args:
            frames: ``(frames, channels)``.
            valid: booleans ``(frames,)``: those that count; None for all. In training,
                the others become zeros.
        """
        if valid is None or not self.training:
            return super().forward(frames)

        normalised = torch.zeros_like(frames)
        normalised[valid] = super().forward(frames[valid])

        return normalised


class BothWays(nn.Module):
    """A forward and a backward LSTM with concatenated outputs; the latter starts at the
    last frame.

    `torch.nn.LSTM` supports this only for packed batches, which take three times as
    long on a CPU (PyTorch 2.13, 80 frames, 8 utterances, 96 units); otherwise it starts
    in the padding.

    Args:
        inputs: channels.
        units: of each of the two.
    """

    def __init__(self, inputs: int, units: int):
        super().__init__()
        self.forwards = nn.LSTM(inputs, units)
        self.backwards = nn.LSTM(inputs, units)

    def forward(self, hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Returns the outputs ``(frames, batch, 2 * units)``.

        Args:
            hidden: ``(frames, batch, inputs)``, right-padded.
            lengths: integers ``(batch,)``: valid frames.
        """
        behind = self.backwards(_reversed(hidden, lengths))[0]
        return torch.cat([self.forwards(hidden)[0], _reversed(behind, lengths)], dim=2)


def _reversed(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Reverses the valid frames of utterances; padding stays at the end."""
    steps = torch.arange(hidden.shape[0], device=hidden.device)[:, None]
    order = torch.where(steps < lengths, lengths - 1 - steps, steps)
    return hidden.gather(0, order[:, :, None].expand_as(hidden))


def one_way(layer: nn.LSTM | BothWays) -> list[nn.LSTM]:
    """Returns the LSTMs of a layer, the forward one first."""
    return [layer.forwards, layer.backwards] if isinstance(layer, BothWays) else [layer]


class TorchTwin(nn.Module):
    """Conv1d, then `torch.nn.LSTM` layers, then a linear layer to classes; time-major inside.

    `torch.nn.LSTM` and the CTC loss put time before batch, so only the convolution's
    output is transposed. An LSTM's second bias stays 0, as Keras has only one.

    Args:
        config: sizes, a `tfasr.models.recurrent.AcousticModelConfig`.
        num_classes: classes, the CTC blank last.
        num_features: features per frame.
        mask_statistics: whether batch statistics leave out padded frames, as in tfasr,
            or include them, as in `torch.nn.BatchNorm1d`, which is faster.
        momentum: of the moving statistics, as in Keras; None for Keras's 0.99.
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
        kind = BothWays if config.bidirectional else nn.LSTM
        self.recurrent = nn.ModuleList(
            kind(width, config.lstm_units) for width in widths[: config.num_lstm_layers]
        )

        for layer in self.lstms():
            layer.bias_hh_l0.requires_grad_(False)

        # Keras's epsilon and momentum; PyTorch's momentum is 1 minus Keras's.
        forgets = 0.01 if momentum is None else 1.0 - momentum
        self.normalisations = nn.ModuleList(
            MaskedBatchNorm(width, eps=1e-3, momentum=forgets)
            for width in widths
            if config.batch_normalisation
        )
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(widths[-1], num_classes)
        self.reset_parameters()

    def zero_classifier(self) -> None:
        """Sets the last layer's weights to 0, as ``TrainingConfig.zero_output_layer`` does."""
        nn.init.zeros_(self.classifier.weight)

    def reset_parameters(self) -> None:
        """Draws weights by the scheme of tfasr's model: Glorot uniform, forget gates'
        biases 1.
        """
        recurrent = {
            "orthogonal": nn.init.orthogonal_,
            "glorot_uniform": nn.init.xavier_uniform_,
        }
        for layer in (self.convolution, self.classifier):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

        for layer in self.lstms():
            nn.init.xavier_uniform_(layer.weight_ih_l0)
            recurrent[self.config.recurrent_initializer](layer.weight_hh_l0)
            nn.init.zeros_(layer.bias_hh_l0)
            nn.init.zeros_(layer.bias_ih_l0)
            units = layer.hidden_size

            with torch.no_grad():
                layer.bias_ih_l0[units : 2 * units] = 1.0

    def lstms(self) -> list[nn.LSTM]:
        """Returns the LSTMs of all layers; of a bidirectional one the forward one first."""
        return [lstm for layer in self.recurrent for lstm in one_way(layer)]

    def output_lengths(self, feature_lengths: torch.Tensor) -> torch.Tensor:
        """Returns the output frames for a number of feature frames."""
        return (
            feature_lengths - self.config.conv_kernel
        ) // self.config.conv_stride + 1

    def forward(
        self, features: torch.Tensor, feature_lengths: torch.Tensor
    ) -> torch.Tensor:
        """Returns logits ``(output frames, batch, classes)``.

        Args:
            features: ``(batch, frames, num_features)``, right-padded.
            feature_lengths: integers ``(batch,)``: valid frames.
        """
        hidden = functional.relu(self.convolution(features.transpose(1, 2))).permute(
            2, 0, 1
        )
        valid = None
        lengths = self.output_lengths(feature_lengths)

        if self._mask_statistics:
            steps = torch.arange(hidden.shape[0], device=hidden.device)
            valid = (steps[:, None] < lengths[None, :]).reshape(-1)

        for block in range(len(self.recurrent) + 1):
            if self.normalisations:
                frames = hidden.reshape(-1, hidden.shape[2])
                hidden = self.normalisations[block](frames, valid).view(hidden.shape)

            hidden = self.dropout(hidden)
            if block < len(self.recurrent):
                hidden = self._recurred(block, hidden, lengths)

        return self.classifier(hidden)

    def _recurred(
        self, block: int, hidden: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        layer = self.recurrent[block]
        if isinstance(layer, BothWays):
            return layer(hidden, lengths)

        return layer(hidden)[0]

    def losses(
        self,
        logits: torch.Tensor,
        batch: dict[str, torch.Tensor],
        log_probs: bool = False,
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
