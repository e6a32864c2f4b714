"""The PyTorch twin and the stock Keras model compute what tfasr's model computes."""

import dataclasses
import subprocess
import sys

import keras
import numpy as np
import pytest

from tfasr.alphabet import Alphabet
from tfasr.errors import UsageError
from tfasr.models.recurrent import AcousticModelConfig
from tfasr.training.build import build_model
from tfasr.training.experiment import Experiment, TrainingConfig

SMALL = AcousticModelConfig(
    conv_filters=12, num_lstm_layers=2, lstm_units=10, dropout=0.3
)
NEEDS_TORCH = "needs PyTorch: see benchmarks/training_step.py"
# The CUDA build of PyTorch looks for a GPU during a backward pass and warns if there is
# none.
pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")


IMPORTS = """
import sys
try:
    import torch
except ImportError:
    from unittest.mock import MagicMock
    for name in ("torch", "torch.nn", "torch.nn.functional"):
        sys.modules[name] = MagicMock()
import twin.torch_training
print(*sorted({"tensorflow", "keras"} & set(sys.modules)))
"""


def test_the_twins_process_loads_neither_tensorflow_nor_keras():
    """Some wheels of PyTorch abort in a process that holds TensorFlow."""
    from twin.worker import environment

    command = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)

    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_stock_keras_agrees():
    from twin.agreement import TOLERANCE, disagreements

    result = disagreements(SMALL, ["stock_keras"])

    assert set(result) == {"stock_keras inference logits", "stock_keras inference loss"}
    assert max(result.values()) < TOLERANCE


@pytest.mark.parametrize("bidirectional", [False, True])
def test_torch_agrees(bidirectional):
    pytest.importorskip("torch", reason=NEEDS_TORCH)
    from twin.agreement import TOLERANCE, disagreements

    result = disagreements(
        dataclasses.replace(SMALL, bidirectional=bidirectional), ["torch"]
    )

    assert len(result) == 4
    assert max(result.values()) < TOLERANCE


def test_a_wrong_order_of_gates_would_be_noticed(monkeypatch):
    torch = pytest.importorskip("torch", reason=NEEDS_TORCH)
    import twin.weights
    from twin.agreement import TOLERANCE, disagreements

    copy = twin.weights.copy_to_torch

    def copy_wrongly(model, other):
        copy(model, other)
        weight = other.recurrent[0].weight_hh_l0
        with torch.no_grad():
            weight.copy_(weight.roll(SMALL.lstm_units, dims=0))

    monkeypatch.setattr(twin.weights, "copy_to_torch", copy_wrongly)
    assert disagreements(SMALL, ["torch"])["torch inference logits"] > 10 * TOLERANCE


def test_weights_of_other_sizes_are_refused():
    pytest.importorskip("torch", reason=NEEDS_TORCH)
    from twin.sizes import NUM_CLASSES, NUM_FEATURES
    from twin.torch_model import TorchTwin
    from twin.weights import copy_to_torch

    model = build_model(Experiment(model=SMALL), Alphabet(), compiled=False).recogniser
    other = TorchTwin(SMALL, NUM_CLASSES, NUM_FEATURES + 1, mask_statistics=True)

    with pytest.raises(ValueError, match="same sizes"):
        copy_to_torch(model, other)


OPTIMIZERS = {
    "Adadelta": lambda rate: keras.optimizers.Adadelta(rate(1.0)),
    "Adam": lambda rate: keras.optimizers.Adam(rate(0.01), beta_1=0.8, beta_2=0.98),
    "AdamW": lambda rate: keras.optimizers.AdamW(rate(0.01), weight_decay=0.1),
    "clipped Adam": lambda rate: keras.optimizers.Adam(
        rate(0.01), global_clipnorm=20.0
    ),
}


