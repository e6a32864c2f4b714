"""tfasr: train and evaluate CTC speech recognisers, and measure their time to accuracy.

Names are imported when first used, so that ``import tfasr`` and the report never load TensorFlow.
Type checkers and editors read them in ``__init__.pyi``, which shows `tfasr.api`.
"""

from importlib import import_module

from tfasr._version import __version__
from tfasr.errors import lacking

_HOME = {
    "AcousticModel": "tfasr.models.acoustic_model",
    "AcousticModelConfig": "tfasr.models.acoustic_model",
    "Alphabet": "tfasr.alphabet",
    "AugmentationConfig": "tfasr.data.augmentation",
    "Comparison": "tfasr.reports.compare",
    "DecoderConfig": "tfasr.decoding.choice",
    "EndpointRules": "tfasr.recognising.endpoints",
    "ErrorCounts": "tfasr.metrics",
    "EvaluationResult": "tfasr.training.evaluation",
    "Experiment": "tfasr.training.experiment",
    "FeatureConfig": "tfasr.data.feature_config",
    "HardwareConfig": "tfasr.tta.costs.hardware",
    "Hypothesis": "tfasr.decoding.decoder",
    "Ledger": "tfasr.ledger",
    "LoadedConfig": "tfasr.training.from_gin",
    "Metric": "tfasr.tta.metrics",
    "PipelineConfig": "tfasr.data.pipeline",
    "Recogniser": "tfasr.recognising.recogniser",
    "Recorder": "tfasr.recording.recorder",
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
    "load_recogniser": "tfasr.recognising.load",
    "load_run": "tfasr.tta.load",
    "open_split": "tfasr.data.shards",
    "prepare": "tfasr.data.prepare_corpus",
    "read_events": "tfasr.ledger",
    "report": "tfasr.reports.write",
    "study": "tfasr.studies.perform",
    "train": "tfasr.training.train",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'tfasr' has no attribute {name!r}. It has: {__all__}.")
    try:
        home = import_module(_HOME[name])
    except ModuleNotFoundError as error:
        said = lacking(error, f"tfasr.{name}")
        if said is None:
            raise
        raise ModuleNotFoundError(said, name=error.name) from error
    return getattr(home, name)


def __dir__():
    return __all__
