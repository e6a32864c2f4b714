"""The registry of a user's own optimizers and schedules, which makes them known to gin."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import gin

from tfasr.registry import Registry

_known_to_gin: set[str] = set()


def register_in_gin(name: str, make: Callable[..., Any], module: str) -> None:
    """Makes a class or function known to gin by a name, with its own parameters.

    gin would subclass a class, which Keras's optimizers do not allow: gin gets a function with the
    same signature instead.
    """

    def build(*args, **kwargs):
        return make(*args, **kwargs)

    build.__name__ = build.__qualname__ = name
    build.__signature__ = inspect.Signature(
        [p for p in inspect.signature(make).parameters.values() if p.kind != p.VAR_KEYWORD]
    )
    gin.external_configurable(build, name=name, module=module)


def _check(make: object) -> None:
    if not callable(make):
        raise TypeError(
            "it must be a class of keras.optimizers.Optimizer or of a LearningRateSchedule, or a "
            f"function that returns such an object. Received: {make!r}."
        )


def _make_known(name: str, make: Callable[..., Any]) -> None:
    import keras

    if inspect.isclass(make):
        # Without it, Keras could not find the class when it reads a saved config.
        keras.saving.register_keras_serializable("own", name)(make)
    if name in _known_to_gin:  # a cell of a notebook that is run again
        return
    _known_to_gin.add(name)
    latest = functools.wraps(make)(lambda *args, **kwargs: OPTIMIZERS[name](*args, **kwargs))
    register_in_gin(name, latest, "own")


OPTIMIZERS: Registry[Callable[..., Any]] = Registry("optimizer", check=_check, then=_make_known)
"""Optimizers and schedules beside Keras's own, by their gin names.

``@OPTIMIZERS.register("Sgd2")`` above a class, and ``TrainingConfig.optimizer = @Sgd2`` trains with
it; ``Sgd2.learning_rate = 0.1`` binds its parameters.
"""
