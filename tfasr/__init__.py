"""tfasr: train and evaluate CTC speech recognisers, and measure their time to accuracy.

Names are imported when first used, so that ``import tfasr`` and the report never load TensorFlow.
Type checkers and editors read them in ``__init__.pyi``, which shows `tfasr.api`.
"""

from importlib import import_module

from tfasr._version import __version__

_HOME = {
    "AcousticModel": "tfasr.models.acoustic_model",
    "AcousticModelConfig": "tfasr.models.acoustic_model",
    "Alphabet": "tfasr.alphabet",
    "AugmentationConfig": "tfasr.data.augmentation",
    "Comparison": "tfasr.reports.compare",
    "DecoderConfig": "tfasr.decoding.choice",
    "ErrorCounts": "tfasr.metrics",
    "EvaluationResult": "tfasr.training.evaluation",
    "Experiment": "tfasr.training.experiment",
    "FeatureConfig": "tfasr.data.features",
    "HardwareConfig": "tfasr.tta.costs.hardware",
    "Hypothesis": "tfasr.decoding.decoder",
    "Ledger": "tfasr.ledger",
    "LoadedConfig": "tfasr.training.from_gin",
    "PipelineConfig": "tfasr.data.pipeline",
    "Run": "tfasr.tta.run",
    "RunError": "tfasr.errors",
    "ShardConfig": "tfasr.data.shards",
    "TrainingConfig": "tfasr.training.experiment",
    "UsageError": "tfasr.errors",
    "WordBeamSearch": "tfasr.decoding.word_beam_search",
    "compare": "tfasr.reports.compare",
    "compute_features": "tfasr.data.features",
    "count_errors": "tfasr.metrics",
    "evaluate": "tfasr.training.trained",
    "load_config": "tfasr.training.from_gin",
    "load_plugin": "tfasr.plugins",
    "load_run": "tfasr.tta.load",
    "open_split": "tfasr.data.shards",
    "prepare": "tfasr.data.prepare_corpus",
    "read_events": "tfasr.ledger",
    "report": "tfasr.reports.write",
    "train": "tfasr.training.train",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'tfasr' has no attribute {name!r}. It has: {__all__}.")
    return getattr(import_module(_HOME[name]), name)


def __dir__():
    return __all__