@pytest.mark.parametrize(
    ("name", "bidirectional"),
    [*((name, False) for name in OPTIMIZERS), ("clipped Adam", True)],
)
def test_both_learn_the_same_from_equal_weights(name, bidirectional):
    """Gradients, an optimizer's settings, the learning rate's decay and the statistics,
    in one.
    """
    torch = pytest.importorskip("torch", reason=NEEDS_TORCH)
    from twin.feeder import serialised
    from twin.sizes import NUM_CLASSES, NUM_FEATURES, parse_size
    from twin.torch_model import TorchTwin
    from twin.torch_optimizer import clip_together, torch_optimizer
    from twin.weights import copy_to_torch

    config = dataclasses.replace(SMALL, dropout=0.0, bidirectional=bidirectional)

    def wanted():
        cosine = keras.optimizers.schedules.CosineDecay
        return OPTIMIZERS[name](lambda first: cosine(first, 5, alpha=0.05))

    experiment = Experiment(model=config, training=TrainingConfig(optimizer=wanted))
    model = build_model(experiment, Alphabet(), compiled=True)
    other = TorchTwin(config, NUM_CLASSES, NUM_FEATURES, mask_statistics=True)
    copy_to_torch(model.recogniser, other)

    parameters = [p for p in other.parameters() if p.requires_grad]
    optimizer, rate = torch_optimizer(serialised(wanted()), parameters)
    ours = []
    theirs = []

    step, batch = _tfasr_step(model, parse_size("10x4x70"))
    tensors = {name: torch.from_numpy(value) for name, value in batch.items()}

    for number in range(6):
        ours.append(step())
        for group in optimizer.param_groups:
            group["lr"] = rate(number)

        optimizer.zero_grad()
        logits = other(tensors["features"], tensors["feature_lengths"])
        loss = other.losses(logits, tensors).mean()
        loss.backward()
        clip_together(serialised(wanted()), parameters)
        optimizer.step()
        theirs.append(loss.item())

    assert ours[-1] < ours[0]
    np.testing.assert_allclose(theirs, ours, rtol=1e-4)


def _tfasr_step(model, size):
    from twin.sizes import made_batch
    from twin.systems import repeated

    from tfasr.training.step import TimedStep

    batch = made_batch(size)
    iterator = iter(repeated(batch))
    step = TimedStep(model)

    return lambda: step(iterator).loss, batch


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_initial_weights_follow_tfasrs_scheme(bidirectional):
    torch = pytest.importorskip("torch", reason=NEEDS_TORCH)
    from twin.torch_model import TorchTwin

    config = AcousticModelConfig(
        conv_filters=16,
        num_lstm_layers=1,
        lstm_units=24,
        bidirectional=bidirectional,
        recurrent_initializer="orthogonal",
    )
    torch.manual_seed(1)
    other = TorchTwin(config, num_classes=30, num_features=93, mask_statistics=True)
    model = build_model(Experiment(model=config), Alphabet(), compiled=False).recogniser
    pairs = [
        (other.convolution.weight, model.convolution.kernel),
        (other.classifier.weight, model.classifier.kernel),
    ]
    ours = getattr(model.recurrent[0], "forward_layer", model.recurrent[0]).cell

    ways = other.lstms()

    assert len(ways) == 1 + bidirectional

    for way in ways:
        np.testing.assert_array_equal(way.bias_ih_l0.detach(), ours.bias.value.numpy())

        recurrent = way.weight_hh_l0.detach().T
        np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(24), atol=1e-5)

        pairs.append((way.weight_ih_l0, ours.kernel))

    for theirs, kernel in pairs:  # one uniform range
        assert theirs.abs().max().item() == pytest.approx(
            abs(kernel.numpy()).max(), rel=0.02
        )

    other.zero_classifier()
    assert not other.classifier.weight.any()


def test_the_learning_rate_is_that_of_keras():
    pytest.importorskip("torch", reason=NEEDS_TORCH)
    from twin.torch_optimizer import learning_rate

    cosine = keras.optimizers.schedules.CosineDecay
    plain = cosine(0.8, 50, alpha=0.1)
    warmed_up = cosine(0.1, 50, alpha=0.1, warmup_target=0.9, warmup_steps=10)

    for schedule in (plain, warmed_up):
        rate = learning_rate(keras.optimizers.schedules.serialize(schedule))

        for step in (0, 1, 9, 10, 11, 25, 49, 50, 59, 60, 80):
            assert rate(step) == pytest.approx(float(schedule(step)), rel=1e-5)

    assert learning_rate(0.5)(7) == 0.5


def test_what_the_twin_cannot_do_is_refused(tmp_path):
    pytest.importorskip("torch", reason=NEEDS_TORCH)
    from twin.feeder import serialised
    from twin.torch_optimizer import learning_rate, torch_optimizer
    from twin.torch_training import train_twin

    for optimizer in (
        keras.optimizers.SGD(0.1),
        keras.optimizers.Adadelta(1.0, clipnorm=1.0),
    ):
        with pytest.raises(UsageError, match="Adadelta, Adam or AdamW without extras"):
            torch_optimizer(serialised(optimizer), [])

    falling = keras.optimizers.schedules.ExponentialDecay(0.1, 9, 0.5)
    with pytest.raises(UsageError, match="or a CosineDecay"):
        learning_rate(keras.optimizers.schedules.serialize(falling))

    mixed = ["TrainingConfig.precision = 'mixed_float16'"]
    with pytest.raises(UsageError, match="float32 or mixed_bfloat16 on one device"):
        train_twin(None, mixed, shard_dir=tmp_path, run_dir=tmp_path / "run")
