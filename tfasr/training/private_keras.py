"""Every use of Keras's private names, in one place, so that a new Keras release is easy
to check.

Up to Keras 3.15 none of these names has a public replacement. A comment on each use
says what Keras must offer before it can go; until then
tests/training/test_other_models.py notices a change.
"""

from typing import Any

import keras


def states_of(
    optimizer: keras.optimizers.Optimizer, variable: Any, *names: str
) -> list[Any]:
    """Returns the optimizer's states for one weight.

    Args:
        optimizer: built.
        variable: the weight.
        *names: of the states, such as "momentums".

    Returns:
        One state for each name; None if the optimizer keeps none for this weight.
    """
    # The public Optimizer.variables has all states, but in an order that differs by
    # class. This can go when all classes publish their lists of states (as Muon does)
    # and a weight's index in them.
    index = optimizer._get_variable_index(variable)
    lists = [
        getattr(optimizer, name, None) or getattr(optimizer, f"_{name}")
        for name in names
    ]
    return [states[index] for states in lists]


def weight_decays(optimizer: keras.optimizers.Optimizer, variable: Any) -> bool:
    # The public exclude_from_weight_decay sets this; this can go when Keras also lets
    # us read it.
    return optimizer._use_weight_decay(variable)


class DecayInUpdateStep:
    """Turns off Keras's weight decay, for optimizers whose ``update_step`` decays the
    weights.
    """

    # Keras applies decay in `apply`, around update_step; this can go when optimizers
    # can opt out.
    def _apply_weight_decay(self, trainable_variables) -> None:
        pass
