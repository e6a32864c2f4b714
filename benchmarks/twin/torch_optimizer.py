"""An experiment's Keras optimizer, said in PyTorch."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import keras
import torch

from tfasr.errors import UsageError


def torch_adadelta(
    wanted: keras.optimizers.Optimizer, parameters: Iterable[torch.nn.Parameter]
) -> tuple[torch.optim.Optimizer, Callable[[int], float]]:
    """Returns Adadelta with a Keras optimizer's settings, and its learning rate by step.

    Args:
        wanted: the Keras optimizer.
        parameters: to be trained.

    Returns:
        The optimizer, and the learning rate of the step of a number, counted from 0.

    Raises:
        UsageError: if the experiment asks for what is not said here.
    """
    config = keras.optimizers.serialize(wanted)["config"]
    plain = {"weight_decay", "clipnorm", "global_clipnorm", "clipvalue", "use_ema"}
    plain |= {"gradient_accumulation_steps", "loss_scale_factor"}
    asked = {name: config[name] for name in plain if config.get(name)}
    if not isinstance(wanted, keras.optimizers.Adadelta) or asked:
        raise UsageError(
            "The PyTorch twin is trained by Adadelta without extras. Received: "
            f"{wanted.name} with {asked}. Choose a preset with TrainingConfig.optimizer = "
            "@Adadelta."
        )
    rate = learning_rate(config["learning_rate"])
    optimizer = torch.optim.Adadelta(
        parameters, lr=rate(0), rho=config["rho"], eps=config["epsilon"]
    )
    return optimizer, rate


def learning_rate(config: float | dict[str, Any]) -> Callable[[int], float]:
    """Returns a number, or Keras's CosineDecay without warm-up, as a function of the step.

    Args:
        config: the number, or the schedule as Keras serialises it.

    Raises:
        UsageError: for any other schedule.
    """
    if isinstance(config, int | float):
        return lambda step: float(config)
    values = config.get("config", {})
    if config.get("class_name") != "CosineDecay" or values.get("warmup_steps"):
        raise UsageError(
            "The PyTorch twin's learning rate is a number or a CosineDecay without warm-up. "
            f"Received: {config}."
        )
    first, steps, alpha = (values[n] for n in ("initial_learning_rate", "decay_steps", "alpha"))

    def rate(step: int) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * min(step, steps) / steps))
        return first * ((1 - alpha) * cosine + alpha)

    return rate
