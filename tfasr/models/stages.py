"""A model cut into stages, one after the other, for benchmarks that time each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stage:
    """A part of a model, in training.

    Attributes:
        name: such as "front end", "recurrent 1" or "head".
        forward: from what the stage before returned, the features for the first, and the valid
            feature frames ``(batch,)`` to what this one returns: ``(batch, output frames, width)``.
        layers: whose trainable variables it uses.
        input_width: last dimension of what it takes; unused for the first.
    """

    name: str
    forward: Callable[[Any, Any], Any]
    layers: list
    input_width: int = 0

    @property
    def variables(self) -> list:
        """Its trainable variables."""
        return [variable for layer in self.layers for variable in layer.trainable_variables]


def stages_of(model: Any) -> list[Stage]:
    """Returns what a model's method ``stages`` returns; one stage of all where it has none.

    The stages, one after the other, compute what ``model(features, lengths, training=True)`` does.
    """
    if hasattr(model, "stages"):
        return model.stages()

    def forward(features: Any, lengths: Any) -> Any:
        return model(features, lengths, training=True)

    return [Stage("model", forward, [model])]
