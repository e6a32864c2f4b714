"""The public names of ``import tfasr``, one import a line; they are listed nowhere else.

`tfasr` parses these lines and imports each name when it is first used, so that a
program that only reads runs does not load TensorFlow. Type checkers and editors read
them as ordinary imports.
"""

from tfasr._version import __version__ as __version__
from tfasr.adapters.evaluation import BeamSearchEvaluation as BeamSearchEvaluation
from tfasr.alphabet import Alphabet as Alphabet
from tfasr.data.augmentation import AugmentationConfig as AugmentationConfig
from tfasr.data.batches import PipelineConfig as PipelineConfig
from tfasr.data.features import FeatureConfig as FeatureConfig
from tfasr.data.features import compute_features as compute_features
from tfasr.data.prepare_corpus import prepare as prepare
from tfasr.data.shards import ShardConfig as ShardConfig
from tfasr.data.shards import open_split as open_split
from tfasr.decoding.choice import DecoderConfig as DecoderConfig
from tfasr.decoding.decoder import Hypothesis as Hypothesis
from tfasr.decoding.word_beam_search import WordBeamSearch as WordBeamSearch
from tfasr.errors import RunError as RunError
from tfasr.errors import UsageError as UsageError
from tfasr.estimates.estimate import Estimate as Estimate
from tfasr.estimates.estimate import estimate as estimate
from tfasr.kit.registry import load_plugin as load_plugin
from tfasr.ledger.events import Ledger as Ledger
from tfasr.ledger.events import read_events as read_events
from tfasr.models.recurrent import AcousticModel as AcousticModel
from tfasr.models.recurrent import AcousticModelConfig as AcousticModelConfig
from tfasr.recognising.recogniser import Recogniser as Recogniser
from tfasr.recognising.recogniser import load_recogniser as load_recogniser
from tfasr.recognising.segments import EndpointRules as EndpointRules
from tfasr.recording.recorder import Recorder as Recorder
from tfasr.reports.write import Comparison as Comparison
from tfasr.reports.write import compare as compare
from tfasr.reports.write import report as report
from tfasr.scoring.errors import ErrorCounts as ErrorCounts
from tfasr.scoring.errors import count_errors as count_errors
from tfasr.studies.perform import study as study
from tfasr.training.evaluation import EvaluationResult as EvaluationResult
from tfasr.training.experiment import Experiment as Experiment
from tfasr.training.experiment import TrainingConfig as TrainingConfig
from tfasr.training.from_gin import LoadedConfig as LoadedConfig
from tfasr.training.from_gin import load_config as load_config
from tfasr.training.train import train as train
from tfasr.training.trained import evaluate as evaluate
from tfasr.tta.costs import HardwareConfig as HardwareConfig
from tfasr.tta.metrics import Metric as Metric
from tfasr.tta.run import Run as Run
from tfasr.tta.run import load_run as load_run
