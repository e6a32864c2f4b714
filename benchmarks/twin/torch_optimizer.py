"""An experiment's Keras optimizer in PyTorch."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from tfasr.errors import UsageError


def torch_optimizer(
    wanted: dict[str, Any], parameters: Iterable[torch.nn.Parameter]
) -> tuple[torch.optim.Optimizer, Callable[[int], float]]:
    """Returns an optimizer with a Keras optimizer's settings, and its learning rate by step.

    PyTorch adds Adam's and AdamW's epsilon after the bias correction, Keras before it;
    for the epsilons in use, this makes no visible difference in the loss. The caller
    clips gradients, see `clip_together`.

    Args:
        wanted: an Adadelta, Adam or AdamW of Keras, see `twin.feeder.serialised`.
        parameters: to be trained.

    Returns:
        The optimizer, and a function from step number, from 0, to learning rate.

    Raises:
        UsageError: if the experiment needs something that is not supported here.
    """
    kind = wanted["class_name"]
    config = wanted["config"]
    extras = {"clipnorm", "clipvalue", "use_ema", "amsgrad"}
    extras |= {"gradient_accumulation_steps", "loss_scale_factor"}

    if kind != "AdamW":
        extras.add("weight_decay")

    asked = {name: config[name] for name in extras if config.get(name)}

    if kind not in ("Adadelta", "Adam", "AdamW") or asked:
        raise UsageError(
            "The PyTorch twin is trained by Adadelta, Adam or AdamW without extras. Received: "
            f"{kind} with {asked}. Choose a preset with TrainingConfig.optimizer = "
            "@Adadelta, @Adam or @AdamW."
        )

    rate = learning_rate(config["learning_rate"])
    settings: dict[str, Any] = {"lr": rate(0), "eps": config["epsilon"]}
    if kind == "Adadelta":
        return torch.optim.Adadelta(parameters, rho=config["rho"], **settings), rate

    settings["betas"] = (config["beta_1"], config["beta_2"])
    settings["fused"] = True
    if kind == "Adam":
        return torch.optim.Adam(parameters, **settings), rate

    decay = config["weight_decay"]
    return torch.optim.AdamW(parameters, weight_decay=decay, **settings), rate


def clip_together(wanted: dict[str, Any], parameters: list[torch.nn.Parameter]) -> None:
    """Clips gradients by their global norm if a Keras optimizer would, by ``global_clipnorm``.

    Args:
        wanted: the Keras optimizer, see `twin.feeder.serialised`.
        parameters: with their gradients, which are changed.
    """
    norm = wanted["config"].get("global_clipnorm")
    if norm:
        torch.nn.utils.clip_grad_norm_(parameters, norm)


def learning_rate(config: float | dict[str, Any]) -> Callable[[int], float]:
    """Returns a number, or Keras's CosineDecay, as a function of the step.

    Args:
        config: the number, or the schedule as Keras serialises it.

    Raises:
        UsageError: for any other schedule.
    """
    if isinstance(config, int | float):
        return lambda step: float(config)

    values = config.get("config", {})
    if config.get("class_name") != "CosineDecay":
        raise UsageError(
            "The PyTorch twin's learning rate is a number or a CosineDecay. "
            f"Received: {config}."
        )

    first, steps, alpha = (
        values[n] for n in ("initial_learning_rate", "decay_steps", "alpha")
    )
    # Without a target, Keras ignores the steps of the warm-up.
    warm_up = 0
    highest = first
    if values.get("warmup_target") is not None and values.get("warmup_steps"):
        warm_up = values["warmup_steps"]
        highest = values["warmup_target"]

    def rate(step: int) -> float:
        if step < warm_up:
            return first + (highest - first) * step / warm_up

        cosine = 0.5 * (1 + math.cos(math.pi * min(step - warm_up, steps) / steps))
        return highest * ((1 - alpha) * cosine + alpha)

    return rate
