"""The configs of an experiment, which are saved with its run.

An `Experiment` holds all settings of a run: one config for each of features, batches,
augmentation, model, decoder, and training (`TrainingConfig`). gin files fill it
(`tfasr.training.from_gin`), and the run's ``experiment.json`` keeps it.

`is_closed` compares an experiment with the paper's recipe. Which settings count is
written down in `tfasr.training.decisions`.
"""

import dataclasses
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import keras

from tfasr.alphabet import Alphabet
from tfasr.data.augmentation import AugmentationConfig
from tfasr.data.batches import PipelineConfig
from tfasr.data.features import FeatureConfig
from tfasr.decoding.choice import DECODERS, DecoderConfig
from tfasr.errors import UsageError
from tfasr.kit.config import (
    config_class,
    require,
    require_numbers,
    require_precision,
    require_within,
    to_json,
    trained,
)
from tfasr.kit.files import ALPHABET_FILE, EXPERIMENT_FILE, read_object, write_whole
from tfasr.models.model import (
    MODELS,
    ModelConfig,
    RecogniserConfig,
    model_from_json,
    model_source,
)
from tfasr.models.recurrent import AcousticModelConfig
from tfasr.training.decisions import Decides, settings_that_decide
from tfasr.tta.metrics import metric_named
from tfasr.tta.policies import WINDOW

# A device of this machine, by kind and number.
_DEVICE = re.compile(r"(cpu|gpu):\d{1,5}")
# The largest number of epochs, steps and the like: that of a 32-bit integer.
_MOST = 2**31 - 1


def zeiler_adadelta() -> keras.optimizers.Optimizer:
    """Makes AdaDelta as published, with a learning rate of 1.

    Keras's default of 0.001 hardly learns.

    Source: M. Zeiler, ADADELTA: An Adaptive Learning Rate Method, 2012.
    """
    return keras.optimizers.Adadelta(learning_rate=1.0)


