"""tfasr: train and evaluate CTC speech recognisers, and measure their time to accuracy.

Names are imported when first used, so that ``import tfasr`` and the report never load TensorFlow.
They stand in `tfasr.api`, which type checkers and editors read through ``__init__.pyi``.
"""

from importlib import import_module

from tfasr._version import __version__
from tfasr.errors import lacking


def _homes() -> dict[str, str]:
    """Returns the module of each public name: `tfasr.api` is read, not imported."""
    path = __file__.replace("__init__", "api")
    lines = __spec__.loader.get_data(path).decode().split("\n")
    imports = [line.split() for line in lines if line.startswith("from tfasr.")]
    return {words[3]: words[1] for words in imports}


_HOME = _homes()
__all__ = ["__version__", *(name for name in _HOME if name != "__version__")]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'tfasr' has no attribute {name!r}. It has: {__all__}.")
    try:
        home = import_module(_HOME[name])
    except ModuleNotFoundError as error:
        message = lacking(error, f"tfasr.{name}")
        if message is None:
            raise
        raise ModuleNotFoundError(message, name=error.name) from error
    return getattr(home, name)


def __dir__():
    return __all__
