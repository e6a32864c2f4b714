"""Every use of Keras's private names, in one place, so that a new Keras release is easy to check.

Up to Keras 3.15 none of these names has a public replacement. A comment on each use says what Keras
must offer before it can go; until then tests/training/test_other_models.py notices a change.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras


def states_of(optimizer: keras.optimizers.Optimizer, variable: Any, *names: str) -> list[Any]:
    """Returns the optimizer's states for one weight, one for each name, such as "momentums"."""
    # The public Optimizer.variables has all states, but in an order that differs by class. This can
    # go when all classes publish their lists of states (as Muon does) and a weight's index in them.
    index = optimizer._get_variable_index(variable)
    lists = [getattr(optimizer, name, None) or getattr(optimizer, f"_{name}") for name in names]
    return [states[index] for states in lists]


def weight_decays(optimizer: keras.optimizers.Optimizer, variable: Any) -> bool:
    # The public exclude_from_weight_decay sets this; this can go when Keras also lets us read it.
    return optimizer._use_weight_decay(variable)


class DecayInUpdateStep:
    """Turns off Keras's weight decay, for optimizers whose ``update_step`` decays the weights."""

    # Keras applies decay in `apply`, around update_step; this can go when optimizers can opt out.
    def _apply_weight_decay(self, trainable_variables) -> None:
        pass


def group_updates(
    optimizer: keras.optimizers.Optimizer, rates: Sequence[float], begins: Sequence[Any | None]
) -> None:
    """Gives each weight of a built optimizer its own learning-rate factor and first step.

    ``rates`` and ``begins`` are in the order of the weights. A variable in ``begins`` holds the
    optimizer's step from which the weight's own steps are counted; None counts from 0.
    """
    # Keras has no groups of weights; this can go when it has.
    update_step, apply_decay = optimizer.update_step, optimizer._apply_weight_decay

    def update(gradient: Any, variable: Any, learning_rate: Any) -> None:
        index = optimizer._get_variable_index(variable)
        rate = learning_rate if rates[index] == 1 else rates[index] * learning_rate
        count = vars(optimizer)["_iterations"]
        begin = begins[index]
        since = {} if begin is None else {"_iterations": count - keras.ops.cast(begin, count.dtype)}
        with _replaced(optimizer, since):
            update_step(gradient, variable, rate)

    def decay(variables: Sequence[Any]) -> None:
        # Keras's decay uses the optimizer's single learning rate, so the decay is scaled instead.
        names = [n for n in ("weight_decay", "adam_weight_decay") if getattr(optimizer, n, None)]
        for factor in dict.fromkeys(rates):
            group = [v for v in variables if rates[optimizer._get_variable_index(v)] == factor]
            with _replaced(optimizer, {n: factor * getattr(optimizer, n) for n in names}):
                apply_decay(group)

    optimizer.update_step, optimizer._apply_weight_decay = update, decay


@contextlib.contextmanager
def _replaced(holder: Any, values: dict[str, Any]) -> Iterator[None]:
    # Avoids setattr, because Keras overrides it to track variables.
    before = {name: vars(holder)[name] for name in values}
    vars(holder).update(values)
    try:
        yield
    finally:
        vars(holder).update(before)
