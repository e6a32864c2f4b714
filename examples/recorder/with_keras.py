"""Records Keras's ``fit`` with one callback, on any backend.

The model learns which half of a vector has the larger sum.

Run ``python examples/recorder/with_keras.py runs/halves``, then ``tfasr report
runs/halves``.
"""

import sys

import keras
import numpy as np

import tfasr
from tfasr.adapters.keras import RecordFit


def examples(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns vectors and which of their halves has the larger sum."""
    inputs = np.random.default_rng(seed).standard_normal((count, 16), np.float32)
    return inputs, (inputs[:, :8].sum(1) > inputs[:, 8:].sum(1)).astype("int32")


def main(run_dir: str, epochs: int = 6) -> None:
    """Trains, or continues."""
    saved = f"{run_dir}.keras"
    with tfasr.Recorder(run_dir, train_samples=500, targets=["accuracy=0.9"]) as run:
        if run.steps_done:
            model = keras.saving.load_model(saved)
        else:
            layers = [keras.layers.Dense(32, "relu"), keras.layers.Dense(2)]
            model = keras.Sequential([keras.Input((16,)), *layers])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])

        recorder = RecordFit(run, batch_size=16, checkpoint=True)
        model.fit(
            *examples(500, seed=1),
            batch_size=16,
            epochs=epochs,
            initial_epoch=run.epochs_done,
            validation_data=examples(128, seed=2),
            callbacks=[keras.callbacks.ModelCheckpoint(saved), recorder],
            verbose=0,
        )


if __name__ == "__main__":
    main(sys.argv[1])
