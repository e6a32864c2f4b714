"""Groups of a model's layers: frozen at first, or with different learning rates."""

import fnmatch
import re
from collections import Counter
from typing import Any

from tfasr.errors import UsageError
from tfasr.training.experiment import TrainingConfig
from tfasr.training.optimizer import inner_optimizer
from tfasr.training.private_keras import group_updates


def named_layers(model: Any) -> dict[str, Any]:
    """Returns a model's layers that have weights, by name.

    Keras numbers a class's layers throughout the process; default names here number the model's.
    """
    layers: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    for layer in getattr(model, "layers", ()):
        if not layer.weights:
            continue
        kind = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", type(layer).__name__)
        kind = re.sub("([a-z])([A-Z])", r"\1_\2", kind).lower()
        name = layer.name
        if re.fullmatch(rf"{re.escape(kind)}(_\d+)?", name):
            name = f"{kind}_{counts[kind]}"
            counts[kind] += 1
        layers[name if name not in layers else f"{name}_{len(layers)}"] = layer
    return layers


class LayerGroups:
    """Freezes a compiled model's layers for their epochs, and scales their learning rates.

    The optimizer must be built. A layer that thaws begins like a new one: the bias of its gradient
    averages is corrected for its own number of updates, not for that of the other layers.

    Raises UsageError for a name that matches no layer, or if no layer would learn.
    """

    def __init__(self, model: Any, training: TrainingConfig):
        layers = named_layers(model.recogniser)
        for setting in ("freeze", "learning_rates"):
            for pattern, _ in getattr(training, setting):
                if not fnmatch.filter(layers, pattern):
                    raise UsageError(
                        f"TrainingConfig.{setting} must name layers of the model. Received: "
                        f"{pattern!r}. Its layers are {', '.join(layers)}."
                    )
        self._model = model
        self._optimizer = inner_optimizer(model.optimizer)
        epochs: dict[str, int] = {}
        for pattern, count in training.freeze:
            for name in fnmatch.filter(layers, pattern):
                epochs[name] = max(count, epochs.get(name, 0))
        self._frozen = [(layers[name], count) for name, count in epochs.items()]
        variables = model.trainable_variables
        frozen = {id(v): n for layer, n in self._frozen for v in layer.trainable_variables}
        if len(frozen) == len(variables):
            raise UsageError(
                "TrainingConfig.freeze must leave a layer that learns. Received: "
                f"{training.freeze}, which fit all layers: {', '.join(layers)}."
            )
        if frozen and self._optimizer.use_ema and self._optimizer.ema_overwrite_frequency:
            raise UsageError(
                "With TrainingConfig.freeze the optimizer's ema_overwrite_frequency must be None: "
                "it would round frozen weights."
            )
        # The optimizer's number of updates when layers thawed, by how many epochs they were frozen.
        self._thawed_at = {
            count: self._optimizer.add_variable((), dtype="int", name=f"thawed_after_{count}")
            for count in sorted(set(frozen.values()))
        }
        factors: dict[int, float] = {}
        for pattern, factor in training.learning_rates:
            for name in fnmatch.filter(layers, pattern):
                factors |= dict.fromkeys(map(id, layers[name].trainable_variables), factor)
        if frozen or factors:
            rates = [factors.get(id(variable), 1.0) for variable in variables]
            begins = [self._thawed_at.get(frozen.get(id(variable))) for variable in variables]
            group_updates(self._optimizer, rates, begins)

    def enter(self, epoch: int, step_in_epoch: int) -> None:
        """Freezes and thaws layers for an epoch; call it before the epoch's first step."""
        changing = [layer for layer, count in self._frozen if layer.trainable != (epoch > count)]
        for layer in changing:
            layer.trainable = not layer.trainable
        if changing:
            self._model.retrace()
        if epoch - 1 in self._thawed_at and not step_in_epoch:
            self._thawed_at[epoch - 1].assign(self._optimizer.iterations)