@config_class
class TrainingConfig:
    """How a model is trained, and when it is saved and evaluated.

    Attributes:
        epochs: the largest number of epochs.
        seed: of initial weights, dropout, the order of batches and augmentation.
        num_replicas: devices of this machine that share each batch under Keras's and
            TensorFlow's MirroredStrategy. 0 takes all GPUs, or the processors as one
            device. In a cluster, where each device has a separate process, it must be
            0 or 1.
        optimizer: a function that makes the Keras optimizer; called in the strategy's
            scope.
        loss: "ctc", or the name of a loss of your own in `tfasr.training.ctc.LOSSES`,
            which steps minimise and record. Evaluations still report the CTC loss, so
            that runs compare.
        precision: Keras's dtype policy of the layers, one of
            `tfasr.kit.config.trained`; "mixed_float16" scales the loss.
        start_from: the folder of a run, or of an export to Keras, whose weights this
            run begins with: those of layers with equal names and shapes, except for the
            output layer if the alphabet differs. "" begins with random weights.
            docs/training.md has the rules.
        zero_output_layer: whether the last layer's kernel begins at 0. Then no frame
            prefers a class before the first step. Fewer runs then stay for epochs on
            the plateau of high loss that CTC begins with (docs/recipes.md).
        intermediate_loss_weight: the weight of a second CTC loss, computed from a
            middle layer's outputs with the same last layer: 0.3 minimises 0.3 of it
            plus 0.7 of the usual loss. For models of at least two recurrent layers or
            Conformer blocks. Evaluations, recorded losses and the cost of inference do
            not change.
        intermediate_labels: what the middle layer learns: the "same" labels, or the
            "characters" of sub-word units. An utterance with too few output frames for
            its characters keeps the last layer's loss in their place. Source: R.
            Sanabria and F. Metze, Hierarchical multitask learning with CTC, SLT 2018.
        consistency_weight: 0 trains on each utterance once per epoch. Above 0 a step
            sees it twice, with different masks and dropout. It minimises the mean of
            both CTC losses, plus this weight times how far the two disagree: half the
            sum, over frames, of the Kullback-Leibler divergences of each one's class
            probabilities from the other's. A step takes about twice as long. Recorded
            losses don't include the disagreement.
        gradient_accumulation_steps: into how many parts a device's share of each batch
            is cut. They go through the model one after the other, which saves memory.
            Gradients are added up, clipped and applied once per global batch, so that
            steps and schedules do not change. Batch normalisation takes the statistics
            of each part.
        batch_norm_window_utterances: how far back the moving statistics of batch
            normalisation reach, whatever the batch size: a batch seen so many
            utterances ago weighs 1/e. Half the training split is the longest window. 0
            keeps the layers' momentum, 0.99 a step in Keras. Layers with a momentum
            other than their class's default always keep it, unless the model's config
            decides otherwise (`tfasr.models.model.keeps_momentum`).
        batch_norm_synchronised: whether batch normalisation takes its statistics over
            the whole batch, from all replicas and workers, instead of over each
            device's share.
        gradient_exchange: the type in which the workers of a cluster send and sum
            gradients. "bfloat16" halves the bytes: each worker rounds its gradients to
            8 bits of mantissa, and each partial sum is rounded again on its way round
            the workers. The sum is float32 again when it is clipped and applied;
            weights, the optimizer's state, losses and batch statistics are not rounded.
        exchange: how the workers of a cluster train together. "synchronous": they sum
            their gradients in every step. "local": each takes ``exchange_every_steps``
            steps on its share of the batches by itself, then all continue from the mean
            of their weights. "asynchronous": each worker's change is added when it
            arrives; a worker waits for the slowest only if it is more than one round
            ahead. "local" with rounds of one step trains like "synchronous". One
            process ignores this.
        exchange_every_steps: steps of a round; a checkpoint or the end of an epoch
            shortens it.
        evaluate_averaged: whether evaluations, and inference with the trained model,
            use averaged weights if the optimizer keeps them: with Keras's ``use_ema``,
            and with ScheduleFreeAdamW. Training continues with its own weights.
        averaged_statistics_utterances: how many training utterances, in whole batches,
            are used to estimate batch normalisation's moving statistics for the
            averaged weights: the same ones at every checkpoint until augmentation's
            masks begin or the batch size changes. 0 uses the statistics of training.
        sentences_every_steps: steps between prints of example sentences; 0 for none.
        checkpoint_every_steps: steps between checkpoints; every epoch ends with one
            too.
        keep_checkpoints: how many checkpoints are kept, in addition to the best.
        targets: pairs of a metric and the value to reach, such as ``(("cer", 0.1),)``:
            "cer", "cer_reference", "wer", "loss", or a metric of your own
            (docs/extending.md).
        target_window: how many epochs' median must meet a target; 1 is the first
            evaluation that meets it.
        evaluations_per_epoch: how many evaluations an epoch has, at equal distances in
            utterances; the last one is at the epoch's end, and 1 evaluates only there.
            Each evaluation saves a checkpoint first. A median of ``target_window``
            epochs is then over all evaluations of these epochs
            (`tfasr.tta.policies.evaluations_in`).
        evaluation_utterances: how many of the validation split's utterances every
            evaluation scores: always the same ones, drawn by the hashes of their ids. 0
            takes all of them.
        overlap_evaluation: whether training goes on while an epoch's hypotheses are
            decoded.
        evaluation_placement: where an epoch is evaluated. "shared": by the model that
            is trained. "swapped": by another model, loaded from the epoch's checkpoint,
            for which the training model leaves its devices, as in the paper. "beside":
            by another process, while training goes on. Scores and weights are the same
            for all three.
        evaluation_devices: the other process's devices for "beside", such as ("cpu:3",)
            or ("gpu:1",); training leaves such a GPU alone. By default all processors,
            and no GPU.
        second_decoder: a decoder, such as "word_beam", whose error rates every
            evaluation adds as "word_beam_wer" and so on; ``DecoderConfig`` sets its
            beam width and the like. Targets, the best checkpoint and comparability
            follow ``DecoderConfig.name``. "" for none.
        stop_at_targets: whether training ends as soon as all targets are met.
        stop_after_hours: training ends with the epoch in which so many hours have
            passed since the creation of the model. 0 for no limit.
        give_up_after_hours: the budget, in hours since the creation of the model:
            training ends at an epoch's end once it is spent, or once a forecast is 95 %
            certain that a target won't be met within it. 0 for no budget.

    Source: the paper, Figure 6 (states), section 4.4.2 (placement), section 4.1.2
    (median of three epochs), section 5.1 (targets, end); J. Lee and S. Watanabe,
    Intermediate Loss Regularization for CTC-based Speech Recognition, ICASSP 2021; Z.
    Yao et al., CR-CTC: Consistency regularization on CTC, ICLR 2025, section 3.2. S.
    Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019.
    """

    epochs: int = 30
    seed: int = 1
    num_replicas: int = 0
    optimizer: Callable = zeiler_adadelta
    loss: str = "ctc"
    precision: str = "float32"
    start_from: str = ""
    zero_output_layer: bool = False
    intermediate_loss_weight: float = 0.0
    intermediate_labels: Literal["same", "characters"] = "same"
    consistency_weight: float = 0.0
    gradient_accumulation_steps: int = 1
    batch_norm_window_utterances: int = 512
    batch_norm_synchronised: bool = False
    gradient_exchange: Literal["float32", "bfloat16"] = "float32"
    exchange: Literal["synchronous", "local", "asynchronous"] = "synchronous"
    exchange_every_steps: int = 16
    evaluate_averaged: bool = True
    averaged_statistics_utterances: int = 128
    sentences_every_steps: int = 50
    checkpoint_every_steps: int = 250
    keep_checkpoints: int = 2
    targets: tuple[tuple[str, float], ...] = ()
    target_window: int = WINDOW
    evaluations_per_epoch: int = 1
    evaluation_utterances: int = 0
    overlap_evaluation: bool = False
    evaluation_placement: Literal["swapped", "shared", "beside"] = "swapped"
    evaluation_devices: tuple[str, ...] = ()
    second_decoder: str = ""
    stop_at_targets: bool = False
    stop_after_hours: float = 0.0
    give_up_after_hours: float = 0.0

    @property
    def replicas(self) -> int:
        """``num_replicas``, with 1 in place of 0.

        `tfasr.training.build.on_devices` replaces a 0 before a run is built.
        """
        return max(self.num_replicas, 1)

    @property
    def views(self) -> int:
        """How many times a step sees each utterance."""
        return 2 if self.consistency_weight else 1

    def check(self) -> None:
        """Raises ValueError for a value out of range, or values that exclude each other."""
        require_precision(self, "precision", trained())
        require_within(
            self,
            1,
            epochs=_MOST,
            checkpoint_every_steps=_MOST,
            keep_checkpoints=_MOST,
            target_window=_MOST,
            gradient_accumulation_steps=_MOST,
            exchange_every_steps=_MOST,
            evaluations_per_epoch=1000,
        )
        require_within(self, 0, num_replicas=_MOST)
        require_numbers(
            self,
            "seed",
            "sentences_every_steps",
            "batch_norm_window_utterances",
            "averaged_statistics_utterances",
            "evaluation_utterances",
            zero=True,
        )

        # A model gives its layers the seeds from 1000 times this number on: 64 bits
        # must hold them.
        require(self.seed < 2**53, self, "seed", "below 2**53")
        self._check_losses()
        self._check_evaluation()
        self._check_targets()

    def _check_losses(self) -> None:
        weight = self.intermediate_loss_weight
        require(0 <= weight < 1, self, "intermediate_loss_weight", "in 0..1, below 1")
        require(
            weight > 0 or self.intermediate_labels == "same",
            self,
            "intermediate_labels",
            "same without an intermediate loss",
        )

        require(
            0 <= self.consistency_weight < math.inf,
            self,
            "consistency_weight",
            "at least 0, and finite",
        )

    def _check_evaluation(self) -> None:
        is_decoder = not self.second_decoder or self.second_decoder in DECODERS
        rule = f'"" or a known decoder: {DECODERS.listed()}'
        require(is_decoder, self, "second_decoder", rule)

        require(
            all(_DEVICE.fullmatch(name) for name in self.evaluation_devices),
            self,
            "evaluation_devices",
            'names such as "cpu:3" or "gpu:1"',
        )

        beside = self.evaluation_placement == "beside"
        used = beside or not self.evaluation_devices
        rule = 'empty unless the placement is "beside"'
        require(used, self, "evaluation_devices", rule)

        overlaps_twice = beside and self.overlap_evaluation
        rule = (
            'False where the placement is "beside", which overlaps all of an evaluation'
        )
        require(not overlaps_twice, self, "overlap_evaluation", rule)

    def _check_targets(self) -> None:
        for name in ("give_up_after_hours", "stop_after_hours"):
            require(
                0 <= getattr(self, name) < math.inf, self, name, "hours, 0 for no limit"
            )

        require(
            self.targets or not self.give_up_after_hours,
            self,
            "targets",
            "set, as give_up_after_hours needs them",
        )

        possible = all(_is_possible(metric, value) for metric, value in self.targets)
        rule = "pairs of a metric and a value, which for a rate is a fraction in 0..1"
        require(possible, self, "targets", rule)

    @property
    def in_rounds(self) -> bool:
        """Whether a cluster's workers take steps by themselves between exchanges."""
        if self.exchange == "local":
            return self.exchange_every_steps > 1

        return self.exchange == "asynchronous"


