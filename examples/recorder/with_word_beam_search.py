"""Word beam search after every epoch of Keras's fit: docs/recorder.md."""

import keras
import numpy as np

import tfasr

WORDS = ["deep", "speech", "reads", "words"]
ALPHABET = " " + "".join(
    sorted(set("".join(WORDS)))
)  # class 0 is the blank, class 1 the space


def utterances(count, seed):
    """Noise in which each character lights up its own feature, in place of recorded speech."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, 2)) for _ in range(count)]
    features = rng.normal(0, 0.3, (count, 48, len(ALPHABET))).astype("float32")
    labels = np.zeros((count, 16), "int32")  # 0 is padding
    for row, text in enumerate(texts):
        for place, character in enumerate(text):
            labels[row, place] = 1 + ALPHABET.index(character)
            features[row, 3 * place : 3 * place + 2, ALPHABET.index(character)] += 1
    return features, labels, texts


train_features, train_labels, _ = utterances(256, seed=1)
features, _, texts = utterances(64, seed=2)

with tfasr.Recorder("runs/stock", targets=["wer=0.2"], global_batch_size=16) as run:
    model = keras.Sequential(
        [
            keras.Input((None, len(ALPHABET))),
            keras.layers.Conv1D(32, 5, padding="same", activation="relu"),
            keras.layers.LSTM(32, return_sequences=True),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.05),
            keras.layers.Dense(1 + len(ALPHABET)),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), keras.losses.CTC())
    evaluation = tfasr.BeamSearchEvaluation(
        run, [(features, texts)], words=WORDS, alphabet=ALPHABET, stop_at_targets=True
    )
    model.fit(
        train_features, train_labels, batch_size=16, epochs=20, callbacks=[evaluation]
    )
