"""Runs in a process of its own backend: small models with given weights, the losses they take."""

import keras
import numpy as np


def probe(_request=None):
    """Returns what every backend must agree on."""
    from tfasr.bench.ctc import ctc_losses
    from tfasr.bench.keyword_training import word_losses
    from tfasr.bench.stepper import Batch, make_stepper
    from tfasr.models.deep_speech_2 import DeepSpeech2, DeepSpeech2Config
    from tfasr.models.keyword_spotter import KeywordSpotter, KeywordSpotterConfig

    random = np.random.default_rng(0)

    def draw(*shape):
        return random.standard_normal(shape).astype(np.float32)

    def weighted(model):
        for variable in model.trainable_variables:
            variable.assign(0.3 * draw(*variable.shape))
        return model

    speech = DeepSpeech2(DeepSpeech2Config(units=6, num_recurrent_layers=1, conv_filters=2))
    speech.build()
    labels = np.array([[1, 1, 2], [3, 0, 0]], np.int32)
    spoken = (np.array([10, 10], np.int32), labels, np.array([3, 1], np.int32))
    words = KeywordSpotter(
        KeywordSpotterConfig(num_frames=30, num_bins=26, filters=(2, 2, 3, 3), num_words=4)
    )
    words.build()
    found = {}
    for name, model, loss, batch in (
        ("speech", weighted(speech), ctc_losses, Batch((draw(2, 40, 161),), spoken)),
        (
            "words",
            weighted(words),
            word_losses,
            Batch((draw(3, 30, 26),), (np.array([0, 3, 1], np.int32),)),
        ),
    ):
        stepper = make_stepper(model, loss, keras.optimizers.SGD(0.05))
        placed = stepper.place(batch)
        found[name] = {
            "forward": stepper.forward(placed),
            "gradients": stepper.gradients(placed),
            "updates": [stepper.update(placed) for _ in range(3)],
            "outputs": stepper.predict(placed).tolist(),
        }
    return {"backend": keras.backend.backend(), **found}