def _is_possible(metric: str, value: float) -> bool:
    """Whether a target's value can be reached, as far as its metric is known.

    Whether the metric exists is checked before training: reading a run needs no plug-in
    for it.
    """
    if not math.isfinite(value):
        return False

    return not metric_named(metric).rate or 0 <= value <= 1


def default_model() -> RecogniserConfig:
    """Returns the config of the model that is trained unless gin names another one."""
    return MODELS[ModelConfig().name]()


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All configs of a run. The defaults are the paper's recipe.

    That is its features, its model, AdaDelta at a rate of 1, and a word beam search
    with 256 beams in a model that is swapped in after every epoch. Two buffers are
    smaller, to spare memory: 4 batches are prefetched where Table 2 has 40, and readers
    shuffle among 40 utterances (the paper gives no number); ``paper_sys1.gin`` has
    Table 2's.
    """

    # What a frame holds.
    features: FeatureConfig = field(default_factory=FeatureConfig)
    # How batches are made.
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    # How training features are changed at random.
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    # From features to probabilities; of a class in `MODELS`.
    model: RecogniserConfig = field(default_factory=default_model)
    # From probabilities to text.
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    @property
    def second_decoder(self) -> DecoderConfig | None:
        """The config of the second decoder of evaluations, or None."""
        name = self.training.second_decoder
        return dataclasses.replace(self.decoder, name=name) if name else None

    @property
    def evaluated_utterances(self) -> int:
        """Utterances that a device evaluates at a time: twice those that it trains on.

        Larger batches are faster, and fit: without gradients, a step keeps less of each
        utterance.
        """
        training = self.training
        parts = training.replicas * training.gradient_accumulation_steps
        return 2 * math.ceil(max(self.pipeline.batch_sizes) / parts)

    def to_json(self) -> dict:
        """Returns the configs as JSON.

        The optimizer is given with its settings, and the model with its name and
        module.
        """
        content = {
            group.name: to_json(getattr(self, group.name))
            for group in dataclasses.fields(self)
        }
        content["recogniser"] = model_source(self.model)
        # What JSON doesn't know, such as NumPy's numbers, is written as text.
        optimizer = json.dumps(self.training.optimizer().get_config(), default=str)
        content["training"]["optimizer"] = json.loads(optimizer)

        return content

    def save(self, run_dir: Path, alphabet: Alphabet) -> None:
        """Writes the configs and the alphabet into a run's folder."""
        write_whole(
            run_dir / EXPERIMENT_FILE, json.dumps(self.to_json(), indent=1) + "\n"
        )
        alphabet.save(run_dir / ALPHABET_FILE)

    @classmethod
    def load(cls, run_dir: Path) -> "Experiment":
        """Reads a run's configs back, except for the optimizer, which stays the default.

        Raises UsageError if the folder holds no run, or its model is not registered.
        """
        path = run_dir / EXPERIMENT_FILE
        if not path.is_file():
            raise UsageError(
                f"--run_dir must be a folder that tfasr train wrote. Received: {run_dir}, which "
                f"has no {EXPERIMENT_FILE}."
            )

        remedy = "Copy it from where the run was: it holds the configuration."
        content = read_object(path, remedy, ("training",))

        try:
            return cls.from_json(content)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise UsageError(
                f"{path} must hold a run's configs: {error}. {remedy}"
            ) from None

    @classmethod
    def from_json(cls, content: dict) -> "Experiment":
        """Reads what `to_json` returned; the optimizer stays the default."""
        content = {name: dict(group) for name, group in content.items()}
        del content["training"]["optimizer"]

        model = model_from_json(content.pop("recogniser"), content.pop("model"))
        classes = {
            group.name: group.default_factory for group in dataclasses.fields(cls)
        }
        configs = {name: classes[name](**values) for name, values in content.items()}

        return cls(model=model, **configs)


