"""Checks that the systems compute the same thing before their times are compared."""

import numpy as np

from twin.sizes import NUM_CLASSES, NUM_FEATURES, Size, made_batch

TOLERANCE = 1e-4


def disagreements(config, peers: list[str]) -> dict[str, float]:
    """Returns how much peers differ from tfasr's model with the same weights, in float32.

    Logits and losses of valid frames are compared in inference, and for PyTorch also
    with batch statistics that leave out padded frames; without dropout, whose draws
    would differ.

    Args:
        config: the model, a `tfasr.models.recurrent.AcousticModelConfig`.
        peers: "torch", "stock_keras" or both.

    Returns:
        For each comparison, the largest difference of a logit, or of a loss as a share
            of it.
    """
    import dataclasses

    from tfasr.alphabet import Alphabet
    from tfasr.training.build import build_model
    from tfasr.training.experiment import Experiment

    config = dataclasses.replace(config, dropout=0.0)
    model = build_model(Experiment(model=config), Alphabet(), compiled=False)
    _move_weights(model)
    batch = made_batch(Size("agreement", batch=3, frames=80))
    result: dict[str, float] = {}

    # Inference first, as training changes the moving statistics.
    for training in (False, True):
        ours = _run_tfasr(model, batch, training)
        for peer in peers:
            if peer == "torch":
                theirs = _run_torch(model, batch, training)
            elif not training:
                theirs = _run_stock_keras(model, batch)
            else:
                continue

            mode = "training" if training else "inference"
            result |= _differences(f"{peer} {mode}", ours, theirs, batch, config)

    return result


def _move_weights(model) -> None:
    """Changes all vectors, which models initialise alike: biases, scales, statistics."""
    rng = np.random.default_rng(0)
    for variable in model.recogniser.weights:
        if len(variable.shape) == 1 and variable.dtype == "float32":
            # Only upwards, as a variance must stay positive.
            variable.assign_add(rng.uniform(0, 0.3, variable.shape).astype("float32"))


def _differences(name, ours, theirs, batch, config) -> dict[str, float]:
    lengths = (batch["feature_lengths"] - config.conv_kernel) // config.conv_stride + 1
    valid = np.arange(ours[1].shape[1]) < lengths[:, None]
    return {
        f"{name} logits": float(np.abs(ours[1] - theirs[1])[valid].max()),
        f"{name} loss": float((np.abs(ours[0] - theirs[0]) / np.abs(ours[0])).max()),
    }


def _run_tfasr(model, batch, training: bool) -> tuple[np.ndarray, np.ndarray]:
    import tensorflow as tf

    tensors = {name: tf.constant(value) for name, value in batch.items()}
    losses, logits = model.utterance_losses(tensors, training=training)
    return losses.numpy(), logits.numpy()


def _run_torch(model, batch, training: bool) -> tuple[np.ndarray, np.ndarray]:
    import torch

    from twin.torch_model import TorchTwin
    from twin.weights import copy_to_torch

    acoustic_model = model.recogniser
    twin = TorchTwin(
        acoustic_model.config, NUM_CLASSES, NUM_FEATURES, mask_statistics=True
    )
    copy_to_torch(acoustic_model, twin)
    twin.train(training)
    tensors = {name: torch.from_numpy(value) for name, value in batch.items()}

    with torch.no_grad():
        logits = twin(tensors["features"], tensors["feature_lengths"])
        losses = twin.losses(logits, tensors)

    return losses.numpy(), logits.transpose(0, 1).numpy()


def _run_stock_keras(model, batch) -> tuple[np.ndarray, np.ndarray]:
    import tensorflow as tf

    from twin.stock_keras import StockModel, copy_to_stock_keras

    stock = StockModel(model.recogniser.config, NUM_CLASSES, NUM_FEATURES)
    copy_to_stock_keras(model.recogniser, stock.network)
    tensors = {name: tf.constant(value) for name, value in batch.items()}
    logits = stock.network(tensors["features"], training=False)

    return stock.losses(tensors, training=False).numpy(), logits.numpy()
