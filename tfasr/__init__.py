"""tfasr: train and evaluate CTC speech recognisers, and measure their time to accuracy.

Names are imported when first used, so that ``import tfasr`` and the report never load TensorFlow.
Type checkers and editors read them, with their types, in `tfasr.api`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tfasr._version import __version__

if TYPE_CHECKING:
    from tfasr.api import (
        AcousticModel as AcousticModel,
    )
    from tfasr.api import (
        AcousticModelConfig as AcousticModelConfig,
    )
    from tfasr.api import (
        Alphabet as Alphabet,
    )
    from tfasr.api import (
        AugmentationConfig as AugmentationConfig,
    )
    from tfasr.api import (
        Comparison as Comparison,
    )
    from tfasr.api import (
        DecoderConfig as DecoderConfig,
    )
    from tfasr.api import (
        ErrorCounts as ErrorCounts,
    )
    from tfasr.api import (
        EvaluationResult as EvaluationResult,
    )
    from tfasr.api import (
        Experiment as Experiment,
    )
    from tfasr.api import (
        FeatureConfig as FeatureConfig,
    )
    from tfasr.api import (
        HardwareConfig as HardwareConfig,
    )
    from tfasr.api import (
        Hypothesis as Hypothesis,
    )
    from tfasr.api import (
        Ledger as Ledger,
    )
    from tfasr.api import (
        LoadedConfig as LoadedConfig,
    )
    from tfasr.api import (
        PipelineConfig as PipelineConfig,
    )
    from tfasr.api import (
        Run as Run,
    )
    from tfasr.api import (
        RunError as RunError,
    )
    from tfasr.api import (
        ShardConfig as ShardConfig,
    )
    from tfasr.api import (
        TrainingConfig as TrainingConfig,
    )
    from tfasr.api import (
        UsageError as UsageError,
    )
    from tfasr.api import (
        WordBeamSearch as WordBeamSearch,
    )
    from tfasr.api import (
        compare as compare,
    )
    from tfasr.api import (
        compute_features as compute_features,
    )
    from tfasr.api import (
        count_errors as count_errors,
    )
    from tfasr.api import (
        evaluate as evaluate,
    )
    from tfasr.api import (
        load_config as load_config,
    )
    from tfasr.api import (
        load_plugin as load_plugin,
    )
    from tfasr.api import (
        load_run as load_run,
    )
    from tfasr.api import (
        open_split as open_split,
    )
    from tfasr.api import (
        prepare as prepare,
    )
    from tfasr.api import (
        read_events as read_events,
    )
    from tfasr.api import (
    )
    from tfasr.api import (
        train as train,
    )

_HOME = {
    "AcousticModel": "tfasr.models.acoustic_model",
    "AcousticModelConfig": "tfasr.models.acoustic_model",
    "Alphabet": "tfasr.alphabet",
    "AugmentationConfig": "tfasr.data.augmentation",
    "Comparison": "tfasr.report.compare",
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
    "compare": "tfasr.report.compare",
    "compute_features": "tfasr.data.features",
    "count_errors": "tfasr.metrics",
    "evaluate": "tfasr.training.trained",
    "load_config": "tfasr.training.from_gin",
    "load_plugin": "tfasr.plugins",
    "load_run": "tfasr.tta.load",
    "open_split": "tfasr.data.shards",
    "prepare": "tfasr.data.prepare_corpus",
    "read_events": "tfasr.ledger",
    "train": "tfasr.training.train",
}

__all__ = ["__version__", *_HOME]


if not TYPE_CHECKING:  # a name that is not listed above is an error to a type checker

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'tfasr' has no attribute {name!r}. It has: {__all__}.")
        return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