# The division of a run, among the facts that must be equal for runs to be ranked.
CLOSED = "closed: the paper's features, model and optimizer"

# The sizes of ``paper_demo.gin``. The longest of its utterances has 238 frames.
_DEMO_MODEL = {"conv_filters": 128, "num_lstm_layers": 2, "lstm_units": 128}
_DEMO_FRAMES = 240

# In place of a setting that a config doesn't have.
_ABSENT = object()


def paper_recipe() -> Experiment:
    """Returns the recipe of the closed division, with the paper's values.

    Where the paper states no value (the features' normalisation and the edges of the
    mel filters), it is tfasr's default.

    Source: the paper (arXiv 2003.12366), sections 2.1, 2.2.5, 4.4.1 and 4.4.3.
    """
    return Experiment(
        features=FeatureConfig(spectrum="magnitude"),
        pipeline=PipelineConfig(padding="fixed"),
        model=AcousticModelConfig(),
        training=TrainingConfig(optimizer=zeiler_adadelta),
    )


def open_settings(experiment: Experiment) -> list[str]:
    """Names the settings in which an experiment differs from the closed division's.

    An example is "training.optimizer".
    """
    paper = paper_recipe()
    different = []

    for group in dataclasses.fields(Experiment):
        ours = _recipe(getattr(experiment, group.name))
        theirs = _recipe(getattr(paper, group.name))
        different += [
            f"{group.name}.{name}"
            for name in {**theirs, **ours}
            if ours.get(name, _ABSENT) != theirs.get(name, _ABSENT)
        ]

    return different


