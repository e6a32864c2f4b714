"""The models and batches used to measure training steps."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfasr.kit.gin import read_gin

STEP_S = 0.01
LABELS_PER_FRAME = 0.3  # 180 labels in 600 frames
NUM_FEATURES = 93
NUM_CLASSES = 30
BLANK = NUM_CLASSES - 1

_GRID = re.compile(r"(?:(paper|an4):)?(\d+)x(\d+)(?:x(\d+))?")


@dataclass(frozen=True)
class Size:
    """A model and a batch.

    Attributes:
        name: "paper", "an4", those with another batch, ``paper:BATCHxFRAMES``, or
            ``UNITSxBATCH`` and ``UNITSxBATCHxFRAMES``.
        batch: utterances.
        frames: feature frames of the longest.
        units: of a model of the grid; None for a preset's model.
    """

    name: str
    batch: int
    frames: int
    units: int | None = None

    @property
    def audio_s(self) -> float:
        """Seconds of audio in the batch, without padding."""
        return float(made_batch(self)["duration_s"].sum())

    def model_config(self):
        """Returns the `tfasr.models.recurrent.AcousticModelConfig`; loads Keras."""
        from tfasr.models.recurrent import AcousticModelConfig

        if self.units is not None:
            return AcousticModelConfig(
                conv_filters=self.units,
                num_lstm_layers=3,
                lstm_units=self.units,
                dropout=0.2,
            )

        if self.name.startswith("an4"):
            return AcousticModelConfig(**_preset_values())

        return AcousticModelConfig()


def _preset_values() -> dict[str, Any]:
    """Returns the model's bindings in gin/an4.gin, read without importing TensorFlow."""
    bindings = read_gin(["an4.gin"]).bindings
    return {
        b.parameter: b.value for b in bindings if b.selector == "AcousticModelConfig"
    }


def parse_size(text: str) -> Size:
    """Returns a size by its name.

    Raises:
        ValueError: if the name is unknown.
    """
    if text == "paper":
        return Size(text, 16, 600)

    if text == "an4":
        return Size(text, 16, 300)

    result = _GRID.fullmatch(text)
    if not result:
        raise ValueError(
            "A size must be paper, an4, paper:BATCHxFRAMES, an4:BATCHxFRAMES, UNITSxBATCH or "
            "UNITSxBATCHxFRAMES, such as 128x8. "
            f"Received: {text!r}."
        )

    preset, *numbers = result.groups()
    first, second, third = (int(number or 300) for number in numbers)
    if preset:
        return Size(text, first, second)

    return Size(text, second, third, first)


def made_batch(size: Size, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns a batch of noise like those of `tfasr.data.batches.BatchSource`.

    The longest utterance has all frames, the others 85 to 100 %, as in a batch made by
    buckets. No label repeats its neighbour, so every utterance has a CTC path.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(int(0.85 * size.frames), size.frames + 1, size.batch).astype(
        "int32"
    )
    lengths[0] = size.frames
    label_lengths = np.maximum(1, lengths * LABELS_PER_FRAME).astype("int32")

    features = rng.normal(size=(size.batch, size.frames, NUM_FEATURES)).astype(
        "float32"
    )
    features[np.arange(size.frames) >= lengths[:, None]] = 0

    steps = rng.integers(1, BLANK, (size.batch, label_lengths.max()))
    labels = (steps.cumsum(axis=1) % BLANK).astype("int32")
    labels[np.arange(labels.shape[1]) >= label_lengths[:, None]] = 0

    return {
        "features": features,
        "feature_lengths": lengths,
        "labels": labels,
        "label_lengths": label_lengths,
        "positions": np.arange(size.batch, dtype="int64"),
        "duration_s": (lengths * STEP_S).astype("float32"),
    }
