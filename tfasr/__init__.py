"""tfasr: train and evaluate CTC speech recognisers, and measure their time to accuracy.

Public names are imported when first used, so ``import tfasr`` and `tfasr.report` don't
load TensorFlow. `tfasr.api` lists them; type checkers and editors read it through
``__init__.pyi``.
"""

import sys

from tfasr._version import __version__
from tfasr.errors import imported


def _homes() -> dict[str, str]:
    """Maps each public name to its module, by parsing `tfasr.api` without importing it."""
    path = __file__.replace("__init__", "api")
    lines = __spec__.loader.get_data(path).decode().split("\n")
    imports = [line.split() for line in lines if line.startswith("from tfasr.")]

    return {words[3]: words[1] for words in imports}


# The module of each public name.
_HOME = _homes()

# Packages that import TensorFlow, which is then loaded without its messages.
_NEED_TENSORFLOW = (
    "tfasr.data.",
    "tfasr.estimates.",
    "tfasr.models.",
    "tfasr.training.",
)
__all__ = ["__version__", *(name for name in _HOME if name != "__version__")]


def __getattr__(name: str):
    """Imports a public name when it is first used.

    Python calls it for an attribute that the module lacks (PEP 562).

    Raises:
        AttributeError: if there is no such name.
        ModuleNotFoundError: says how to install a package that the name needs.
    """
    if name not in _HOME:
        raise AttributeError(
            f"module 'tfasr' has no attribute {name!r}. It has: {__all__}."
        )

    home = _HOME[name]
    if home.startswith(_NEED_TENSORFLOW) and "tensorflow" not in sys.modules:
        from tfasr.kit.process import import_quietly

        return getattr(import_quietly(home, f"tfasr.{name}"), name)

    return getattr(imported(home, f"tfasr.{name}"), name)


def __dir__():
    return __all__
