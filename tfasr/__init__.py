"""tfasr: train and evaluate CTC speech recognisers, and measure their time to accuracy.

Names are imported when first used, so that ``import tfasr`` and the report never load TensorFlow.
"""

from importlib import import_module

from tfasr._version import __version__

_HOME = {
    "Alphabet": "tfasr.alphabet",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'tfasr' has no attribute {name!r}. It has: {__all__}.")
    return getattr(import_module(_HOME[name]), name)


def __dir__():
    return __all__
