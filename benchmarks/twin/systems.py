"""One training step of each system, ready to be called repeatedly."""

from collections.abc import Callable
from functools import partial

import numpy as np

from twin.sizes import NUM_CLASSES, NUM_FEATURES, Size, made_batch

Step = Callable[[], float]
Batch = dict[str, np.ndarray]

PRECISIONS = ("float32", "bfloat16")
# Each system's 16-bit precisions: mixed precision, and for PyTorch also all weights in
# bfloat16.
VARIANTS = {
    "tfasr": {"float32": ["float32"], "bfloat16": ["bfloat16"]},
    "stock_keras": {"float32": ["float32"], "bfloat16": ["bfloat16"]},
    "torch": {"float32": ["float32"], "bfloat16": ["bfloat16", "bfloat16_weights"]},
}
SYSTEMS = tuple(VARIANTS)


def make_step(
    system: str, size: Size, precision: str, backend: str | None = None
) -> Step:
    """Returns a function that trains on one batch and returns the loss before the update.

    Args:
        system: one of `SYSTEMS`, or "torch_compiled", the twin under `torch.compile`.
        size: model and batch.
        precision: "float32"; "bfloat16": float32 weights, and 16 bits where the
            framework's own mixed precision uses them; "bfloat16_weights": everything
            but the loss in bfloat16. On a GPU also "tf32" and "float16", see
            `twin.worker.precision_environment`.
        backend: another Keras backend than TensorFlow, for `keras_step`. None or
            "tensorflow" for the step that the system itself would run, such as that of
            ``tfasr train`` or ``fit``.
    """
    if backend not in (None, "tensorflow"):
        return keras_step(system, size, made_batch(size), precision)

    make = {
        "tfasr": tfasr_step,
        "stock_keras": stock_keras_step,
        "torch": torch_step,
        "torch_compiled": partial(torch_step, compiled=True),
    }[system]
    return make(size, made_batch(size), precision)


def keras_step(system: str, size: Size, batch: Batch, precision: str) -> Step:
    """Returns a step on the Keras backend of this process, run by a stepper of ``tfasr
    bench``.

    The model has tfasr's layers, or stock layers with Keras's CTC loss. float16 has no
    loss scale.
    """
    import keras

    from tfasr.bench import steppers
    from tfasr.models.build import build_recogniser
    from twin.stock_keras import stock_network

    config = size.model_config()
    features = batch["features"]
    lengths = batch["feature_lengths"]
    targets = (config.output_lengths(lengths), batch["labels"], batch["label_lengths"])

    if system == "tfasr":
        policy = _keras_policy(precision)
        model = build_recogniser(config, NUM_FEATURES, NUM_CLASSES, dtype=policy)
        inputs = (features, lengths)
        loss = steppers.ctc_losses
    else:
        keras.config.set_dtype_policy(_keras_policy(precision))
        model = stock_network(config, NUM_CLASSES, NUM_FEATURES)
        inputs = (features,)

        def loss(logits, frames, labels, label_lengths):
            blank = NUM_CLASSES - 1
            return keras.ops.ctc_loss(
                labels, logits, label_lengths, frames, mask_index=blank
            )

    stepper = steppers.make_stepper(
        model, loss, keras.optimizers.Adadelta(learning_rate=1.0)
    )
    placed = stepper.place(steppers.Batch(inputs, targets))
    return lambda: stepper.update(placed)


def tfasr_step(size: Size, batch: Batch, precision: str) -> Step:
    """Returns the step of `tfasr train`: its model, its train function, its optimizer."""
    from tfasr.alphabet import Alphabet
    from tfasr.data.batches import PipelineConfig
    from tfasr.training.build import build_model
    from tfasr.training.experiment import Experiment, TrainingConfig
    from tfasr.training.step import TimedStep

    experiment = Experiment(
        model=size.model_config(),
        pipeline=PipelineConfig(padding="bucketed", global_batch_size=size.batch),
        training=TrainingConfig(precision=_keras_policy(precision)),
    )
    step = TimedStep(build_model(experiment, Alphabet(), compiled=True))
    iterator = iter(repeated(batch))

    return lambda: step(iterator).loss


def stock_keras_step(size: Size, batch: Batch, precision: str) -> Step:
    """Returns the step of `fit` on a model of stock layers and Keras's CTC loss."""
    import keras

    from twin.stock_keras import StockModel

    keras.config.set_dtype_policy(_keras_policy(precision))
    model = StockModel(size.model_config(), NUM_CLASSES, NUM_FEATURES)
    model.compile(optimizer=keras.optimizers.Adadelta(learning_rate=1.0), loss=None)
    model.make_train_function()
    iterator = iter(repeated(batch))

    return lambda: float(model.train_function(iterator)["loss"])


def torch_step(
    size: Size, batch: Batch, precision: str, compiled: bool = False
) -> Step:
    """Returns a step of the PyTorch twin, ``compiled`` by `torch.compile`.

    Its batch normalisation includes padded frames in the statistics, which is faster.
    """
    import torch

    from twin.torch_model import TorchTwin

    config = size.model_config()
    torch.manual_seed(0)
    twin = TorchTwin(config, NUM_CLASSES, NUM_FEATURES, mask_statistics=False)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    twin.to(device)
    tensors = {
        name: torch.from_numpy(value).to(device) for name, value in batch.items()
    }

    if precision == "bfloat16_weights":
        twin.bfloat16()
        tensors["features"] = tensors["features"].bfloat16()

    trained = [parameter for parameter in twin.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adadelta(trained, lr=1.0, rho=0.95, eps=1e-7)
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision)
    scaler = torch.amp.GradScaler(device, enabled=precision == "float16")

    forward = torch.compile(twin) if compiled else twin

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
            logits = forward(tensors["features"], tensors["feature_lengths"])

        loss = twin.losses(logits, tensors).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

        return float(loss.detach())

    return step


def _keras_policy(precision: str) -> str:
    policies = {"bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
    return policies.get(precision, "float32")


def repeated(batch: Batch):
    """Returns a dataset that repeats one batch without end.

    Batch size and lengths are hidden from TensorFlow, as they would be for a corpus.
    """
    import tensorflow as tf

    def opened(element):
        shapes = {"features": (None, None, NUM_FEATURES), "labels": (None, None)}
        return {
            name: tf.compat.v1.placeholder_with_default(
                value, shapes.get(name, (None,))
            )
            for name, value in element.items()
        }

    return tf.data.Dataset.from_tensors(batch).repeat().map(opened).prefetch(2)
