"""Runs on PyTorch: the keyword spotter of Keras and those of PyTorch alone, from equal weights."""

import keras
import numpy as np


def native_probe():
    """Returns the scores after two updates: of Keras, then of PyTorch alone in both layouts."""
    import torch

    from tfasr.bench.keywords import TorchSpotterStepper, word_losses
    from tfasr.bench.steppers import Batch, make_stepper
    from tfasr.models.keyword_spotter import KeywordSpotter, KeywordSpotterConfig

    config = KeywordSpotterConfig(num_frames=30, num_bins=26, filters=(2, 2, 3, 3), num_words=4)
    random = np.random.default_rng(0)
    batch = Batch((random.standard_normal((3, 30, 26)).astype(np.float32),), (np.arange(3),))
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
        found.append([*losses, stepper.forward(placed), *stepper.predict(placed).ravel().tolist()])
    return found
