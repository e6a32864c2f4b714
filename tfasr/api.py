"""What ``import tfasr`` shows, with its types.

`tfasr` itself imports each of these when it is first used, so that a program that only reads runs
does not load TensorFlow; type checkers and editors read them here.
"""

from tfasr._version import __version__
from tfasr.alphabet import Alphabet
from tfasr.data.augmentation import AugmentationConfig
from tfasr.data.feature_config import FeatureConfig
from tfasr.data.features import compute_features
from tfasr.data.pipeline import PipelineConfig
from tfasr.data.prepare_corpus import prepare
from tfasr.data.shards import ShardConfig, open_split
from tfasr.decoding.choice import DecoderConfig
from tfasr.decoding.decoder import Hypothesis
from tfasr.decoding.word_beam_search import WordBeamSearch
from tfasr.errors import RunError, UsageError
from tfasr.ledger import Ledger, read_events
from tfasr.metrics import ErrorCounts, count_errors
from tfasr.models.acoustic_model import AcousticModel, AcousticModelConfig
from tfasr.plugins import load_plugin
from tfasr.recognising.endpoints import EndpointRules
from tfasr.recognising.load import load_recogniser
from tfasr.recognising.recogniser import Recogniser
from tfasr.recording.recorder import Recorder
from tfasr.reports.compare import Comparison, compare
from tfasr.reports.write import report
from tfasr.studies.perform import study
from tfasr.training.evaluation import EvaluationResult
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.from_gin import LoadedConfig, load_config
from tfasr.training.train import train
from tfasr.training.trained import evaluate
from tfasr.tta.costs.hardware import HardwareConfig
from tfasr.tta.load import load_run
from tfasr.tta.metrics import Metric
from tfasr.tta.run import Run

__all__ = [
    "__version__",
    "AcousticModel",
    "AcousticModelConfig",
    "Alphabet",
    "AugmentationConfig",
    "Comparison",
    "DecoderConfig",
    "EndpointRules",
    "ErrorCounts",
    "EvaluationResult",
    "Experiment",
    "FeatureConfig",
    "HardwareConfig",
    "Hypothesis",
    "Ledger",
    "LoadedConfig",
    "Metric",
    "PipelineConfig",
    "Recogniser",
    "Recorder",
    "Run",
    "RunError",
    "ShardConfig",
    "TrainingConfig",
    "UsageError",
    "WordBeamSearch",
    "compare",
    "compute_features",
    "count_errors",
    "evaluate",
    "load_config",
    "load_plugin",
    "load_recogniser",
    "load_run",
    "open_split",
    "prepare",
    "read_events",
    "report",
    "study",
    "train",
]
