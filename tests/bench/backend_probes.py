"""Runs in a process of its own backend: small models with given weights, the losses they take."""

import contextlib

import keras
import numpy as np


def probe():
    """Returns what every backend must agree on."""
    from tfasr.bench.keywords import word_losses
    from tfasr.bench.steppers import Batch, ctc_losses, make_stepper
    from tfasr.models.deep_speech_2 import DeepSpeech2, DeepSpeech2Config
    from tfasr.models.keyword_spotter import KeywordSpotter, KeywordSpotterConfig

    random = np.random.default_rng(0)

    def draw(*shape):
        return random.standard_normal(shape).astype(np.float32)

    def weighted(model):
        for variable in model.trainable_variables:
            variable.assign(0.3 * draw(*variable.shape))
        return model

    speech = DeepSpeech2(
        DeepSpeech2Config(units=6, num_recurrent_layers=1, conv_filters=2)
    )
    speech.build()
    labels = np.array([[1, 1, 2], [3, 0, 0]], np.int32)
    spoken = (np.array([10, 10], np.int32), labels, np.array([3, 1], np.int32))
    words = KeywordSpotter(
        KeywordSpotterConfig(
            num_frames=30, num_bins=26, filters=(2, 2, 3, 3), num_words=4
        )
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
            "apart_s": min(stepper.apart(placed)) > 0,
            "updates": [stepper.update(placed) for _ in range(3)],
            "outputs": stepper.predict(placed).tolist(),
        }

    return {"backend": keras.backend.backend(), **found}


def probe_devices():
    """Returns the losses of the same updates on one device and on two."""
    from tfasr.bench.steppers import Batch, make_stepper, make_strategy

    both = make_strategy(2)
    random = np.random.default_rng(0)
    arrays = random.standard_normal((6, 4)).astype(np.float32), random.integers(0, 3, 6)
    batch = Batch((arrays[0],), (arrays[1].astype(np.int32),))
    found = []
    for strategy in (None, both):
        with strategy.scope() if strategy else contextlib.nullcontext():
            model = keras.Sequential([keras.layers.Dense(3, kernel_initializer="ones")])
            model.build((None, 4))

        optimizer = keras.optimizers.SGD(0.5)
        stepper = make_stepper(model, _cross_entropy, optimizer, strategy)
        placed = stepper.place(batch)
        losses = [stepper.forward(placed), stepper.gradients(placed)]
        found.append([*losses, *(stepper.update(placed) for _ in range(4))])

    return found


def _cross_entropy(logits, labels):
    return keras.losses.sparse_categorical_crossentropy(
        labels, logits, from_logits=True
    )


def native_probe():
    """Returns the scores after two updates: of Keras, then of PyTorch alone in both
    layouts.
    """
    import torch

    from tfasr.bench.keywords import TorchSpotterStepper, word_losses
    from tfasr.bench.steppers import Batch, make_stepper
    from tfasr.models.keyword_spotter import KeywordSpotter, KeywordSpotterConfig

    config = KeywordSpotterConfig(
        num_frames=30, num_bins=26, filters=(2, 2, 3, 3), num_words=4
    )
    random = np.random.default_rng(0)
    batch = Batch(
        (random.standard_normal((3, 30, 26)).astype(np.float32),), (np.arange(3),)
    )
    model = KeywordSpotter(config)
    model.build()
    natives = [TorchSpotterStepper(config, layout, 0.01) for layout in ("NCHW", "NHWC")]
    with torch.no_grad():
        for native in natives:
            pairs = zip(model.convolutions, native.module.convolutions, strict=True)
            for layer, own in pairs:
                own.weight.copy_(layer.kernel.value.permute(3, 2, 0, 1))
            native.module.classifier.weight.copy_(model.classifier.kernel.value.T)

    steppers = [make_stepper(model, word_losses, keras.optimizers.Adam(0.01)), *natives]
    found = []
    for stepper in steppers:
        placed = stepper.place(batch)
        losses = [stepper.update(placed) for _ in range(2)]
        assert min(stepper.apart(placed)) > 0
        assert stepper.gradients(placed) < losses[0]
        found.append(
            [
                *losses,
                stepper.forward(placed),
                *stepper.predict(placed).ravel().tolist(),
            ]
        )

    return found
