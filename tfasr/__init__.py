"""tfasr: train and evaluate CTC speech recognisers, and measure their time to accuracy.

Public names are imported when first used, so ``import tfasr`` and `tfasr.report` don't load
TensorFlow. `tfasr.api` lists them; type checkers and editors read it through ``__init__.pyi``.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder

from tfasr._version import __version__
from tfasr.errors import imported


def _homes() -> dict[str, str]:
    """Maps each public name to its module, by parsing `tfasr.api` without importing it."""
    path = __file__.replace("__init__", "api")
    lines = __spec__.loader.get_data(path).decode().split("\n")
    imports = [line.split() for line in lines if line.startswith("from tfasr.")]
    return {words[3]: words[1] for words in imports}


_HOME = _homes()
__all__ = ["__version__", *(name for name in _HOME if name != "__version__")]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'tfasr' has no attribute {name!r}. It has: {__all__}.")
    return getattr(imported(_HOME[name], f"tfasr.{name}"), name)


def __dir__():
    return __all__


class _MovedModules:
    """Finds modules under the names that plug-ins, scripts and models of tfasr 0.1.0 import."""

    names = {
        "tfasr.config": "tfasr.kit.config",
        "tfasr.plugins": "tfasr.kit.registry",
        "tfasr.registry": "tfasr.kit.registry",
        "tfasr.metrics": "tfasr.scoring.errors",
        "tfasr.corpora.reading.assembly": "tfasr.corpora.reading",
        "tfasr.corpora.registry": "tfasr.corpora.corpus",
        "tfasr.corpora.splits": "tfasr.corpora.utterance",
        "tfasr.data.feature_config": "tfasr.data.features",
        "tfasr.data.pipeline": "tfasr.data.batches",
        "tfasr.models.acoustic_model": "tfasr.models.recurrent",
        "tfasr.models.recogniser": "tfasr.models.model",
        "tfasr.models.saved": "tfasr.models.build",
        "tfasr.reports.compare": "tfasr.reports.write",
        "tfasr.training.logs.registry": "tfasr.training.logs",
        "tfasr.training.optimizer.registry": "tfasr.training.from_gin",
        "tfasr.tta.brackets": "tfasr.tta.policies",
        "tfasr.tta.intervals": "tfasr.ledger.intervals",
        "tfasr.tta.load": "tfasr.tta.run",
        "tfasr.tta.sequential": "tfasr.tta.comparison",
    }
    parents = {name.rpartition(".")[0] for name in names}

    def find_spec(self, name, path, target=None):
        if name in self.names:
            return ModuleSpec(name, self)
        spec = PathFinder.find_spec(name, path) if name in self.parents and path else None
        if spec and spec.submodule_search_locations is None:
            spec.submodule_search_locations = []  # it was a package in 0.1.0, with submodules
        return spec

    def create_module(self, spec):
        module = import_module(self.names[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module):
        # It already ran under its new name. Importing the old one replaced its spec: restore it.
        module.__spec__ = module.__spec__.loader_state


class _QuietTensorflow:
    """Imports TensorFlow without its messages about devices on standard error."""

    def find_spec(self, name, path, target=None):
        if name != "tensorflow":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def execute_quietly(module):
                from tfasr.kit.process import import_quietly

                import_quietly(execute, module)

            spec.loader.exec_module = execute_quietly
        return spec


sys.meta_path[:0] = [_MovedModules(), _QuietTensorflow()]
