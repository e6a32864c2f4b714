"""All that tfasr uses of Keras's private names, so that a new Keras is checked in one place.

None of these names has a public replacement up to Keras 3.15. Each can go as soon as Keras has one,
as its comment says; until then tests/training/test_other_models.py notices a change.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras


def states_of(optimizer: keras.optimizers.Optimizer, variable: Any, *names: str) -> list[Any]:
    """Returns an optimizer's states of a weight, by their lists' names, such as "momentums"."""
    # Optimizer.variables holds all of them, in an order that differs by class. Muon's lists are
    # public; this can go when the other classes' lists and a weight's index in them are, too.
    index = optimizer._get_variable_index(variable)
    lists = [getattr(optimizer, name, None) or getattr(optimizer, f"_{name}") for name in names]
    return [states[index] for states in lists]


def weight_decays(optimizer: keras.optimizers.Optimizer, variable: Any) -> bool:
    # Set by the public exclude_from_weight_decay; this can go when that can be read back.
    return optimizer._use_weight_decay(variable)


class DecayInUpdateStep:
    """Base of an optimizer whose ``update_step`` does the weight decay: Keras then does none."""

    # Keras applies decay in `apply`, around update_step; this can go when optimizers can opt out.
    def _apply_weight_decay(self, trainable_variables) -> None:
        pass


def group_updates(
    optimizer: keras.optimizers.Optimizer, rates: Sequence[float], begins: Sequence[Any | None]
) -> None:
    """Gives each weight of a built optimizer a factor of the learning rate and its own first step.

    ``rates`` and ``begins`` are in the order of the weights; a weight's steps count from the value
    of the variable in ``begins``, or from 0.
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
        # Keras's decay reads the one learning rate of the optimizer.
        names = [n for n in ("weight_decay", "adam_weight_decay") if getattr(optimizer, n, None)]
        for factor in dict.fromkeys(rates):
            group = [v for v in variables if rates[optimizer._get_variable_index(v)] == factor]
            with _replaced(optimizer, {n: factor * getattr(optimizer, n) for n in names}):
                apply_decay(group)

    optimizer.update_step, optimizer._apply_weight_decay = update, decay


@contextlib.contextmanager
def _replaced(holder: Any, values: dict[str, Any]) -> Iterator[None]:
    # Not by setattr, with which Keras tracks variables.
    before = {name: vars(holder)[name] for name in values}
    vars(holder).update(values)
    try:
        yield
    finally:
        vars(holder).update(before)