def is_closed(experiment: Experiment) -> bool:
    """Whether the paper's recipe is trained, so that times differ only by machines.

    What `tfasr.training.decisions` calls the recipe must have the paper's value:
    features, padding, model with its dropout, AdaDelta as published without a schedule,
    random initial weights, no augmentation. Free are batch size and devices, in which
    the paper's systems differ, seed and shuffle buffer, which the paper doesn't state,
    and precision, by our choice: the paper has float32 throughout. Decoder and targets
    are free as well, since they are measurement. `tfasr demo` trains the recipe at a
    smaller size, which counts too (`at_demo_size`).
    """
    return not open_settings(_at_papers_size(experiment))


def in_closed_division(experiment: Experiment) -> bool:
    """Whether the paper's recipe is trained at the paper's size.

    Only such runs are ranked among themselves. The demo's times say nothing about the
    paper's systems, so reports rank them with those of other recipes for the same
    speech.
    """
    return is_closed(experiment) and not at_demo_size(experiment)


def at_demo_size(experiment: Experiment) -> bool:
    """Whether model and padding have the sizes of ``paper_demo.gin``."""
    sizes = {name: getattr(experiment.model, name, None) for name in _DEMO_MODEL}

    return sizes == _DEMO_MODEL and experiment.pipeline.max_frames == _DEMO_FRAMES


def _at_papers_size(experiment: Experiment) -> Experiment:
    """Gives an experiment of the demo's size the paper's; others stay as they are."""
    if not at_demo_size(experiment):
        return experiment

    paper = paper_recipe()

    sizes = {name: getattr(paper.model, name) for name in _DEMO_MODEL}
    model = dataclasses.replace(experiment.model, **sizes)
    pipeline = dataclasses.replace(
        experiment.pipeline, max_frames=paper.pipeline.max_frames
    )

    return dataclasses.replace(experiment, model=model, pipeline=pipeline)


def _recipe(config: object) -> dict[str, object]:
    """Returns the values of a config that belong to the recipe."""
    values = settings_that_decide(config, Decides.RECIPE)
    if isinstance(config, TrainingConfig):
        values["optimizer"] = _update_rule(config.optimizer())
        # They do nothing without an optimizer that averages weights, which the paper's
        # isn't.
        del values["evaluate_averaged"], values["averaged_statistics_utterances"]

    values["class"] = type(config)
    return values


def _update_rule(optimizer: keras.optimizers.Optimizer) -> dict:
    """Returns an optimizer's class and settings, without its name."""
    config = keras.optimizers.serialize(optimizer)["config"]
    del config["name"]
    return {"class": type(optimizer).__name__, **config}
