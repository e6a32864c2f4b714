"""The model that gin files choose by ``ModelConfig.name``."""

from tfasr.errors import UsageError
from tfasr.gin_files.bindings import binding_place, make
from tfasr.gin_files.preset import GinText
from tfasr.models.recogniser import MODELS, ModelConfig


def know_models() -> None:
    """Makes the configs of all models gin names; bindings of any may stand in a file."""
    for name in MODELS:
        MODELS[name]


def model_class(lines: GinText) -> type:
    """Returns the config class of the model that the bindings in force name.

    Raises:
        UsageError: if no such model is registered; it names file and line.
    """
    name = make(ModelConfig, lines).name
    if name not in MODELS:
        raise UsageError(
            f"{binding_place(lines, 'ModelConfig', 'name')}ModelConfig.name must be a known model: "
            f"{MODELS.listed()}. Received: {name!r}. To use one from a module of your "
            "own, import the module: --import my_lab.models."
        )
    return MODELS[name]
