"""Small models of every family, whose logits a process on another backend writes down.

``KERAS_BACKEND=jax python -m tests.models.families OUT.npz`` writes each family's
logits for made features, with and without padding, by weights that are numbered and not
drawn.
"""

import sys

import numpy as np

FEATURES = 13
CLASSES = 6
LENGTHS = (23, 37)
SIZES = {
    "acoustic_model": {
        "conv_filters": 5,
        "num_lstm_layers": 1,
        "lstm_units": 4,
        "dropout": 0.0,
    },
    "deep_speech_2": {"conv_filters": 2, "num_recurrent_layers": 1, "units": 4},
    "gru": {"conv_filters": 5, "num_gru_layers": 2, "gru_units": 4, "dropout": 0.0},
    "bidirectional_gru": {
        **{"conv_filters": 5, "num_gru_layers": 2, "gru_units": 4},
        **{"bidirectional": True, "dropout": 0.0},
    },
    "separable_conv": {
        **{"filters": (4, 6), "kernels": (3, 4), "repeats": 2, "first_kernel": 5},
        **{"last_filters": (6, 5), "last_kernel": 3},
    },
    "conformer": {
        **{"width": 8, "num_blocks": 2, "num_heads": 2, "conv_kernel": 4},
        "dropout": 0.0,
    },
}


def config(name: str):
    """Returns the small model's config."""
    from tfasr.models.model import MODELS

    return MODELS[name.removeprefix("bidirectional_")](**SIZES[name])


def made_features(frames: int, number: int) -> np.ndarray:
    """Returns features of one utterance."""
    return np.random.default_rng(number).standard_normal((frames, FEATURES), np.float32)


def batch(padding: float = 0.0, more: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns two utterances, padded with a number, and their lengths."""
    features = np.full(
        (len(LENGTHS), max(LENGTHS) + more, FEATURES), padding, np.float32
    )
    for row, length in enumerate(LENGTHS):
        features[row, :length] = made_features(length, row)
    return features, np.array(LENGTHS, np.int32)


def numbered(model) -> None:
    """Gives a model weights that are the same on all backends."""
    random = np.random.default_rng(0)
    for variable in model.variables:
        if "seed" in variable.path or not str(variable.dtype).startswith("float"):
            continue
        values = 0.4 * random.standard_normal(variable.shape)
        # Variances and scales are positive.
        positive = variable.name in ("moving_variance", "gamma")
        variable.assign(np.abs(values) + 0.5 if positive else values)


def built(name: str):
    """Returns the small model with its numbered weights."""
    from tfasr.models.build import build_recogniser

    model = build_recogniser(config(name), FEATURES, CLASSES)
    numbered(model)
    return model


def logits(model, features: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns a model's answer, in inference."""
    import keras

    return keras.ops.convert_to_numpy(model(features, lengths, training=False))


if __name__ == "__main__":
    np.savez(sys.argv[1], **{name: logits(built(name), *batch()) for name in SIZES})
