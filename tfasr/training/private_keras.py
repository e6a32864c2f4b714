"""All that tfasr uses of Keras's private names, so that a new Keras is checked in one place.

None of it has a public replacement up to Keras 3.15. Each can go with the first Keras that has one,
as its comment says; until then tests/training/test_other_models.py notices a change.
"""

from typing import Any

import keras


def states_of(optimizer: keras.optimizers.Optimizer, variable: Any, *names: str) -> list[Any]:
    """What an optimizer keeps for a weight, by the lists' names, such as "momentums"."""
    # Optimizer.variables holds all of them, in an order that is each class's own. Muon's lists are
    # public; this goes when those of the others are, and the index of a weight in them.
    index = optimizer._get_variable_index(variable)
    lists = [getattr(optimizer, name, None) or getattr(optimizer, f"_{name}") for name in names]
    return [states[index] for states in lists]


def weight_decays(optimizer: keras.optimizers.Optimizer, variable: Any) -> bool:
    # Set by the public exclude_from_weight_decay; this goes when it can be read back.
    return optimizer._use_weight_decay(variable)


class DecayInUpdateStep:
    """Base of an optimizer whose ``update_step`` does the weight decay: Keras does none before."""

    # Keras applies decay in `apply`, around update_step; this goes when an optimizer can opt out.
    def _apply_weight_decay(self, trainable_variables) -> None:
        pass
